//! Options for running a model, and their resolution. The engine and all commands that only plan
//! share these decisions.

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

/// Default maximum batch size, in tokens. Prompts run at nearly full speed with it.
pub const DEFAULT_BATCH_TOKENS: usize = 512;

/// Maximum number of tokens of a KV cache. More would take terabytes for any model.
pub const MAX_CACHE_TOKENS: usize = u32::MAX as usize;

/// Minimum number of recurrent states per sequence: the current one, and the one that a step
/// writes.
const MIN_STATES: u64 = 2;

/// The tokens that rows attend to in a model that was trained with sparse attention (DSA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SparseAttention {
    /// The tokens that the indexer selects if the device supports it, otherwise all.
    #[default]
    On,
    /// All tokens before each row, for comparison.
    Off,
}

impl SparseAttention {
    /// All variants and their names.
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
        found.map(|(choice, _)| *choice).ok_or_else(|| format!("unknown value {word:?}: expected on or off"))
    }
}

/// Options for running a model. The default lets Latent choose.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Formulation of MLA.
    pub mla: MlaChoice,
    /// Whether models that were trained with sparse attention attend to selected tokens.
    pub sparse: SparseAttention,
    /// Exact or default arithmetic.
    pub precision: Precision,
    /// The form of rows in the KV cache.
    pub form: CacheForm,
    /// Element type of the KV cache. `None`: f32 with exact precision, otherwise f16.
    pub cache: Option<CacheType>,
    /// The number of recurrent states, for models with recurrent layers.
    pub states: StateOptions,
    /// Memory for recurrent states, including all snapshots, in bytes. At least two states. `None`:
    /// the number of states in `states`.
    pub state_cache: Option<u64>,
    /// Maximum number of tokens of a sequence. `None`: the model's limit, or what fits into memory.
    pub context: Option<usize>,
    /// Capacity of the KV cache for all sequences, in tokens, at most [`MAX_CACHE_TOKENS`]. `None`,
    /// or fewer than the context: one context.
    pub cache_tokens: Option<usize>,
    /// Number of threads, from 1 to [`MAX_THREADS`](latent_threads::MAX_THREADS). `None`: one for
    /// each core that this process may use.
    pub threads: Option<usize>,
    /// Whether threads are bound to CPUs. Not by default. `PinPolicy::Auto`, the default of the
    /// program, is faster on machines with several memory nodes.
    pub pin: PinPolicy,
    /// Placement of the threads. Overrides `threads` and `pin`.
    pub placement: Option<Placement>,
    /// Highest instruction-set tier to use. `None`: the highest of this CPU.
    pub tier: Option<Tier>,
    /// Maximum batch size in tokens, and chunk size of prompts, at most
    /// [`MAX_STEP_ROWS`](latent_graph::MAX_STEP_ROWS). `None`: chosen from the available memory and
    /// the prompt ([`Engine::chunk_for`](crate::Engine::chunk_for)).
    pub max_batch_tokens: Option<usize>,
    /// The method of drafting. Without MTP drafts, the weights of an MTP layer are not loaded.
    pub draft: Draft,
    /// Cost of a row of an n-gram draft, relative to a step without drafts. `None`: measured while
    /// the engine runs.
    pub draft_cost: Option<f64>,
    /// Whether to load the model even if memory seems too small.
    pub force: bool,
    /// A circuit that replaces the model's own, for its development. `None`: the built-in one. It
    /// is audited, but findings about its meaning alone (see
    /// [`Code::protects`](latent_graph::audit::Code::protects)) do not refuse it, so that a wrong
    /// circuit can be examined. [`Summary::doubts`](crate::Summary::doubts) has these findings.
    pub circuit: Option<Arc<Circuit>>,
    /// The ranks that share the model, if this process is one of several. See
    /// [`Engine::load_rank`](crate::Engine::load_rank).
    pub hosts: Option<Hosts>,
    /// The layers that another backend runs. `None`: one backend runs all layers.
    pub offload: Option<Offload>,
    /// Loads only this number of first layers, to measure their speed on this machine. The output
    /// is meaningless. `None`: all layers.
    pub first_layers: Option<usize>,
    /// Element type of rows that are sent between ranks.
    pub wire: WireType,
    /// Optional passes to omit when plans are made. See
    /// [`passes::optional`](latent_graph::passes::optional).
    pub without: Vec<&'static str>,
    /// Measured times of this machine's kernels, which choose between instruction sets that compute
    /// the same bits. `None`: the highest tier.
    pub tuned: Option<Arc<KernelTimings>>,
    /// Time without progress within a step after which a rank counts as hung. Zero disables the
    /// check. `None`: [`HUNG_AFTER`](latent_backend::HUNG_AFTER).
    pub hung_after: Option<Duration>,
}

