//! What is asked of a device when it is opened: features that shaders of this crate can use, where the adapter offers them, and no others.

use crate::adapters::AdapterDescription;

/// The features.
pub(crate) fn of(adapter: &wgpu::Adapter, description: &AdapterDescription) -> wgpu::Features {
    let mut wanted = wgpu::Features::SHADER_F16 | wgpu::Features::SUBGROUP | wgpu::Features::TIMESTAMP_QUERY;
    if !description.coop_matrices.is_empty() {
        wanted |= wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
    }
    adapter.features() & wanted
}

/// Cooperative matrices are the only feature that wgpu calls experimental.
#[allow(unsafe_code, reason = "wgpu wants to hear that experimental features are meant")]
pub(crate) fn experimental(description: &AdapterDescription) -> wgpu::ExperimentalFeatures {
    if description.coop_matrices.is_empty() {
        return wgpu::ExperimentalFeatures::disabled();
    }
    // SAFETY: the contract is to know that wgpu's translation of these features may have errors. Shaders that use cooperative matrices are those of
    // `matmul/gemm.rs` and `matmul/w4`, whose results tests hold against sums in f64, of `matrix_trial.rs`, which tries them, and of `limits.rs`, whose results nobody reads: each is validated by naga, and loads
    // and stores stay inside of arrays of a size that is known when they are compiled.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}
