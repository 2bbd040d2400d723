//! What each thread keeps for itself: prepared inputs and scratch, grown once and then reused.

use crate::compile::Product;
use latent_kernels::{Bf16Rows, Bf16x32, Q8Block, Q8Rows, QuantizedInput, Rows, Scratch};
use latent_types::ActivationType;
use std::ops::Range;

/// One thread's buffers.
#[derive(Default)]
pub struct WorkerScratch {
    /// Inputs prepared for products.
    pub acts: ActBuffers,
    /// Scratch of the matrix kernels.
    pub scratch: Scratch,
    /// Results before an epilogue.
    pub results: Vec<f32>,
    /// A second buffer of the same kind.
    pub more: Vec<f32>,
    /// Rows of each expert.
    pub experts: super::experts::ExpertRows,
    /// Partial results of attention.
    pub partials: Vec<f32>,
    /// Scratch of attention kernels.
    pub attention: Vec<f32>,
    /// Scratch of the router.
    pub route: Vec<f32>,
    /// Experts of all rows, chosen by this thread for itself.
    pub chosen: Vec<u32>,
    /// Their weights.
    pub mix: Vec<f32>,
    /// A weight row put together from a tile.
    pub bytes: Vec<u8>,
}

/// Grows `buffer` to at least `len` numbers and returns that many.
pub fn resize_scratch(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    grown_to(buffer, len, 0.0)
}

/// Which forms of an input some products need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputFormats {
    /// Plain f32.
    pub f32: bool,
    /// bf16.
    pub bf16: bool,
    /// 8-bit blocks.
    pub a8: bool,
}

impl InputFormats {
    /// The forms that these activations name.
    pub fn of(activations: impl Iterator<Item = ActivationType>) -> InputFormats {
        let mut needs = InputFormats::default();
        for activation in activations {
            match activation {
                // who computes in f16 rounds its input itself
                ActivationType::F32 | ActivationType::F16 => needs.f32 = true,
                ActivationType::Bf16 => needs.bf16 = true,
                ActivationType::A8 => needs.a8 = true,
            }
        }
        needs
    }
}

impl InputFormats {
    /// The forms that the kernels of some products read.
    pub fn of_products<'p>(products: impl IntoIterator<Item = &'p Product>) -> InputFormats {
        InputFormats::of(products.into_iter().flat_map(Product::activations))
    }
}

/// Memory for prepared inputs.
#[derive(Default)]
pub struct ActBuffers {
    normalised: Vec<f32>,
    lines: Vec<Bf16x32>,
    blocks: Vec<Q8Block>,
}

/// Rows in every form that was needed.
pub struct PreparedInput<'a> {
    f32: Rows<'a>,
    lines: &'a [Bf16x32],
    blocks: &'a [Q8Block],
}

impl ActBuffers {
    /// Normalises `x` where `norm` says so (weight and epsilon), and converts it to the forms needed.
    pub fn prepare<'a>(
        &'a mut self,
        x: Rows<'a>,
        norm: Option<(&[f32], f32)>,
        needs: InputFormats,
    ) -> PreparedInput<'a> {
        let (rows, cols) = (x.rows(), x.cols());
        let f32 = match norm {
            None => x,
            Some((weight, eps)) => {
                let out = resize_scratch(&mut self.normalised, rows * cols);
                for (i, row) in out.chunks_exact_mut(cols).enumerate() {
                    latent_kernels::rms_norm(x.row(i), weight, eps, row);
                }
                Rows::new(out, rows, cols, cols)
            }
        };
        let row_blocks = Q8Rows::row_blocks(cols);
        let of = |needed: bool| if needed { rows * row_blocks } else { 0 };
        let lines = grown_to(&mut self.lines, of(needs.bf16), Bf16x32::ZERO);
        let blocks = grown_to(&mut self.blocks, of(needs.a8), Q8Block::ZERO);
        for (i, out) in lines.chunks_exact_mut(row_blocks).enumerate() {
            latent_kernels::to_bf16(f32.row(i), Bf16x32::bits_mut(out));
        }
        for (i, out) in blocks.chunks_exact_mut(row_blocks).enumerate() {
            latent_kernels::quantize_q8(f32.row(i), out);
        }
        PreparedInput { f32, lines, blocks }
    }

    /// Converts one row, normalised first where `norm` says so, to bf16 and to 8-bit blocks where there is memory for them.
    pub fn convert(
        &mut self,
        x: &[f32],
        norm: Option<(&[f32], f32)>,
        lines: Option<&mut [Bf16x32]>,
        blocks: Option<&mut [Q8Block]>,
    ) {
        let x = match norm {
            None => x,
            Some((weight, eps)) => {
                let normalised = resize_scratch(&mut self.normalised, x.len());
                latent_kernels::rms_norm(x, weight, eps, normalised);
                normalised
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

/// Grows `buffer` to at least `len` and returns that many.
pub fn grown_to<T: Copy>(buffer: &mut Vec<T>, len: usize, zero: T) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, zero);
    }
    &mut buffer[..len]
}

impl<'a> PreparedInput<'a> {
    /// Rows converted elsewhere: to bf16, to 8-bit blocks or to both.
    pub fn converted(f32: Rows<'a>, lines: &'a [Bf16x32], blocks: &'a [Q8Block]) -> PreparedInput<'a> {
        PreparedInput { f32, lines, blocks }
    }

    /// Some of the rows, in all their forms.
    pub fn part(&self, rows: Range<usize>) -> PreparedInput<'a> {
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

    /// The rows in one form, which must have been among the needs.
    pub fn acts(&self, activation: ActivationType) -> QuantizedInput<'a> {
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
