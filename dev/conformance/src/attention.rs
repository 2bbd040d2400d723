//! Cases of attention in latent space and over expanded keys, and of the expansion of keys.

use crate::float16::nearest;
use crate::memory::OperandCopies;
use crate::random::Random;
use crate::reference::{BitIdentity, ErrorBound, ReferenceResults};
use crate::work::{CallCost, arithmetic_of};
use latent_kernels::half::{bf16, f16};
use latent_kernels::{
    CacheView, ExpandedKv, HeadWidths, KeyBlocks, KeyOrder, KvElement, load_row, store_row,
};
use latent_types::{ActivationType, CacheRow, CacheType};

/// Rows per KV block.
const KV_BLOCK: usize = 64;

/// Softmax scale of [`LatentCase`].
pub const SCALE: f32 = 0.3;

const FLOAT_BOUND: ErrorBound = ErrorBound {
    error: 1e-5,
    same_bits: BitIdentity::None,
    reason: "scores are f32 sums of several hundred terms; tiers with fused multiply-adds round less",
};

const HALF_BOUND: ErrorBound = ErrorBound {
    error: 4e-3,
    same_bits: BitIdentity::None,
    reason: "queries, weights and products are rounded to f16, sums of at most 64 terms too",
};

const BRAIN_BOUND: ErrorBound = ErrorBound {
    error: 5e-3,
    same_bits: BitIdentity::None,
    reason: "queries and weights are rounded to bf16; sums are f32",
};

const NARROWED_BOUND: ErrorBound = ErrorBound {
    error: 8e-3,
    reason: "queries, weights and cached rows of f16 are rounded to bf16; sums are f32",
    ..BRAIN_BOUND
};

/// Error bound of attention by activation type.
fn bound(activation: ActivationType) -> ErrorBound {
    match activation {
        ActivationType::F16 => HALF_BOUND,
        ActivationType::Bf16 => BRAIN_BOUND,
        ActivationType::A8 => CODE_BOUND,
        ActivationType::F32 => FLOAT_BOUND,
    }
}

const CODE_BOUND: ErrorBound = ErrorBound {
    error: 2e-2,
    same_bits: BitIdentity::None,
    reason: "queries are rounded to 8-bit quants with a scale for 128 of them; sums of products with quants are exact",
};

/// Attention in latent space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentCase {
    /// Whether content and rope scores are computed separately.
    pub separate: bool,
    /// Activation type: f32, bf16, f16 over an f16 cache, or 8-bit quants over an int8 cache.
    pub activation: ActivationType,
    /// Type of the KV cache.
    pub cache: CacheType,
    /// Heads per call.
    pub heads: usize,
    /// Elements of a latent.
    pub latent: usize,
    /// Elements of the rotated key.
    pub rope: usize,
    /// Cached rows.
    pub rows: usize,
    /// KV splits, whose partial results are combined.
    pub splits: usize,
}

pub struct LatentOperands {
    /// One row per head.
    pub queries: Vec<f32>,
    caches: OperandCopies,
    /// Block table of each copy.
    table: Vec<u32>,
    blocks: usize,
}

