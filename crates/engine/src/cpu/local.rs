//! What each thread keeps for itself: prepared inputs and scratch, grown once and then reused.

use base::Activation;
use kernels::{A8Block, A8Rows, Acts, Rows, Scratch};
use std::ops::Range;

/// One thread's buffers.
#[derive(Default)]
pub struct Local {
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
    /// A weight row put together from a tile.
    pub bytes: Vec<u8>,
}

/// Grows `buffer` to at least `len` numbers and returns that many.
pub fn grown(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}

/// Which forms of an input some products need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Plain f32.
    pub f32: bool,
    /// bf16.
    pub bf16: bool,
    /// 8-bit blocks.
    pub a8: bool,
}

impl Needs {
    /// 8-bit blocks and nothing else.
    pub const A8: Needs = Needs { f32: false, bf16: false, a8: true };
}

impl Needs {
    /// The forms that these activations name.
    pub fn of(activations: impl Iterator<Item = Activation>) -> Needs {
        let mut needs = Needs::default();
        for activation in activations {
            match activation {
                // who computes in f16 rounds its input itself
                Activation::F32 | Activation::F16 => needs.f32 = true,
                Activation::Bf16 => needs.bf16 = true,
                Activation::A8 => needs.a8 = true,
            }
        }
        needs
    }
}

/// Memory for prepared inputs.
#[derive(Default)]
pub struct ActBuffers {
    normalised: Vec<f32>,
    bf16: Vec<u16>,
    blocks: Vec<A8Block>,
}

/// Rows in every form that was needed.
pub struct Prepared<'a> {
    f32: Rows<'a>,
    bf16: &'a [u16],
    blocks: &'a [A8Block],
}

impl ActBuffers {
    /// Normalises `x` where `norm` says so (weight and epsilon), and converts it to the forms needed.
    pub fn prepare<'a>(&'a mut self, x: Rows<'a>, norm: Option<(&[f32], f32)>, needs: Needs) -> Prepared<'a> {
        let (rows, cols) = (x.rows(), x.cols());
        let f32 = match norm {
            None => x,
            Some((weight, eps)) => {
                let out = grown(&mut self.normalised, rows * cols);
                for (i, row) in out.chunks_exact_mut(cols).enumerate() {
                    kernels::rms_norm(x.row(i), weight, eps, row);
                }
                Rows::new(out, rows, cols, cols)
            }
        };
        if needs.bf16 {
            self.bf16.resize((rows * cols).max(self.bf16.len()), 0);
            for (i, out) in self.bf16[..rows * cols].chunks_exact_mut(cols).enumerate() {
                kernels::to_bf16(f32.row(i), out);
            }
        }
        let row_blocks = A8Rows::row_blocks(cols);
        let blocks = if needs.a8 { rows * row_blocks } else { 0 };
        if self.blocks.len() < blocks {
            self.blocks.resize(blocks, A8Block::ZERO);
        }
        for (i, out) in self.blocks[..blocks].chunks_exact_mut(row_blocks.max(1)).enumerate() {
            kernels::quantise_a8(f32.row(i), out);
        }
        Prepared {
            f32,
            bf16: &self.bf16[..if needs.bf16 { rows * cols } else { 0 }],
            blocks: &self.blocks[..blocks],
        }
    }
}

impl ActBuffers {
    /// Converts one row to 8-bit blocks, normalised first where `norm` says so.
    pub fn quantise(&mut self, x: &[f32], norm: Option<(&[f32], f32)>, out: &mut [A8Block]) {
        match norm {
            None => kernels::quantise_a8(x, out),
            Some((weight, eps)) => {
                let normalised = grown(&mut self.normalised, x.len());
                kernels::rms_norm(x, weight, eps, normalised);
                kernels::quantise_a8(normalised, out);
            }
        }
    }
}

impl<'a> Prepared<'a> {
    /// Rows in 8-bit blocks alone.
    pub fn of_blocks(f32: Rows<'a>, blocks: &'a [A8Block]) -> Prepared<'a> {
        Prepared { f32, bf16: &[], blocks }
    }

    /// Some of the rows, in all their forms.
    pub fn part(&self, rows: Range<usize>) -> Prepared<'a> {
        fn cut<'c, T>(all: &'c [T], row: usize, rows: &Range<usize>) -> &'c [T] {
            if all.is_empty() { all } else { &all[rows.start * row..rows.end * row] }
        }
        let cols = self.f32.cols();
        Prepared {
            bf16: cut(self.bf16, cols, &rows),
            blocks: cut(self.blocks, A8Rows::row_blocks(cols), &rows),
            f32: self.f32.slice_rows(rows),
        }
    }

    /// The rows in one form, which must have been among the needs.
    pub fn acts(&self, activation: Activation) -> Acts<'a> {
        let (rows, cols) = (self.f32.rows(), self.f32.cols());
        match activation {
            Activation::F32 | Activation::F16 => Acts::F32(self.f32),
            Activation::Bf16 => Acts::Bf16 { bits: self.bf16, rows, cols, stride: cols },
            Activation::A8 => Acts::A8(A8Rows::new(self.blocks, rows, cols)),
        }
    }
}
