//! Loading: from an opened file to an engine that is ready for its first step.

use crate::cache::KvCache;
use crate::embedding::FinalNorm;
use crate::engine::{Engine, FrontBackend};
use crate::error::EngineError;
use crate::flights::Flights;
use crate::lookup::StepCosts;
use crate::memory::{self, AvailableMemory, FittingLayers, MemoryOvercommit, OutOfMemory};
use crate::offload::{BackendPlacement, BackendPlan, OffloadedModel, layers_that_fit};
use crate::options::{DEFAULT_BATCH_TOKENS, EngineOptions, ResolvedOptions};
use crate::rank::{self, Follower, Rank};
use crate::summary::Summary;
use crate::tracing;
use latent_backend::{
    AdapterScales, Backend, BackendModel, Batch, CancelToken, Communicator, HUNG_AFTER, Instant, KV_BLOCK,
    LoadRequest, MemoryEstimate, ModelOptions, WeightSource,
};
use latent_formats::Checkpoint;
use latent_graph::audit::Finding;
use latent_graph::{CheckpointTensors, ModelConfig, Stage, stage_index};
use latent_hosts::{Leader, agree};
use latent_threads::Placement;
use latent_types::{CacheType, Setting};
use std::sync::{Arc, OnceLock};

/// Default maximum of tokens per step, memory permitting. Prompts of ten thousand tokens gain from
/// large steps, since each step expands the keys and values of everything before it.
const MAX_BATCH_TOKENS: usize = 4096;

/// Minimum tokens per step when a step is shrunk so that its values fit. With fewer, prefill would
/// be as slow as decode.
const MIN_BATCH_TOKENS: usize = 32;

/// The arena of steps larger than the default may take 1/16 of free memory.
const ARENA_SHARE: u64 = 16;

/// A model that is being loaded.
struct EngineLoader<'a> {
    checkpoint: &'a Checkpoint,
    /// The tensors that this rank reads.
    own: Arc<Checkpoint>,
    config: &'a ModelConfig,
    options: &'a EngineOptions,
    place: BackendPlacement<'a>,
    /// The model, or the layers after the cut.
    back: BackendPlan<'a>,
    /// The layers before the cut, if the model is offloaded.
    front: Option<BackendPlan<'a>>,
    /// Available memory of the host.
    available: Option<AvailableMemory>,
    /// Available memory of a device with memory of its own.
    room: Option<AvailableMemory>,
}

/// Available memory, and a function from the context size to the memory that the model needs there.
type MemoryPool<'p> = (&'p AvailableMemory, Box<dyn Fn(usize) -> MemoryEstimate + 'p>);

/// The warning of a build that is not optimized.
fn unoptimized(optimized: bool) -> Option<String> {
    let advice = "this build is not optimized and about 300 times slower: build with --release, or set \
                  opt-level = 3 in [profile.dev.package.\"*\"] of Cargo.toml";
    (!optimized).then(|| advice.to_owned())
}

