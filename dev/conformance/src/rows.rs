//! Cases of row-wise operations: norms, RoPE, activations, conversions, KV cache rows, embedding,
//! KV split combination, indexer scores, delta rule and routing.

use crate::float16::{bf16_value, f16_value, nearest};
use crate::product::tiles;
use crate::random::Random;
use crate::reference::{BitIdentity, ErrorBound, ReferenceResults};
use crate::routing::RoutingRules;
use crate::work::{CallCost, arithmetic_of, layout};
use latent_kernels::{Q8_BLOCK, RopePairing, RopeTable, WeightMatrix};
use latent_types::{ActivationType, Arithmetic, CacheRow, CacheType, TensorType, WeightLayout};

/// A row-wise operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowOp {
    /// Dequantizes a row of the embedding.
    Embed(TensorType, WeightLayout),
    /// x / √(mean x² + eps) · w.
    RmsNorm,
    /// Rotation of pairs by position.
    Rope(RopePairing),
    /// Converts a row to the cache type.
    Store(CacheType),
    /// Converts a row from the cache type.
    Load(CacheType),
    /// Quantizes to 8-bit blocks.
    QuantizeA8,
    /// Rounds to bf16.
    ToBf16,
    /// silu(gate) · up.
    SiluMul,
    /// silu(x).
    Silu,
    /// sigmoid(gate) · x.
    SigmoidMul {
        /// Number of gates per row, each for an equal share of the elements. One gate per element
        /// if `None`, or if the row cannot be divided.
        heads: Option<usize>,
    },
    /// s · x / √(Σ x² + 1e-6).
    L2Norm,
    /// −s · softplus(x + y).
    SoftplusDecay,
    /// `BOUND` · sigmoid(s · (x + y)).
    BoundedDecay,
    /// RMSNorm of x, times sigmoid(y).
    GatedNorm,
    /// Causal convolution over `TAPS` rows, then SiLU.
    ShortConv,
    /// The delta rule of one head, row by row. x are queries and y keys; values, decays and β are
    /// derived from them.
    DeltaRule,
    /// The delta rule in chunks, with keys of unit length.
    DeltaChunks,
    /// max(x, 0)².
    Relu2,
    /// x + y.
    Add,
    /// s · x.
    Scale,
    /// y + s · x.
    Axpy,
    /// Combines partial results of KV splits; one row per head.
    CombineSplits {
        /// Number of KV splits.
        splits: usize,
    },
    /// Indexer scores: Σₕ wₕ · max(0, qₕ · k) of one query with each cached key.
    IndexScores {
        heads: usize,
        cache: CacheType,
        /// Whether products with int8 keys are computed in f32.
        exact: bool,
    },
    /// Router logits to expert ids and weights.
    Route(RoutingRules),
}

/// A row-wise operation and its sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowCase {
    pub op: RowOp,
    pub rows: usize,
    /// Elements per row.
    pub width: usize,
}

pub struct RowOperands {
    pub x: Vec<f32>,
    /// A second operand. Its size depends on the operation.
    pub y: Vec<f32>,
    /// Stored rows of the cache or of a weight.
    pub bytes: Vec<u8>,
}

/// The factor of [`RowOp::Scale`] and [`RowOp::Axpy`].
pub(crate) const FACTOR: f32 = 0.7;

/// Added to the mean of squares by [`RowOp::RmsNorm`].
pub(crate) const EPS: f32 = 1e-6;

/// The bound of [`RowOp::BoundedDecay`].
pub(crate) const BOUND: f32 = -5.0;

/// Number of rows that [`RowOp::ShortConv`] convolves.
pub(crate) const TAPS: usize = 4;

/// Position of the first row of [`RowOp::Rope`].
// So large that angles computed in f32 would exceed the bound.
pub(crate) const POSITION: i64 = 4_095;

/// Keys per cache block of [`RowOp::IndexScores`].
pub(crate) const INDEX_BLOCK: usize = 64;

/// The format of cached keys of an indexer.
pub(crate) fn index_row(ty: CacheType, width: usize) -> CacheRow {
    CacheRow { ty, content: width, rope: 0 }
}

