//! Products of the inputs of weights: Σ x·xᵀ per matrix, the Hessian of the squared error of its outputs.

use std::ops::Range;

/// Matrices of a weight whose inputs are to be multiplied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSelection {
    /// The weight's first tensor.
    pub tensor: String,
    /// Of its matrices (experts, heads).
    pub matrices: Range<usize>,
}

/// Products of the inputs of the selected matrices of a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct InputProducts {
    pub selection: InputSelection,
    /// Per matrix the lower triangle of Σ x·xᵀ, row by row.
    pub triangles: Vec<Vec<f32>>,
}
