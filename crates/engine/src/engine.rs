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

/// Chunks of a prompt per step that may be in flight: as the first and the last chunk leave ranks idle, more are better than one.
const CHUNKS_IN_FLIGHT: usize = 2;

/// Fewest tokens of such a chunk: with 128 in place of 256 or 512 a token of a prompt takes 1.13 times as long in the deepseek-v2-lite shape, whose experts get
/// few rows each then.
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
    /// Input and row of each row whose logits are wanted.
    pub(crate) wanted: Vec<(usize, usize)>,
    /// How many of the largest logits of each of them are enough; 0: all.
    pub(crate) enough: Vec<usize>,
    /// The residual stream of the last step's rows, in an engine that drafts, or where it is kept.
    pub(crate) residual: Vec<f32>,
    /// Whether the next step keeps it for a text that is embedded.
    pub(crate) keep_residual: bool,
    /// Whether the MTP layer computes the logits of every row, so that what its head reads is recorded.
    pub(crate) all_draft_logits: bool,
    /// Whether drafts are looked up in the text.
    pub(crate) lookup: bool,
    /// How long steps of few rows take.
    pub(crate) step_costs: StepCosts,
    /// The norm before `lm_head`; `None` if this rank does not have its gain.
    pub(crate) final_norm: Option<FinalNorm>,
    /// What became of each input of the last step.
    pub(crate) outcomes: Vec<Result<(), SeqError>>,
    pub(crate) cancel: CancelToken,
    pub(crate) options: ModelOptions,
    pub(crate) summary: Summary,
    pub(crate) fingerprint: u64,
    /// The model's LoRA adapters.
    pub(crate) adapters: Vec<AttachedAdapter>,
    /// Their scales in sequences that say no other.
    pub(crate) adapter_scales: AdapterScales,
    /// How ranks share the model, where several do.
    pub(crate) partition: Option<Partition>,
    /// What runs the first layers, where it is another backend.
    pub(crate) front: Option<FrontBackend>,
    /// What crosses between them.
    pub(crate) wire: WireType,
    pub(crate) needed: MemoryEstimate,
    pub(crate) largest_context: usize,
    pub(crate) circuit: Arc<Circuit>,
    /// Whether the options say how many tokens a step has.
    pub(crate) chunk_given: bool,
    pub(crate) flights: Flights,
}

/// A backend that runs the first layers, and what it can do, once that was measured.
pub(crate) struct FrontBackend {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) limits: OnceLock<Option<PeakRates>>,
}

impl Engine {
    /// What was decided at loading.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Waits until the weights of a packed file are in memory, where they fit: first steps are then as quick as later ones.
    pub fn wait_for_weights(&mut self) {
        self.model.wait_for_weights();
    }

    /// Memory that the model, its activations and its KV cache take.
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

    /// Most tokens of one step.
    pub fn max_batch_tokens(&self) -> usize {
        self.options.stages.max_batch_tokens
    }

    /// Sets the token that steps watch from now on: once any thread cancels it, the present step ends after its phase, fails with
    /// [`EngineError::Stopped`], and leaves its sequences unchanged. Returns the token that it replaces.
    ///
    /// A token belongs to one piece of work. Give the next one a new token, so that a cancel which comes late stops nothing else. An answer of
    /// [`generate`](Self::generate) has its own: [`Request::cancel`](crate::Request::cancel).
    pub fn set_cancel_token(&mut self, cancel: CancelToken) -> CancelToken {
        std::mem::replace(&mut self.cancel, cancel)
    }

    /// The attention formulation of a sequence with `new_tokens` new tokens behind `cached` ones.
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

    /// Tokens of context: what was asked for, or what fits. (The KV cache itself holds whole blocks.)
    pub fn context(&self) -> usize {
        self.options.context
    }

    /// Most tokens of context with which this model could be loaded here: its own limit, or what fitted into memory at loading. Never less than
    /// [`context`](Self::context).
    pub fn largest_context(&self) -> usize {
        self.largest_context
    }

    /// Whether texts can be embedded.
    pub fn embeds(&self) -> bool {
        self.final_norm.is_some()
    }

    /// The activations that runs of `checkpoint`, which this engine was loaded from, can be compared at.
    ///
    /// # Errors
    /// As for loading: never for a checkpoint that was loaded.
    pub fn activations(&self, checkpoint: &Checkpoint) -> Result<Activations, EngineError> {
        Ok(Activations::of(&self.circuit, self.config(), &CheckpointTensors(checkpoint))?)
    }
}
