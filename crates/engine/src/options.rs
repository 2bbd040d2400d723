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
use latent_graph::{BackendTarget, Circuit, KernelTimings, ModelConfig, Stage, StageOptions};
use latent_hosts::Hosts;
use latent_threads::{MAX_THREADS, PinPolicy, Placement, Topology};
use latent_types::{CacheType, Setting, Tier};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Tokens of a step with which prompts are read at nearly full speed.
pub const DEFAULT_BATCH_TOKENS: usize = 512;

/// Maximum number of tokens of a KV cache: terabytes, of any model.
pub const MAX_CACHE_TOKENS: usize = u32::MAX as usize;

/// States that one sequence needs: the present one, and the one that a step writes.
const MIN_STATES: u64 = 2;

/// Which tokens the rows of a model attend to that was trained with sparse attention (DSA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SparseAttention {
    /// Those that its indexer selects, where the device runs it; else all.
    #[default]
    On,
    /// All tokens before each row, for comparison.
    Off,
}

impl SparseAttention {
    /// All choices with the words that name them.
    pub const ALL: [(SparseAttention, &'static str); 2] =
        [(SparseAttention::On, "on"), (SparseAttention::Off, "off")];
}

impl fmt::Display for SparseAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

impl FromStr for SparseAttention {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(word));
        found.map(|(choice, _)| *choice).ok_or_else(|| format!("{word:?} is unknown: expected on or off"))
    }
}

/// How a model is to be run. The default lets Latent choose.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Formulation of MLA.
    pub mla: MlaChoice,
    /// Whether models that were trained with sparse attention attend to selected tokens.
    pub sparse: SparseAttention,
    /// Exact or default arithmetic.
    pub precision: Precision,
    /// What the cache stores.
    pub form: CacheForm,
    /// Type of the cache; none: f32 when exact, else f16.
    pub cache: Option<CacheType>,
    /// How much recurrent state is kept, where the model has any.
    pub states: StateOptions,
    /// Bytes of recurrent state, the snapshots of all sequences included, of a model that has any; at least two states. None: those of
    /// `states`.
    pub state_cache: Option<u64>,
    /// Most tokens of a sequence; none: the smaller of the model's limit and what fits.
    pub context: Option<usize>,
    /// Tokens that the KV cache holds, all sequences together, at most [`MAX_CACHE_TOKENS`]; none, or fewer than the context: one context. Servers want room for several.
    pub cache_tokens: Option<usize>,
    /// Threads, at most [`MAX_THREADS`](latent_threads::MAX_THREADS), and at least one; none: one for each core that this process may use.
    pub threads: Option<usize>,
    /// Whether threads are bound to CPUs; not unless said so. `PinPolicy::Auto`, which the program uses, is faster
    /// on machines with several memory nodes.
    pub pin: PinPolicy,
    /// Where the threads are, in place of `threads` and `pin`.
    pub placement: Option<Placement>,
    /// Highest instruction-set tier; none: the best there is.
    pub tier: Option<Tier>,
    /// Most rows of a step, and of a chunk of a prompt, at most [`MAX_STEP_ROWS`](latent_graph::MAX_STEP_ROWS); none: chosen from memory and from the prompt ([`Engine::chunk_for`](crate::Engine::chunk_for)).
    pub max_batch_tokens: Option<usize>,
    /// What drafts tokens. Without drafts, an MTP layer's weights are not loaded.
    pub draft: Draft,
    /// What a row of an n-gram draft adds to a step, as a part of a step without drafts. Measured while the engine runs if
    /// `None`.
    pub draft_cost: Option<f64>,
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
    /// Optional passes that plans are made without: see [`passes::optional`](latent_graph::passes::optional).
    pub without: Vec<&'static str>,
    /// Measured times of this machine's kernels, which choose between instruction sets that compute the same bits; none: the highest one.
    pub tuned: Option<Arc<KernelTimings>>,
    /// How long a rank may be in a step without progress before it counts as hung; zero disables
    /// the check. None: [`HUNG_AFTER`](latent_backend::HUNG_AFTER).
    pub hung_after: Option<Duration>,
}

impl EngineOptions {
    /// The config of a model as it runs on a backend: without its indexer, where that is not wanted, a backend does not run it, or a part of
    /// the model would begin with a layer that shares the tokens which another part has selected.
    pub fn config_on(&self, backend: &dyn Backend, config: ModelConfig) -> ModelConfig {
        if self.is_sparse(backend, &config) { config } else { config.without_indexer() }
    }

