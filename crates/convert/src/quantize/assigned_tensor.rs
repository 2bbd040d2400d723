//! A tensor of an assignment.

use latent_types::TensorType;

/// A tensor and its target type.
#[derive(Clone, Debug)]
pub struct AssignedTensor {
    pub name: String,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Its type in the model.
    pub from: TensorType,
    /// Its type in the written file.
    pub to: TensorType,
    /// Its type if the mix does not choose one.
    pub kept: TensorType,
    /// The type that the mix chose, if the row length is not a multiple of its block size.
    pub meant: Option<TensorType>,
    /// Bytes of [`kept`](Self::kept).
    pub bytes_kept: u64,
    /// Bytes in the written file.
    pub bytes_to: u64,
    /// Whether the mix chose its type; false for norms, biases and routers.
    pub free: bool,
    /// Whether the user set its type by name.
    pub named: bool,
}
