//! A model on two backends: the first layers on one, the layers behind them and the logits on the other.
//!
//! * `planned.rs`: the plans of a side, and what it takes of memory.
//! * `place.rs`: which layers are where.
//! * `model.rs`, `store.rs`: the two sides as one model with one KV cache.

mod model;
mod place;
mod planned;
mod store;

pub(crate) use model::OffloadedModel;
pub(crate) use place::{BackendPlacement, layers_that_fit};
pub(crate) use planned::BackendPlan;
