//! Prefill, the naive path: causal attention of one head over keys and values expanded from cached
//! latents.
//!
//! `driver` has the loop over blocks of keys; a kernel implements scores, softmax and weighted
//! sums. Kernels are named after the elements that they multiply. Each file also has the expansion
//! of keys, K = W_UK · latents.

#[cfg(target_arch = "x86_64")]
pub(super) mod bf16;
mod driver;
#[cfg(target_arch = "x86_64")]
pub(super) mod f16;
pub(super) mod f32;
