//! The traits.

use crate::arithmetic::of_kernels;
use crate::kernel_calls::NodeCalls;
use crate::{
    BackendError, Batch, CancelToken, Communicator, InputSquares, KvStore, LargestLogits, LayerState, Limits,
    MemoryEstimate, PlanTimes, ProfileClock, RankTimes, Trace, WeightBytes, WeightSource,
};
use latent_formats::Checkpoint;
use latent_graph::activations::Activations;
use latent_graph::{ModelConfig, Stage, StageOptions, Target};
use latent_threads::Placement;
use latent_types::{Arithmetic, CacheType, Tier};
use std::sync::Arc;

/// How a model is run, fixed when it is loaded.
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions {
    /// What its plans are made with.
    pub stages: StageOptions,
    /// Tokens of context, which decide between the two sets of factors of LongRoPE.
    pub context: usize,
    /// Host threads that compute, the caller counted.
    pub threads: usize,
}

/// A model to be loaded.
pub struct LoadRequest<'a> {
    /// The file.
    pub checkpoint: &'a Arc<Checkpoint>,
    /// Its hyper-parameters.
    pub config: ModelConfig,
    /// The plans, made for this backend's target.
    pub stages: Vec<Stage>,
    /// How it is run.
    pub options: ModelOptions,
    /// Where host threads run.
    pub placement: &'a Placement,
    /// What carries the collectives of a model that several ranks share, of which [`ModelConfig::part`] says what this one has.
    pub communicator: Option<Arc<dyn Communicator>>,
    /// Whether all weights fit into memory, so that reading them before they are needed pushes nothing else out.
    pub weights_fit: bool,
    /// Whether file pages read during loading may stay in the page cache in addition to the packed
    /// weights.
    pub keep_pages: bool,
    /// Called with the weight bytes processed and the total.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// Hears rows of the residual stream.
pub type HiddenSink<'a> = &'a mut dyn FnMut(&[f32]);

/// One step: new rows of one or several sequences.
pub struct Step<'a> {
    /// The rows: tokens of the vocabulary, and embeddings as wide as the hidden size. Every span's block table has room for them.
    pub batch: &'a Batch,
    /// The KV cache, made by the same model's [`new_kv_store`](Model::new_kv_store).
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

/// A step of the MTP layer over rows that the model has run: what drafts tokens.
pub struct DraftStep<'a> {
    /// The rows, as the model ran them, at the same positions; in the place of each row's token the one after it. Logits are those of the token
    /// after that.
    pub batch: &'a Batch,
    /// Of each span of the batch, its rows of the residual stream as [`Step::on_hidden`] heard them.
    pub hidden: &'a [&'a [f32]],
    /// The KV cache that the model's own steps have, whose last layer is the MTP layer's.
    pub kv: &'a mut dyn KvStore,
    /// Asked between phases.
    pub cancel: &'a CancelToken,
    /// Hears logits, as [`Step::on_logits`] does.
    pub on_logits: &'a mut dyn FnMut(usize, &[f32]),
}

/// A kind of device that computes.
pub trait Backend: Send + Sync {
    /// The word for it on the command line: `cpu`.
    fn name(&self) -> &'static str;

    /// What it runs on where that is not the host's CPU, by the name that its driver has for it.
    fn device(&self) -> Option<String> {
        None
    }

    /// What plans are made for.
    fn target(&self) -> &Target;

    /// The highest ISA level that this machine and `limit` allow.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] when the limit asks for more than the machine has.
    fn isa(&self, limit: Option<Tier>) -> Result<Tier, BackendError>;

    /// What the layers of these stages keep between steps, in the order of [`KvLayout::layers`](crate::KvLayout::layers).
    fn layer_states(&self, stages: &[Stage]) -> Vec<LayerState> {
        LayerState::of_stages(stages)
    }

    /// The default element type of the KV cache.
    fn default_cache(&self, exact: bool) -> CacheType {
        if exact { CacheType::F32 } else { CacheType::F16 }
    }

