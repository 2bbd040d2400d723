//! Options of a drawing.

use latent_graph::passes::BindOptions;
use std::ops::Range;

/// Options of a drawing.
#[derive(Clone, Debug)]
pub struct Options {
    /// Precision, ISA and cache type.
    pub bind: BindOptions,
    /// Maximum rows of one step.
    pub max_batch_tokens: usize,
    /// The layers to draw. Embedding and head are drawn only with all layers.
    pub layers: Range<usize>,
    /// Draw the stages of the MTP layer instead of the layers.
    pub mtp: bool,
    /// The assumed weight format, if no file has weights.
    pub assumed: Option<&'static str>,
    /// Whether boxes name kernels. Kernels depend on the machine, so documents omit them.
    pub kernels: bool,
}