impl Engine {
    /// Loads a model into `backend`. `progress` is called with the processed and the total bytes of
    /// the weights in the file.
    ///
    /// # Errors
    /// If a hyper-parameter, tensor or kernel is missing or wrong, or the model does not fit into
    /// memory.
    pub fn load(
        backend: &dyn Backend,
        checkpoint: &Arc<Checkpoint>,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Engine, EngineError> {
        match Engine::load_rank(backend, checkpoint, options, progress)? {
            Rank::Leads(engine) => Ok(*engine),
            Rank::Follows(_) => {
                let problem = "this process is not rank 0 of a shared model: call Engine::load_rank instead";
                Err(EngineError::Options(problem.into()))
            }
        }
    }

    /// Loads a model that several ranks may share ([`EngineOptions::hosts`]). Rank 0 gets an
    /// engine, the others a [`Follower`]. All ranks must call it, with the same model and options.
    /// A rank may open the model by [`Checkpoint::open_for_rank`], with the files of its own
    /// tensors only.
    ///
    /// # Errors
    /// As for [`load`](Self::load), on every rank. Also if ranks differ in programs, files or
    /// options, or a rank is lost.
    pub fn load_rank(
        backend: &dyn Backend,
        checkpoint: &Arc<Checkpoint>,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Rank, EngineError> {
        let result = rank::with_files_of_all(options, checkpoint).and_then(|checkpoint| {
            Engine::load_part(backend, &checkpoint, options, progress)
                .map_err(|error| rank::with_missing_files(error, &checkpoint))
        });
        // Tell the other ranks, which wait in collective calls. If another rank has ended
        // regularly, the job is ending and no rank has failed.
        if let (Err(error), Some(hosts)) = (&result, &options.hosts)
            && !error.is_of_ended_rank()
        {
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
        check_adapters(backend, checkpoint, options)?;
        let whole = options.config_on(backend, ModelConfig::from_checkpoint(checkpoint)?);
        if let Some(pulse) = options.hosts.as_ref().and_then(|hosts| hosts.communicator.pulse()) {
            pulse.set_limit(options.hung_after.unwrap_or(HUNG_AFTER));
        }
        let part = match (&options.hosts, options.first_layers) {
            (Some(hosts), _) => Some(rank::config_of_part(hosts, options, &whole)?),
            (None, Some(count)) => Some(rank::config_of_first_layers(&whole, count)?),
            (None, None) => None,
        };
        let config = part.as_ref().unwrap_or(&whole);
        let place = BackendPlacement::of(backend, options, config, checkpoint)?;
        let mut loading = EngineLoader::new(place, checkpoint, config, options)?;
        // All ranks must use the same context and step sizes, so the minimum over ranks decides.
        let context = loading.least(loading.choose_context()?)?;
        if options.max_batch_tokens.is_none() {
            loading.size_steps(context)?;
        }
        let doubts = loading.audit()?;
        let (needed, paged) = loading.check_memory(context)?;
        let fits = loading.available.is_some() && paged.is_none() && !loading.is_forced(context);
        let on_host = loading.on_host(context);
        // Pages of the file compete with the model for host memory only.
        let keep_pages = loading.available.as_ref().is_none_or(|free| memory::keeps_pages(free, &on_host));
        let largest_context = loading.least(loading.fitting_context())?;
        loading.back.resolved.options.context = context;
        let placement = options.place();
        let mut summary = loading.summary();
        (summary.paged, summary.doubts, summary.placement) = (paged, doubts, placement.clone());
        summary.warnings = ModelConfig::warnings(checkpoint)?;
        summary.warnings.extend(unoptimized(latent_kernels::OPTIMIZED));
        summary.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        if let Some(dense) = &summary.dense {
            tracing::warn!("{dense}");
        }
        let final_norm = FinalNorm::of(checkpoint, &loading.back.stages, config.rms_eps);
        let communicator = options.hosts.as_ref().map(|hosts| Arc::clone(&hosts.communicator));
        let reading = WeightReading { communicator: communicator.clone(), placement, fits, keep_pages };
        let (mut model, resolved) = loading.load(&reading, progress)?;
        // Before the barrier below, so that waiting for other ranks does not count.
        summary.load_time = start.elapsed();
        if let Some((communicator, hosts)) = communicator.zip(options.hosts.clone()) {
            // A barrier: no rank may begin a step before every rank has loaded.
            agree::on_least(&*communicator, 0).map_err(latent_backend::BackendError::from)?;
            if hosts.rank() > 0 {
                return Ok(Rank::Follows(Box::new(Follower { model, communicator, summary })));
            }
            let leader: Box<dyn BackendModel> = Box::new(Leader::new(model, hosts, whole.clone()));
            model = leader;
        }
        let loaded = LoadedEngine { model, resolved, summary, final_norm, needed, largest_context };
        Ok(Rank::Leads(Box::new(loaded.engine(checkpoint, options)?)))
    }
}

/// How weights are read.
struct WeightReading {
    communicator: Option<Arc<dyn Communicator>>,
    placement: Placement,
    fits: bool,
    keep_pages: bool,
}

/// A model in the backend's memory, and the results of loading.
struct LoadedEngine<'a> {
    model: Box<dyn BackendModel>,
    /// Includes the context that the model was loaded for.
    resolved: ResolvedOptions<'a>,
    summary: Summary,
    final_norm: Option<FinalNorm>,
    needed: MemoryEstimate,
    largest_context: usize,
}

impl LoadedEngine<'_> {
    /// An engine with an empty KV cache.
    fn engine(self, checkpoint: &Checkpoint, options: &EngineOptions) -> Result<Engine, EngineError> {
        let LoadedEngine { model, resolved, summary, final_norm, needed, largest_context } = self;
        let context = resolved.options.context;
        let tokens = resolved.cache_tokens(context);
        let blocks = u32::try_from(tokens.div_ceil(KV_BLOCK)).map_err(|_| {
            EngineError::Options(format!("a KV cache of {tokens} tokens has too many blocks"))
        })?;
        let state_slots = resolved.state_slots(model.stages())?;
        let mtp = stage_index::mtp(model.stages());
        let mtp_layers = mtp.map_or(0, |stage| model.stages()[stage].kv_layers().len());
        let store = model.new_kv_store(blocks, state_slots)?;
        let cache = KvCache::new(store, options.states, mtp_layers);
        // With several steps in flight, the tokens before the next step's are not known when it is
        // submitted, so nothing can be looked up.
        let lookup = options.draft.has_ngram() && model.steps_in_flight() == 1;
        Ok(Engine {
            model,
            cache,
            batch: Batch::default(),
            wanted: Vec::new(),
            enough: Vec::new(),
            residual: Vec::new(),
            keep_residual: false,
            all_draft_logits: false,
            lookup,
            step_costs: StepCosts::new(options.draft_cost),
            final_norm,
            outcomes: Vec::new(),
            cancel: CancelToken::new(),
            front: front_of(options, &summary),
            options: resolved.options,
            summary,
            fingerprint: checkpoint.fingerprint(),
            adapters: checkpoint.adapters().to_vec(),
            adapter_scales: AdapterScales::new(&default_scales(checkpoint)),
            wire: options.wire,
            partition: options.hosts.as_ref().map(|hosts| hosts.partition.clone()),
            needed,
            // A forced context may exceed what fits.
            largest_context: largest_context.max(context),
            circuit: resolved.circuit,
            chunk_given: options.max_batch_tokens.is_some(),
            flights: Flights::default(),
        })
    }
}

/// Scales of the adapters for sequences without scales of their own.
fn default_scales(checkpoint: &Checkpoint) -> Vec<f32> {
    checkpoint.adapters().iter().map(|adapter| adapter.scale).collect()
}

/// Checks that the model can run with its adapters.
fn check_adapters(
    backend: &dyn Backend,
    checkpoint: &Checkpoint,
    options: &EngineOptions,
) -> Result<(), EngineError> {
    if checkpoint.adapters().is_empty() {
        return Ok(());
    }
    let problem = if options.hosts.is_some() {
        "LoRA adapters are not supported for a model shared by several ranks: use one process, or merge the \
         adapters into the model"
            .to_owned()
    } else if options.offload.is_some() {
        "LoRA adapters are not supported for a model on two devices: omit --n-gpu-layers".to_owned()
    } else if !backend.target().adapters {
        let name = backend.name();
        format!("the {name} backend does not support LoRA adapters: use {}", Setting::Device.to("cpu"))
    } else if checkpoint.packed_from().is_some() {
        "LoRA adapters are not supported for packed files: use the file that it was packed from".to_owned()
    } else {
        return Ok(());
    };
    Err(EngineError::Options(problem))
}

/// The backend of the first layers.
fn front_of(options: &EngineOptions, summary: &Summary) -> Option<FrontBackend> {
    let offload = options.offload.as_ref().filter(|_| summary.front.is_some())?;
    Some(FrontBackend { backend: Arc::clone(&offload.front), limits: OnceLock::new() })
}

/// Size of the weights of some stages in the file.
fn file_bytes(stages: &[Stage]) -> u64 {
    latent_graph::distinct_weights(stages).map(|weight| weight.bytes() as u64).sum()
}

impl<'a> EngineLoader<'a> {
    fn new(
        place: BackendPlacement<'a>,
        checkpoint: &'a Arc<Checkpoint>,
        config: &'a ModelConfig,
        options: &'a EngineOptions,
    ) -> Result<EngineLoader<'a>, EngineError> {
        let mut back = place.plan_back(options, config, checkpoint)?;
        if let Some(hosts) = &options.hosts {
            rank::compare(hosts, options, &back.resolved).map_err(latent_backend::BackendError::from)?;
        }
        let own = match config.part {
            None => Arc::clone(checkpoint),
            Some(_) => {
                rank::check_layers(options, place.back, &back.stages)?;
                Arc::new(rank::own_tensors(checkpoint, &back.stages)?)
            }
        };
        // Planned with the whole checkpoint, but this rank keeps only its own tensors.
        back.weights = back.resolved.weight_bytes(&back.stages, WeightSource::File(&own));
        let front = place.plan_front(options, config, checkpoint, &back)?;
        let available = memory::available();
        let mut loading =
            EngineLoader { checkpoint, own, config, options, place, back, front, available, room: None };
        loading.room = loading.find_room()?;
        Ok(loading)
    }

