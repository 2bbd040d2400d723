//! Cases of matmuls: rows times a weight.

use crate::memory::OperandCopies;
use crate::random::Random;
use crate::reference::{BitIdentity, ErrorBound, ReferenceResults};
use crate::work::{CallCost, layout};
use latent_kernels::{
    Bf16Rows, BlockScales, MatrixView, Q8_BLOCK, Q8Block, Q8Rows, QuantizedInput, WeightMatrix, quantize_q8,
    to_bf16,
};
use latent_quant::tiles::{ROWS, TileLayout};
use latent_types::{ActivationType, Arithmetic, TensorType, WeightLayout};

/// A matmul with its formats and sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductCase {
    /// Format of the weight.
    pub weight: TensorType,
    pub layout: WeightLayout,
    pub activation: ActivationType,
    /// Whether the weight is transposed: y = x·W instead of x·Wᵀ.
    pub across: bool,
    /// Input rows.
    pub rows: usize,
    /// Elements per input row.
    pub inputs: usize,
    /// Elements per output row.
    pub outputs: usize,
    /// Index of the first row of the stored weight that is used.
    pub skipped: usize,
}

/// Rows and columns per scale of an FP8 weight.
// Files have 128 of each. Fewer rows here give each case several blocks.
const FP8_BLOCK: (usize, usize) = (32, 128);

pub struct ProductOperands {
    matrices: OperandCopies,
    /// The weight as stored in a file.
    file: Vec<u8>,
    /// Block scales of an FP8 weight, otherwise empty.
    scales: Vec<f32>,
    /// The values of the inputs after conversion to the activation type.
    seen: Vec<f32>,
    bits: Vec<u16>,
    blocks: Vec<Q8Block>,
}

impl ProductCase {
    pub(crate) fn operation(&self) -> &'static str {
        if self.across { "linear_t" } else { "linear" }
    }

    pub(crate) fn name(&self) -> String {
        let (op, m, k, n) = (self.operation(), self.rows, self.inputs, self.outputs);
        let layout = layout(self.layout);
        format!("{op}({}, {layout}, {}, m={m}, k={k}, n={n})", self.weight, self.activation.name())
    }

    pub(crate) fn bound(&self) -> ErrorBound {
        let (error, reason) = match (self.across, self.activation) {
            (true, _) => (2e-6, "f32 products and sums, in order"),
            (false, ActivationType::A8) => {
                (1e-6, "exact integers; a few f32 roundings for each run of 32 inputs")
            }
            (false, ActivationType::Bf16) => {
                (2e-3, "weights are rounded to bf16: 2^-9 of each; then f32 sums, in order")
            }
            (false, _) if self.layout == WeightLayout::Tiles => (1e-6, "f32 sums of 128 products, in order"),
            (false, ActivationType::F32 | ActivationType::F16) => (1e-6, "f32 sums in 16 accumulators"),
        };
        // Float tiles use fused multiply-adds, which the lowest level lacks.
        let floats_in_tiles = self.layout == WeightLayout::Tiles && !self.weight.is_quantized();
        let same_bits = if floats_in_tiles { BitIdentity::AboveLowest } else { BitIdentity::All };
        ErrorBound { error, same_bits, reason }
    }

    pub(crate) fn work(&self) -> CallCost {
        let numbers = (self.inputs * self.outputs) as f64;
        CallCost {
            bytes: self.matrix_bytes() as f64,
            flops: 2.0 * numbers * self.rows as f64,
            arithmetic: match self.activation {
                ActivationType::A8 => Arithmetic::Int8,
                ActivationType::Bf16 => Arithmetic::Bf16,
                _ => Arithmetic::F32,
            },
            from_memory: true,
        }
    }

    /// Number of used rows of the weight, and elements per row.
    fn weight_shape(&self) -> (usize, usize) {
        if self.across { (self.inputs, self.outputs) } else { (self.outputs, self.inputs) }
    }

    fn matrix_bytes(&self) -> usize {
        let (rows, cols) = self.weight_shape();
        let rows = rows + self.skipped;
        match self.layout {
            WeightLayout::Rows => rows * self.weight.row_bytes(cols).unwrap_or(0),
            WeightLayout::Tiles => {
                TileLayout::new(self.weight, cols).map_or(0, |layout| layout.matrix_bytes(rows))
            }
        }
    }

    /// Number of block scales of an FP8 weight.
    fn scale_count(&self) -> usize {
        let (rows, cols) = self.weight_shape();
        (rows + self.skipped).div_ceil(FP8_BLOCK.0) * cols.div_ceil(FP8_BLOCK.1)
    }

    pub(crate) fn operands(&self, copies: usize) -> ProductOperands {
        let (rows, cols) = self.weight_shape();
        // The seed depends on sizes only: cases that differ in layout or activation type have the
        // same weight.
        let random = &mut Random::new((self.rows * 1000 + cols) as u64);
        let bytes = random.weight_rows(self.weight, rows + self.skipped, cols);
        let matrix = match self.layout {
            WeightLayout::Rows => bytes.clone(),
            WeightLayout::Tiles => tiles(self.weight, &bytes, cols),
        };
        let matrices = OperandCopies::new(&matrix, copies);
        let x = random.numbers(self.rows * self.inputs);
        let scales = if self.weight == TensorType::F8_E4M3 { self.scale_count() } else { 0 };
        let scales = random.numbers(scales);
        let row_blocks = Q8Rows::row_blocks(self.inputs);
        let mut bits = vec![0; x.len()];
        to_bf16(&x, &mut bits);
        let mut blocks = vec![Q8Block::ZERO; self.rows * row_blocks];
        for (row, blocks) in x.chunks_exact(self.inputs).zip(blocks.chunks_exact_mut(row_blocks)) {
            quantize_q8(row, blocks);
        }
        let seen = x.iter().enumerate().map(|(i, x)| match self.activation {
            ActivationType::F32 | ActivationType::F16 => *x,
            ActivationType::Bf16 => f32::from_bits(u32::from(bits[i]) << 16),
            ActivationType::A8 => {
                let (row, col) = (i / self.inputs, i % self.inputs);
                let block = &blocks[row * row_blocks + col / Q8_BLOCK];
                f32::from(block.quants[col % Q8_BLOCK]) * block.scale
            }
        });
        let seen = seen.collect();
        ProductOperands { matrices, file: bytes, scales, seen, bits, blocks }
    }

    pub(crate) fn truth(&self, operands: &ProductOperands) -> ReferenceResults {
        let (rows, cols) = self.weight_shape();
        let mut decoded = vec![0.0; (rows + self.skipped) * cols];
        latent_quant::decode(self.weight, &operands.file, &mut decoded)
            .expect("a format that can be decoded");
        let decoded = &decoded[self.skipped * cols..];
        let mut truth = ReferenceResults::default();
        // The inputs after conversion: the bound of a kernel does not cover the rounding of its
        // inputs.
        for x in operands.seen.chunks_exact(self.inputs) {
            for o in 0..self.outputs {
                let (mut sum, mut size) = (0.0, 0.0f64);
                for (k, x) in x.iter().enumerate() {
                    let at = if self.across { k * cols + o } else { o * cols + k };
                    let factor = operands.factor(self, at / cols + self.skipped, at % cols);
                    let term = factor * f64::from(decoded[at]) * f64::from(*x);
                    sum += term;
                    size += term.abs();
                }
                // A floor, as sums of products near zero have no meaningful relative error.
                truth.push(sum, size.max(1e-3));
            }
        }
        truth
    }
}

