//! Products with rows of a weight.

use latent_backend::{BackendError, CheckpointRows};
use latent_graph::circuit::Weight;
use std::ops::Range;

/// x · Wᵀ for every row of `x`, where W is `rows` of one matrix of the weight.
pub(super) fn product(
    weights: CheckpointRows<'_>,
    weight: &Weight,
    matrix: usize,
    rows: Range<usize>,
    x: &[f32],
) -> Result<Vec<f32>, BackendError> {
    let inputs = weight.inputs();
    let w = weights.rows(weight, matrix, rows)?;
    let products = x.chunks_exact(inputs).flat_map(|x| w.chunks_exact(inputs).map(|row| dot(row, x)));
    Ok(products.collect())
}

/// Σ aᵢ · bᵢ. The sum is kept in f64: products of two f32 are exact in it, and the order of the sum
/// hardly matters. Other backends can therefore be judged without knowing the order of their sums.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}