    /// The device's own free memory, up to twice what the model can use. The caller chooses context
    /// and steps so that some is left.
    fn find_room(&self) -> Result<Option<AvailableMemory>, EngineError> {
        if !self.place.back.has_own_memory() {
            return Ok(None);
        }
        // An upper bound: `choose_context` returns no larger one.
        let context = self.options.context.unwrap_or(self.config.context_length);
        // `room` may allocate this amount for a moment, so it must be bounded.
        let bytes = self.place.back.room(self.on_device(context).total().saturating_mul(2))?;
        Ok(Some(AvailableMemory { bytes, limit: "room there" }))
    }

    /// The minimum of a number over all ranks.
    fn least(&self, own: usize) -> Result<usize, EngineError> {
        let Some(hosts) = &self.options.hosts else { return Ok(own) };
        let least = agree::on_least(&*hosts.communicator, own as u64);
        Ok(least.map_err(latent_backend::BackendError::from)? as usize)
    }

    /// Host memory of the model with a context of `context` tokens.
    fn on_host(&self, context: usize) -> MemoryEstimate {
        let front = self.front.as_ref().map(|front| front.needed(self.config, context)).unwrap_or_default();
        match self.place.back.has_own_memory() {
            true => front,
            false => front + self.back.needed(self.config, context),
        }
    }

