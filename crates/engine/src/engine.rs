//! The engine: one loaded model with its KV cache.

use crate::cache::KvCache;
use crate::embedding::FinalNorm;
use crate::error::EngineError;
use crate::flights::Flights;
use crate::lookup::StepCosts;
use crate::options::DEFAULT_BATCH_TOKENS;
use crate::seq_error::SeqError;
use crate::summary::Summary;
use latent_backend::{
    AdapterScales, Backend, BackendModel, Batch, CancelToken, KV_BLOCK, MemoryEstimate, ModelOptions,
    PeakRates,
};
use latent_formats::{AttachedAdapter, Checkpoint};
use latent_graph::activations::Activations;
use latent_graph::config::WireType;
use latent_graph::ir::AttentionPath;
use latent_graph::passes::BindOptions;
use latent_graph::{CheckpointTensors, Circuit, ModelConfig, Partition, Stage, StageOptions};
use std::sync::{Arc, OnceLock};

/// Number of chunks of a prompt per pipeline stage. Ranks idle during the first and the last chunks
/// of a prompt, so several short chunks are better than one long chunk per stage.
const CHUNKS_IN_FLIGHT: usize = 2;

/// Minimum tokens of such a chunk. With 128 instead of 256 or 512, a prompt token takes 1.13 times
/// as long in the deepseek-v2-lite shape, since each expert gets few rows.
const MIN_IN_FLIGHT: usize = 256;

/// A loaded model with its KV cache.
///
/// An engine can move to another thread, and so can its sequences:
///
/// ```
/// fn send<T: Send + 'static>() {}
/// send::<latent_engine::Engine>();
/// send::<latent_engine::cache::Sequence>();
/// ```
pub struct Engine {
    pub(crate) model: Box<dyn BackendModel>,
    pub(crate) cache: KvCache,
    pub(crate) batch: Batch,
    /// Input, and row within the input, of each row whose logits are needed.
    pub(crate) wanted: Vec<(usize, usize)>,
    /// How many of the largest logits of each of these rows suffice. 0: all.
    pub(crate) enough: Vec<usize>,
    /// The residual stream of the last step's rows, if the engine drafts or `keep_residual` is set.
    pub(crate) residual: Vec<f32>,
    /// Whether the next step keeps the residual stream, for an embedding.
    pub(crate) keep_residual: bool,
    /// Whether the MTP layer computes the logits of every row, so that the inputs of its head are
    /// recorded.
    pub(crate) all_draft_logits: bool,
    /// Whether drafts are looked up in the text.
    pub(crate) lookup: bool,
    /// Measured times of steps of few rows.
    pub(crate) step_costs: StepCosts,
    /// The norm before `lm_head`. `None` if this rank does not have its gain.
    pub(crate) final_norm: Option<FinalNorm>,
    /// The result of each input of the last step.
    pub(crate) outcomes: Vec<Result<(), SeqError>>,
    pub(crate) cancel: CancelToken,
    pub(crate) options: ModelOptions,
    pub(crate) summary: Summary,
    pub(crate) fingerprint: u64,
    /// The model's LoRA adapters.
    pub(crate) adapters: Vec<AttachedAdapter>,
    /// Their scales, for sequences without scales of their own.
    pub(crate) adapter_scales: AdapterScales,
    /// How ranks share the model. `None` for a single rank.
    pub(crate) partition: Option<Partition>,
    /// The backend of the first layers, if offload is active.
    pub(crate) front: Option<FrontBackend>,
    /// Element type of rows that are sent between ranks.
    pub(crate) wire: WireType,
    pub(crate) needed: MemoryEstimate,
    pub(crate) largest_context: usize,
    pub(crate) circuit: Arc<Circuit>,
    /// Whether the options set the number of tokens per step.
    pub(crate) chunk_given: bool,
    pub(crate) flights: Flights,
}

/// A backend that runs the first layers, and its peak rates once they were measured.
pub(crate) struct FrontBackend {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) limits: OnceLock<Option<PeakRates>>,
}

