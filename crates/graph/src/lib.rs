//! From a checkpoint to a plan: config, circuit, IR, passes, plan. The crate does no arithmetic on
//! weights, starts no threads and does no I/O apart from reading timing files.
//!
//! * [`ModelConfig`]: a model's typed, checked hyper-parameters, independent of the container.
//! * [`Circuit`]: an architecture as JSON: blocks of operations with conditions and weight names,
//!   layer rules, stages.
//! * [`Ir`](ir::Ir): the circuit instantiated for one config, in dataflow form.
//! * [`ops`]: the operations of the IR, each with ports, shapes, costs, kernels and documentation.
//! * [`passes`]: pure functions from IR to IR: lowering of MLA, fusion, folding, kernel selection.
//! * [`Plan`]: what a backend compiles and runs.
//! * [`support`]: reports whether a model is supported and lists everything that is missing.
//! * [`audit`]: invariants of circuits, IRs and plans, checked at every load.
//! * [`activations`]: values with the same meaning in every plan of a model, for comparing runs.
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