    /// Whether models with an indexer attend to the tokens that it selects.
    fn is_sparse(&self, backend: &dyn Backend, config: &ModelConfig) -> bool {
        let naive = self.mla == MlaChoice::Naive;
        let runs_on = |target: &BackendTarget| target.sparse_attention && (target.masks_tokens || !naive);
        let front = self.offload.as_ref().is_none_or(|offload| runs_on(offload.front.target()));
        let runs = front && runs_on(backend.target());
        self.sparse == SparseAttention::On && runs && !self.cuts_shared_tokens(config)
    }

    /// Whether a rank begins with a layer without an indexer of its own, or a device may.
    fn cuts_shared_tokens(&self, config: &ModelConfig) -> bool {
        if !config.full_indexers.contains(&false) {
            return false;
        }
        let begins_shared = |hosts: &Hosts| {
            let ranks = hosts.partition.ranks();
            let part = |rank| hosts.partition.part(config, rank, ranks).ok();
            let starts = (0..ranks).filter_map(part).map(|part| part.layers.start);
            starts.filter(|first| *first > 0).any(|first| !config.has_indexer(first))
        };
        self.offload.is_some() || self.hosts.as_ref().is_some_and(begins_shared)
    }

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
    /// Bytes of recurrent state, where they are given.
    pub state_cache: Option<u64>,
    /// Whether indexers select the tokens that are attended to: else plans are made of configs without one.
    sparse: bool,
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
        backend.target().with_workers(self.place().threads()).without(&self.without).tuned(self.tuned.clone())
    }

    /// Checks the numbers that would take more memory or threads than any machine has.
    fn check_sizes(&self) -> Result<(), EngineError> {
        let sizes = [
            (Setting::Threads, self.threads, MAX_THREADS),
            (Setting::CacheTokens, self.cache_tokens, MAX_CACHE_TOKENS),
        ];
        match sizes.into_iter().find(|(.., size, most)| size.is_some_and(|size| size > *most)) {
            Some((setting, Some(size), most)) => {
                Err(EngineError::Options(format!("{} is too much: the maximum is {most}", setting.to(size))))
            }
            _ => Ok(()),
        }
    }

    /// Decides what the options leave open.
    ///
    /// # Errors
    /// Numbers that are too large; options that contradict each other, or that this machine cannot serve; a circuit that does not exist.
    pub fn resolve<'b>(
        &self,
        backend: &'b dyn Backend,
        config: &ModelConfig,
    ) -> Result<ResolvedOptions<'b>, EngineError> {
        self.check_sizes()?;
        if self.form == CacheForm::Expanded && self.mla != MlaChoice::Naive {
            return Err(EngineError::Options(format!(
                "the expanded cache serves the naive formulation only: give {} with it",
                Setting::Mla.to("naive")
            )));
        }
        let bind = self.bind(backend)?;
        let max_batch_tokens = self.max_batch_tokens.unwrap_or(DEFAULT_BATCH_TOKENS).max(1);
        let circuit = match &self.circuit {
            Some(circuit) => circuit.clone(),
            None => Arc::new(Circuit::named(&config.circuit)?.clone()),
        };
        let (target, sparse) = (self.target(backend), self.is_sparse(backend, config));
        // both sides of a model take the same paths
        let masks = |target: &BackendTarget| target.masks_tokens;
        let front = self.offload.as_ref().is_none_or(|offload| masks(offload.front.target()));
        let indexed = sparse && config.attention.indexer.is_some();
        let gathers_only = self.mla == MlaChoice::Auto && indexed && !(front && masks(&target));
        let options = ModelOptions {
            stages: StageOptions {
                mla: if gathers_only { MlaChoice::Absorbed } else { self.mla },
                form: self.form,
                bind,
                max_batch_tokens,
                mtp: self.draft.has_mtp(),
            },
            threads: self.place().threads(),
            context: config.context_length,
        };
        let cache_tokens = self.cache_tokens.unwrap_or_default();
        Ok(ResolvedOptions {
            backend,
            circuit,
            target,
            options,
            states: self.states,
            state_cache: self.state_cache,
            sparse,
            side: None,
            cache_tokens,
        })
    }
}