fn index_bound(exact: bool) -> ErrorBound {
    let same_bits = BitIdentity::None;
    if exact {
        return ErrorBound { error: 2e-6, same_bits, reason: "f32 sums in the order of a tier" };
    }
    // Relative to the sum of all terms' magnitudes. Errors of single elements mostly cancel; the
    // largest error seen was 1.2e-3.
    ErrorBound { error: 2e-3, same_bits, reason: "queries are rounded to 8 bits, or with the keys to bf16" }
}

/// Relative rounding error of f32: half an ulp.
const HALF_DIGIT: f64 = 1.0 / (1u64 << 24) as f64;

impl RowOp {
    /// Number of gates for a row of `width` elements.
    pub(crate) fn gates(heads: Option<usize>, width: usize) -> usize {
        heads.filter(|heads| width.is_multiple_of(*heads)).unwrap_or(width)
    }
}

impl RowCase {
    pub(crate) fn operation(&self) -> &'static str {
        match self.op {
            RowOp::Embed(..) => "embed",
            RowOp::RmsNorm => "rms_norm",
            RowOp::Rope(_) => "rope",
            RowOp::Store(_) => "latent_store",
            RowOp::Load(_) => "latent_load",
            RowOp::QuantizeA8 => "quantize_a8",
            RowOp::ToBf16 => "to_bf16",
            RowOp::Silu => "silu",
            RowOp::SiluMul => "silu_mul",
            RowOp::SigmoidMul { .. } => "sigmoid_mul",
            RowOp::L2Norm => "l2_norm",
            RowOp::SoftplusDecay => "softplus_decay",
            RowOp::BoundedDecay => "bounded_decay",
            RowOp::GatedNorm => "gated_norm",
            RowOp::ShortConv => "short_conv",
            RowOp::DeltaRule => "delta_rule",
            RowOp::DeltaChunks => "delta_chunks",
            RowOp::Relu2 => "relu2",
            RowOp::Add => "add",
            RowOp::Scale => "scale",
            RowOp::Axpy => "axpy",
            RowOp::CombineSplits { .. } => "combine_splits",
            RowOp::IndexScores { .. } => "index_scores",
            RowOp::Route(_) => "route",
        }
    }

    pub(crate) fn name(&self) -> String {
        let detail = match self.op {
            RowOp::Embed(ty, lie) => format!("{ty}, {}, ", layout(lie)),
            RowOp::Rope(RopePairing::Interleaved) => "interleaved, ".into(),
            RowOp::Rope(RopePairing::NeoX) => "neox, ".into(),
            RowOp::Store(ty) | RowOp::Load(ty) => format!("{ty}, "),
            RowOp::SigmoidMul { heads: Some(heads) } => format!("gates={heads}, "),
            RowOp::CombineSplits { splits } => format!("splits={splits}, "),
            RowOp::IndexScores { heads, cache, exact } => {
                format!("{cache}{}, h={heads}, ", if exact { "" } else { ", rounded" })
            }
            RowOp::Route(routing) => format!("{routing}, "),
            _ => String::new(),
        };
        format!("{}({detail}m={}, n={})", self.operation(), self.rows, self.width)
    }

    pub(crate) fn bound(&self) -> ErrorBound {
        let (error, reason) = match self.op {
            RowOp::IndexScores { exact, .. } => return index_bound(exact),
            RowOp::Embed(..) | RowOp::Load(_) => (0.0, "widening is exact"),
            RowOp::Store(_) | RowOp::ToBf16 => (0.0, "rounded to nearest, even"),
            RowOp::QuantizeA8 => (0.0, "quants and scales are defined in f32 operations"),
            RowOp::RmsNorm => (4.0 * HALF_DIGIT, "squares are summed in f64; three f32 roundings"),
            RowOp::L2Norm => (4.0 * HALF_DIGIT, "squares are summed in f64; two f32 roundings"),
            RowOp::SoftplusDecay | RowOp::BoundedDecay => {
                (16.0 * HALF_DIGIT, "exp within 2.5e-7, a series of nine terms or three f32 roundings")
            }
            RowOp::GatedNorm => {
                (16.0 * HALF_DIGIT, "squares are summed in f64; exp within 2.5e-7, five f32 roundings")
            }
            RowOp::ShortConv => (16.0 * HALF_DIGIT, "four f32 products and sums; exp within 2.5e-7"),
            RowOp::DeltaRule => (256.0 * HALF_DIGIT, "f32 sums over all rows of the state, row after row"),
            RowOp::DeltaChunks => (256.0 * HALF_DIGIT, "f32 sums over rows of the state and of a chunk"),
            RowOp::Rope(_) => (4.0 * HALF_DIGIT, "angles in f64; cos and sin, products and sum in f32"),
            RowOp::Silu => (12.0 * HALF_DIGIT, "exp within 2.5e-7, three f32 roundings"),
            RowOp::SiluMul => (12.0 * HALF_DIGIT, "exp within 2.5e-7, three f32 roundings"),
            RowOp::SigmoidMul { .. } => (12.0 * HALF_DIGIT, "exp within 2.5e-7, three f32 roundings"),
            RowOp::Relu2 | RowOp::Add | RowOp::Scale => (HALF_DIGIT, "one f32 rounding"),
            RowOp::Axpy => (2.0 * HALF_DIGIT, "two f32 roundings"),
            RowOp::CombineSplits { .. } => (20.0 * HALF_DIGIT, "exp within 2.5e-7, f32 sums of a few splits"),
            RowOp::Route(_) => (64.0 * HALF_DIGIT, "exp within 2.5e-7, f32 sums over all experts"),
        };
        // Chunks use matrix products, with fused multiply-adds if the ISA has them.
        let same_bits =
            if self.op == RowOp::DeltaChunks { BitIdentity::AboveLowest } else { BitIdentity::All };
        ErrorBound { error, same_bits, reason }
    }

    pub(crate) fn work(&self) -> CallCost {
        if let RowOp::IndexScores { heads, cache, exact } = self.op {
            let quants = cache == CacheType::Int8 && !exact;
            return CallCost {
                bytes: (self.rows * index_row(cache, self.width).bytes()) as f64,
                flops: 2.0 * (heads * self.rows * (self.width + 1)) as f64,
                arithmetic: if quants { arithmetic_of(ActivationType::A8) } else { Arithmetic::F32 },
                from_memory: false,
            };
        }
        // Bytes and operations per element. In-place operations include the copy of the operand.
        let (bytes, flops) = match self.op {
            RowOp::Embed(ty, _) => (4.0 + ty.bits_per_weight() / 8.0, 1.0),
            RowOp::Store(ty) | RowOp::Load(ty) => {
                (4.0 + self.cache_row(ty).bytes() as f64 / self.width as f64, 0.0)
            }
            RowOp::QuantizeA8 => (6.0, 3.0),
            RowOp::ToBf16 => (6.0, 0.0),
            RowOp::RmsNorm => (12.0, 4.0),
            RowOp::L2Norm => (12.0, 3.0),
            RowOp::SoftplusDecay | RowOp::BoundedDecay => (12.0, 20.0),
            RowOp::GatedNorm => (20.0, 24.0),
            RowOp::ShortConv => (8.0, 2.0 * TAPS as f64 + 20.0),
            // The state is read and written. Each element of a row has one column of it.
            RowOp::DeltaRule => (8.0 * self.width as f64, 7.0 * self.width as f64),
            RowOp::DeltaChunks => (20.0, 7.0 * self.width as f64),
            RowOp::Rope(_) => (20.0, 3.0),
            RowOp::SiluMul | RowOp::SigmoidMul { heads: None } => (20.0, 20.0),
            RowOp::SigmoidMul { heads: Some(_) } => (16.0, 1.0),
            RowOp::Silu => (16.0, 20.0),
            RowOp::Relu2 | RowOp::Scale => (16.0, 1.0),
            RowOp::Add => (20.0, 1.0),
            RowOp::Axpy => (20.0, 2.0),
            RowOp::CombineSplits { splits } => (4.0 * (splits + 1) as f64, 2.0 * splits as f64),
            RowOp::IndexScores { .. } => (0.0, 0.0),
            RowOp::Route(routing) => (4.0, 10.0 + routing.chosen as f64),
        };
        let numbers = (self.rows * self.width) as f64;
        CallCost {
            bytes: bytes * numbers,
            flops: flops * numbers,
            arithmetic: Arithmetic::F32,
            from_memory: false,
        }
    }

    pub(crate) fn operands(&self) -> RowOperands {
        let random = &mut Random::new((self.width * 10 + self.rows) as u64);
        let numbers = self.rows * self.width;
        let mut x = random.numbers(numbers);
        let (mut y, mut bytes) = (random.numbers(numbers), Vec::new());
        // x has 24-bit fixed-point values. Scaling y changes its mantissa bits, so that sums are
        // inexact.
        y.iter_mut().for_each(|y| *y *= 0.3);
        match self.op {
            RowOp::Embed(ty, layout) => {
                bytes = random.weight_rows(ty, self.rows, self.width);
                if layout == WeightLayout::Tiles {
                    bytes = tiles(ty, &bytes, self.width);
                }
            }
            RowOp::Load(ty) => {
                let len = self.rows * self.cache_row(ty).bytes();
                bytes = random.numbers(len).iter().map(|v| (v * 128.0) as i8 as u8).collect();
            }
            RowOp::QuantizeA8 | RowOp::ToBf16 | RowOp::Store(_) if self.rows > 1 => {
                // A row of zeros, whose scale is 0, and rows with NaN, infinities, a large and a
                // tiny value.
                x[self.width..2 * self.width].fill(0.0);
                for (i, odd) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, 1e-7].iter().enumerate() {
                    if let Some(place) = x.get_mut(2 * self.width + i * 37) {
                        *place = *odd;
                    }
                }
            }
            // ±20 reaches the saturated ends of softplus and sigmoid.
            RowOp::SoftplusDecay | RowOp::BoundedDecay => x.iter_mut().for_each(|x| *x *= 20.0),
            RowOp::ShortConv => y = random.numbers(TAPS * self.width),
            RowOp::DeltaChunks => {
                // As the L2 norm of models makes them. With longer keys, the state could grow from
                // row to row.
                for key in y.chunks_exact_mut(self.width) {
                    let squares: f64 = key.iter().map(|k| f64::from(*k).powi(2)).sum();
                    key.iter_mut().for_each(|k| *k = (f64::from(*k) / squares.sqrt()) as f32);
                }
            }
            // Wide enough for both saturated ends of the sigmoid.
            RowOp::Silu | RowOp::SiluMul | RowOp::SigmoidMul { .. } => x.iter_mut().for_each(|x| *x *= 20.0),
            // x has the running maximum and the sum of each split, y the weighted values.
            RowOp::CombineSplits { splits } => {
                x = random.numbers(2 * splits * self.rows);
                // Sums of exponentials are positive.
                x[splits * self.rows..].iter_mut().for_each(|sum| *sum = sum.abs() + 0.5);
                y = random.numbers(splits * numbers);
            }
            RowOp::IndexScores { heads, cache, .. } => {
                x = random.numbers(heads * self.width);
                // Weights of both signs whose sum does not vanish: otherwise scores cancel.
                y = random.numbers(heads).into_iter().map(|weight| weight + 0.5).collect();
                let row = index_row(cache, self.width);
                // The cache consists of whole blocks.
                bytes = vec![0; self.rows.next_multiple_of(INDEX_BLOCK) * row.bytes()];
                for stored in bytes.chunks_exact_mut(row.bytes()) {
                    latent_kernels::store_row(row, &random.numbers(self.width), stored);
                }
            }
            RowOp::Route(_) => {
                x.iter_mut().for_each(|x| *x *= 4.0);
                // A bias of both signs, so that some scores become negative.
                y = random.numbers(self.width);
            }
            _ => {}
        }
        RowOperands { x, y, bytes }
    }

    pub(crate) fn truth(&self, operands: &RowOperands) -> ReferenceResults {
        let mut truth = ReferenceResults::default();
        let RowOperands { x, y, bytes } = operands;
        let pairs = || x.iter().zip(y).map(|(x, y)| (f64::from(*x), f64::from(*y)));
        match self.op {
            RowOp::Embed(ty, layout) => {
                let weight = self.weight(ty, layout, bytes);
                let mut row = vec![0.0; self.width];
                let mut memory = Vec::new();
                for i in 0..self.rows {
                    latent_quant::decode(ty, weight.row(i, &mut memory), &mut row)
                        .expect("a format that can be decoded");
                    row.iter().for_each(|v| truth.exact(*v));
                }
            }
            RowOp::RmsNorm => {
                for x in x.chunks_exact(self.width) {
                    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
                    let root = (squares / self.width as f64 + f64::from(EPS)).sqrt();
                    for (x, w) in x.iter().zip(y) {
                        let value = f64::from(*x) / root * f64::from(*w);
                        truth.push(value, value.abs());
                    }
                }
            }
            RowOp::L2Norm => {
                for x in x.chunks_exact(self.width) {
                    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
                    let factor = f64::from(FACTOR) / (squares + 1e-6).sqrt();
                    for x in x {
                        let value = f64::from(*x) * factor;
                        truth.push(value, value.abs());
                    }
                }
            }
            // The sum and the product in the argument are defined in f32.
            RowOp::SoftplusDecay => {
                x.chunks_exact(self.width).flat_map(|x| x.iter().zip(y)).for_each(|(x, y)| {
                    let z = f64::from(*x + *y);
                    // softplus(z) in a form that does not overflow for large z.
                    let value = -f64::from(FACTOR) * (z.max(0.0) + (-z.abs()).exp().ln_1p());
                    truth.push(value, value.abs());
                })
            }
            RowOp::BoundedDecay => {
                x.chunks_exact(self.width).flat_map(|x| x.iter().zip(y)).for_each(|(x, y)| {
                    let value = f64::from(BOUND) / (1.0 + (-f64::from(FACTOR * (*x + *y))).exp());
                    truth.push(value, value.abs());
                })
            }
            RowOp::GatedNorm => {
                for (x, gate) in x.chunks_exact(self.width).zip(y.chunks_exact(self.width)) {
                    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
                    let root = (squares / self.width as f64 + f64::from(EPS)).sqrt();
                    for ((x, weight), gate) in x.iter().zip(y).zip(gate) {
                        let value =
                            f64::from(*x) / root * f64::from(*weight) / (1.0 + (-f64::from(*gate)).exp());
                        truth.push(value, value.abs());
                    }
                }
            }
            RowOp::ShortConv => {
                for (row, channel) in (0..self.rows).flat_map(|row| (0..self.width).map(move |c| (row, c))) {
                    let seen = (0..TAPS).filter_map(|tap| Some((tap, (row + tap).checked_sub(TAPS - 1)?)));
                    let terms = seen.map(|(tap, row)| {
                        f64::from(x[row * self.width + channel]) * f64::from(y[channel * TAPS + tap])
                    });
                    let (sum, all) =
                        terms.fold((0.0, 0.0), |(sum, all), term| (sum + term, all + term.abs()));
                    let value = sum / (1.0 + (-sum).exp());
                    truth.push(value, value.abs() + all);
                }
            }
            RowOp::DeltaRule | RowOp::DeltaChunks => self.delta(x, y, &mut truth),
            RowOp::Rope(pairs) => self.rotated(pairs, x, &mut truth),
            RowOp::Store(CacheType::Int8) => {
                x.chunks_exact(self.width).for_each(|x| self.stored_codes(x, &mut truth));
            }
            RowOp::Store(ty) if !ty.is_float() => {
                for x in x.chunks_exact(self.width) {
                    let (content, rope) = x.split_at(self.cache_row(ty).content);
                    quantized_content(ty, content).into_iter().for_each(|value| truth.exact(value));
                    rope.iter().for_each(|v| truth.exact(nearest(CacheType::F16, *v)));
                }
            }
            RowOp::Store(ty) => x.iter().for_each(|x| truth.exact(nearest(ty, *x))),
            RowOp::Load(CacheType::F32) => {
                for v in bytes.chunks_exact(4) {
                    truth.exact(f32::from_le_bytes([v[0], v[1], v[2], v[3]]));
                }
            }
            RowOp::Load(CacheType::Int8) => {
                let row = self.cache_row(CacheType::Int8);
                for bytes in bytes.chunks_exact(row.bytes()) {
                    let (quants, rest) = bytes.split_at(row.content);
                    let (rope, scale) = rest.split_at(2 * row.rope);
                    let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
                    quants.iter().for_each(|code| truth.exact((f32::from(*code) - 128.0) * scale));
                    rope.chunks_exact(2)
                        .for_each(|v| truth.exact(f16_value(u16::from_le_bytes([v[0], v[1]]))));
                }
            }
            RowOp::Load(ty) if !ty.is_float() => {
                let row = self.cache_row(ty);
                let rows = bytes.chunks_exact(row.bytes());
                rows.flat_map(|bytes| quantized_elements(row, bytes)).for_each(|value| truth.exact(value));
            }
            RowOp::Load(ty) => {
                for v in bytes.chunks_exact(2) {
                    let bits = u16::from_le_bytes([v[0], v[1]]);
                    truth.exact(if ty == CacheType::F16 { f16_value(bits) } else { bf16_value(bits) });
                }
            }
            RowOp::QuantizeA8 => x.chunks_exact(self.width).for_each(|x| quantized(x, &mut truth)),
            RowOp::ToBf16 => x.iter().for_each(|x| truth.exact(nearest(CacheType::Bf16, *x))),
            RowOp::IndexScores { heads, cache, .. } => {
                let row = index_row(cache, self.width);
                let mut key = vec![0.0; self.width];
                for stored in bytes.chunks_exact(row.bytes()).take(self.rows) {
                    // The conversion has cases of its own, so the key counts as it is stored.
                    latent_kernels::load_row(row, stored, &mut key);
                    let (mut score, mut size) = (0.0, 0.0);
                    for (q, weight) in x.chunks_exact(self.width).zip(&y[..heads]) {
                        let products = || q.iter().zip(&key).map(|(q, k)| f64::from(*q) * f64::from(*k));
                        score += f64::from(*weight) * products().sum::<f64>().max(0.0);
                        size += f64::from(weight.abs()) * products().map(f64::abs).sum::<f64>();
                    }
                    truth.push(score, size);
                }
            }
            RowOp::SiluMul => pairs().for_each(|(gate, up)| {
                let value = gate / (1.0 + (-gate).exp()) * up;
                truth.push(value, value.abs());
            }),
            RowOp::SigmoidMul { heads } => {
                let gates = RowOp::gates(heads, self.width);
                for (gate, x) in x.chunks_exact(self.width).zip(y.chunks_exact(self.width)) {
                    for (i, x) in x.iter().enumerate() {
                        let gate = f64::from(gate[i / (self.width / gates)]);
                        let value = f64::from(*x) / (1.0 + (-gate).exp());
                        truth.push(value, value.abs());
                    }
                }
            }
            RowOp::Silu => pairs().for_each(|(x, _)| {
                let value = x / (1.0 + (-x).exp());
                truth.push(value, value.abs());
            }),
            RowOp::Relu2 => pairs().for_each(|(x, _)| truth.push(x.max(0.0).powi(2), x * x)),
            RowOp::Add => pairs().for_each(|(x, y)| truth.push(x + y, (x + y).abs())),
            RowOp::Scale => pairs().for_each(|(x, _)| {
                let value = x * f64::from(FACTOR);
                truth.push(value, value.abs());
            }),
            RowOp::Axpy => pairs().for_each(|(x, y)| {
                let product = x * f64::from(FACTOR);
                truth.push(y + product, y.abs() + product.abs());
            }),
            RowOp::CombineSplits { splits } => self.merged(splits, x, y, &mut truth),
            RowOp::Route(routing) => {
                x.chunks_exact(self.width).for_each(|logits| routing.truth(logits, y, &mut truth));
            }
        }
        truth
    }

    /// Derives the log decays and the logit of β from a row of [`RowOp::DeltaRule`].
    pub fn decays(q: &[f32], k: &[f32]) -> (Vec<f32>, f32) {
        // The logarithms are −4 to 0: decays of 0.02 to 1.
        (q.iter().map(|q| 2.0 * q - 2.0).collect(), 4.0 * k[0])
    }

    /// The delta rule by its formula, starting from a zero state. Values are the reversed queries.
    fn delta(&self, x: &[f32], y: &[f32], truth: &mut ReferenceResults) {
        let width = self.width;
        let mut state = vec![0.0f64; width * width];
        for (q, k) in x.chunks_exact(width).zip(y.chunks_exact(width)) {
            let (decays, beta) = RowCase::decays(q, k);
            let beta = 1.0 / (1.0 + (-f64::from(beta)).exp());
            for (row, decay) in state.chunks_exact_mut(width).zip(&decays) {
                row.iter_mut().for_each(|s| *s *= f64::from(*decay).exp());
            }
            let read = |state: &[f64], by: &[f32], column: usize| {
                let terms = state.chunks_exact(width).zip(by).map(|(row, by)| row[column] * f64::from(*by));
                terms.fold((0.0, 0.0), |(sum, all): (f64, f64), term| (sum + term, all + term.abs()))
            };
            let u: Vec<f64> = (0..width)
                .map(|column| beta * (f64::from(q[width - 1 - column]) - read(&state, k, column).0))
                .collect();
            for (row, k) in state.chunks_exact_mut(width).zip(k) {
                row.iter_mut().zip(&u).for_each(|(s, u)| *s += f64::from(*k) * u);
            }
            for column in 0..width {
                let (value, all) = read(&state, q, column);
                truth.push(value, all);
            }
        }
    }

    /// The weight of an embedding.
    pub(crate) fn weight<'a>(
        &self,
        ty: TensorType,
        layout: WeightLayout,
        bytes: &'a [u8],
    ) -> WeightMatrix<'a> {
        let matrix = match layout {
            WeightLayout::Rows => WeightMatrix::from_rows(ty, bytes, self.rows, self.width),
            WeightLayout::Tiles => WeightMatrix::from_tiles(ty, bytes, self.rows, self.width),
        };
        matrix.expect("the bytes of the case")
    }

    /// RoPE table of a head of this width.
    pub(crate) fn rope_table(&self) -> RopeTable {
        RopeTable::new(self.frequencies().collect(), 1.0)
    }

    fn frequencies(&self) -> impl Iterator<Item = f64> {
        let width = self.width as f64;
        (0..self.width / 2).map(move |i| 10_000f64.powf(-2.0 * i as f64 / width))
    }

    /// A cached row of this width. One ninth of it is the rope part, as in 512 + 64 elements.
    pub(crate) fn cache_row(&self, ty: CacheType) -> CacheRow {
        let rope = self.width / 9;
        CacheRow { ty, content: self.width - rope, rope }
    }

    /// An `int8` row as defined by `latent_types::CacheRow`: quants, scale, rope part.
    fn stored_codes(&self, x: &[f32], truth: &mut ReferenceResults) {
        let (content, rope) = x.split_at(self.cache_row(CacheType::Int8).content);
        let (quants, scale) = quants(content);
        quants.into_iter().for_each(|code| truth.exact(code));
        truth.exact(scale);
        rope.iter().for_each(|v| truth.exact(nearest(CacheType::F16, *v)));
    }

    fn rotated(&self, pairs: RopePairing, x: &[f32], truth: &mut ReferenceResults) {
        let half = self.width / 2;
        for (row, x) in x.chunks_exact(self.width).enumerate() {
            let mut line = vec![(0.0, 0.0); self.width];
            for (i, frequency) in self.frequencies().enumerate() {
                let (a, b) = match pairs {
                    RopePairing::Interleaved => (2 * i, 2 * i + 1),
                    RopePairing::NeoX => (i, i + half),
                };
                let (sin, cos) = ((POSITION + row as i64) as f64 * frequency).sin_cos();
                let (u, v) = (f64::from(x[a]), f64::from(x[b]));
                line[a] = (u * cos - v * sin, (u * cos).abs() + (v * sin).abs());
                line[b] = (u * sin + v * cos, (u * sin).abs() + (v * cos).abs());
            }
            line.iter().for_each(|(value, size)| truth.push(*value, *size));
        }
    }

    fn merged(&self, splits: usize, scores: &[f32], values: &[f32], truth: &mut ReferenceResults) {
        let (max, sums) = scores.split_at(splits * self.rows);
        for row in 0..self.rows {
            let at = |piece: usize| piece * self.rows + row;
            let largest = (0..splits).map(|p| f64::from(max[at(p)])).fold(f64::NEG_INFINITY, f64::max);
            let factor = |p: usize| (f64::from(max[at(p)]) - largest).exp();
            let sum: f64 = (0..splits).map(|p| f64::from(sums[at(p)]) * factor(p)).sum();
            for i in 0..self.width {
                let term = |p: usize| f64::from(values[at(p) * self.width + i]) * factor(p) / sum;
                truth.push((0..splits).map(term).sum(), (0..splits).map(|p| term(p).abs()).sum());
            }
        }
    }
}