impl LatentCase {
    pub(crate) fn operation(&self) -> &'static str {
        if self.separate { "attend_separate" } else { "attend_latent" }
    }

    pub(crate) fn name(&self) -> String {
        let LatentCase { cache, heads, latent, rope, rows, splits, .. } = self;
        let halves = match self.activation {
            ActivationType::F16 => ", in f16",
            ActivationType::Bf16 => ", in bf16",
            ActivationType::A8 => ", by quants",
            ActivationType::F32 => "",
        };
        let splits = if *splits > 1 { format!(", splits={splits}") } else { String::new() };
        format!("{}({cache}{halves}, h={heads}, {latent}+{rope}, rows={rows}{splits})", self.operation())
    }

    pub(crate) fn bound(&self) -> ErrorBound {
        if self.activation != ActivationType::F32 && self.cache == CacheType::Int8 {
            // The quantized queries dominate the error, whatever the type of the sums.
            return CODE_BOUND;
        }
        if self.activation == ActivationType::Bf16 && self.cache != CacheType::Bf16 {
            return NARROWED_BOUND;
        }
        bound(self.activation)
    }

    pub(crate) fn work(&self) -> CallCost {
        let (row, latent) = ((self.latent + self.rope) as f64, self.latent as f64);
        CallCost {
            bytes: (self.rows * self.row().bytes()) as f64,
            flops: 2.0 * (self.heads * self.rows) as f64 * (row + latent),
            arithmetic: arithmetic_of(self.activation),
            from_memory: true,
        }
    }

    pub fn row(&self) -> CacheRow {
        CacheRow { ty: self.cache, content: self.latent, rope: self.rope }
    }

    /// Elements of a cached row.
    pub(crate) fn width(&self) -> usize {
        self.latent + self.rope
    }

    pub(crate) fn operands(&self, copies: usize) -> LatentOperands {
        let random = &mut Random::new(self.rows as u64);
        let (width, blocks) = (self.width(), self.rows.div_ceil(KV_BLOCK));
        let row_bytes = self.row().bytes();
        let mut bytes = vec![0; blocks * KV_BLOCK * row_bytes];
        for row in bytes.chunks_exact_mut(row_bytes) {
            store_row(self.row(), &random.numbers(width), row);
        }
        let caches = OperandCopies::new(&bytes, copies);
        // Blocks in reverse order, so that kernels must use the table.
        let table =
            (0..copies).flat_map(|copy| (0..blocks).rev().map(move |block| (copy * blocks + block) as u32));
        let (table, queries) = (table.collect(), random.numbers(self.heads * width));
        LatentOperands { queries, caches, table, blocks }
    }

    pub(crate) fn truth(&self, operands: &LatentOperands) -> ReferenceResults {
        let cache = operands.cache(self, 0);
        let rows: Vec<Vec<f32>> = (0..self.rows)
            .map(|row| {
                let mut numbers = vec![0.0; self.width()];
                // The rows as the cache stores them: bounds do not cover the rounding of stored
                // rows.
                load_row(self.row(), cache.row(row), &mut numbers);
                numbers
            })
            .collect();
        let values: Vec<&[f32]> = rows.iter().map(|row| &row[..self.latent]).collect();
        let keys: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let mut truth = ReferenceResults::default();
        for query in operands.queries.chunks_exact(self.width()) {
            attend(query, &keys, &values, SCALE, &mut truth);
        }
        truth
    }
}

impl LatentOperands {
    /// All copies of the cached rows.
    pub fn cached(&self) -> &[u8] {
        self.caches.all()
    }

    /// Block tables of all copies, concatenated.
    pub fn tables(&self) -> &[u32] {
        &self.table
    }

    /// One copy of the cached rows. Indices wrap around.
    pub fn cache(&self, case: &LatentCase, copy: usize) -> CacheView<'_> {
        let first = copy % self.caches.count() * self.blocks;
        let table = &self.table[first..first + self.blocks];
        CacheView::new(case.row(), self.caches.all(), KV_BLOCK, table).expect("blocks of the cache")
    }
}

/// Reference: softmax(scale · q·K) V of one query.
fn attend(query: &[f32], keys: &[&[f32]], values: &[&[f32]], scale: f32, truth: &mut ReferenceResults) {
    let dot = |key: &&[f32]| query.iter().zip(*key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let scores: Vec<f64> = keys.iter().map(|key| f64::from(scale) * dot(key)).collect();
    // The maximum is subtracted first, as in the kernels, so that no exponential overflows.
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    for i in 0..values[0].len() {
        let value =
            weights.iter().zip(values).map(|(weight, value)| weight * f64::from(value[i])).sum::<f64>();
        // The size is 1: values are in −1..1, and an error in a score shifts weight between them.
        truth.push(value / sum, 1.0);
    }
}

/// Causal attention of one head over expanded keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpandedCase {
    /// Activation type: f32 or f16.
    pub activation: ActivationType,
    pub queries: usize,
    /// Position of the first query.
    pub position: usize,
    /// Elements of a key without position.
    pub nope: usize,
    /// Elements of the rotated part of a key.
    pub rope: usize,
    /// Elements of a value.
    pub values: usize,
    /// Whether each query attends only to selected keys ([`ExpandedCase::attends`]).
    pub selects: bool,
}

pub struct ExpandedOperands {
    /// Rows `[nope | rope]`.
    pub queries: Vec<f32>,
    /// Softmax scale of each query.
    pub scales: Vec<f32>,
    /// Keys and values, rounded to the case's activation type.
    keys: Vec<Vec<f32>>,
    values: Vec<f32>,
}

/// Keys and values in the kernels' block layout.
pub struct ExpandedLines<N> {
    content: Vec<N>,
    rotated: Vec<N>,
    values: Vec<N>,
}

/// Lays out rows of `width` elements in blocks with `gap` elements of padding after each. `place`
/// maps a row and column to an offset in its block.
fn laid<N: KvElement>(
    rows: &[f32],
    width: usize,
    gap: usize,
    place: fn(usize, usize, usize) -> usize,
) -> Vec<N> {
    let (count, block) = (rows.len() / width.max(1), N::padded(width) * N::KV_BLOCK);
    // Converts single elements: an F32 cache row of one element is read with the kernel's own
    // conversion.
    let one = CacheRow { ty: CacheType::F32, content: 1, rope: 0 };
    let mut out = vec![N::ZERO; count.div_ceil(N::KV_BLOCK) * (block + gap)];
    for (i, row) in rows.chunks_exact(width.max(1)).enumerate() {
        for (n, number) in row.iter().enumerate() {
            let at = i / N::KV_BLOCK * (block + gap) + place(width, i % N::KV_BLOCK, n);
            N::load(one, &number.to_le_bytes(), 0, &mut out[at..=at]);
        }
    }
    out
}