    /// Memory of the model on a device with memory of its own.
    fn on_device(&self, context: usize) -> MemoryEstimate {
        match self.place.back.has_own_memory() {
            true => self.back.needed(self.config, context),
            false => MemoryEstimate::default(),
        }
    }

    /// The memory pools of the model's parts, if their sizes are known.
    fn pools(&self) -> impl Iterator<Item = MemoryPool<'_>> {
        let host =
            self.available.as_ref().map(|here| -> MemoryPool<'_> { (here, Box::new(|n| self.on_host(n))) });
        let device =
            self.room.as_ref().map(|here| -> MemoryPool<'_> { (here, Box::new(|n| self.on_device(n))) });
        host.into_iter().chain(device)
    }

    /// The requested context, checked, or the largest that fits.
    fn choose_context(&self) -> Result<usize, EngineError> {
        let limit = self.config.context_length;
        match self.options.context {
            Some(0) => Err(EngineError::Options(format!(
                "{}: a context needs at least one token",
                Setting::Context.to(0)
            ))),
            Some(context) if context > limit => Err(EngineError::Options(format!(
                "{} exceeds the model's maximum of {limit} tokens",
                Setting::Context.to(context)
            ))),
            Some(context) => Ok(context),
            None => Ok(self.fitting_context()),
        }
    }

    /// The largest context that fits into the available memory, or the model's limit if the
    /// available memory is unknown.
    fn fitting_context(&self) -> usize {
        let limit = self.config.context_length;
        // A tenth of the memory is left for everything else.
        let fitting =
            |(here, needed): MemoryPool<'_>| memory::choose_context(&*needed, here.bytes / 10 * 9, limit);
        let in_all = self.pools().map(fitting).min().unwrap_or(limit);
        // If not even one block fits into one buffer, `check_pieces` returns the error later.
        self.sides().fold(in_all, |context, side| {
            let fits = |tokens: usize| side.cache_piece(tokens).is_small();
            memory::context_that_fits(&fits, context).unwrap_or(context)
        })
    }

    /// The plans of each backend.
    fn sides(&self) -> impl Iterator<Item = &BackendPlan<'a>> {
        std::iter::once(&self.back).chain(&self.front)
    }

