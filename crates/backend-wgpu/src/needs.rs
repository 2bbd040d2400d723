//! Device memory of a model in addition to weights and KV cache, computed from its plans.

use crate::compile::ScratchLimits;
use crate::matmul::products::ProductContext;
use crate::memory::BufferSizes;
use crate::{buffers, largest, ops, step_data};
use latent_backend::ModelOptions;
use latent_graph::{LM_HEAD_ROWS, ModelConfig, Stage};

/// The sizes of all buffers except the registers, which grow while plans are compiled. `scratch` is
/// the maximum size of a scratch buffer for operations that can split their work into passes.
pub(crate) fn needs(
    stages: &[Stage],
    config: &ModelConfig,
    products: &ProductContext,
    options: &ModelOptions,
    scratch: u64,
) -> BufferSizes {
    let rows = stages.iter().flat_map(|stage| &stage.plans).map(|plan| plan.max_rows).max().unwrap_or(1);
    let bytes = |rows: usize, width: usize| 4 * rows as u64 * width as u64;
    let (hidden, logits) = (bytes(rows, config.hidden_size), bytes(LM_HEAD_ROWS, config.vocab_size));
    let mut needs = BufferSizes {
        hidden,
        logits,
        largest: largest::bytes(config.vocab_size),
        // The host reads logits or the residual stream, never both in one readback.
        results: logits.max(hidden),
        step: step_data::max_bytes(rows, &config.attention, options.context),
        ..BufferSizes::default()
    };
    let max_buffer = buffers::largest_binding(&products.device().limits);
    for plan in stages.iter().flat_map(|stage| &stage.plans) {
        let sizes = ScratchLimits { config, plan, scratch, max_buffer };
        plan.ir.nodes.iter().for_each(|node| ops::needs(&sizes, products, node, &mut needs));
    }
    needs
}