/// Bytes per element of expanded keys.
fn number_bytes(activation: ActivationType) -> usize {
    if activation == ActivationType::F32 { 4 } else { 2 }
}

/// Rounds elements to a case's activation type.
fn seen(activation: ActivationType, numbers: &[f32]) -> Vec<f32> {
    let ty = match activation {
        ActivationType::F16 => CacheType::F16,
        ActivationType::Bf16 => CacheType::Bf16,
        ActivationType::F32 | ActivationType::A8 => CacheType::F32,
    };
    numbers.iter().map(|v| nearest(ty, *v)).collect()
}

impl ExpandedCase {
    pub(crate) fn operation(&self) -> &'static str {
        "attend_expanded"
    }

    pub(crate) fn name(&self) -> String {
        let ExpandedCase { activation, queries, position, nope, rope, values, selects } = self;
        let activation = activation.name();
        let selects = if *selects { ", selected" } else { "" };
        format!("attend_expanded({activation}{selects}, {queries} at {position}, {nope}+{rope}, v={values})")
    }

    /// Whether a query attends to a key at or before its own position. It always attends to its own
    /// key, and skips some blocks entirely.
    pub fn attends(&self, query: usize, key: usize) -> bool {
        let own = key == self.position + query;
        // Stretches of 130 keys alternate, so that whole blocks of a kernel have no selected key.
        !self.selects || own || (key / 130 % 2 == query % 2 && (key * 7 + query * 3) % 5 < 2)
    }

    pub(crate) fn bound(&self) -> ErrorBound {
        bound(self.activation)
    }

    pub(crate) fn work(&self) -> CallCost {
        let seen: usize = (0..self.queries).map(|i| self.position + i + 1).sum();
        let widths = self.nope + self.rope + self.values;
        CallCost {
            bytes: (number_bytes(self.activation) * (self.position + self.queries) * widths) as f64,
            flops: 2.0 * (seen * widths) as f64,
            arithmetic: arithmetic_of(self.activation),
            from_memory: false,
        }
    }

    pub(crate) fn operands(&self) -> ExpandedOperands {
        let random = &mut Random::new(self.position as u64 + 7);
        let (length, width) = (self.position + self.queries, self.nope + self.rope);
        ExpandedOperands {
            keys: (0..length).map(|_| seen(self.activation, &random.numbers(width))).collect(),
            values: seen(self.activation, &random.numbers(length * self.values)),
            queries: random.numbers(self.queries * width),
            // A different scale per query: a kernel that uses one scale for all queries fails.
            scales: (0..self.queries).map(|i| 0.2 + i as f32 * 0.01).collect(),
        }
    }

    pub(crate) fn truth(&self, operands: &ExpandedOperands) -> ReferenceResults {
        let keys: Vec<&[f32]> = operands.keys.iter().map(Vec::as_slice).collect();
        let values: Vec<&[f32]> = operands.values.chunks_exact(self.values).collect();
        let mut truth = ReferenceResults::default();
        for (i, query) in operands.queries.chunks_exact(self.nope + self.rope).enumerate() {
            let seen = |rows: &[&'_ [f32]]| -> Vec<Vec<f32>> {
                let seen = rows[..self.position + i + 1].iter().enumerate();
                seen.filter(|(key, _)| self.attends(i, *key)).map(|(_, row)| row.to_vec()).collect()
            };
            let (keys, values) = (seen(&keys), seen(&values));
            let [keys, values] =
                [&keys, &values].map(|rows| rows.iter().map(Vec::as_slice).collect::<Vec<_>>());
            attend(query, &keys, &values, operands.scales[i], &mut truth);
        }
        truth
    }
}

impl ExpandedOperands {
    /// The key and the value of each position.
    pub fn rows(&self, case: &ExpandedCase) -> impl Iterator<Item = (&[f32], &[f32])> {
        self.keys.iter().map(Vec::as_slice).zip(self.values.chunks_exact(case.values))
    }

    /// Keys and values for kernels over the element type `N`.
    pub fn lines<N: KvElement>(&self, case: &ExpandedCase) -> ExpandedLines<N> {
        let keys = |numbers: std::ops::Range<usize>| {
            let rows: Vec<f32> = self.keys.iter().flat_map(|key| key[numbers.clone()].to_vec()).collect();
            laid(&rows, numbers.len(), 0, N::key_offset)
        };
        ExpandedLines {
            content: keys(0..case.nope),
            rotated: keys(case.nope..case.nope + case.rope),
            values: laid(&self.values, case.values, 0, N::value_offset),
        }
    }
}

