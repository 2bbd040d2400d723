//! Cases of 4-bit weights with group scales (Marlin's operations): products, their reduction, and
//! dequantization.

use crate::float16::{f16_value, nearest};
use crate::random::Random;
use crate::reference::{BitIdentity, ErrorBound, ReferenceResults};
use crate::work::CallCost;
use latent_kernels::half::f16;
use latent_kernels::{W4Codes, W4Entry, W4Form, W4Matrix, W4Scales, W4Shape};
use latent_types::{Arithmetic, CacheType};

/// Meaning of the 4-bit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum W4Quant {
    /// E2M1 floats.
    Fp4,
    /// Unsigned integers with a zero point per group.
    Int4,
    /// Unsigned integers with zero point 8.
    Int4Sym,
}

impl W4Quant {
    pub(crate) const ALL: [W4Quant; 3] = [W4Quant::Fp4, W4Quant::Int4, W4Quant::Int4Sym];

    fn name(self) -> &'static str {
        match self {
            W4Quant::Fp4 => "fp4",
            W4Quant::Int4 => "int4",
            W4Quant::Int4Sym => "int4_sym",
        }
    }
}

/// Type of the group scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum W4ScaleType {
    F16,
    /// Powers of two, stored as exponents.
    E8m0,
    /// F8_E4M3 times this tensor scale.
    E4m3(f32),
}

impl W4ScaleType {
    fn name(self) -> String {
        match self {
            W4ScaleType::F16 => "f16".into(),
            W4ScaleType::E8m0 => "e8m0".into(),
            W4ScaleType::E4m3(tensor) => format!("e4m3·{tensor}"),
        }
    }
}

/// Rounding of a kernel's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum W4Rounding {
    /// Not rounded.
    F32,
    Bf16,
    /// 16-bit integers with a scale per 32 inputs.
    Int16,
    /// 8-bit integers with a scale per 32 inputs.
    Int8,
}

impl W4Rounding {
    pub(crate) fn of(form: W4Form) -> W4Rounding {
        match form {
            W4Form::F32 => W4Rounding::F32,
            W4Form::Pairs | W4Form::TileRows => W4Rounding::Bf16,
            W4Form::Int16 => W4Rounding::Int16,
            W4Form::Int8 => W4Rounding::Int8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            W4Rounding::F32 => "f32",
            W4Rounding::Bf16 => "bf16",
            W4Rounding::Int16 => "int16",
            W4Rounding::Int8 => "int8",
        }
    }

    /// Rounds inputs as a kernel does.
    fn round(self, x: &[f32]) -> Vec<f32> {
        let most = match self {
            W4Rounding::F32 => return x.to_vec(),
            W4Rounding::Bf16 => return x.iter().map(|x| nearest(CacheType::Bf16, *x)).collect(),
            // 127 · 257. Kernels split such an integer into 256 · upper + lower; this keeps the
            // upper byte in range.
            W4Rounding::Int16 => 32_639.0,
            W4Rounding::Int8 => 127.0,
        };
        let mut rounded = x.to_vec();
        for block in rounded.chunks_mut(INTEGER_BLOCK) {
            let largest = block.iter().fold(0.0f32, |largest, x| x.abs().max(largest));
            block.iter_mut().for_each(|x| *x = (*x * (most / largest)).round_ties_even() * (largest / most));
        }
        rounded
    }
}

/// An operation with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum W4Op {
    /// A product that decodes strips of the weight into the cache.
    Gemm(W4Rounding),
    /// A product that decodes codes in registers.
    Fused(W4Rounding),
    /// A product divided into tiles and this number of slices of K, which are then reduced.
    Striped(W4Rounding, usize),
    /// Dequantizes weights to f32.
    DequantF32,
    /// Dequantizes weights to f16.
    DequantF16,
    /// Sums this number of slices.
    Reduce(usize),
    /// Zeroes this number of slices of partial sums.
    Zero(usize),
}

impl W4Op {
    /// The entry of the kernel table that computes it.
    pub(crate) fn entry(self) -> W4Entry {
        match self {
            W4Op::Gemm(_) => W4Entry::Gemm,
            W4Op::Fused(_) => W4Entry::Fused,
            W4Op::Striped(..) => W4Entry::Striped,
            W4Op::DequantF32 | W4Op::DequantF16 => W4Entry::Dequant,
            W4Op::Reduce(_) => W4Entry::Reduce,
            W4Op::Zero(_) => W4Entry::Zero,
        }
    }