    /// Checks that every piece of memory fits into one buffer of its device.
    fn check_pieces(&self, context: usize) -> Result<(), EngineError> {
        for side in self.sides() {
            let steps = side.step_piece(self.config, side.resolved.options.stages.max_batch_tokens);
            let Some(piece) = [side.cache_piece(context), steps].into_iter().find(|piece| !piece.is_small())
            else {
                continue;
            };
            return Err(EngineError::Piece(piece));
        }
        Ok(())
    }

    /// Chooses the maximum number of tokens per step, and plans for it. Steps are larger than the
    /// default if the context is long enough to gain from them and memory has room for their arena,
    /// which grows with the tokens. They are smaller if a value of a step would not fit into one
    /// buffer.
    fn size_steps(&mut self, context: usize) -> Result<(), EngineError> {
        let fits = |tokens: usize| {
            self.pools().all(|(here, needed)| {
                let now = needed(context);
                // The plans so far are for steps of the default size.
                let arena = now.arena.saturating_mul((tokens / DEFAULT_BATCH_TOKENS) as u64);
                arena <= here.bytes / ARENA_SHARE && MemoryEstimate { arena, ..now }.total() <= here.bytes
            })
        };
        // Powers of two, the largest first.
        let sizes = std::iter::successors(Some(MAX_BATCH_TOKENS), |tokens| Some(tokens / 2));
        let in_pieces =
            |tokens: usize| self.sides().all(|side| side.step_piece(self.config, tokens).is_small());
        let larger = |tokens: usize| tokens > DEFAULT_BATCH_TOKENS;
        let mut sizes = sizes.take_while(|tokens| *tokens >= MIN_BATCH_TOKENS);
        let own = sizes.find(|tokens| {
            // Steps of more than twice the context are never filled.
            let pays = !larger(*tokens) || (*tokens < 2 * context && fits(*tokens));
            pays && in_pieces(*tokens)
        });
        let tokens = self.least(own.unwrap_or(DEFAULT_BATCH_TOKENS))?;
        if tokens != DEFAULT_BATCH_TOKENS {
            for planned in std::iter::once(&mut self.back).chain(&mut self.front) {
                planned.with_steps_of(tokens, self.config, self.checkpoint)?;
            }
        }
        Ok(())
    }

