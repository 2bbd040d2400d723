//! Weights, and the kernels that read them.

use serde::Serialize;

/// A weight of a block: one matrix per layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WeightInfo {
    /// The slot of the circuit.
    pub slot: String,
    /// The tensor's name in the file, with `{layer}` and `{expert}` instead of numbers.
    pub tensor: String,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    pub formats: Vec<FormatInfo>,
}

/// The layers that store a weight in the same format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FormatInfo {
    pub format: &'static str,
    /// The layers, `3–12, 15`; empty outside of layers.
    pub layers: String,
    /// Number of layers.
    pub count: usize,
    /// Bytes per layer.
    pub bytes: usize,
}

/// A request for a kernel, and the one selected.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelBinding {
    /// The requested operation.
    pub operation: &'static str,
    /// The format of the weight, if it reads one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<&'static str>,
    /// The selected kernel.
    pub kernel: &'static str,
    /// Its ISA.
    pub tier: &'static str,
    /// The activation type of its input.
    pub activation: &'static str,
    /// The weight layout, if the kernel depends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<&'static str>,
    /// The reasons: a sentence each for input, layout and ISA.
    pub why: Vec<String>,
    /// The other kernels of the operation that read this format.
    pub others: Vec<RejectedKernel>,
}

/// A kernel that was not selected.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RejectedKernel {
    /// Its name.
    pub kernel: &'static str,
    /// The reason.
    pub why: String,
    /// Whether it fulfils the request and was only outranked.
    pub matches: bool,
}