    /// Input rounding of a product.
    pub(crate) fn rounding(self) -> Option<W4Rounding> {
        match self {
            W4Op::Gemm(rounding) | W4Op::Fused(rounding) | W4Op::Striped(rounding, _) => Some(rounding),
            W4Op::DequantF32 | W4Op::DequantF16 | W4Op::Reduce(_) | W4Op::Zero(_) => None,
        }
    }
}

/// An operation with a weight `[K, N]` and the number of input rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct W4Case {
    pub op: W4Op,
    /// Meaning of the codes.
    pub quant: W4Quant,
    /// Type of the scales.
    pub scales: W4ScaleType,
    /// Number of rows of inputs or of partial sums.
    pub rows: usize,
    /// Sizes of the weight. Partial sums use only N.
    pub shape: W4Shape,
    /// Whether scales are the extremes of their type, each combined with all sixteen codes. Inputs
    /// are positive in that case.
    pub extreme: bool,
}

/// Group scales of all copies.
enum ScaleCopies {
    F16(Vec<u16>),
    E8m0(Vec<u8>),
    E4m3(Vec<u8>, f32),
}

/// The operands of a [`W4Case`].
pub struct W4Operands {
    words: Vec<u32>,
    scales: ScaleCopies,
    zeros: Vec<u8>,
    copies: usize,
    /// Inputs, or partial sums.
    pub x: Vec<f32>,
}

/// 0, −0, the smallest and the largest subnormal, the smallest normal, ±1, the largest value,
/// ±infinity and NaN.
const F16_EXTREMES: [u16; 11] =
    [0x0000, 0x8000, 0x0001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0x7c00, 0xfc00, 0x7e00];

/// 2^-127 (subnormal in f32) to 2^127, and NaN.
const E8M0_EXTREMES: [u8; 7] = [0, 1, 2, 127, 253, 254, 255];

/// As for f16. E4M3 has no infinity.
const E4M3_EXTREMES: [u8; 10] = [0x00, 0x80, 0x01, 0x07, 0x08, 0x38, 0xb8, 0x7e, 0x7f, 0xff];

/// Number of integer inputs that share a scale.
const INTEGER_BLOCK: usize = 32;

impl W4Case {
    /// Number of columns that covers all extremes of this type.
    pub(crate) fn extreme_columns(scales: W4ScaleType) -> usize {
        16 * match scales {
            W4ScaleType::F16 => F16_EXTREMES.len(),
            W4ScaleType::E8m0 => E8M0_EXTREMES.len(),
            W4ScaleType::E4m3(_) => E4M3_EXTREMES.len(),
        }
    }