/// Decodes a row of `q8_0`, `q4_0` or `fp8`, as defined by `latent_types::CacheRow`.
pub(crate) fn quantized_elements(row: CacheRow, bytes: &[u8]) -> Vec<f32> {
    let half = |bytes: &[u8]| f16_value(u16::from_le_bytes([bytes[0], bytes[1]]));
    let (content, rest) = bytes.split_at(row.content_bytes());
    let (rope, scale) = rest.split_at(2 * row.rope);
    let mut elements: Vec<f32> = match row.ty {
        CacheType::Q8_0 => {
            let block = |b: &[u8]| b[2..].iter().map(|q| f32::from(*q as i8) * half(b)).collect::<Vec<_>>();
            content.chunks_exact(34).flat_map(block).collect()
        }
        CacheType::Q4_0 => {
            let block = |b: &[u8]| {
                // Elements i and i + 16 share a byte, the first in its low bits.
                let quants = b[2..].iter().map(|q| q & 15).chain(b[2..].iter().map(|q| q >> 4));
                quants.map(|q| (f32::from(q) - 8.0) * half(b)).collect::<Vec<_>>()
            };
            content.chunks_exact(18).flat_map(block).collect()
        }
        _ => {
            let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
            content.iter().map(|code| latent_quant::f8_e4m3::value(*code) * scale).collect()
        }
    };
    elements.truncate(row.content);
    elements.extend(rope.chunks_exact(2).map(half));
    elements
}

