//! Options of a drawing.

use latent_graph::passes::BindOptions;
use std::ops::Range;

/// Options of a drawing.
#[derive(Clone, Debug)]
pub struct Options {
    /// Precision, ISA and cache type.
    pub bind: BindOptions,
    /// The most rows of one step.
    pub max_batch_tokens: usize,
    /// The layers to draw; embedding and head only with all layers.
    pub layers: Range<usize>,
    /// Draw the stages of the MTP layer in the place of the layers.
    pub mtp: bool,
    /// The assumed weight format, if no file has weights.
    pub assumed: Option<&'static str>,
    /// Whether boxes name kernels. They depend on the machine, so documents leave them out.
    pub kernels: bool,
}
