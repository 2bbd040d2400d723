//! Scratch memory of each worker, and the conversion of products' inputs in it. Buffers grow to the
//! largest step and are then reused, so that steps do not allocate.

use crate::expert_rows::ExpertRows;
use crate::gathered_rows::GatheredRows;
use crate::program::WeightKernel;
use latent_kernels::{
    Bf16Rows, Bf16x32, DeltaScratch, KeyMask, MatmulScratch, MatrixView, Q8Block, Q8Rows, QuantizedInput,
};
use latent_types::ActivationType;
use std::ops::Range;

/// One worker's buffers.
#[derive(Default)]
pub(crate) struct WorkerScratch {
    /// Inputs converted for products.
    pub acts: ActBuffers,
    /// Scratch of the matrix kernels.
    pub scratch: MatmulScratch,
    /// Results before an epilogue, and decoded rows of the KV cache.
    pub results: Vec<f32>,
    /// A second buffer, for operations that need two.
    pub more: Vec<f32>,
    /// Rows sorted by expert.
    pub experts: ExpertRows,
    /// Partial results of attention that no other worker reads.
    pub partials: Vec<f32>,
    /// The keys that the queries of a task attend to.
    pub mask: KeyMask,
    /// Cached rows of selected tokens.
    pub gathered: GatheredRows,
    pub delta: DeltaScratch,
    /// Scratch of attention kernels.
    pub attention: Vec<f32>,
    pub route: Vec<f32>,
    /// Expert ids of all rows, if this worker routes all rows by itself.
    pub topk_ids: Vec<u32>,
    pub topk_weights: Vec<f32>,
    /// Sort keys of indexer scores.
    pub order: Vec<u32>,
    /// A weight row gathered from a tile.
    pub bytes: Vec<u8>,
    /// Low-rank terms of experts.
    pub lora: LowRankScratch,
}

/// Buffers for the low-rank terms of adapters within another product.
#[derive(Default)]
pub(crate) struct LowRankScratch {
    /// A x.
    pub low: Vec<f32>,
    /// A x, converted for B.
    pub acts: ActBuffers,
    /// B (A x).
    pub terms: Vec<f32>,
}

/// Grows `buffer` to at least `len` elements and returns the first `len`. Their contents are those
/// of earlier uses.
pub(crate) fn resize_scratch(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    grown_to(buffer, len, 0.0)
}

/// The formats in which some products read their input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InputFormats {
    pub f32: bool,
    pub bf16: bool,
    /// 8-bit blocks.
    pub a8: bool,
}

impl InputFormats {
    /// The formats that these activation types need.
    pub(crate) fn of(activations: impl Iterator<Item = ActivationType>) -> InputFormats {
        let mut formats = InputFormats::default();
        for activation in activations {
            match activation {
                // Kernels that compute in f16 read f32 and round it themselves.
                ActivationType::F32 | ActivationType::F16 => formats.f32 = true,
                ActivationType::Bf16 => formats.bf16 = true,
                ActivationType::A8 => formats.a8 = true,
            }
        }
        formats
    }

    /// The formats that the kernels of some products read.
    pub(crate) fn of_products<'p>(products: impl IntoIterator<Item = &'p WeightKernel>) -> InputFormats {
        InputFormats::of(products.into_iter().flat_map(WeightKernel::activations))
    }
}

/// Buffers for converted inputs.
#[derive(Default)]
pub(crate) struct ActBuffers {
    normalized: Vec<f32>,
    lines: Vec<Bf16x32>,
    blocks: Vec<Q8Block>,
}

/// Input rows of products in every requested format.
pub(crate) struct PreparedInput<'a> {
    f32: MatrixView<'a>,
    lines: &'a [Bf16x32],
    blocks: &'a [Q8Block],
}

