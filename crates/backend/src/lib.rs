//! The backend interface. The engine uses only these traits; `latent-backends` lists the backends
//! of a build.
//!
//! * [`Backend`]: a kind of device. It defines the [`BackendTarget`](latent_graph::BackendTarget)
//!   of plans and loads models.
//! * [`BackendModel`]: the weights of one model in a backend's memory, with its compiled plans. It
//!   runs steps.
//! * [`KvStore`]: the memory of the KV cache. The engine assigns blocks to sequences; [`slot`] maps
//!   a block table and a position to a row.
//! * [`LayerState`]: the state of a layer per sequence: a row per token, or a recurrent state of
//!   fixed size.
//! * [`Batch`]: the rows of one step and their sequences.
//! * [`CheckpointRows`], [`Rotation`]: weights and rotations as plain numbers, for backends that
//!   convert them.
//!
//! A step can fail and can be cancelled between phases. [`BackendModel`] includes timing and
//! recording of activations, so every backend can be profiled and compared with others.
#![forbid(unsafe_code)]

mod adapter_scales;
mod batch;
mod cancel;
mod clock;
mod communicator;
mod derived;
mod error;
mod input_products;
mod input_rows;
mod input_squares;
mod kv;
mod layer_state;
mod limits;
mod links;
mod logits;
mod memory;
mod pulse;
mod rotation;
mod times;
mod trace;
mod traits;
mod weight_rows;

pub use adapter_scales::AdapterScales;
pub use batch::{Batch, STATE_CHUNK, SeqSpan, SpanState};
pub use cancel::CancelToken;
pub use clock::Instant;
pub use communicator::{Channel, Communicator, RankDifference, RankError};
pub use derived::with_derived_weights;
pub use error::BackendError;
pub use input_products::{InputProducts, InputSelection};
pub use input_rows::{InputRow, InputRows};
pub use input_squares::InputSquares;
pub use kv::{KV_BLOCK, KvLayout, KvStore, slot};
pub use latent_graph::circuit::StateShape;
pub use latent_graph::{BankConflicts, CompiledKernel, KernelCalls, NodeCalls};
pub use layer_state::{LayerState, RecurrentLayer};
pub use limits::PeakRates;
pub use links::{DIRECT_SUM, RankLinks, collective_bytes};
pub use logits::{LargestLogits, Logits, MAX_TOP_LOGITS, TokenLogit};
pub use memory::{MemoryEstimate, WeightBytes, WeightSource};
pub use pulse::{HUNG_AFTER, PulseGuard, PulseWatch, ThreadPulse};
pub use rotation::Rotation;
pub use times::{PhaseSpan, PlanTimes, ProfileClock, RankTimes};
pub use trace::{ActivationTrace, TraceValues};
pub use traits::{
    Backend, BackendModel, DraftStep, HiddenSink, LoadRequest, ModelOptions, ModelStep, arithmetic_of_kernels,
};
pub use weight_rows::{BlockFactors, CheckpointRows};
