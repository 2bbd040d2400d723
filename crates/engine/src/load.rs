//! Loading: from an opened file to an engine that is ready for the first step.

use crate::cache::KvCache;
use crate::embedding::FinalNorm;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::memory::{self, Available, OverCommitted};
use crate::options::{DEFAULT_BATCH_TOKENS, EngineOptions, Resolved};
use crate::rank::{self, Follower, Rank};
use crate::summary::Summary;
use latent_backend::{
    Backend, Batch, CancelToken, KV_BLOCK, LoadRequest, MemoryEstimate, Model, WeightBytes, WeightSource,
};
use latent_formats::Checkpoint;
use latent_graph::audit::Finding;
use latent_graph::stage_index::MTP;
use latent_graph::{CheckpointTensors, ModelConfig, Stage};
use latent_hosts::{Leader, agree};
use std::sync::Arc;
use std::time::Instant;

/// Most tokens of a step where memory allows and nobody says otherwise: prompts of ten thousand tokens gain from large steps, since each step
/// expands the keys and values of everything before it.
const LARGEST_BATCH_TOKENS: usize = 4096;

/// The arena of a step that large may take this part of free memory.
const ARENA_SHARE: u64 = 16;

/// A model on its way into memory.
struct Loading<'a> {
    checkpoint: &'a Checkpoint,
    /// What this rank reads of it.
    own: Arc<Checkpoint>,
    config: &'a ModelConfig,
    options: &'a EngineOptions,
    resolved: Resolved<'a>,
    stages: Vec<Stage>,
    weights: WeightBytes,
    available: Option<Available>,
}