/// Quantizes and dequantizes the content of such a row.
fn quantized_content(ty: CacheType, content: &[f32]) -> Vec<f32> {
    let group = if ty == CacheType::Fp8 { content.len().max(1) } else { 32 };
    let of_group = |numbers: &[f32]| {
        if numbers.iter().any(|v| !v.is_finite()) {
            return vec![f32::NAN; numbers.len()];
        }
        let largest = numbers.iter().fold(0.0f32, |most, v| if v.abs() > most.abs() { *v } else { most });
        // 448 is the largest number of E4M3.
        let (scale, reciprocal) = match ty {
            CacheType::Fp8 => (largest.abs() / 448.0, 448.0 / largest.abs()),
            CacheType::Q8_0 => {
                let scale = nearest(CacheType::F16, largest.abs() / 127.0);
                (scale, scale.recip())
            }
            _ => {
                // Quants are −8 to 7, so the element of the largest magnitude becomes −8, whatever
                // its sign.
                let scale = nearest(CacheType::F16, largest / -8.0);
                (scale, scale.recip())
            }
        };
        // A group of zeros, or one whose scale rounds to 0, has the quants 0.
        let scaled = |v: &f32| if reciprocal.is_finite() { v * reciprocal } else { 0.0 };
        let value = |v: &f32| match ty {
            _ if !scale.is_finite() => f32::NAN,
            CacheType::Fp8 => latent_quant::f8_e4m3::value(latent_quant::f8_e4m3::code(scaled(v))) * scale,
            CacheType::Q8_0 => scaled(v).round_ties_even().clamp(-127.0, 127.0) * scale,
            _ => scaled(v).round_ties_even().clamp(-8.0, 7.0) * scale,
        };
        numbers.iter().map(value).collect()
    };
    content.chunks(group).flat_map(of_group).collect()
}

