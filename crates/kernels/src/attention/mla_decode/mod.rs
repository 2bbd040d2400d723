//! MLA decode, the absorbed path: one token's queries attend to cached latents, one KV split per
//! call.
//!
//! `driver` has the loop over blocks of the KV cache; a kernel implements loading, scores, softmax
//! and weighted sums. Kernels are named after their arithmetic: `f32` (any cache type), `int8`
//! (8-bit scores, f32 sums), `f16`, `int8_f16` (8-bit scores, f16 sums), `bf16` (AMX or
//! AVX512-BF16).

#[cfg(target_arch = "x86_64")]
pub(super) mod bf16;
mod driver;
#[cfg(target_arch = "x86_64")]
pub(super) mod f16;
pub(super) mod f32;
pub(super) mod int8;
#[cfg(target_arch = "x86_64")]
pub(super) mod int8_f16;
mod int8_queries;

// The indexer quantizes its queries in the same way.
pub(crate) use int8_queries::{QuantizedQueries, queries_len};
