//! The backend traits: devices, loaded models and their steps.

use crate::clock::Instant;
use crate::{
    ActivationTrace, BackendError, Batch, CancelToken, Communicator, InputProducts, InputSelection,
    InputSquares, KvStore, LargestLogits, LayerState, MemoryEstimate, NodeCalls, PeakRates, PhaseSpan,
    PlanTimes, ProfileClock, RankTimes, WeightBytes, WeightSource,
};
use latent_formats::Checkpoint;
use latent_graph::activations::Activations;
use latent_graph::ir::{Node, Op};
use latent_graph::{BackendTarget, ModelConfig, Stage, StageOptions};
use latent_threads::Placement;
use latent_types::{Arithmetic, CacheType, Setting, Tier};
use std::sync::Arc;

/// Options of a model, fixed at load time.
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions {
    /// The options of its plans.
    pub stages: StageOptions,
    /// Context size in tokens. It selects one of the two factor sets of LongRoPE.
    pub context: usize,
    /// Number of computing host threads, including the caller.
    pub threads: usize,
}

pub struct LoadRequest<'a> {
    /// The file.
    pub checkpoint: &'a Arc<Checkpoint>,
    /// Its hyper-parameters.
    pub config: ModelConfig,
    /// The plans, made for this backend's target.
    pub stages: Vec<Stage>,
    pub options: ModelOptions,
    /// CPU placement of the host threads.
    pub placement: &'a Placement,
    /// The communicator of a model shared by several ranks. [`ModelConfig::part`] describes this
    /// rank's part.
    pub communicator: Option<Arc<dyn Communicator>>,
    /// Whether all weights fit into memory. If so, reading them ahead evicts nothing.
    pub weights_fit: bool,
    /// Whether file pages read during loading may stay in the page cache in addition to the packed
    /// weights.
    pub keep_pages: bool,
    /// Called with the weight bytes processed and the total.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// Callback for rows of the residual stream.
pub type HiddenSink<'a> = &'a mut dyn FnMut(&[f32]);

/// One step: new rows of one or several sequences.
pub struct ModelStep<'a> {
    /// The rows: tokens of the vocabulary, or embeddings of hidden-size elements. The block table
    /// of every span has room for them.
    pub batch: &'a Batch,
    /// The KV cache, made by the same model's [`new_kv_store`](BackendModel::new_kv_store).
    pub kv: &'a mut dyn KvStore,
    /// Asked between phases.
    pub cancel: &'a CancelToken,
    /// Called for each row of [`Batch::wanted`] with its index there and its logits, one per token
    /// of the vocabulary.
    pub on_logits: &'a mut dyn FnMut(usize, &[f32]),
    /// Called before any logits with the residual stream after the last layer: hidden-size elements
    /// for every row of the batch, in order. MTP layers read it. None if unused.
    pub on_hidden: Option<HiddenSink<'a>>,
}

/// A step of the MTP layer over rows that the model has run, which drafts tokens.
pub struct DraftStep<'a> {
    /// The rows that the model ran, at the same positions, but with each row's next token. Logits
    /// predict the token after that.
    pub batch: &'a Batch,
    /// For each span of the batch, its rows of the residual stream, as passed to
    /// [`ModelStep::on_hidden`].
    pub hidden: &'a [&'a [f32]],
    /// The KV cache of the model's own steps. Its last layer is the MTP layer's.
    pub kv: &'a mut dyn KvStore,
    /// Asked between phases.
    pub cancel: &'a CancelToken,
    /// Called with logits, like [`ModelStep::on_logits`].
    pub on_logits: &'a mut dyn FnMut(usize, &[f32]),
}

/// A kind of compute device.
pub trait Backend: Send + Sync {
    /// Its name on the command line, for example `cpu`.
    fn name(&self) -> &'static str;

    /// The driver's name of the device. `None` for the host's CPU.
    fn device(&self) -> Option<String> {
        None
    }

    /// The target for which plans are made.
    fn target(&self) -> &BackendTarget;

    /// The highest ISA level that this machine and `limit` allow.
    fn isa(&self, limit: Option<Tier>) -> Result<Tier, BackendError>;

    /// The state that the layers of these stages keep between steps, in the order of
    /// [`KvLayout::layers`](crate::KvLayout::layers).
    fn layer_states(&self, stages: &[Stage]) -> Vec<LayerState> {
        LayerState::of_stages(stages)
    }

    /// The default element type of the KV cache.
    fn default_cache(&self, exact: bool) -> CacheType {
        // An f16 cache rounds rows, which exact precision does not allow.
        if exact { CacheType::F32 } else { CacheType::F16 }
    }

