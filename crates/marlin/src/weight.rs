//! A weight in Marlin's layout, whose operands are checked.

use crate::error::{Error, exactly};
use half::f16;
use half::slice::HalfFloatSliceExt;
use latent_kernels::{W4Codes, W4Matrix, W4Scales, W4Shape};

/// The type of 4-bit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantType {
    /// E2M1 floats: sign, two exponent bits, one mantissa bit. The values are 0, 0.5, 1, 1.5, 2, 3,
    /// 4, 6 and their negatives; −0 decodes to 0.
    Fp4,
    /// Unsigned integers with zero points: value = (code − zero point) · scale.
    Int4,
    /// Unsigned integers with the zero point 8: value = (code − 8) · scale.
    Int4Sym,
}

impl QuantType {
    /// All types.
    pub const ALL: [QuantType; 3] = [QuantType::Fp4, QuantType::Int4, QuantType::Int4Sym];

    /// Its name: `fp4`, `int4`, `int4_sym`.
    pub fn name(self) -> &'static str {
        match self {
            QuantType::Fp4 => "fp4",
            QuantType::Int4 => "int4",
            QuantType::Int4Sym => "int4_sym",
        }
    }
}

/// Group scales, row-major `[K / group, N]`.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    /// f16.
    F16(&'a [f16]),
    /// E8M0 (MXFP4): 2^(code − 127); 255 is NaN.
    E8m0(&'a [u8]),
    /// F8_E4M3 (NVFP4), multiplied by the scale of the tensor.
    E4m3(&'a [u8], f32),
}

/// Sizes of a weight `[K, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Input features, a multiple of 8 and of the group.
    pub k: usize,
    /// Output features.
    pub n: usize,
    /// Inputs that share a scale.
    pub group: usize,
}

impl Shape {
    /// Checks K, the group and the number of elements.
    pub(crate) fn check(self) -> Result<Shape, Error> {
        let Shape { k, n, group } = self;
        if !k.is_multiple_of(8) {
            return Err(Error::WordSize { k });
        }
        if group == 0 || !k.is_multiple_of(group) {
            return Err(Error::Group { k, group });
        }
        k.checked_mul(n).map(|_| self).ok_or(Error::Overflow { what: "a weight", rows: k, cols: n })
    }

    /// The number of groups along K.
    pub fn groups(self) -> usize {
        // The fields are public, so the group may be 0 before `check`.
        self.k.checked_div(self.group).unwrap_or(0)
    }
}

/// A weight `[K, N]` of 4-bit codes: y = x · W.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    quant: QuantType,
    matrix: W4Matrix<'a>,
}

impl<'a> Weight<'a> {
    /// Wraps words `[K/8, N]`, scales `[K/group, N]` and, for [`QuantType::Int4`], zero points
    /// `[K/group, N]`. The lowest four bits of a word are the first of its eight codes along K.
    ///
    /// # Errors
    /// If K is not a multiple of 8 and of the group, the length of an operand does not match the
    /// shape, or zero points are missing, not expected, or above 16.
    pub fn new(
        quant: QuantType,
        shape: Shape,
        words: &'a [u32],
        scales: Scales<'a>,
        zeros: Option<&'a [u8]>,
    ) -> Result<Weight<'a>, Error> {
        let Shape { k, n, group } = shape.check()?;
        let per_group = (shape.groups(), n);
        exactly("the packed weight", (k / 8, n), words.len())?;
        let scales = match scales {
            Scales::F16(scales) => W4Scales::F16(scales.reinterpret_cast()),
            Scales::E8m0(codes) => W4Scales::E8m0(codes),
            Scales::E4m3(codes, tensor) => W4Scales::E4m3 { codes, tensor },
        };
        let found = match scales {
            W4Scales::F16(scales) => scales.len(),
            W4Scales::E8m0(codes) | W4Scales::E4m3 { codes, .. } => codes.len(),
        };
        exactly("the scales", per_group, found)?;
        let codes = match (quant, zeros) {
            (QuantType::Fp4, None) => W4Codes::E2m1,
            (QuantType::Int4Sym, None) => W4Codes::Int4Sym,
            (QuantType::Int4, Some(zeros)) => {
                exactly("the zero points", per_group, zeros.len())?;
                W4Codes::Int4 { zeros }
            }
            _ => return Err(Error::Zeros { quant: quant.name(), needed: quant == QuantType::Int4 }),
        };
        let matrix = W4Matrix::new(W4Shape { k, n, group }, words, scales, codes);
        // The kernels' error does not say which zero point is wrong: it is looked up here.
        let too_large = || zeros?.iter().position(|zero| *zero > 16).zip(zeros);
        let matrix = matrix.map_err(|refused| match too_large() {
            Some((at, zeros)) => Error::ZeroPoint { group: at / n, col: at % n, value: zeros[at] },
            None => refused.into(),
        })?;
        Ok(Weight { quant, matrix })
    }

    /// The type of its codes.
    pub fn quant(&self) -> QuantType {
        self.quant
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        let W4Shape { k, n, group } = self.matrix.shape();
        Shape { k, n, group }
    }

    /// Bytes of words, scales and zero points. A product with one row reads each of them once.
    pub fn bytes(&self) -> usize {
        self.matrix.bytes()
    }

    /// The weight as kernels take it.
    pub(crate) fn matrix(&self) -> &W4Matrix<'a> {
        &self.matrix
    }
}