impl ActBuffers {
    /// Normalizes `x` if `norm` (weight and epsilon) is given, and converts it to `formats`.
    pub(crate) fn prepare<'a>(
        &'a mut self,
        x: MatrixView<'a>,
        norm: Option<(&[f32], f32)>,
        formats: InputFormats,
    ) -> PreparedInput<'a> {
        let (rows, cols) = (x.rows(), x.cols());
        let f32 = match norm {
            None => x,
            Some((weight, eps)) => {
                let out = resize_scratch(&mut self.normalized, rows * cols);
                for (i, row) in out.chunks_exact_mut(cols).enumerate() {
                    latent_kernels::rms_norm(x.row(i), weight, eps, row);
                }
                MatrixView::new(out, rows, cols, cols)
            }
        };
        let row_blocks = Q8Rows::row_blocks(cols);
        let of = |needed: bool| if needed { rows * row_blocks } else { 0 };
        let lines = grown_to(&mut self.lines, of(formats.bf16), Bf16x32::ZERO);
        let blocks = grown_to(&mut self.blocks, of(formats.a8), Q8Block::ZERO);
        for (i, out) in lines.chunks_exact_mut(row_blocks).enumerate() {
            latent_kernels::to_bf16(f32.row(i), Bf16x32::bits_mut(out));
        }
        for (i, out) in blocks.chunks_exact_mut(row_blocks).enumerate() {
            latent_kernels::quantize_q8(f32.row(i), out);
        }
        PreparedInput { f32, lines, blocks }
    }

    /// Converts one row to bf16 and to 8-bit blocks, each if its buffer exists. If `norm` is given,
    /// the row is normalized first.
    pub(crate) fn convert(
        &mut self,
        x: &[f32],
        norm: Option<(&[f32], f32)>,
        lines: Option<&mut [Bf16x32]>,
        blocks: Option<&mut [Q8Block]>,
    ) {
        let x = match norm {
            None => x,
            Some((weight, eps)) => {
                let normalized = resize_scratch(&mut self.normalized, x.len());
                latent_kernels::rms_norm(x, weight, eps, normalized);
                normalized
            }
        };
        if let Some(lines) = lines {
            latent_kernels::to_bf16(x, Bf16x32::bits_mut(lines));
        }
        if let Some(blocks) = blocks {
            latent_kernels::quantize_q8(x, blocks);
        }
    }
}

/// [`resize_scratch`] for any element type.
pub(crate) fn grown_to<T: Copy>(buffer: &mut Vec<T>, len: usize, zero: T) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, zero);
    }
    &mut buffer[..len]
}

impl<'a> PreparedInput<'a> {
    /// Creates a view of rows that several workers have converted.
    pub(crate) fn converted(
        f32: MatrixView<'a>,
        lines: &'a [Bf16x32],
        blocks: &'a [Q8Block],
    ) -> PreparedInput<'a> {
        PreparedInput { f32, lines, blocks }
    }

    /// Some of the rows, in all their formats.
    pub(crate) fn part(&self, rows: Range<usize>) -> PreparedInput<'a> {
        fn cut<'c, T>(all: &'c [T], row: usize, rows: &Range<usize>) -> &'c [T] {
            if all.is_empty() { all } else { &all[rows.start * row..rows.end * row] }
        }
        let row_blocks = Q8Rows::row_blocks(self.f32.cols());
        PreparedInput {
            lines: cut(self.lines, row_blocks, &rows),
            blocks: cut(self.blocks, row_blocks, &rows),
            f32: self.f32.slice_rows(rows),
        }
    }

    /// The rows in one format, which must have been requested.
    pub(crate) fn acts(&self, activation: ActivationType) -> QuantizedInput<'a> {
        let (rows, cols) = (self.f32.rows(), self.f32.cols());
        match activation {
            ActivationType::F32 | ActivationType::F16 => QuantizedInput::F32(self.f32),
            ActivationType::Bf16 => {
                let stride = 32 * Bf16x32::row_lines(cols);
                let rows = Bf16Rows::new(Bf16x32::bits(self.lines), rows, cols, stride);
                QuantizedInput::Bf16(rows.expect("lines of all rows"))
            }
            ActivationType::A8 => {
                QuantizedInput::A8(Q8Rows::new(self.blocks, rows, cols).expect("blocks of all rows"))
            }
        }
    }
}