impl Engine {
    /// A summary of the decisions made at loading.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Waits until the weights of a packed file are in memory, if they fit. The first steps are
    /// then as fast as later ones.
    pub fn wait_for_weights(&mut self) {
        self.model.wait_for_weights();
    }

    /// Memory of the model, its activations and its KV cache.
    pub fn needed(&self) -> MemoryEstimate {
        self.needed
    }

    /// The model's LoRA adapters, in the order in which they were given.
    pub fn adapters(&self) -> &[AttachedAdapter] {
        &self.adapters
    }

    /// The model's hyper-parameters.
    pub fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    /// The stages that a step runs, each with a plan per batch bucket.
    pub fn stages(&self) -> &[Stage] {
        self.model.stages()
    }

    /// The partition, if several ranks share the model.
    pub fn partition(&self) -> Option<&Partition> {
        self.partition.as_ref()
    }

    /// The KV cache.
    pub fn kv_cache(&self) -> &KvCache {
        &self.cache
    }

    /// Precision, ISA limit and element type of the KV cache.
    pub fn bind(&self) -> BindOptions {
        self.options.stages.bind
    }

    /// Maximum batch size, in tokens.
    pub fn max_batch_tokens(&self) -> usize {
        self.options.stages.max_batch_tokens
    }

    /// Sets the cancel token of later steps. When any thread cancels it, the running step ends
    /// after its current phase, fails with [`EngineError::Stopped`], and leaves its sequences
    /// unchanged. Returns the previous token.
    ///
    /// Use a new token for each piece of work, so that a late cancellation does not stop other
    /// work. To cancel an answer of [`generate`](Self::generate), use
    /// [`Request::cancel`](crate::Request::cancel).
    pub fn set_cancel_token(&mut self, cancel: CancelToken) -> CancelToken {
        std::mem::replace(&mut self.cancel, cancel)
    }

    /// The attention formulation of a sequence with `new_tokens` new tokens after `cached` ones.
    pub(crate) fn path(&self, cached: usize, new_tokens: usize) -> AttentionPath {
        let StageOptions { mla, form, .. } = self.options.stages;
        mla.path_at(cached, new_tokens, form, &self.config().attention)
    }

    /// Tokens per step for a prompt of `tokens` tokens, unless the options set it: a third of the
    /// prompt, so that a caller can report progress and stop, but at least [`DEFAULT_BATCH_TOKENS`]
    /// and at most [`max_batch_tokens`](Self::max_batch_tokens). Fewer if several ranks can then
    /// work on the prompt concurrently.
    pub fn chunk_for(&self, tokens: usize) -> usize {
        if self.chunk_given {
            return self.max_batch_tokens();
        }
        let in_flight = self.steps_in_flight();
        if in_flight > 1 {
            let chunk = tokens.div_ceil(CHUNKS_IN_FLIGHT * in_flight).next_multiple_of(KV_BLOCK);
            return chunk.max(MIN_IN_FLIGHT).min(self.max_batch_tokens());
        }
        let third = tokens.div_ceil(3).next_multiple_of(KV_BLOCK);
        third.max(DEFAULT_BATCH_TOKENS).min(self.max_batch_tokens())
    }

    /// Context size in tokens: as requested, or as fits into memory. The KV cache may be larger,
    /// since it has whole blocks.
    pub fn context(&self) -> usize {
        self.options.context
    }

    /// Maximum context size, in tokens, with which this model could be loaded: the model's limit,
    /// or what fitted into memory at loading. At least [`context`](Self::context).
    pub fn largest_context(&self) -> usize {
        self.largest_context
    }

    /// Whether the engine can embed texts.
    pub fn embeds(&self) -> bool {
        self.final_norm.is_some()
    }

    /// The activations of the model that runs can be compared at. `checkpoint` is the one that this
    /// engine was loaded from.
    ///
    /// # Errors
    /// As for loading, so never for that checkpoint.
    pub fn activations(&self, checkpoint: &Checkpoint) -> Result<Activations, EngineError> {
        Ok(Activations::of(&self.circuit, self.config(), &CheckpointTensors(checkpoint))?)
    }
}