impl ProductOperands {
    /// Number of copies of the weight.
    pub fn copies(&self) -> usize {
        self.matrices.count()
    }

    /// One copy of the weight. Indices wrap around.
    pub fn weight(&self, case: &ProductCase, copy: usize) -> WeightMatrix<'_> {
        let (rows, cols) = case.weight_shape();
        let all = rows + case.skipped;
        let bytes = self.matrices.copy(copy);
        let matrix = match case.layout {
            WeightLayout::Rows => WeightMatrix::from_rows(case.weight, bytes, all, cols),
            WeightLayout::Tiles => WeightMatrix::from_tiles(case.weight, bytes, all, cols),
        };
        let scales = BlockScales { numbers: &self.scales, rows: FP8_BLOCK.0, cols: FP8_BLOCK.1 };
        let matrix = if self.scales.is_empty() { matrix } else { matrix.and_then(|m| m.with_scales(scales)) };
        matrix.expect("the bytes of the case").slice_rows(case.skipped..all)
    }

    /// The scale of an element of the stored weight.
    fn factor(&self, case: &ProductCase, row: usize, col: usize) -> f64 {
        let across = case.weight_shape().1.div_ceil(FP8_BLOCK.1);
        self.scales.get(row / FP8_BLOCK.0 * across + col / FP8_BLOCK.1).map_or(1.0, |scale| f64::from(*scale))
    }

    /// The weight's rows as stored in a file, independent of the case's layout.
    pub fn file(&self) -> &[u8] {
        &self.file
    }

    /// The inputs after conversion to the activation type.
    pub fn inputs(&self) -> &[f32] {
        &self.seen
    }

    /// The input rows.
    pub fn acts(&self, case: &ProductCase) -> QuantizedInput<'_> {
        let (rows, cols) = (case.rows, case.inputs);
        match case.activation {
            // No matmul has f16 activations.
            ActivationType::F32 | ActivationType::F16 => {
                QuantizedInput::F32(MatrixView::new(&self.seen, rows, cols, cols))
            }
            ActivationType::Bf16 => {
                QuantizedInput::Bf16(Bf16Rows::new(&self.bits, rows, cols, cols).expect("rows of the case"))
            }
            ActivationType::A8 => {
                QuantizedInput::A8(Q8Rows::new(&self.blocks, rows, cols).expect("rows of the case"))
            }
        }
    }
}

/// Packs rows into tiles.
pub(crate) fn tiles(ty: TensorType, bytes: &[u8], cols: usize) -> Vec<u8> {
    let layout = TileLayout::new(ty, cols).expect("a format with tiles");
    let row_bytes = ty.row_bytes(cols).expect("whole blocks");
    let mut tiles = Vec::new();
    for rows in bytes.chunks(ROWS * row_bytes) {
        let mut tile = vec![0; layout.tile_bytes()];
        layout.pack(rows, &mut tile);
        tiles.extend(tile);
    }
    tiles
}