impl<N: KvElement> ExpandedLines<N> {
    /// The view passed to kernels.
    pub fn view(&self, case: &ExpandedCase) -> ExpandedKv<'_, N> {
        let stride = N::padded(case.rope) * N::KV_BLOCK;
        let widths = HeadWidths { nope: case.nope, rope: case.rope, value: case.values };
        ExpandedKv::new(&self.content, (&self.rotated, stride), &self.values, widths)
            .expect("blocks of the case")
    }
}

/// Keys of one head from the latents of blocks of cached rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeysCase {
    /// Activation type: f32 or f16.
    pub activation: ActivationType,
    /// Layout of W_UK.
    pub order: KeyOrder,
    /// Elements of a key without position.
    pub nope: usize,
    /// Elements of a latent.
    pub latent: usize,
    pub blocks: usize,
}

pub struct KeysOperands {
    /// W_UK in the case's layout.
    pub weights: Vec<f32>,
    /// Cached rows, rounded to the case's activation type.
    pub latents: Vec<f32>,
}

/// Padding between the latents of two blocks.
// With padding, kernels must use the stride.
const GAP: usize = 192;

impl KeysCase {
    pub(crate) fn operation(&self) -> &'static str {
        "expand_keys"
    }

    pub(crate) fn name(&self) -> String {
        let order = match self.order {
            KeyOrder::Keys => "keys",
            KeyOrder::Latents => "latents",
        };
        let KeysCase { activation, nope, latent, blocks, .. } = self;
        format!("expand_keys({}, by {order}, {latent} to {nope}, blocks={blocks})", activation.name())
    }

    pub(crate) fn bound(&self) -> ErrorBound {
        let (error, reason) = match self.activation {
            ActivationType::F16 => {
                (2e-3, "weights, products and results are rounded to f16, sums of at most 64 terms too")
            }
            ActivationType::Bf16 => (4e-3, "weights and results are rounded to bf16"),
            ActivationType::F32 | ActivationType::A8 => {
                (2e-6, "f32 sums in order; tiers with fused multiply-adds round less")
            }
        };
        ErrorBound { error, same_bits: BitIdentity::None, reason }
    }

    pub(crate) fn work(&self) -> CallCost {
        let matrices = (self.nope + self.latent) * self.rows() * number_bytes(self.activation);
        CallCost {
            bytes: (4 * self.nope * self.latent + matrices) as f64,
            flops: 2.0 * (self.nope * self.latent * self.rows()) as f64,
            arithmetic: arithmetic_of(self.activation),
            from_memory: false,
        }
    }

    /// Cached rows.
    pub(crate) fn rows(&self) -> usize {
        let block = match self.activation {
            ActivationType::F16 => f16::KV_BLOCK,
            ActivationType::Bf16 => bf16::KV_BLOCK,
            ActivationType::F32 | ActivationType::A8 => f32::KV_BLOCK,
        };
        block * self.blocks
    }

    pub(crate) fn operands(&self) -> KeysOperands {
        let random = &mut Random::new(3);
        KeysOperands {
            weights: random.numbers(self.nope * self.latent),
            latents: seen(self.activation, &random.numbers(self.rows() * self.latent)),
        }
    }

    pub(crate) fn truth(&self, operands: &KeysOperands) -> ReferenceResults {
        let mut truth = ReferenceResults::default();
        for row in operands.latents.chunks_exact(self.latent) {
            for n in 0..self.nope {
                let (mut sum, mut size) = (0.0, 0.0);
                for (l, number) in row.iter().enumerate() {
                    let at = match self.order {
                        KeyOrder::Keys => n * self.latent + l,
                        KeyOrder::Latents => l * self.nope + n,
                    };
                    let term = f64::from(operands.weights[at]) * f64::from(*number);
                    sum += term;
                    size += term.abs();
                }
                truth.push(sum, size);
            }
        }
        truth
    }
}

impl KeysOperands {
    /// The latents in a kernel's element type.
    pub fn numbers<N: KvElement>(&self, case: &KeysCase) -> Vec<N> {
        laid(&self.latents, case.latent, GAP, N::key_offset)
    }

    /// The view of them passed to kernels.
    pub fn view<'a, N: KvElement>(&self, case: &KeysCase, latents: &'a [N]) -> KeyBlocks<'a, N> {
        let stride = N::padded(case.latent) * N::KV_BLOCK + GAP;
        KeyBlocks::new(latents, stride, case.latent, case.nope).expect("blocks of the case")
    }
}
