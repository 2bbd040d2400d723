//! The backend interface. The engine uses only these traits; `latent-backends` lists the backends
//! of a build.
//!
//! * [`Backend`]: a kind of device. It defines the [`Target`](latent_graph::Target) of plans and
//!   loads models.
//! * [`Model`]: the weights of one model in a backend's memory, with its compiled plans. It runs steps.
//! * [`KvStore`]: the memory of the KV cache. The engine assigns blocks to sequences; [`slot`] maps
//!   a block table and a position to a row.
//! * [`LayerState`]: the state of a layer per sequence: a row per token, or a recurrent state of
//!   fixed size.
//! * [`Batch`]: the rows of one step and their sequences.
//! * [`WeightRows`], [`Rotation`]: weights and rotations as plain numbers, for backends that
//!   convert them.
//!
//! A step can fail and can be cancelled between phases. [`Model`] includes timing and recording of
//! activations, so every backend can be profiled and compared with others.
#![forbid(unsafe_code)]

mod arithmetic;
mod batch;
mod cancel;
mod clock;
mod communicator;
mod error;
mod input_rows;
mod input_squares;
mod kernel_calls;
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

pub use batch::{Batch, SeqSpan, SpanState};
pub use cancel::CancelToken;
pub use clock::Instant;
pub use communicator::{Channel, Communicator, Difference, RankError};
pub use error::BackendError;
pub use input_rows::{InputRow, InputRows};
pub use input_squares::InputSquares;
pub use kernel_calls::{BankConflicts, Compiled, KernelCalls, NodeCalls};
pub use kv::{KV_BLOCK, KvLayout, KvStore, slot};
pub use layer_state::{LayerState, RecurrentLayer};
pub use limits::Limits;
pub use links::{DIRECT_SUM, Links, collective_bytes};
pub use logits::{LargestLogits, Logits, MAX_TOP_LOGITS, TokenLogit};
pub use memory::{MemoryEstimate, WeightBytes, WeightSource};
pub use pulse::{HUNG_AFTER, Pulse, PulseGuard, PulseWatch};
pub use rotation::Rotation;
pub use times::{PlanTimes, ProfileClock, RankTimes};
pub use trace::{Trace, Values};
pub use traits::{Backend, DraftStep, HiddenSink, LoadRequest, Model, ModelOptions, Step};
pub use weight_rows::{Factors, WeightRows};