/// 8-bit quants and their scale: the largest magnitude / 127, or NaN if an element is not finite.
fn quants(numbers: &[f32]) -> (Vec<f32>, f32) {
    let largest = numbers.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let finite = numbers.iter().all(|v| v.is_finite());
    let code =
        |v: &f32| if finite && largest > 0.0 { (v * (127.0 / largest)).round_ties_even() } else { 0.0 };
    (numbers.iter().map(code).collect(), if finite { largest / 127.0 } else { f32::NAN })
}

/// The 8-bit blocks of a row as defined by `latent_types::ActivationType::A8`: quants q, the scale,
/// scale·Σq of the block and of each half, and −128·Σq of the same.
fn quantized(x: &[f32], truth: &mut ReferenceResults) {
    for numbers in x.chunks(Q8_BLOCK) {
        let (quants, scale) = quants(numbers);
        let code = |i: usize| quants.get(i).copied().unwrap_or(0.0);
        let sum = |from: usize, to: usize| (from..to).map(code).sum::<f32>();
        (0..Q8_BLOCK).for_each(|i| truth.exact(code(i)));
        truth.exact(scale);
        for (from, to) in [(0, 32), (0, 16), (16, 32)] {
            truth.exact(scale * sum(from, to));
        }
        for (from, to) in [(0, 32), (0, 16), (16, 32)] {
            truth.exact(-128.0 * sum(from, to));
        }
    }
}