    /// Audits the model. Findings that refuse it are an error. For a circuit of the user's own,
    /// other findings are returned.
    fn audit(&self) -> Result<Vec<Finding>, EngineError> {
        let BackendPlan { resolved, stages, .. } = &self.back;
        let mut found = match &self.front {
            // The checks of the circuit and its tensors need a whole model; each side has plans
            // only.
            None => resolved.audit(self.config, &CheckpointTensors(&self.own), stages),
            Some(front) => {
                let mut found = front.resolved.audit_side(self.config, &front.stages);
                found.extend(resolved.audit_side(self.config, stages));
                found
            }
        };
        if self.config.part.is_some() || self.front.is_some() {
            // The rule that every tensor of the file is used can be checked on the whole model
            // only.
            let (whole, tensors) = (self.config.whole(), CheckpointTensors(self.checkpoint));
            found.extend(resolved.audit(&whole, &tensors, &resolved.whole_stages(&whole, &tensors)?));
        }
        let leave_doubts = self.options.circuit.is_some();
        let (doubts, findings): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|finding| leave_doubts && !finding.code.protects());
        if findings.is_empty() {
            return Ok(doubts);
        }
        Err(EngineError::Audit { file: self.checkpoint.display_name(), findings })
    }

    /// Checks that the model fits. Returns the memory that it needs, and the overcommitted memory
    /// if mapped weights must be paged.
    fn check_memory(
        &self,
        context: usize,
    ) -> Result<(MemoryEstimate, Option<MemoryOvercommit>), EngineError> {
        self.check_pieces(context)?;
        let needed = self.on_host(context) + self.on_device(context);
        let mut over = None;
        for (here, needed) in self.pools() {
            match memory::check(&*needed, here, context) {
                Ok(paged) => over = over.or(paged),
                Err(_) if self.options.force => {}
                Err(problem) => return Err(EngineError::Memory(self.advised(problem)?)),
            }
        }
        Ok((needed, over))
    }

    /// Adds to an error about a device's memory how many layers would fit there.
    fn advised(&self, problem: OutOfMemory) -> Result<OutOfMemory, EngineError> {
        let Some(room) = self.room.as_ref().filter(|room| **room == problem.available) else {
            return Ok(problem);
        };
        let fitting = (problem.context, room.bytes);
        let layers = layers_that_fit(self.place.back, self.options, self.config, self.checkpoint, fitting)?;
        let smaller_cache = self.back.resolved.options.stages.bind.cache == CacheType::F32;
        // The output counts as one layer.
        let layers = Some(FittingLayers { layers, of: self.config.layers + 1, smaller_cache });
        Ok(OutOfMemory { layers, ..problem })
    }

    /// Whether the model is loaded although it does not fit.
    fn is_forced(&self, context: usize) -> bool {
        let known = self.available.is_some() || self.room.is_some();
        let fits = self.pools().all(|(here, needed)| memory::check(&*needed, here, context).is_ok());
        self.options.force && !(known && fits)
    }

    /// Reads the weights. With offload, those of the front are read first.
    fn load(
        self,
        reading: &WeightReading,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Box<dyn BackendModel>, ResolvedOptions<'a>), EngineError> {
        let EngineLoader { own, config, back, front, .. } = self;
        let load = |resolved: &ResolvedOptions<'_>, stages, context, progress: &mut dyn FnMut(u64, u64)| {
            resolved.backend.load(LoadRequest {
                checkpoint: &own,
                config: config.clone(),
                communicator: reading.communicator.clone(),
                stages,
                options: ModelOptions { context, ..resolved.options },
                placement: &reading.placement,
                weights_fit: reading.fits,
                keep_pages: reading.keep_pages,
                progress,
            })
        };
        let BackendPlan { resolved, stages, .. } = back;
        let context = resolved.options.context;
        let Some(front) = front else { return Ok((load(&resolved, stages, context, progress)?, resolved)) };
        // Both backends report their own progress; the caller sees one total.
        let (before, behind) = (file_bytes(&front.stages), file_bytes(&stages));
        let front =
            load(&front.resolved, front.stages, context, &mut |done, of| progress(done, of + behind))?;
        let back = load(&resolved, stages, context, &mut |done, of| progress(before + done, before + of))?;
        Ok((Box::new(OffloadedModel::new(front, back)), resolved))
    }

    /// The summary before the weights are loaded.
    fn summary(&self) -> Summary {
        let BackendPlan { resolved, stages, weights } = &self.back;
        let mut summary = Summary::new(self.checkpoint, self.config, resolved, stages, *weights);
        if let Some(front) = &self.front {
            let all: Vec<Stage> = stages.iter().chain(&front.stages).cloned().collect();
            summary.add_front(front, self.config, &all);
        }
        summary
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn unoptimized_builds_give_a_warning() {
        assert_eq!(super::unoptimized(true), None);
        assert!(super::unoptimized(false).unwrap().contains("[profile.dev.package.\"*\"]"));
    }
}
