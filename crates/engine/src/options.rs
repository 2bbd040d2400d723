//! How a model is to be run, and what follows from that: decided here, once, for the engine and for every command that only plans.

use crate::cache::StateOptions;
use crate::device_layers::Offload;
use crate::draft_kind::Draft;
use crate::error::EngineError;
use latent_backend::{
    Backend, KV_BLOCK, LayerState, MemoryEstimate, ModelOptions, WeightBytes, WeightSource,
};
use latent_graph::audit::{BindContext, Finding};
use latent_graph::circuit::TensorIndex;
use latent_graph::config::WireType;
use latent_graph::ir::ModelSide;
use latent_graph::passes::{BindOptions, CacheForm, MlaChoice, Precision};
use latent_graph::{BackendTarget, Circuit, ModelConfig, Stage, StageOptions};
use latent_hosts::Hosts;
use latent_threads::{PinPolicy, Placement, Topology};
use latent_types::{CacheType, Tier};
use std::sync::Arc;
use std::time::Duration;

/// Tokens of a step with which prompts are read at nearly full speed.
pub const DEFAULT_BATCH_TOKENS: usize = 512;

/// How a model is to be run. The default lets Latent choose.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Formulation of MLA.
    pub mla: MlaChoice,
    /// Exact or default arithmetic.
    pub precision: Precision,
    /// What the cache stores.
    pub form: CacheForm,
    /// Type of the cache; none: f32 when exact, else f16.
    pub cache: Option<CacheType>,
    /// How much recurrent state is kept, where the model has any.
    pub states: StateOptions,
    /// Most tokens of a sequence; none: the smaller of the model's limit and what fits.
    pub context: Option<usize>,
    /// Tokens that the KV cache holds, all sequences together; none, or fewer than the context: one context. Servers want room for several.
    pub cache_tokens: Option<usize>,
    /// Threads; none: one for each core that this process may use.
    pub threads: Option<usize>,
    /// Whether threads are bound to CPUs; not unless said so. `PinPolicy::Auto`, which the program uses, is faster
    /// on machines with several memory nodes.
    pub pin: PinPolicy,
    /// Where the threads are, in place of `threads` and `pin`.
    pub placement: Option<Placement>,
    /// Highest instruction-set tier; none: the best there is.
    pub tier: Option<Tier>,
    /// Most rows of a step, and of a chunk of a prompt; none: chosen from memory and from the prompt ([`Engine::chunk_for`](crate::Engine::chunk_for)).
    pub max_batch_tokens: Option<usize>,
    /// What drafts tokens. Without drafts, an MTP layer's weights are not loaded.
    pub draft: Draft,
    /// Load even when memory seems too small.
    pub force: bool,
    /// A circuit that takes the place of the model's own, for those who change one; none: the built-in one. It is audited like those, but a
    /// finding that is about its meaning alone (see [`Code::protects`](latent_graph::audit::Code::protects)) does not refuse it: a wrong one can be
    /// looked into. Such findings are in [`Summary::doubts`](crate::Summary::doubts).
    pub circuit: Option<Arc<Circuit>>,
    /// The ranks that share the model, where this process is one of several: see [`Engine::load_rank`](crate::Engine::load_rank).
    pub hosts: Option<Hosts>,
    /// Which layers another backend runs than the one that the model is loaded into; none: that one runs all.
    pub offload: Option<Offload>,
    /// Load only this number of first layers, to measure their speed on this machine; the output is
    /// meaningless. None: all.
    pub first_layers: Option<usize>,
    /// What crosses between those ranks.
    pub wire: WireType,
    /// How long a rank may be in a step without progress before it counts as hung; zero disables
    /// the check. None: [`HUNG_AFTER`](latent_backend::HUNG_AFTER).
    pub hung_after: Option<Duration>,
}

impl EngineOptions {
    /// Where the threads will run: one for each core that affinity and cgroup quotas leave to this process, unless the options say
    /// otherwise.
    pub fn place(&self) -> Placement {
        if let Some(placement) = &self.placement {
            return placement.clone();
        }
        let (topology, parallelism) = (Topology::detect(), latent_threads::parallelism());
        let threads = self.threads.unwrap_or_else(|| latent_threads::threads_for(&topology, parallelism));
        Placement::new(&topology, parallelism, threads, self.pin)
    }
}

/// The decisions about one model on one backend, before anything is loaded.
pub struct ResolvedOptions<'b> {
    /// The backend.
    pub backend: &'b dyn Backend,
    /// The circuit: the model's own, or the one that the options give.
    pub circuit: Arc<Circuit>,
    /// What plans are made for: the backend's target with the threads of the options.
    pub target: BackendTarget,
    /// Everything that plans and backend need to know.
    pub options: ModelOptions,
    /// How much recurrent state is kept.
    pub states: StateOptions,
    /// The side of the model that the plans are of, where it is cut in two.
    pub side: Option<ModelSide>,
    /// Minimum tokens of the KV cache, if it holds more than one context.
    cache_tokens: usize,
}

impl EngineOptions {
    /// Precision, ISA limit and cache type, where the backend decides what the options leave open.
    ///
    /// # Errors
    /// An ISA that the machine lacks.
    pub fn bind(&self, backend: &dyn Backend) -> Result<BindOptions, EngineError> {
        let exact = self.precision == Precision::Exact;
        let cache = self.cache.unwrap_or_else(|| backend.default_cache(exact));
        Ok(BindOptions { precision: self.precision, tier: backend.isa(self.tier)?, cache })
    }