impl EngineOptions {
    /// The config of a model as it runs on a backend. The indexer is removed if it is disabled, a
    /// backend does not support it, or a part of the model would begin with a layer that shares the
    /// tokens which a layer of another part has selected.
    pub fn config_on(&self, backend: &dyn Backend, config: ModelConfig) -> ModelConfig {
        if self.is_sparse(backend, &config) { config } else { config.without_indexer() }
    }

    /// Whether models with an indexer attend to the tokens that it selects.
    fn is_sparse(&self, backend: &dyn Backend, config: &ModelConfig) -> bool {
        // The naive formulation can only mask tokens; the absorbed one can gather the selected
        // rows.
        let naive = self.mla == MlaChoice::Naive;
        let runs_on = |target: &BackendTarget| target.sparse_attention && (target.masks_tokens || !naive);
        let front = self.offload.as_ref().is_none_or(|offload| runs_on(offload.front.target()));
        let runs = front && runs_on(backend.target());
        self.sparse == SparseAttention::On && runs && !self.cuts_shared_tokens(config)
    }

    /// Whether the layers of a rank or a device begin, or may begin, with a layer that has no
    /// indexer of its own.
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
        // The cut of an offloaded model is chosen later, and may be at such a layer.
        self.offload.is_some() || self.hosts.as_ref().is_some_and(begins_shared)
    }

    /// The placement of threads. By default, one for each core that affinity and cgroup quotas
    /// leave to this process.
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
    /// The target of plans: that of the backend, with the threads of the options.
    pub target: BackendTarget,
    /// The options of plans and backend.
    pub options: ModelOptions,
    /// The number of recurrent states.
    pub states: StateOptions,
    /// Memory for recurrent states in bytes, if set.
    pub state_cache: Option<u64>,
    /// Whether indexers select the tokens that rows attend to. Otherwise, plans are made of configs
    /// without an indexer.
    sparse: bool,
    /// The side of the model that the plans run, if the model is split between two backends.
    pub side: Option<ModelSide>,
    /// Capacity of the KV cache in tokens, if it holds more than one context.
    cache_tokens: usize,
}

impl EngineOptions {
    /// Precision, ISA limit and cache type. The backend decides those that the options do not set.
    ///
    /// # Errors
    /// If this machine does not support the ISA.
    pub fn bind(&self, backend: &dyn Backend) -> Result<BindOptions, EngineError> {
        let exact = self.precision == Precision::Exact;
        let cache = self.cache.unwrap_or_else(|| backend.default_cache(exact));
        Ok(BindOptions { precision: self.precision, tier: backend.isa(self.tier)?, cache })
    }

    /// The target of plans: that of the backend, with the number of workers that the options set.
    pub fn target(&self, backend: &dyn Backend) -> BackendTarget {
        backend.target().with_workers(self.place().threads()).without(&self.without).tuned(self.tuned.clone())
    }

    /// Checks numbers that would need more memory or threads than any machine has.
    fn check_sizes(&self) -> Result<(), EngineError> {
        let sizes = [
            (Setting::Threads, self.threads, MAX_THREADS),
            (Setting::CacheTokens, self.cache_tokens, MAX_CACHE_TOKENS),
        ];
        match sizes.into_iter().find(|(.., size, most)| size.is_some_and(|size| size > *most)) {
            Some((setting, Some(size), most)) => {
                Err(EngineError::Options(format!("{} is too large: the maximum is {most}", setting.to(size))))
            }
            _ => Ok(()),
        }
    }

