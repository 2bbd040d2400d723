//! The reference backend: every operation computed from its definition, in f32, one element at a
//! time.
//!
//! It interprets the IR of a plan in which MLA is lowered to a formulation and nothing is fused. It
//! is the oracle for other backends, and an executable companion of `docs/ir.md`: no packing, no
//! threads, no kernels. Weights are decoded when they are used, so a model takes no more memory
//! than its file.
//!
//! * `backend`: the traits.
//! * `interpret`: the operations that work row by row.
//! * `embed`: what the first layer reads.
//! * `attention`: the KV cache and the formulations of attention.
//! * `indexer`: which tokens sparse attention reads.
//! * `delta`: Kimi Delta Attention.
//! * `experts`: routing and the experts.
//! * `products`: with rows of a weight, which `latent_backend::WeightRows` decodes.
//! * `kv`: the KV cache in memory.
//! * `recurrent`: a toy recurrence, with which a model gets recurrent state.
#![forbid(unsafe_code)]

mod attention;
mod backend;
mod delta;
mod embed;
mod experts;
mod indexer;
mod interpret;
mod kv;
mod lora;
mod products;
mod recurrent;

pub use backend::ReferenceBackend;
pub use kv::HostKvStore;
pub use recurrent::ToyRecurrence;
