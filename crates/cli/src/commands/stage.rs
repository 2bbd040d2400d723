//! Stages of `latent graph` and the options of its plans.

use crate::args::GraphArgs;
use crate::exit::usage_of;
use anyhow::Result;
use latent_graph::passes::BindOptions;

/// The stage to print or draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrintedStage {
    /// The JSON file of the architecture.
    Circuit,
    /// The circuit instantiated for this model.
    Ir,
    /// The IR after all passes: phases, kernels, buffers.
    Plan,
}

impl PrintedStage {
    pub(super) const ALL: [(&'static str, PrintedStage); 3] =
        [("circuit", PrintedStage::Circuit), ("ir", PrintedStage::Ir), ("plan", PrintedStage::Plan)];

    pub(super) fn name(self) -> &'static str {
        // `ALL` has the order of the variants.
        Self::ALL[self as usize].0
    }
}

/// Options of kernel selection.
pub(super) fn bind(args: &GraphArgs) -> Result<BindOptions> {
    let backend = args.model.engine.hollow_backend()?;
    args.model.engine.check_tuned(&*backend)?;
    args.model.engine.options().bind(&*backend).map_err(usage_of)
}
