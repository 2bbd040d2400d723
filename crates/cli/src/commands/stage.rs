//! The stages of `latent graph`, and the options that its plans are made with.

use crate::args::GraphArgs;
use crate::exit::Usage;
use anyhow::Result;
use latent_engine::cpu;
use latent_graph::passes::{BindOptions, Precision};
use latent_types::CacheType;

/// The stage to print or draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The JSON file of the architecture.
    Circuit,
    /// The circuit instantiated for this model.
    Ir,
    /// The IR after all passes: phases, kernels, buffers.
    Plan,
}

impl Stage {
    pub(super) const ALL: [(&'static str, Stage); 3] =
        [("circuit", Stage::Circuit), ("ir", Stage::Ir), ("plan", Stage::Plan)];

    pub(super) fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// Options of kernel selection.
pub(super) fn bind(args: &GraphArgs) -> Result<BindOptions> {
    let options = args.model.options();
    let exact = options.precision == Precision::Exact;
    let cache = options.cache.unwrap_or(if exact { CacheType::F32 } else { CacheType::F16 });
    let tier = cpu::tier_for(options.tier).map_err(Usage)?;
    Ok(BindOptions { precision: options.precision, tier, cache })
}