impl ResolvedOptions<'_> {
    /// The config of a model as it runs here.
    fn config<'c>(&self, config: &'c ModelConfig) -> Cow<'c, ModelConfig> {
        if self.sparse { Cow::Borrowed(config) } else { Cow::Owned(config.without_indexer()) }
    }

    /// The plans of the model.
    ///
    /// # Errors
    /// Tensors that are missing or have another shape; no kernel for an operation.
    pub fn stages(&self, config: &ModelConfig, tensors: &dyn TensorIndex) -> Result<Vec<Stage>, EngineError> {
        let Some(side) = self.side else { return self.whole_stages(config, tensors) };
        Ok(Stage::of_side(
            (&self.circuit, side),
            &self.config(config),
            tensors,
            &self.target,
            &self.options.stages,
        )?)
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
        Ok(Stage::of_model(&self.circuit, &self.config(config), tensors, &self.target, &self.options.stages)?)
    }

    /// What breaks a rule of the audit.
    pub fn audit(&self, config: &ModelConfig, tensors: &dyn TensorIndex, stages: &[Stage]) -> Vec<Finding> {
        let bound = BindContext { target: &self.target, options: self.options.stages.bind };
        latent_graph::audit::session(&self.circuit, &self.config(config), tensors, stages, bound)
    }

    /// What breaks a rule of the audit in plans of one side of the model.
    pub(crate) fn audit_side(&self, config: &ModelConfig, stages: &[Stage]) -> Vec<Finding> {
        let bound = BindContext { target: &self.target, options: self.options.stages.bind };
        latent_graph::audit::plans(&self.circuit, &self.config(config), stages, bound)
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
        let scratch = self.backend.scratch_bytes(&self.config(config), stages, &self.options, context);
        let token_bytes = self.token_bytes(stages);
        // residual rows that wait for the MTP layer: those of a step, and of its sequences
        let stages_options = &self.options.stages;
        let rows = stages_options.max_batch_tokens as u64;
        let waiting = if stages_options.mtp { rows.saturating_mul(8 * config.hidden_size as u64) } else { 0 };
        MemoryEstimate {
            arena: scratch.arena.saturating_add(waiting),
            weights: weights.owned,
            mapped: weights.mapped,
            cache: (self.cache_rows(context) as u64).saturating_mul(token_bytes as u64),
            state: self.state_bytes(stages),
            ..scratch
        }
    }

    /// Tokens of the KV cache with a context of `context` tokens.
    pub(crate) fn cache_tokens(&self, context: usize) -> usize {
        self.cache_tokens.max(context)
    }

    /// The same in whole blocks.
    pub(crate) fn cache_rows(&self, context: usize) -> usize {
        self.cache_tokens(context).checked_next_multiple_of(KV_BLOCK).unwrap_or(usize::MAX)
    }

    /// Bytes that a token takes in the KV cache.
    pub fn token_bytes(&self, stages: &[Stage]) -> usize {
        LayerState::token_bytes(&self.backend.layer_states(stages), self.options.stages.bind.cache)
    }

    /// Bytes that all slots of recurrent state take.
    fn state_bytes(&self, stages: &[Stage]) -> u64 {
        let slot = LayerState::state_bytes(&self.backend.layer_states(stages)) as u64;
        // slots that cannot be counted are an error of loading
        slot.saturating_mul(self.state_slots(stages).map_or(0, u64::from))
    }

    /// Slots of recurrent state, as many as [`state_cache`](EngineOptions::state_cache) has room for.
    ///
    /// # Errors
    /// When there are more than can be counted, or too few for one sequence.
    pub(crate) fn state_slots(&self, stages: &[Stage]) -> Result<u32, EngineError> {
        let slot = LayerState::state_bytes(&self.backend.layer_states(stages)) as u64;
        let Some(bytes) = self.state_cache.filter(|_| slot > 0) else {
            return self.states.slots().ok_or_else(|| too_many_states(self.states));
        };
        if bytes < slot.saturating_mul(MIN_STATES) {
            return Err(EngineError::Options(format!(
                "a state cache of {bytes} bytes has no room for one sequence: the model needs {MIN_STATES} states of {slot} bytes, the present \
                 one and that of a running step; set at least {}",
                slot.saturating_mul(MIN_STATES)
            )));
        }
        u32::try_from(bytes / slot).map_err(|_| {
            EngineError::Options(format!(
                "a state cache of {bytes} bytes has more states of {slot} bytes than can be counted"
            ))
        })
    }
}

fn too_many_states(states: StateOptions) -> EngineError {
    let StateOptions { sequences, snapshots, .. } = states;
    EngineError::Options(format!(
        "recurrent state for {sequences} sequences with {snapshots} snapshots each has more slots than can be counted"
    ))
}