    /// Bytes of the weights of these stages in the backend's memory.
    fn weight_bytes(&self, stages: &[Stage], source: WeightSource<'_>) -> WeightBytes;

    /// Size of activations and of expanded keys and values ([`MemoryEstimate::arena`] and
    /// [`MemoryEstimate::expanded`]) for a context of `context` tokens. The other parts are 0.
    fn scratch_bytes(
        &self,
        config: &ModelConfig,
        stages: &[Stage],
        options: &ModelOptions,
        context: usize,
    ) -> MemoryEstimate;

    /// Whether models are in separate device memory, which does not count as host memory.
    fn has_own_memory(&self) -> bool {
        false
    }

    /// How many of `wanted` bytes fit into the device's memory. If the driver does not report free
    /// memory, they are allocated for a moment.
    fn room(&self, wanted: u64) -> Result<u64, BackendError> {
        Ok(wanted)
    }

    /// Maximum bytes of a single allocation, if limited. A layer's rows of the KV cache are one
    /// allocation, and so is each value of a step.
    fn largest_piece(&self) -> u64 {
        u64::MAX
    }

    /// Loads a model.
    ///
    /// # Errors
    /// When weights are missing or cannot be decoded, or the system refuses memory or threads.
    fn load(&self, request: LoadRequest<'_>) -> Result<Box<dyn BackendModel>, BackendError>;

    /// Measures the device's limits with threads at this placement.
    ///
    /// # Errors
    /// When threads cannot be started or memory is refused; [`BackendError::Unsupported`] if the
    /// backend cannot measure limits.
    fn limits(&self, placement: &Placement, tier: Tier) -> Result<PeakRates, BackendError>;
}

/// A model in a backend's memory.
pub trait BackendModel: Send {
    /// Its hyper-parameters.
    fn config(&self) -> &ModelConfig;

    /// Its plans.
    fn stages(&self) -> &[Stage];

    /// Creates an empty KV cache for this model: `blocks` blocks of rows, and `state_slots` slots
    /// for the states of its recurrent layers, if it has any.
    fn new_kv_store(&self, blocks: u32, state_slots: u32) -> Result<Box<dyn KvStore>, BackendError>;

    /// Runs a step. When it returns, the rows of the batch and the requested states of its spans
    /// are in the KV cache.
    ///
    /// # Errors
    /// [`BackendError::Cancelled`]; [`BackendError::ForeignStore`]; a failing device. The slots of
    /// the batch's rows and the states to be written are then undefined. All other slots are
    /// unchanged.
    fn step(&mut self, step: ModelStep<'_>) -> Result<(), BackendError>;

    /// Runs a step whose caller needs only the largest logits of some rows. A backend that reads
    /// back rows from a device returns only those. A backend with rows in host memory passes whole
    /// rows to [`ModelStep::on_logits`], as does this default.
    fn step_for_largest(
        &mut self,
        step: ModelStep<'_>,
        _largest: LargestLogits<'_>,
    ) -> Result<(), BackendError> {
        self.step(step)
    }

    /// Maximum number of steps in flight: begun by [`submit`](Self::submit) and not yet ended by
    /// [`collect`](Self::collect). If 1, steps run only by [`step`](Self::step).
    fn steps_in_flight(&self) -> usize {
        1
    }

    /// Begins a step and returns while it still runs elsewhere. Operations on the KV store keep
    /// their order relative to the step, wherever its rows are. The blocks of a step in flight may
    /// therefore be reused by a later step.
    ///
    /// # Errors
    /// As for [`step`](Self::step), but it cannot be cancelled; [`BackendError::Unsupported`] if
    /// the model does not support steps in flight.
    fn submit(&mut self, _batch: &Batch, _kv: &mut dyn KvStore) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("this model runs one step at a time".into()))
    }

    /// Waits for the end of the oldest submitted step, whose batch is that of `step`, and computes
    /// its logits. It is not cancelled.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit). All steps in flight have then failed.
    fn collect(&mut self, _step: ModelStep<'_>) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("this model runs one step at a time".into()))
    }

    /// Runs the MTP layer of a model loaded with its stages. When it returns, its rows are in the
    /// KV cache.
    ///
    /// # Errors
    /// As for [`step`](Self::step); [`BackendError::Unsupported`] if the model lacks these stages,
    /// or the backend does not run them.
    fn draft(&mut self, _step: DraftStep<'_>) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("the model was loaded without an MTP layer that drafts".into()))
    }

    /// Like [`draft`](Self::draft), if the largest logits of some rows suffice: see
    /// [`step_for_largest`](Self::step_for_largest).
    fn draft_for_largest(
        &mut self,
        step: DraftStep<'_>,
        _largest: LargestLogits<'_>,
    ) -> Result<(), BackendError> {
        self.draft(step)
    }

    /// Blocks until all weights are in memory, if the backend reads them ahead.
    fn wait_for_weights(&mut self) {}

    /// Runs `job` once for each index below `tasks`, on several threads if the backend has them. It
    /// is for host work between two steps, such as sampling.
    fn parallel(&mut self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(job);
    }

    /// The kernel calls of a step of this batch, for each node, without running it. Empty for a
    /// backend whose kernels are functions.
    fn kernel_calls(&mut self, _batch: &Batch, _kv: &dyn KvStore) -> Result<Vec<NodeCalls>, BackendError> {
        Ok(Vec::new())
    }

    /// The arithmetic in which a node of a plan multiplies in a step of `_rows` rows.
    fn arithmetic(&self, (stage, bucket): (usize, usize), node: usize, _rows: usize) -> Arithmetic {
        let plan = self.stages().get(stage).and_then(|stage| stage.plans.get(bucket));
        let node = plan.and_then(|plan| plan.ir.nodes.get(node));
        node.map_or(Arithmetic::F32, arithmetic_of_kernels)
    }

    fn profile_clock(&self) -> ProfileClock {
        ProfileClock::default()
    }

    /// Starts timing each phase.
    fn start_profile(&mut self);

    /// Stops timing and returns the times since the start, for each plan of each stage in order.
    fn stop_profile(&mut self) -> Vec<PlanTimes>;

    /// Starts recording when each thread begins and ends each phase, in nanoseconds since
    /// `_origin`. A backend that cannot tell its threads apart records nothing.
    fn start_timeline(&mut self, _origin: Instant) {}

    /// Stops recording and returns the spans of all whole runs of plans, thread by thread. A
    /// backend may stop recording earlier to bound the memory for them.
    fn stop_timeline(&mut self) -> Vec<PhaseSpan> {
        Vec::new()
    }

    /// Starts timing on the other ranks of the model, if any.
    fn start_rank_times(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Stops timing on the other ranks and returns the times of each since the start.
    fn stop_rank_times(&mut self) -> Result<Vec<RankTimes>, BackendError> {
        Ok(Vec::new())
    }

    /// Starts recording activations into `trace`, in the steps of one sequence.
    fn start_trace(&mut self, activations: &Activations, trace: ActivationTrace) -> Result<(), BackendError>;

    /// Stops recording and returns the trace, if recording was started.
    fn stop_trace(&mut self) -> Option<ActivationTrace>;

    /// Starts summing the squares of the inputs of weights, per column, over all steps.
    fn start_input_squares(&mut self) -> Result<(), BackendError> {
        Err(no_input_statistics())
    }

    /// Stops summing and returns the sums by the name of each weight's first tensor. Unused weights
    /// are omitted.
    fn stop_input_squares(&mut self) -> Vec<(String, InputSquares)> {
        Vec::new()
    }

    /// Starts summing the products of the inputs of some weights, over all steps.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if the backend does not support this, or has no such weight.
    fn start_input_products(&mut self, _selections: &[InputSelection]) -> Result<(), BackendError> {
        Err(no_input_statistics())
    }

    /// Stops summing and returns the products in the order of the selections.
    fn stop_input_products(&mut self) -> Vec<InputProducts> {
        Vec::new()
    }
}

fn no_input_statistics() -> BackendError {
    BackendError::Unsupported(format!(
        "this device cannot collect input statistics of weights; use {}",
        Setting::Device.to("cpu")
    ))
}

/// The arithmetic of a node from the target's kernels; f32 if it has none.
pub fn arithmetic_of_kernels(node: &Node) -> Arithmetic {
    let any = |activation: &str| node.kernels.iter().any(|kernel| kernel.activation == activation);
    // A node may have several kernels, for example another one for few rows of an expert. The order
    // decides which arithmetic stands for the node.
    let known = [("f16", Arithmetic::F16), ("bf16", Arithmetic::Bf16), ("a8", Arithmetic::Int8)];
    // In attention over expanded keys, an integer product expands the latents, but most of the work
    // is in scores and weighted sums.
    let expands = node.op == Op::AttendExpanded;
    let known = known.into_iter().filter(|(_, found)| !(expands && *found == Arithmetic::Int8));
    let mut found = known.filter(|(activation, _)| any(activation));
    found.next().map_or(Arithmetic::F32, |(_, found)| found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_graph::ir::BoundKernel;

    fn node(op: Op, activations: &[&str]) -> Node {
        let kernel = |(index, activation): (usize, &&str)| BoundKernel {
            index,
            name: String::new(),
            activation: (*activation).to_owned(),
            small_batch: None,
            decided_by: None,
        };
        let kernels = activations.iter().enumerate().map(kernel).collect();
        Node { kernels, ..Node::new(op, None, Vec::new(), Vec::new()) }
    }

    #[test]
    fn expanded_attention_is_compared_with_the_arithmetic_of_its_scores() {
        let of = |op, activations: &[&str]| arithmetic_of_kernels(&node(op, activations));
        assert_eq!(of(Op::AttendExpanded, &["f32", "a8", "f32"]), Arithmetic::F32);
        assert_eq!(of(Op::AttendExpanded, &["bf16", "a8", "bf16"]), Arithmetic::Bf16);
        assert_eq!(of(Op::AttendExpanded, &["f32", "a8", "f16"]), Arithmetic::F16);
        assert_eq!(of(Op::Linear, &["a8"]), Arithmetic::Int8);
        assert_eq!(of(Op::Linear, &[]), Arithmetic::F32);
    }
}
