//! Products of heads with their matrices of W_UK and W_UV.

use crate::compile::Compiler;
use crate::error::GpuError;
use crate::matmul::product::{ProductItems, RowAddress, SlotMatrix, WeightSlice, multiply};
use crate::matmul::weight::DeviceWeight;
use crate::run::StageRun;
use crate::values::ShaderOperand;
use latent_backend::BackendError;
use latent_graph::ir::WeightId;
use latent_types::Arithmetic;
use std::ops::Range;
use std::sync::Arc;

/// The projection by which heads are multiplied. A file has one matrix (`kv_b`) with the rows of
/// each head's keys followed by those of its values, or one matrix per head for each (`k_b` and
/// `v_b`), of which `k_b` is transposed.
#[derive(Clone, Copy)]
pub(super) enum LatentProjection {
    /// W_UK: from latents to keys.
    Keys,
    /// W_UKᵀ: from queries to latents.
    KeysTransposed,
    /// W_UV: from latents to values.
    Values,
}

/// Products of heads with one weight.
pub(super) struct HeadProducts {
    weight: Arc<DeviceWeight>,
    part: WeightSlice,
    heads: usize,
    outputs: usize,
}

impl HeadProducts {
    pub(super) fn new(
        compiler: &Compiler<'_>,
        id: WeightId,
        projection: LatentProjection,
    ) -> Result<HeadProducts, BackendError> {
        let a = &compiler.config.attention;
        let combined = compiler.plan.ir.weight(id).shape.len() == 2;
        let (nope, v, latent) = (a.nope, a.v, a.kv_lora_rank);
        // `kv_b` and `v_b` have a row per output of a head, `k_b` has one per element of the
        // latent.
        let (rows, transposed, outputs) = match (projection, combined) {
            (LatentProjection::Keys, true) => (0..nope, false, nope),
            (LatentProjection::Keys, false) => (0..latent, true, nope),
            (LatentProjection::KeysTransposed, true) => (0..nope, true, latent),
            (LatentProjection::KeysTransposed, false) => (0..latent, false, latent),
            (LatentProjection::Values, true) => (nope..nope + v, false, v),
            (LatentProjection::Values, false) => (0..v, false, v),
        };
        let (weight, part) = (compiler.product_weight(id)?, WeightSlice { rows, transposed });
        Ok(HeadProducts { weight, part, heads: a.heads, outputs })
    }

    /// Number of results per head.
    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    pub(super) fn heads(&self) -> usize {
        self.heads
    }

    /// The arithmetic of the products for `rows` rows.
    pub(super) fn arithmetic(&self, rows: usize) -> Arithmetic {
        // Transposed products do not quantize inputs: see `WeightProduct::items`.
        if self.part.transposed { Arithmetic::F32 } else { self.weight.arithmetic(rows) }
    }

    /// Records the calls for some of the heads. The operands' offsets are those of the first of
    /// these heads, and may be negative (wrapped around).
    pub(super) fn record(
        &self,
        run: &mut StageRun<'_>,
        rows: Range<usize>,
        [x, y]: [&ShaderOperand; 2],
        heads: Range<usize>,
    ) -> Result<(), GpuError> {
        let place =
            |operand: &ShaderOperand| RowAddress { binding: run.bind(operand), address: operand.address() };
        let items = ProductItems { rows, slots: heads.len(), x: place(x), y: place(y) };
        multiply(run.commands, (&self.weight, &self.part), &items, &SlotMatrix::PerSlot(heads.start))
    }
}
