//! Proposes a partition of a model over given hosts, and predicts its speed.
//!
//! A step of few rows reads the weights of its layers once: a rank takes as long as its bytes take at its read bandwidth, or its operations at its speed. The
//! bytes and operations are those of the rank's own plans. A step goes through all stretches of layers before it ends, and residual rows cross a link between two of
//! them; ranks that share a stretch wait for each other at each sum. Several steps in flight are in different stretches at the same time.
//! Ranks of one machine are slower while others compute.

mod company;
mod group;
mod load;
mod network;
mod propose;
mod routing;
mod shared;
mod stretches;

pub use load::{PartLoad, PredictionCase, StepWork};
pub use network::{Host, HostSpeed, NetworkLink, SumSpeed};
pub use propose::{Prediction, Proposal, RankPrediction, predict, propose};
pub use shared::{PlannedModel, PlannedPart, SharedLoad};
pub use stretches::PredictError;