    pub(crate) fn operation(&self) -> &'static str {
        match self.op.entry() {
            W4Entry::Gemm => "w4_gemm",
            W4Entry::Fused => "w4_fused",
            W4Entry::Striped => "w4_striped",
            W4Entry::Dequant => "w4_dequant",
            W4Entry::Reduce => "w4_reduce",
            W4Entry::Zero => "w4_zero",
        }
    }

    /// Format, and type of the inputs (of the outputs for dequantization).
    pub(crate) fn formats(&self) -> (&'static str, &'static str) {
        let codes = self.quant.name();
        match self.op {
            W4Op::Gemm(rounding) | W4Op::Fused(rounding) | W4Op::Striped(rounding, _) => {
                (codes, rounding.name())
            }
            W4Op::DequantF32 => (codes, "f32"),
            W4Op::DequantF16 => (codes, "f16"),
            W4Op::Reduce(_) | W4Op::Zero(_) => ("f32", "f32"),
        }
    }

    pub(crate) fn name(&self) -> String {
        let W4Shape { k, n, group } = self.shape;
        let (op, (codes, input)) = (self.operation(), self.formats());
        let weight = format!("{codes} {}", self.scales.name());
        let (m, extreme) = (self.rows, if self.extreme { ", extremes" } else { "" });
        match self.op {
            W4Op::Gemm(_) | W4Op::Fused(_) => {
                format!("{op}({weight}, {input}, m={m}, k={k}, n={n}, group={group}{extreme})")
            }
            W4Op::Striped(_, slices) => {
                format!(
                    "{op}({weight}, {input}, m={m}, k={k}, n={n}, group={group}, slices={slices}{extreme})"
                )
            }
            W4Op::DequantF32 | W4Op::DequantF16 => {
                format!("{op}({weight}, {input}, k={k}, n={n}, group={group}{extreme})")
            }
            W4Op::Reduce(slices) | W4Op::Zero(slices) => {
                format!("{op}({input}, m={m}, n={n}, slices={slices})")
            }
        }
    }

    pub(crate) fn bound(&self) -> ErrorBound {
        // E4M3 scales are multiplied by the scale of the tensor, which rounds once more.
        let exact_scales = !matches!(self.scales, W4ScaleType::E4m3(_));
        let (error, reason) = match self.op {
            W4Op::Gemm(_) | W4Op::Fused(_) | W4Op::Striped(..) => {
                (1e-6, "f32 sums of groups (of integers: exact), then of these times their scales")
            }
            W4Op::DequantF32 if exact_scales => (0.0, "all codes times a scale are exact in f32"),
            W4Op::DequantF16 if exact_scales => (0.0, "rounded to the nearest f16"),
            W4Op::DequantF32 => (0.25e-6, "two roundings in f32"),
            W4Op::DequantF16 => (1e-3, "two roundings in f32, one to f16"),
            W4Op::Reduce(_) => (1e-6, "f32 sums in the order of the slices"),
            W4Op::Zero(_) => (0.0, "zeros"),
        };
        let same_bits = match self.op {
            W4Op::Gemm(W4Rounding::Bf16) | W4Op::Striped(W4Rounding::Bf16, _) => BitIdentity::None,
            W4Op::Gemm(_) | W4Op::Fused(_) | W4Op::Striped(..) => BitIdentity::AboveLowest,
            _ => BitIdentity::All,
        };
        ErrorBound { error, same_bits, reason }
    }

    pub(crate) fn work(&self) -> CallCost {
        let W4Shape { k, n, group } = self.shape;
        let groups = k / group * n;
        let weight = k * n / 2
            + groups * if self.scales == W4ScaleType::F16 { 2 } else { 1 }
            + groups * usize::from(self.quant == W4Quant::Int4);
        let sums = self.rows * n;
        let (bytes, flops, from_memory) = match self.op {
            W4Op::Gemm(_) | W4Op::Fused(_) | W4Op::Striped(..) => (weight, 2 * sums * k, true),
            W4Op::DequantF32 => (weight + 4 * k * n, k * n, true),
            W4Op::DequantF16 => (weight + 2 * k * n, k * n, true),
            W4Op::Reduce(slices) => (4 * sums * (slices + 1), sums * slices, false),
            W4Op::Zero(slices) => (4 * sums * slices, 0, false),
        };
        let arithmetic = match self.op.rounding() {
            Some(W4Rounding::Bf16) => Arithmetic::Bf16,
            Some(W4Rounding::Int16 | W4Rounding::Int8) => Arithmetic::Int8,
            Some(W4Rounding::F32) | None => Arithmetic::F32,
        };
        CallCost { bytes: bytes as f64, flops: flops as f64, arithmetic, from_memory }
    }

    /// Whether the kernel selects its ISA by a process-wide limit.
    pub(crate) fn limits_process(&self) -> bool {
        matches!(self.op, W4Op::Reduce(_) | W4Op::Zero(_))
    }

    pub(crate) fn operands(&self, copies: usize) -> W4Operands {
        let W4Shape { k, n, group } = self.shape;
        let random = &mut Random::new((self.rows * 1000 + k + n + group) as u64);
        let partials = match self.op {
            W4Op::Reduce(slices) | W4Op::Zero(slices) => slices * self.rows * n,
            _ => 0,
        };
        if partials > 0 {
            let (words, scales, zeros) = (vec![], ScaleCopies::F16(vec![]), vec![]);
            return W4Operands { words, scales, zeros, copies: 1, x: random.numbers(partials) };
        }
        let inputs = if self.op.rounding().is_some() { self.rows * k } else { 0 };
        // Positive inputs keep sums of extremes from cancelling, so that overflow and NaN are
        // predictable.
        let x = random.numbers(inputs).into_iter().map(|x| if self.extreme { x.abs() + 0.5 } else { x });
        let x = x.collect();
        let groups = k / group * n;
        let words: Vec<u32> = match self.extreme {
            // All eight codes of a word are equal: 16 neighbouring columns cover all codes with one
            // scale.
            true => (0..k / 8 * n).map(|i| (i % n % 16) as u32 * 0x1111_1111).collect(),
            false => (0..k / 8 * n).map(|_| random.bits()).collect(),
        };
        // Zero points are 0 to 16.
        let zeros: Vec<u8> = match (self.quant, self.extreme) {
            (W4Quant::Int4, true) => (0..groups).map(|i| (i % n % 17) as u8).collect(),
            (W4Quant::Int4, false) => (0..groups).map(|_| (random.bits() % 17) as u8).collect(),
            _ => Vec::new(),
        };
        let column = |i: usize| i % n / 16;
        let scales = match (self.scales, self.extreme) {
            (W4ScaleType::F16, true) => {
                ScaleCopies::F16((0..groups).map(|i| F16_EXTREMES[column(i) % F16_EXTREMES.len()]).collect())
            }
            (W4ScaleType::F16, false) => {
                ScaleCopies::F16((0..groups).map(|_| f16::from_f32(random.number()).to_bits()).collect())
            }
            (W4ScaleType::E8m0, true) => ScaleCopies::E8m0(
                (0..groups).map(|i| E8M0_EXTREMES[column(i) % E8M0_EXTREMES.len()]).collect(),
            ),
            (W4ScaleType::E8m0, false) => {
                // 2^-7 to 1, so that sums stay in the range of f32.
                ScaleCopies::E8m0((0..groups).map(|_| (120 + random.bits() % 8) as u8).collect())
            }
            (W4ScaleType::E4m3(tensor), true) => {
                let codes = (0..groups).map(|i| E4M3_EXTREMES[column(i) % E4M3_EXTREMES.len()]);
                ScaleCopies::E4m3(codes.collect(), tensor)
            }
            // Codes below 0x7f, which is NaN.
            (W4ScaleType::E4m3(tensor), false) => {
                ScaleCopies::E4m3((0..groups).map(|_| (random.bits() % 0x7f) as u8).collect(), tensor)
            }
        };
        let scales = match scales {
            ScaleCopies::F16(bits) => ScaleCopies::F16(bits.repeat(copies)),
            ScaleCopies::E8m0(codes) => ScaleCopies::E8m0(codes.repeat(copies)),
            ScaleCopies::E4m3(codes, tensor) => ScaleCopies::E4m3(codes.repeat(copies), tensor),
        };
        W4Operands { words: words.repeat(copies), scales, zeros: zeros.repeat(copies), copies, x }
    }

    pub(crate) fn truth(&self, operands: &W4Operands) -> ReferenceResults {
        match self.op {
            W4Op::Gemm(rounding) | W4Op::Fused(rounding) | W4Op::Striped(rounding, _) => {
                self.products(operands, rounding)
            }
            W4Op::DequantF32 | W4Op::DequantF16 => self.decoded(operands),
            W4Op::Reduce(slices) => {
                let mut truth = ReferenceResults::default();
                let sums = self.rows * self.shape.n;
                for at in 0..sums {
                    let terms = (0..slices).map(|slice| f64::from(operands.x[slice * sums + at]));
                    truth.push(terms.clone().sum(), terms.map(f64::abs).sum());
                }
                truth
            }
            W4Op::Zero(_) => {
                let mut truth = ReferenceResults::default();
                operands.x.iter().for_each(|_| truth.exact(0.0));
                truth
            }
        }
    }

    fn products(&self, operands: &W4Operands, rounding: W4Rounding) -> ReferenceResults {
        let W4Shape { k, n, group } = self.shape;
        let weights: Vec<(f64, f64)> = (0..k * n).map(|at| operands.weight(self, at / n, at % n)).collect();
        let mut truth = ReferenceResults::default();
        for x in operands.x.chunks_exact(k) {
            let x = rounding.round(x);
            for col in 0..n {
                let (mut sum, mut size) = (0.0, 0.0);
                for i in 0..k {
                    let (value, scale) = weights[i * n + col];
                    let zero = operands.zeros.get(i / group * n + col).map_or(0.0, |zero| f64::from(*zero));
                    sum += f64::from(x[i]) * value * scale;
                    size += (f64::from(x[i]) * scale * (value.abs() + zero)).abs();
                }
                match size.is_finite() {
                    // A kernel multiplies the scale with the sum of its group. Infinity times 0 is
                    // NaN, times another sum infinity.
                    false => truth.not_finite(),
                    true if sum.abs() > f64::from(f32::MAX) => truth.push(f64::INFINITY.copysign(sum), size),
                    // Results may be subnormal.
                    true => truth.push(sum, size + 1e-38),
                }
            }
        }
        truth
    }

    fn decoded(&self, operands: &W4Operands) -> ReferenceResults {
        let mut truth = ReferenceResults::default();
        for at in 0..self.shape.k * self.shape.n {
            let (value, scale) = operands.weight(self, at / self.shape.n, at % self.shape.n);
            // Exact in f64: codes have at most 5 bits, and scales at most 28 (4 of E4M3, times 24
            // of the tensor's scale).
            let exact = value * scale;
            let rounded = match self.op {
                W4Op::DequantF16 => f64::from(nearest(CacheType::F16, exact as f32)),
                _ => f64::from(exact as f32),
            };
            // The smallest normal f16 is 2^-14. Below it the absolute error is constant.
            truth.push(
                rounded,
                exact.abs() + if self.op == W4Op::DequantF16 { 2f64.powi(-14) } else { 1e-38 },
            );
        }
        truth
    }
}