    /// Bytes that the weights of these stages take in the backend's memory.
    fn weight_bytes(&self, stages: &[Stage], source: WeightSource<'_>) -> WeightBytes;

    /// Bytes of activations and of expanded keys and values: [`MemoryEstimate::arena`] and [`MemoryEstimate::expanded`] for a context of
    /// `context` tokens; the other parts are 0.
    fn scratch_bytes(
        &self,
        config: &ModelConfig,
        stages: &[Stage],
        options: &ModelOptions,
        context: usize,
    ) -> MemoryEstimate;

    /// Whether models are in memory of its own, and what they take does not count in the host's.
    fn has_own_memory(&self) -> bool {
        false
    }

    /// How many of `wanted` bytes there is room for in memory of its own. Where no driver says it, they are taken for a moment.
    ///
    /// # Errors
    /// When the device fails otherwise than by being full.
    fn room(&self, wanted: u64) -> Result<u64, BackendError> {
        Ok(wanted)
    }

    /// Bytes of the largest piece of memory that it gives out, where that is limited: a layer's rows of the KV cache are one piece, and so is each value of a
    /// step.
    fn largest_piece(&self) -> u64 {
        u64::MAX
    }

    /// Loads a model.
    ///
    /// # Errors
    /// Weights that are missing or cannot be decoded; memory or threads that the system refuses.
    fn load(&self, request: LoadRequest<'_>) -> Result<Box<dyn Model>, BackendError>;

    /// Measures what the device can do with threads at these places.
    ///
    /// # Errors
    /// When threads cannot be started or memory is refused; [`BackendError::Unsupported`] where nothing is measured.
    fn limits(&self, placement: &Placement, tier: Tier) -> Result<Limits, BackendError>;
}

/// A model in a backend's memory.
pub trait Model: Send {
    /// Its hyper-parameters.
    fn config(&self) -> &ModelConfig;

    /// Its plans.
    fn stages(&self) -> &[Stage];

    /// An empty KV cache for this model: `blocks` blocks of rows, and `state_slots` slots for the states of its recurrent layers, if it has any.
    ///
    /// # Errors
    /// When the memory is refused.
    fn new_kv_store(&self, blocks: u32, state_slots: u32) -> Result<Box<dyn KvStore>, BackendError>;

    /// Runs a step. When it returns, the rows of the batch are in the KV cache, and the states that its spans ask for.
    ///
    /// # Errors
    /// [`BackendError::Cancelled`]; [`BackendError::ForeignStore`]; a failing device. What slots of the batch's rows hold is undefined then, and
    /// so are the states that were to be written; all other slots are as they were.
    fn step(&mut self, step: Step<'_>) -> Result<(), BackendError>;

    /// Runs a step of which callers need only the largest logits of some rows. A backend that reads rows back from a device gives those; one whose
    /// rows are in host memory gives [`Step::on_logits`] whole rows, as here.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    fn step_for_largest(&mut self, step: Step<'_>, _largest: LargestLogits<'_>) -> Result<(), BackendError> {
        self.step(step)
    }

    /// How many steps may be in flight at once: begun by [`submit`](Self::submit), and not yet ended by [`collect`](Self::collect). 1: none can be, and a step
    /// runs by [`step`](Self::step) alone.
    fn steps_in_flight(&self) -> usize {
        1
    }

    /// Begins a step, and returns while it still runs elsewhere. What was told before to the KV store, and is told after, is done before and after it wherever
    /// its rows are, so that the blocks of a step in flight may already be given to a later one.
    ///
    /// # Errors
    /// As for [`step`](Self::step), but it cannot be cancelled; [`BackendError::Unsupported`] where no step can be in flight.
    fn submit(&mut self, _batch: &Batch, _kv: &mut dyn KvStore) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("this model runs one step at a time".into()))
    }

    /// Waits for the end of the step that was submitted first, whose batch `step` has, and computes its logits. It is not cancelled.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit). All steps in flight have failed then.
    fn collect(&mut self, _step: Step<'_>) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("this model runs one step at a time".into()))
    }

    /// Runs the MTP layer, in a model that was loaded with its stages. When it returns, its rows are in the KV cache.
    ///
    /// # Errors
    /// As for [`step`](Self::step); [`BackendError::Unsupported`] where the model has no such stages, or the backend does not run them.
    fn draft(&mut self, _step: DraftStep<'_>) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("the model was loaded without an MTP layer that drafts".into()))
    }

    /// The same where the largest logits of some rows are enough, as in [`step_for_largest`](Self::step_for_largest).
    ///
    /// # Errors
    /// As for [`draft`](Self::draft).
    fn draft_for_largest(
        &mut self,
        step: DraftStep<'_>,
        _largest: LargestLogits<'_>,
    ) -> Result<(), BackendError> {
        self.draft(step)
    }

    /// Blocks until all weights are in memory, where the backend reads them before they are needed.
    fn wait_for_weights(&mut self) {}

    /// Runs `job` once for each index below `tasks`, on several threads where the backend has them: work on the host between two steps, such
    /// as sampling.
    fn parallel(&mut self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(job);
    }

    /// The calls of kernels that a step of this batch would be, for each node; nothing runs. None of a backend whose kernels are functions.
    ///
    /// # Errors
    /// What a step fails with before it runs.
    fn kernel_calls(&mut self, _batch: &Batch, _kv: &dyn KvStore) -> Result<Vec<NodeCalls>, BackendError> {
        Ok(Vec::new())
    }

    /// The arithmetic in which a node of a plan multiplies in a step of `_rows` rows.
    fn arithmetic(&self, (stage, bucket): (usize, usize), node: usize, _rows: usize) -> Arithmetic {
        let plan = self.stages().get(stage).and_then(|stage| stage.plans.get(bucket));
        let node = plan.and_then(|plan| plan.ir.nodes.get(node));
        node.map_or(Arithmetic::F32, of_kernels)
    }

    /// What times of a profile are taken by.
    fn profile_clock(&self) -> ProfileClock {
        ProfileClock::default()
    }

    /// Starts timing each phase.
    fn start_profile(&mut self);

    /// Stops timing: what was measured since the start, for each plan of each stage in their order.
    fn stop_profile(&mut self) -> Vec<PlanTimes>;

    /// Starts timing on the other ranks that share the model, if there are any.
    ///
    /// # Errors
    /// A rank that is gone.
    fn start_rank_times(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Stops that: what was measured since the start, of each other rank.
    ///
    /// # Errors
    /// A rank that is gone.
    fn stop_rank_times(&mut self) -> Result<Vec<RankTimes>, BackendError> {
        Ok(Vec::new())
    }

    /// Starts to record activations into `trace`, in the steps of one sequence.
    ///
    /// # Errors
    /// When a plan has no place for a value: an error of Latent.
    fn start_trace(&mut self, activations: &Activations, trace: Trace) -> Result<(), BackendError>;

    /// Stops recording; what was recorded, if anything was started.
    fn stop_trace(&mut self) -> Option<Trace>;

    /// Starts to sum the squares of what weights are multiplied by, column by column, over all steps.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] where the backend does not.
    fn start_input_squares(&mut self) -> Result<(), BackendError> {
        Err(BackendError::Unsupported(
            "this device does not collect input statistics of weights; use --device cpu".into(),
        ))
    }

    /// Stops that; the sums by the name of the weight's first tensor. A weight that was not multiplied has none.
    fn stop_input_squares(&mut self) -> Vec<(String, InputSquares)> {
        Vec::new()
    }
}
