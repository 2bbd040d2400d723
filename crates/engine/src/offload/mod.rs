//! Offload: a model on two backends. One runs the first layers (the front), the other the remaining
//! layers and the logits (the back).
//!
//! * `place.rs`: chooses the layers of each backend.
//! * `planned.rs`: the plans of a side, and the memory that it needs.
//! * `model.rs`, `store.rs`: both sides as one model with one KV cache.

mod model;
mod place;
mod planned;
mod store;

pub(crate) use model::OffloadedModel;
pub(crate) use place::{BackendPlacement, layers_that_fit};
pub(crate) use planned::BackendPlan;
