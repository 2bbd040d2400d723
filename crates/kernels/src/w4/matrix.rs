//! 4-bit weights in the layout of Marlin: words of eight codes along K, and a scale per group.

use super::scales::W4Scales;
use crate::shape::{ShapeError, times};

/// The values of the sixteen codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum W4Codes<'a> {
    /// E2M1 floats: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then their negatives.
    E2m1,
    /// Unsigned integers with the zero point 8.
    Int4Sym,
    /// Unsigned integers with a zero point per group and column: value = (code − zero) · scale.
    Int4 {
        /// Row-major `[K / group, N]`, each from 0 to 16.
        zeros: &'a [u8],
    },
}

/// Twice the values of the E2M1 codes.
const E2M1_DOUBLED: [i8; 16] = latent_quant::e2m1::DOUBLED;
const FROM_ZERO: [i8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const FROM_MINUS_EIGHT: [i8; 16] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];

impl W4Codes<'_> {
    /// An integer per code, and the factor that turns it into the code's value.
    pub(super) fn values(&self) -> (&'static [i8; 16], f32) {
        match self {
            W4Codes::E2m1 => (&E2M1_DOUBLED, 0.5),
            W4Codes::Int4Sym => (&FROM_MINUS_EIGHT, 1.0),
            W4Codes::Int4 { .. } => (&FROM_ZERO, 1.0),
        }
    }
}

/// Largest zero point. GPTQ files store zero points minus one, so 16 occurs.
const MAX_ZERO: u8 = 16;

pub(super) const WORD: usize = 8;

/// Sizes of a matrix of 4-bit weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct W4Shape {
    /// Input features: a multiple of 8.
    pub k: usize,
    /// Output features.
    pub n: usize,
    /// Inputs that share a scale; divides K.
    pub group: usize,
}

/// A checked matrix `[K, N]` of 4-bit weights: y = x · W.
#[derive(Clone, Copy, Debug)]
pub struct W4Matrix<'a> {
    shape: W4Shape,
    words: &'a [u32],
    scales: W4Scales<'a>,
    codes: W4Codes<'a>,
}

impl<'a> W4Matrix<'a> {
    /// Wraps words `[K/8, N]`, whose lowest bits are the first of eight codes along K, and scales
    /// `[K/group, N]`.
    ///
    /// # Errors
    /// When K is not a multiple of 8 or of the group, the length of a slice does not match its
    /// shape, or a zero point is above 16.
    pub fn new(
        shape: W4Shape,
        words: &'a [u32],
        scales: W4Scales<'a>,
        codes: W4Codes<'a>,
    ) -> Result<W4Matrix<'a>, ShapeError> {
        let W4Shape { k, n, group } = shape;
        let range = |what, value, expected| Err(ShapeError::Range { what, value, expected });
        if !k.is_multiple_of(WORD) {
            return range("K", k, "a multiple of 8");
        }
        if group == 0 || !k.is_multiple_of(group) {
            return range("the group", group, "a divisor of K");
        }
        let exactly = |what, needed, found| match needed == found {
            true => Ok(()),
            false => Err(ShapeError::Length { what, needed, found }),
        };
        // The number of elements must not overflow, so that no index of a kernel does.
        times("a matrix of 4-bit weights", k, n)?;
        exactly("a matrix of 4-bit weights", k / WORD * n, words.len())?;
        exactly("a matrix of group scales", k / group * n, scales.len())?;
        if let W4Codes::Int4 { zeros } = codes {
            exactly("a matrix of zero points", k / group * n, zeros.len())?;
            // A fold without early exit, which vectorizes. Callers may create a view for every
            // product.
            let largest = zeros.iter().fold(0, |largest, zero| largest.max(*zero));
            if largest > MAX_ZERO {
                return range("a zero point", usize::from(largest), "0 to 16");
            }
        }
        Ok(W4Matrix { shape, words, scales, codes })
    }

    pub fn shape(&self) -> W4Shape {
        self.shape
    }

    pub fn words(&self) -> &'a [u32] {
        self.words
    }

    /// The group scales.
    pub fn scales(&self) -> W4Scales<'a> {
        self.scales
    }

    /// The values of the codes.
    pub fn codes(&self) -> W4Codes<'a> {
        self.codes
    }

    /// Bytes of words, scales and zero points.
    pub fn bytes(&self) -> usize {
        let zeros = if let W4Codes::Int4 { zeros } = self.codes { zeros.len() } else { 0 };
        4 * self.words.len() + self.scales.bytes() + zeros
    }
}