impl W4Operands {
    /// Number of copies of the weight.
    pub fn copies(&self) -> usize {
        self.copies
    }

    /// One copy of the weight. Indices wrap around.
    ///
    /// # Panics
    /// If the operands belong to another case.
    pub fn matrix(&self, case: &W4Case, copy: usize) -> W4Matrix<'_> {
        let W4Shape { k, n, group } = case.shape;
        let (copy, words, groups) = (copy % self.copies, k / 8 * n, k / group * n);
        let share = copy * groups..(copy + 1) * groups;
        let scales = match &self.scales {
            ScaleCopies::F16(bits) => W4Scales::F16(&bits[share.clone()]),
            ScaleCopies::E8m0(codes) => W4Scales::E8m0(&codes[share.clone()]),
            ScaleCopies::E4m3(codes, tensor) => {
                W4Scales::E4m3 { codes: &codes[share.clone()], tensor: *tensor }
            }
        };
        let codes = match case.quant {
            W4Quant::Fp4 => W4Codes::E2m1,
            W4Quant::Int4 => W4Codes::Int4 { zeros: &self.zeros[share] },
            W4Quant::Int4Sym => W4Codes::Int4Sym,
        };
        let words = &self.words[copy * words..(copy + 1) * words];
        W4Matrix::new(case.shape, words, scales, codes).expect("a weight of the case")
    }

    /// The unscaled value of a code, and its scale, by definition.
    fn weight(&self, case: &W4Case, row: usize, col: usize) -> (f64, f64) {
        let W4Shape { n, group, .. } = case.shape;
        let at = row / group * n + col;
        let code = self.words[row / 8 * n + col] >> (row % 8 * 4) & 15;
        let value = match case.quant {
            W4Quant::Int4 => f64::from(code) - f64::from(self.zeros[at]),
            W4Quant::Int4Sym => f64::from(code) - 8.0,
            W4Quant::Fp4 => float(code, 2, 1),
        };
        let scale = match &self.scales {
            ScaleCopies::F16(bits) => f64::from(f16_value(bits[at])),
            ScaleCopies::E8m0(codes) if codes[at] == 255 => f64::NAN,
            ScaleCopies::E8m0(codes) => f64::from(i32::from(codes[at]) - 127).exp2(),
            ScaleCopies::E4m3(codes, _) if codes[at] & 0x7f == 0x7f => f64::NAN,
            ScaleCopies::E4m3(codes, tensor) => float(u32::from(codes[at]), 4, 3) * f64::from(*tensor),
        };
        (value, scale)
    }
}

/// The value of a small float without infinities.
fn float(code: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let exponent = (code >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let size = match exponent {
        0 => mantissa * 2f64.powi(1 - bias),
        _ => (1.0 + mantissa) * 2f64.powi(exponent - bias),
    };
    if code >> (exponent_bits + mantissa_bits) & 1 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_have_the_values_of_their_fields() {
        let fp4: Vec<f64> = (0..8).map(|code| float(code, 2, 1)).collect();
        assert_eq!(fp4, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!((float(15, 2, 1), float(0x7e, 4, 3), float(0x01, 4, 3)), (-6.0, 448.0, 2f64.powi(-9)));
    }
}