    /// What plans are made for: the backend's target with as many workers as the options ask for.
    pub fn target(&self, backend: &dyn Backend) -> BackendTarget {
        backend.target().with_workers(self.place().threads())
    }

    /// Decides what the options leave open.
    ///
    /// # Errors
    /// Options that contradict each other, or that this machine cannot serve; a circuit that does not exist.
    pub fn resolve<'b>(
        &self,
        backend: &'b dyn Backend,
        config: &ModelConfig,
    ) -> Result<ResolvedOptions<'b>, EngineError> {
        if self.form == CacheForm::Expanded && self.mla != MlaChoice::Naive {
            let problem = "the expanded cache serves the naive formulation only: give --mla naive with it";
            return Err(EngineError::Options(problem.into()));
        }
        let bind = self.bind(backend)?;
        let max_batch_tokens = self.max_batch_tokens.unwrap_or(DEFAULT_BATCH_TOKENS).max(1);
        let circuit = match &self.circuit {
            Some(circuit) => circuit.clone(),
            None => Arc::new(Circuit::named(&config.circuit)?.clone()),
        };
        let options = ModelOptions {
            stages: StageOptions {
                mla: self.mla,
                form: self.form,
                bind,
                max_batch_tokens,
                mtp: self.draft == Draft::Mtp,
            },
            threads: self.place().threads(),
            context: config.context_length,
        };
        let (target, cache_tokens) = (self.target(backend), self.cache_tokens.unwrap_or_default());
        Ok(ResolvedOptions {
            backend,
            circuit,
            target,
            options,
            states: self.states,
            side: None,
            cache_tokens,
        })
    }
}

impl ResolvedOptions<'_> {
    /// The plans of the model.
    ///
    /// # Errors
    /// Tensors that are missing or have another shape; no kernel for an operation.
    pub fn stages(&self, config: &ModelConfig, tensors: &dyn TensorIndex) -> Result<Vec<Stage>, EngineError> {
        let Some(side) = self.side else { return self.whole_stages(config, tensors) };
        Ok(Stage::of_side((&self.circuit, side), config, tensors, &self.target, &self.options.stages)?)
    }

    /// The plans of the whole model, whichever side of it runs here.
    ///
    /// # Errors
    /// As for [`stages`](Self::stages).
    pub fn whole_stages(
        &self,
        config: &ModelConfig,
        tensors: &dyn TensorIndex,
    ) -> Result<Vec<Stage>, EngineError> {
        Ok(Stage::of_model(&self.circuit, config, tensors, &self.target, &self.options.stages)?)
    }

    /// What breaks a rule of the audit.
    pub fn audit(&self, config: &ModelConfig, tensors: &dyn TensorIndex, stages: &[Stage]) -> Vec<Finding> {
        let bound = BindContext { target: &self.target, options: self.options.stages.bind };
        latent_graph::audit::session(&self.circuit, config, tensors, stages, bound)
    }

    /// What breaks a rule of the audit in plans of one side of the model.
    pub(crate) fn audit_side(&self, config: &ModelConfig, stages: &[Stage]) -> Vec<Finding> {
        let bound = BindContext { target: &self.target, options: self.options.stages.bind };
        latent_graph::audit::plans(&self.circuit, config, stages, bound)
    }

    /// Bytes that the weights take.
    pub fn weight_bytes(&self, stages: &[Stage], source: WeightSource<'_>) -> WeightBytes {
        self.backend.weight_bytes(stages, source)
    }

    /// Memory of the model with a context of `context` tokens.
    pub fn estimate(
        &self,
        config: &ModelConfig,
        stages: &[Stage],
        weights: WeightBytes,
        context: usize,
    ) -> MemoryEstimate {
        let scratch = self.backend.scratch_bytes(config, stages, &self.options, context);
        let token_bytes = self.token_bytes(stages);
        // residual rows that wait for the MTP layer: those of a step, and of its sequences
        let stages_options = &self.options.stages;
        let waiting =
            if stages_options.mtp { 2 * 4 * stages_options.max_batch_tokens * config.hidden_size } else { 0 };
        MemoryEstimate {
            arena: scratch.arena + waiting as u64,
            weights: weights.owned,
            mapped: weights.mapped,
            cache: (self.cache_tokens(context).next_multiple_of(KV_BLOCK) * token_bytes) as u64,
            state: self.state_bytes(stages),
            ..scratch
        }
    }

    /// Tokens of the KV cache with a context of `context` tokens.
    pub(crate) fn cache_tokens(&self, context: usize) -> usize {
        self.cache_tokens.max(context)
    }

    /// Bytes that a token takes in the KV cache.
    pub fn token_bytes(&self, stages: &[Stage]) -> usize {
        LayerState::token_bytes(&self.backend.layer_states(stages), self.options.stages.bind.cache)
    }

    /// Bytes that all slots of recurrent state take.
    fn state_bytes(&self, stages: &[Stage]) -> u64 {
        let slot = LayerState::state_bytes(&self.backend.layer_states(stages)) as u64;
        // slots that cannot be counted are an error of loading
        slot.saturating_mul(self.states.slots().map_or(0, u64::from))
    }

    /// Slots of recurrent state.
    ///
    /// # Errors
    /// When there are more than can be counted.
    pub(crate) fn state_slots(&self) -> Result<u32, EngineError> {
        self.states.slots().ok_or_else(|| too_many_states(self.states))
    }
}

fn too_many_states(states: StateOptions) -> EngineError {
    let StateOptions { sequences, snapshots, .. } = states;
    EngineError::Options(format!(
        "recurrent state for {sequences} sequences with {snapshots} snapshots each has more slots than can be counted"
    ))
}
