//! Requested device features: those that this crate's shaders use and the adapter supports.

use crate::adapters::AdapterDescription;

pub(crate) fn of(adapter: &wgpu::Adapter, description: &AdapterDescription) -> wgpu::Features {
    let mut wanted = wgpu::Features::SHADER_F16 | wgpu::Features::SUBGROUP | wgpu::Features::TIMESTAMP_QUERY;
    if !description.coop_matrices.is_empty() {
        wanted |= wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
    }
    adapter.features() & wanted
}

/// Enables wgpu's experimental features if cooperative matrices need them. No other feature here is
/// experimental.
#[allow(unsafe_code, reason = "wgpu enables experimental features by an unsafe function")]
pub(crate) fn experimental(description: &AdapterDescription) -> wgpu::ExperimentalFeatures {
    if description.coop_matrices.is_empty() {
        return wgpu::ExperimentalFeatures::disabled();
    }
    // SAFETY: the caller accepts that wgpu's translation of these features may have errors. The
    // shaders with cooperative matrices are those of `matmul/gemm.rs` and `matmul/w4`, whose
    // results tests compare with sums in f64, those of `matrix_trial.rs`, which checks them, and
    // those of `limits.rs`, whose results are not read. naga validates each, and loads and stores
    // stay inside arrays whose size is known at compile time.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}