impl Engine {
    /// Loads a model into `backend`. `progress` hears how many bytes of the weights in the file, of how many, have been gone through.
    ///
    /// # Errors
    /// A hyper-parameter, tensor or kernel that is missing or wrong; too little memory, with the table of what is needed.
    pub fn load(
        backend: &dyn Backend,
        checkpoint: &Arc<Checkpoint>,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Engine, EngineError> {
        match Engine::load_rank(backend, checkpoint, options, progress)? {
            Rank::Leads(engine) => Ok(*engine),
            Rank::Follows(_) => {
                let problem = "this process is not rank 0 of those that share the model: it follows, by Engine::load_rank";
                Err(EngineError::Options(problem.into()))
            }
        }
    }

    /// The same where several ranks may share the model, as [`EngineOptions::hosts`] says: rank 0 gets an engine, the others what follows it. All of them call
    /// it, with the same model and options.
    ///
    /// # Errors
    /// As for [`load`](Self::load), on every rank; ranks that differ in what they must have in common; a rank that is gone.
    pub fn load_rank(
        backend: &dyn Backend,
        checkpoint: &Arc<Checkpoint>,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Rank, EngineError> {
        let result = Engine::load_part(backend, checkpoint, options, progress);
        if let (Err(error), Some(hosts)) = (&result, &options.hosts) {
            hosts.communicator.fail(&error.to_string());
        }
        result
    }

    fn load_part(
        backend: &dyn Backend,
        checkpoint: &Arc<Checkpoint>,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Rank, EngineError> {
        let span = tracing::info_span!("load", file = %checkpoint.display_name(), backend = backend.name());
        let _entered = span.enter();
        let start = Instant::now();
        let whole = ModelConfig::from_checkpoint(checkpoint)?;
        let part =
            options.hosts.as_ref().map(|hosts| rank::config_of_part(hosts, options, &whole)).transpose()?;
        let config = part.as_ref().unwrap_or(&whole);
        let mut loading = Loading::new(backend, checkpoint, config, options)?;
        let context = loading.least(loading.choose_context()?)?;
        if options.max_batch_tokens.is_none() {
            loading.enlarge_steps(context)?;
        }
        let doubts = loading.audit()?;
        let (needed, paged) = loading.check_memory(context)?;
        let fits = loading.available.is_some() && paged.is_none() && !loading.is_forced(context);
        let keep_pages = loading.available.as_ref().is_none_or(|free| memory::keeps_pages(free, &needed));
        let largest_context = loading.least(loading.fitting_context())?;
        let Loading { mut resolved, own, stages, weights, .. } = loading;
        resolved.options.context = context;
        let placement = options.place();
        let mut summary = Summary::new(checkpoint, config, &resolved, &stages, weights);
        (summary.paged, summary.doubts, summary.placement) = (paged, doubts, placement.clone());
        if let Some(dense) = &summary.dense {
            tracing::warn!("{dense}");
        }
        let final_norm = FinalNorm::of(checkpoint, &stages, config.rms_eps);
        let communicator = options.hosts.as_ref().map(|hosts| Arc::clone(&hosts.communicator));
        let mut model = backend.load(LoadRequest {
            checkpoint: &own,
            config: config.clone(),
            communicator: communicator.clone(),
            stages,
            options: resolved.options,
            placement: &placement,
            weights_fit: fits,
            keep_pages,
            progress,
        })?;
        summary.load_time = start.elapsed();
        if let Some((communicator, hosts)) = communicator.zip(options.hosts.clone()) {
            // nobody begins before all have loaded
            agree::on_least(&*communicator, 0).map_err(latent_backend::BackendError::from)?;
            if hosts.rank() > 0 {
                return Ok(Rank::Follows(Box::new(Follower { model, communicator, summary })));
            }
            let leader: Box<dyn Model> = Box::new(Leader::new(model, hosts, whole.clone())?);
            model = leader;
        }
        let loaded = Loaded { model, resolved, summary, final_norm, needed, largest_context };
        Ok(Rank::Leads(Box::new(loaded.engine(checkpoint, options)?)))
    }
}

/// A model in the backend's memory, and what was found out on the way.
struct Loaded<'a> {
    model: Box<dyn Model>,
    /// With the context that it was loaded for.
    resolved: Resolved<'a>,
    summary: Summary,
    final_norm: Option<FinalNorm>,
    needed: MemoryEstimate,
    largest_context: usize,
}

impl Loaded<'_> {
    /// An engine with an empty KV cache.
    fn engine(self, checkpoint: &Checkpoint, options: &EngineOptions) -> Result<Engine, EngineError> {
        let Loaded { model, resolved, summary, final_norm, needed, largest_context } = self;
        let context = resolved.options.context;
        let tokens = resolved.cache_tokens(context);
        let blocks = u32::try_from(tokens.div_ceil(KV_BLOCK)).map_err(|_| {
            EngineError::Options(format!("a KV cache of {tokens} tokens has more blocks than can be counted"))
        })?;
        let state_slots = resolved.state_slots()?;
        let mtp_layers = model.stages().get(MTP).map_or(0, |stage| stage.kv_layers().len());
        let store = model.new_kv_store(blocks, state_slots)?;
        let cache = KvCache::new(store, options.states, mtp_layers);
        Ok(Engine {
            model,
            cache,
            batch: Batch::default(),
            wanted: Vec::new(),
            enough: Vec::new(),
            residual: Vec::new(),
            keep_residual: false,
            all_draft_logits: false,
            final_norm,
            outcomes: Vec::new(),
            cancel: CancelToken::new(),
            options: resolved.options,
            summary,
            fingerprint: checkpoint.fingerprint(),
            partition: options.hosts.as_ref().map(|hosts| hosts.partition.clone()),
            needed,
            largest_context: largest_context.max(context),
            circuit: resolved.circuit,
            chunk_given: options.max_batch_tokens.is_some(),
        })
    }
}

impl<'a> Loading<'a> {
    fn new(
        backend: &'a dyn Backend,
        checkpoint: &'a Arc<Checkpoint>,
        config: &'a ModelConfig,
        options: &'a EngineOptions,
    ) -> Result<Loading<'a>, EngineError> {
        let resolved = options.resolve(backend, config)?;
        if let Some(hosts) = &options.hosts {
            rank::compare(hosts, options, &resolved, checkpoint)
                .map_err(latent_backend::BackendError::from)?;
        }
        let stages = resolved.stages(config, &CheckpointTensors(checkpoint))?;
        let own = match config.part {
            None => Arc::clone(checkpoint),
            Some(_) => {
                rank::check_layers(backend, &stages)?;
                Arc::new(rank::own_tensors(checkpoint, &stages)?)
            }
        };
        let weights = resolved.weight_bytes(&stages, WeightSource::File(&own));
        let available = memory::available();
        Ok(Loading { checkpoint, own, config, options, resolved, stages, weights, available })
    }