    /// Decides everything that the options do not set.
    ///
    /// # Errors
    /// If a number is too large, options contradict each other or are not supported by this
    /// machine, or the circuit does not exist.
    pub fn resolve<'b>(
        &self,
        backend: &'b dyn Backend,
        config: &ModelConfig,
    ) -> Result<ResolvedOptions<'b>, EngineError> {
        self.check_sizes()?;
        if self.form == CacheForm::Expanded && self.mla != MlaChoice::Naive {
            return Err(EngineError::Options(format!(
                "the expanded cache supports the naive formulation only: add {}",
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
        // Both sides of an offloaded model must use the same formulation for each span. If one of
        // them cannot mask unselected tokens, only the absorbed formulation, which gathers rows, is
        // possible.
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
            // The loader replaces it by the context that it chooses.
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
    /// The config of a model as it runs with these options.
    fn config<'c>(&self, config: &'c ModelConfig) -> Cow<'c, ModelConfig> {
        if self.sparse { Cow::Borrowed(config) } else { Cow::Owned(config.without_indexer()) }
    }

    /// The plans of the model, or of its side.
    ///
    /// # Errors
    /// If a tensor is missing or has a wrong shape, or an operation has no kernel.
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

    /// The plans of the whole model, regardless of its side.
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

    /// The findings of the audit of the whole model.
    pub fn audit(&self, config: &ModelConfig, tensors: &dyn TensorIndex, stages: &[Stage]) -> Vec<Finding> {
        let bound = BindContext { target: &self.target, options: self.options.stages.bind };
        latent_graph::audit::session(&self.circuit, &self.config(config), tensors, stages, bound)
    }

    /// The findings of the audit of the plans of one side.
    pub(crate) fn audit_side(&self, config: &ModelConfig, stages: &[Stage]) -> Vec<Finding> {
        let bound = BindContext { target: &self.target, options: self.options.stages.bind };
        latent_graph::audit::plans(&self.circuit, &self.config(config), stages, bound)
    }

    /// Size of the weights, in bytes.
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
        // Residual rows for the MTP layer, in f32: the engine copies those of a step, and sequences
        // hold those that wait.
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

    /// Capacity of the KV cache in tokens, with a context of `context` tokens.
    pub(crate) fn cache_tokens(&self, context: usize) -> usize {
        self.cache_tokens.max(context)
    }

    /// [`cache_tokens`](Self::cache_tokens), rounded up to whole blocks.
    pub(crate) fn cache_rows(&self, context: usize) -> usize {
        self.cache_tokens(context).checked_next_multiple_of(KV_BLOCK).unwrap_or(usize::MAX)
    }

    /// Size of a token in the KV cache, in bytes.
    pub fn token_bytes(&self, stages: &[Stage]) -> usize {
        LayerState::token_bytes(&self.backend.layer_states(stages), self.options.stages.bind.cache)
    }

    /// Size of all slots of recurrent state, in bytes.
    fn state_bytes(&self, stages: &[Stage]) -> u64 {
        let slot = LayerState::state_bytes(&self.backend.layer_states(stages)) as u64;
        // An error here is returned when the model is loaded.
        slot.saturating_mul(self.state_slots(stages).map_or(0, u64::from))
    }

    /// Number of slots of recurrent state: as set by [`state_cache`](EngineOptions::state_cache),
    /// or by [`states`](EngineOptions::states).
    ///
    /// # Errors
    /// If the number exceeds `u32`, or is too small for one sequence.
    pub(crate) fn state_slots(&self, stages: &[Stage]) -> Result<u32, EngineError> {
        let slot = LayerState::state_bytes(&self.backend.layer_states(stages)) as u64;
        let Some(bytes) = self.state_cache.filter(|_| slot > 0) else {
            return self.states.slots().ok_or_else(|| too_many_states(self.states));
        };
        if bytes < slot.saturating_mul(MIN_STATES) {
            return Err(EngineError::Options(format!(
                "a state cache of {bytes} bytes is too small for one sequence: the model needs {MIN_STATES} \
                 states of {slot} bytes, the current one and that of a running step; set at least {}",
                slot.saturating_mul(MIN_STATES)
            )));
        }
        u32::try_from(bytes / slot).map_err(|_| {
            EngineError::Options(format!(
                "a state cache of {bytes} bytes has too many states of {slot} bytes"
            ))
        })
    }
}

fn too_many_states(states: StateOptions) -> EngineError {
    let StateOptions { sequences, snapshots, .. } = states;
    EngineError::Options(format!(
        "recurrent state for {sequences} sequences with {snapshots} snapshots each has too many slots"
    ))
}
