//! What a backend is. The engine talks to these traits only; which backends a build has, `latent-backends` says.
//!
//! * [`Backend`]: a kind of device. It states its [`Target`](latent_graph::Target), for which plans are made, and loads models.
//! * [`Model`]: the weights of one model in a backend's memory, with its compiled plans. It runs steps.
//! * [`KvStore`]: the memory of the KV cache. Which block belongs to which sequence, the engine keeps; [`slot`] turns a block table and a
//!   position into the place of a row.
//! * [`LayerState`]: what a layer keeps of a sequence there: a row per token, or a recurrent state of fixed size.
//! * [`Batch`]: the rows of one step, and whose they are.
//! * [`WeightRows`], [`Rotation`]: weights and rotations as plain numbers, for backends that begin with those.
//!
//! A step can fail and can be cancelled between phases. Timing and the recording of activations are part of [`Model`], so that every backend can
//! be profiled and compared with another one.
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
