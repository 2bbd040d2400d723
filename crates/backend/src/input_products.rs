//! Products of the inputs x of weights: Σ x·xᵀ per matrix, the Hessian of the squared error of its
//! outputs.

use std::ops::Range;

/// The matrices of a weight whose inputs are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSelection {
    /// The weight's first tensor.
    pub tensor: String,
    /// Indices of the matrices (experts, heads).
    pub matrices: Range<usize>,
}

/// Products of the inputs of the selected matrices of a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct InputProducts {
    pub selection: InputSelection,
    /// Per matrix, the lower triangle of Σ x·xᵀ, row by row. The matrix is symmetric.
    pub triangles: Vec<Vec<f32>>,
}