    /// The least of what all ranks have.
    fn least(&self, own: usize) -> Result<usize, EngineError> {
        let Some(hosts) = &self.options.hosts else { return Ok(own) };
        let least = agree::on_least(&*hosts.communicator, own as u64);
        Ok(least.map_err(latent_backend::BackendError::from)? as usize)
    }

    /// What the model takes with a context of so many tokens.
    fn needed(&self, context: usize) -> MemoryEstimate {
        self.resolved.estimate(self.config, &self.stages, self.weights, context)
    }

    /// The context asked for, checked, or the largest that fits.
    fn choose_context(&self) -> Result<usize, EngineError> {
        let limit = self.config.context_length;
        match self.options.context {
            Some(0) => Err(EngineError::Options("--ctx-size 0: a context needs at least one token".into())),
            Some(context) if context > limit => Err(EngineError::Options(format!(
                "--ctx-size {context} is more than the model was made for: {limit} tokens"
            ))),
            Some(context) => Ok(context),
            None => Ok(self.fitting_context()),
        }
    }

    /// The largest context that fits into what is available; the model's limit where nobody says what is.
    fn fitting_context(&self) -> usize {
        let limit = self.config.context_length;
        let Some(available) = &self.available else { return limit };
        // a tenth is left for everything else
        memory::choose_context(&|context| self.needed(context), available.bytes / 10 * 9, limit)
    }

    /// Makes plans for steps of more tokens, where the context is long enough to gain from them and memory has room for their arena, which grows
    /// with the tokens.
    fn enlarge_steps(&mut self, context: usize) -> Result<(), EngineError> {
        let free = self.available.as_ref().map_or(u64::MAX, |available| available.bytes);
        let now = self.needed(context);
        let fits = |tokens: usize| {
            let arena = now.arena * (tokens / DEFAULT_BATCH_TOKENS) as u64;
            arena <= free / ARENA_SHARE && MemoryEstimate { arena, ..now }.total() <= free
        };
        let sizes = std::iter::successors(Some(LARGEST_BATCH_TOKENS), |tokens| Some(tokens / 2));
        let mut sizes = sizes.take_while(|tokens| *tokens > DEFAULT_BATCH_TOKENS);
        let own = sizes.find(|tokens| *tokens < 2 * context && fits(*tokens)).unwrap_or(DEFAULT_BATCH_TOKENS);
        let tokens = self.least(own)?;
        if tokens > DEFAULT_BATCH_TOKENS {
            self.resolved.options.stages.max_batch_tokens = tokens;
            self.stages = self.resolved.stages(self.config, &CheckpointTensors(self.checkpoint))?;
        }
        Ok(())
    }

    /// Findings that refuse the model are an error; what is strange about a circuit of the user's own is given back.
    fn audit(&self) -> Result<Vec<Finding>, EngineError> {
        let mut found = self.resolved.audit(self.config, &CheckpointTensors(&self.own), &self.stages);
        if self.config.part.is_some() {
            // that every tensor of the file is used only the whole model can say
            let (whole, tensors) = (self.config.whole(), CheckpointTensors(self.checkpoint));
            found.extend(self.resolved.audit(&whole, &tensors, &self.resolved.stages(&whole, &tensors)?));
        }
        let leave_doubts = self.options.circuit.is_some();
        let (doubts, findings): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|finding| leave_doubts && !finding.code.protects());
        if findings.is_empty() {
            return Ok(doubts);
        }
        Err(EngineError::Audit { file: self.checkpoint.display_name(), findings })
    }

    /// What the model takes, and how little memory there is for mapped weights where they do not fit.
    fn check_memory(&self, context: usize) -> Result<(MemoryEstimate, Option<OverCommitted>), EngineError> {
        let needed = self.needed(context);
        let Some(available) = &self.available else { return Ok((needed, None)) };
        match memory::check(&|context| self.needed(context), available, context) {
            Ok(paged) => Ok((needed, paged)),
            Err(_) if self.options.force => Ok((needed, None)),
            Err(problem) => Err(EngineError::Memory(problem)),
        }
    }

    /// Whether the model does not fit and is loaded all the same.
    fn is_forced(&self, context: usize) -> bool {
        let fits = |available| memory::check(&|context| self.needed(context), available, context).is_ok();
        self.options.force && !self.available.as_ref().is_some_and(fits)
    }
}
