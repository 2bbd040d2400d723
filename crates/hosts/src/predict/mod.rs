//! Proposes a partition of a model over given hosts, and predicts its speed.
//!
//! The model of time:
//!
//! * A step of few rows reads the weights of its layers once. A rank takes the maximum of its bytes
//!   over its read bandwidth and its operations over its speed. Both are counted from the rank's
//!   own plans.
//! * A step runs through all stretches of layers, and residual rows cross a link between two of
//!   them. Ranks that share a stretch wait for each other at each sum.
//! * Several steps in flight are in different stretches at the same time.
//! * Ranks of one machine are slower while other ranks compute.

mod group;
mod load;
mod network;
mod peers;
mod propose;
mod routing;
mod shared;
mod stretches;

pub use load::{PartLoad, PredictionCase, StepWork};
pub use network::{Host, HostSpeed, NetworkLink, SumSpeed};
pub use propose::{Prediction, Proposal, RankPrediction, predict, propose};
pub use shared::{PlannedModel, PlannedPart, SharedLoad};
pub use stretches::PredictError;
