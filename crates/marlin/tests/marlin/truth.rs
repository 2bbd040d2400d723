//! Weights with random codes and scales, their values, and products in f64. Written from the
//! definitions, without the tables of the library, so that a wrong table is found.

use latent_marlin::half::{bf16, f16};
use latent_marlin::{Input, QuantType, Scales, Shape, Weight};

/// A linear congruential generator.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// A number between −1 and 1.
    pub fn number(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 31) as f32 - 1.0
    }

    pub fn numbers(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.number()).collect()
    }
}

/// Owned group scales.
pub enum OwnedScales {
    F16(Vec<f16>),
    E8m0(Vec<u8>),
    E4m3(Vec<u8>, f32),
}

impl OwnedScales {
    pub fn view(&self) -> Scales<'_> {
        match self {
            OwnedScales::F16(scales) => Scales::F16(scales),
            OwnedScales::E8m0(codes) => Scales::E8m0(codes),
            OwnedScales::E4m3(codes, tensor) => Scales::E4m3(codes, *tensor),
        }
    }

    fn value(&self, at: usize) -> f64 {
        match self {
            OwnedScales::F16(scales) => scales[at].to_f64(),
            OwnedScales::E8m0(codes) if codes[at] == 255 => f64::NAN,
            OwnedScales::E8m0(codes) => f64::from(i32::from(codes[at]) - 127).exp2(),
            OwnedScales::E4m3(codes, tensor) => {
                let code = codes[at];
                let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
                let size = match (exponent, code & 7) {
                    (15, 7) => f64::NAN,
                    (0, _) => mantissa / 8.0 * f64::from(-6).exp2(),
                    _ => (1.0 + mantissa / 8.0) * f64::from(exponent - 7).exp2(),
                };
                (if code < 128 { size } else { -size }) * f64::from(*tensor)
            }
        }
    }
}

/// An owned weight.
pub struct OwnedWeight {
    pub quant: QuantType,
    pub shape: Shape,
    pub words: Vec<u32>,
    pub scales: OwnedScales,
    pub zeros: Vec<u8>,
}

/// Kinds of scales.
pub const KINDS: [&str; 3] = ["f16", "e8m0", "e4m3"];

impl OwnedWeight {
    pub fn random(quant: QuantType, kind: &str, shape: Shape, random: &mut Random) -> OwnedWeight {
        let count = shape.k / shape.group * shape.n;
        let scales = match kind {
            "f16" => OwnedScales::F16((0..count).map(|_| f16::from_f32(random.number())).collect()),
            "e8m0" => OwnedScales::E8m0((0..count).map(|_| (120 + random.bits() % 8) as u8).collect()),
            // Codes below 0x7f are not NaN.
            _ => OwnedScales::E4m3((0..count).map(|_| (random.bits() % 0x7f) as u8).collect(), 0.37),
        };
        let zeros = match quant {
            QuantType::Int4 => (0..count).map(|_| (random.bits() % 17) as u8).collect(),
            _ => Vec::new(),
        };
        let words = (0..shape.k / 8 * shape.n).map(|_| random.bits()).collect();
        OwnedWeight { quant, shape, words, scales, zeros }
    }

    pub fn view(&self) -> Weight<'_> {
        let zeros = (self.quant == QuantType::Int4).then_some(&self.zeros[..]);
        Weight::new(self.quant, self.shape, &self.words, self.scales.view(), zeros).unwrap()
    }

    /// The code at input `k` of column `n`.
    pub fn code(&self, k: usize, n: usize) -> u32 {
        self.words[k / 8 * self.shape.n + n] >> (k % 8 * 4) & 15
    }

    /// The code's value without its scale, and the scale.
    pub fn value(&self, k: usize, n: usize) -> (f64, f64) {
        let at = k / self.shape.group * self.shape.n + n;
        let code = self.code(k, n);
        let value = match self.quant {
            QuantType::Int4 => f64::from(code) - f64::from(self.zeros[at]),
            QuantType::Int4Sym => f64::from(code) - 8.0,
            QuantType::Fp4 => {
                let (exponent, mantissa) = ((code >> 1 & 3) as i32, f64::from(code & 1));
                let size = match exponent {
                    0 => mantissa * 0.5,
                    _ => f64::from(exponent - 1).exp2() * (1.0 + mantissa * 0.5),
                };
                if code < 8 { size } else { -size }
            }
        };
        (value, self.scales.value(at))
    }
}

/// The elements of an input as f64.
pub fn widened(x: Input<'_>) -> Vec<f64> {
    match x {
        Input::F32(x) => x.iter().map(|v| f64::from(*v)).collect(),
        Input::F16(x) => x.iter().map(|v| v.to_f64()).collect(),
        Input::Bf16(x) => x.iter().map(|v| v.to_f64()).collect(),
    }
}

pub fn to_f16(x: &[f32]) -> Vec<f16> {
    x.iter().map(|v| f16::from_f32(*v)).collect()
}

pub fn to_bf16(x: &[f32]) -> Vec<bf16> {
    x.iter().map(|v| bf16::from_f32(*v)).collect()
}

/// Inputs that share a scale when they are rounded to 16-bit integers.
const BLOCK: usize = 32;

/// Replaces each element of x by the largest magnitude in its block of 32.
pub fn largest(x: &[f64], k: usize) -> Vec<f64> {
    let mut out = x.to_vec();
    for row in out.chunks_mut(k.max(1)) {
        for block in row.chunks_mut(BLOCK) {
            block.fill(block.iter().fold(0.0, |most, v| v.abs().max(most)));
        }
    }
    out
}

/// Each result of y = x · W, with the sum of the magnitudes of its terms, for which `sizes` replace
/// the inputs. A zero point counts as a term.
pub fn product(w: &OwnedWeight, x: &[f64], sizes: &[f64], m: usize) -> Vec<(f64, f64)> {
    let Shape { k, n, group } = w.shape;
    let mut y = Vec::with_capacity(m * n);
    for row in 0..m {
        for col in 0..n {
            let (mut sum, mut size) = (0.0, 0.0f64);
            for i in 0..k {
                let (value, scale) = w.value(i, col);
                sum += x[row * k + i] * value * scale;
                let zero = w.zeros.get(i / group * n + col).map_or(0.0, |zero| f64::from(*zero));
                size += (sizes[row * k + i] * scale).abs() * (value.abs() + zero);
            }
            y.push((sum, size));
        }
    }
    y
}

/// The largest error, relative to the magnitude of the terms, and the normalized mean square error.
pub fn errors(found: &[f32], truth: &[(f64, f64)]) -> (f64, f64) {
    assert_eq!(found.len(), truth.len());
    let (mut worst, mut square, mut total) = (0.0f64, 0.0, 0.0);
    for (found, (truth, size)) in found.iter().zip(truth) {
        let error = f64::from(*found) - truth;
        assert!(error.is_finite(), "{found} for {truth}");
        worst = worst.max(if error == 0.0 { 0.0 } else { error.abs() / size });
        square += error * error;
        total += truth * truth;
    }
    (worst, if square == 0.0 { 0.0 } else { square / total })
}
