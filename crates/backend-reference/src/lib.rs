//! The reference backend: computes every operation from its definition, in f32, one element at a
//! time.
//!
//! It interprets the IR of a plan in which MLA is lowered to a formulation and nothing is fused.
//! Other backends are tested against it, and it shows in code what `docs/ir.md` describes.
//! Therefore it has no packing, threads or kernels. Sums are kept in f64, so that its results are
//! closer to the truth than those of the backends that it judges. Weights are decoded when they are
//! used, so a model takes no more memory than its file.
//!
//! * `backend`: implements the backend traits.
//! * `interpret`: runs the nodes of a plan, and computes simple operations.
//! * `embed`: inputs of the first layer.
//! * `attention`: stores to the KV cache, and the formulations of attention.
//! * `indexer`: selects the tokens that sparse attention reads.
//! * `delta`: Kimi Delta Attention.
//! * `experts`: routing and the experts.
//! * `lora`: terms of LoRA adapters.
//! * `products`: products with rows of a weight, which `latent_backend::CheckpointRows` decodes.
//! * `kv`: the KV cache in memory.
//! * `recurrent`: a toy recurrence, which gives a model recurrent state.
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
