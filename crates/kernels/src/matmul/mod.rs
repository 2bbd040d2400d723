//! Products of rows with weights.
//!
//! A product decodes a weight row once and multiplies it with every input row. What it decodes to depends on the activation:
//! numbers for f32 and bf16 inputs, small integers with scales for 8-bit inputs. The bodies are written once, over fixed strands, and
//! compiled for each tier, so that all tiers compute the same bits.

mod body;
mod codes;
mod tiers;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use tiers::kernels;

use crate::{Acts, RowsMut, WeightRows};
use std::ops::Range;

/// `y[i][o − outs.start] = Σ_k w[o][k] · x[index(i)][k]`; without an index, of row `i` itself.
pub type MatmulFn =
    fn(&WeightRows<'_>, &Acts<'_>, Option<&[u32]>, Range<usize>, &mut RowsMut<'_>, &mut Scratch);

/// Memory for decoded weight rows, grown once.
#[derive(Default)]
pub struct Scratch {
    pub(crate) numbers: Vec<f32>,
    pub(crate) codes: Vec<i8>,
}

#[cfg(test)]
mod tests;
