//! From a checkpoint to a plan: config, circuit, IR, passes, plan. No arithmetic on weights, no threads, no I/O.
//!
//! * [`ModelConfig`]: a model's typed, checked hyper-parameters, whichever file they came from.
//! * [`Circuit`]: the JSON file of an architecture: blocks of operations with conditions and the names of weights, layers, stages.
//! * [`Ir`](ir::Ir): the circuit instantiated for one config, in dataflow form.
//! * [`ops`]: the operations of the IR, a file each: ports, shapes, costs, kernels, documentation.
//! * [`passes`]: pure functions from IR to IR: lowering of MLA, fusion, folding, kernel selection.
//! * [`Plan`]: what a backend compiles and runs.
//! * [`support`]: whether a model is supported, and if not, everything that is missing.
//! * [`audit`]: the rules that circuits, IRs and plans must keep, checked at every load.
//! * [`activations`]: values that mean the same in every plan of a model, for comparing runs.
//!
//! ```
//! use latent_graph::Circuit;
//! let circuit = Circuit::named("deepseek2")?;
//! assert_eq!(circuit.blocks["mla"].weights["kv_a"].shape, ["kv_lora+rope", "hidden"]);
//! # Ok::<(), latent_graph::GraphError>(())
//! ```
#![forbid(unsafe_code)]

pub mod activations;
pub mod audit;
pub mod circuit;
pub mod config;
mod error;
pub mod ir;
mod kernel_calls;
mod kernel_timings;
mod naming;
pub mod ops;
mod partition;
pub mod passes;
mod plan;
mod stage;
pub mod support;
mod target;
mod tensors;

pub use circuit::Circuit;
pub use config::{ConfigError, ModelConfig};
pub use error::{CacheError, CircuitError, GraphError};
pub use kernel_calls::{BankConflicts, CompiledKernel, KernelCalls, NodeCalls};
pub use kernel_timings::{
    KernelTiming, KernelTimings, KernelTimingsError, MAX_TIMINGS_BYTES, NearestTimings, ProductShape,
    TIMINGS_FORMAT,
};
pub use partition::{MAX_RANKS, Partition, PartitionError};
pub use plan::{MAX_STEP_ROWS, Plan, PlanOptions};
pub use stage::{LM_HEAD_ROWS, Stage, StageOptions, distinct_weights, stage_index};
pub use target::{BackendTarget, Fusion, KvSplits};
pub use tensors::CheckpointTensors;
