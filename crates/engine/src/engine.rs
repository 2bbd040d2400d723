//! The engine: one loaded model with its cache, and steps over sequences.

use crate::cache::{BlockPool, PAGE_ROWS, Sequence, ShiftShape};
use crate::cpu::{self, Batch, CpuBackend, CpuOptions, HEAD_ROWS, WeightBytes};
use crate::error::EngineError;
use crate::generate::Session;
use crate::memory::{self, MemoryEstimate, OverCommitted};
use crate::profile::{self, Limits, Roofline, StepProfile, StepSize, Timed};
use crate::read_ahead::ReadAhead;
use crate::thread_pool::{self, Pin, Placement, ThreadPool, Topology};
use crate::trace::Trace;
use latent_formats::Checkpoint;
use latent_graph::activations::Activations;
use latent_graph::ir::{Cost, Op, Step as CostStep};
use latent_graph::passes::{BatchBucket, BindOptions, CacheForm, MlaChoice, Precision};
use latent_graph::{CheckpointTensors, Circuit, ModelConfig, Plan};
use latent_types::{CacheType, Tier};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows of a step with which prompts are read at nearly full speed: what one may have at least.
pub const DEFAULT_BATCH_TOKENS: usize = 512;

/// Rows of a step, at most, where memory allows: what prompts of ten thousand tokens gain from, since each step expands the keys and values
/// of everything before it.
const LARGEST_BATCH_TOKENS: usize = 4096;

/// The arena of a step that large may take this part of free memory.
const ARENA_SHARE: u64 = 16;

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
    /// Tokens that the cache holds; none: the smaller of the model's limit and what fits.
    pub context: Option<usize>,
    /// Threads; none: one for each core that this process may use.
    pub threads: Option<usize>,
    /// Whether threads are bound to CPUs.
    pub pin: Pin,
    /// Where the threads are, in place of `threads` and `pin`.
    pub placement: Option<Placement>,
    /// Highest instruction-set tier; none: the best there is.
    pub tier: Option<Tier>,
    /// Most rows of a step, and of a chunk of a prompt; none: chosen from memory and from the prompt ([`Engine::chunk_for`]).
    pub max_batch_tokens: Option<usize>,
    /// Load even when memory seems too small.
    pub force: bool,
    /// A circuit that takes the place of the model's own, for those who change one; none: the built-in one. It is audited like those, but a
    /// finding that is about its meaning alone (see [`Code::protects`](latent_graph::audit::Code::protects)) does not refuse it: a wrong one can be
    /// looked into. Such findings are in [`Summary::doubts`].
    pub circuit: Option<Arc<Circuit>>,
}

/// Which rows of an item's tokens the caller wants logits of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsRequest<'a> {
    /// None.
    Nothing,
    /// The last.
    Last,
    /// All.
    All,
    /// These, counted from the item's first token.
    Rows(&'a [usize]),
}

/// New tokens of one sequence in a step.
pub struct SeqInput<'a> {
    /// The sequence that they continue.
    pub sequence: &'a mut Sequence,
    /// The tokens.
    pub tokens: &'a [u32],
    /// Whose logits are wanted.
    pub wanted: LogitsRequest<'a>,
}

/// What the engine decided when it loaded a model.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The model's name, or its file's.
    pub name: String,
    /// Weights, counted as numbers.
    pub parameters: u64,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// How little memory there is for mapped weights, where they do not fit.
    pub paged: Option<OverCommitted>,
    /// From the opened file to an engine that is ready for the first step.
    pub load_time: Duration,
    /// The tier chosen.
    pub tier: Tier,
    /// Threads, and where they run.
    pub placement: Placement,
    /// Type of the cache.
    pub cache: CacheType,
    /// Bytes that a token takes in it.
    pub token_bytes: usize,
    /// Tokens that it holds.
    pub context: usize,
    /// Matrix kernels in use.
    pub kernels: Vec<String>,
    /// Operations that run in portable code although the tier is higher.
    pub portable: Vec<String>,
    /// What the audit finds strange about a circuit of the user's own.
    pub doubts: Vec<latent_graph::audit::Finding>,
}

/// A loaded model.
pub struct Engine {
    backend: CpuBackend,
    pool: BlockPool,
    batch: Batch,
    /// SeqInput and row of each row whose logits are wanted.
    wanted: Vec<(usize, usize)>,
    options: CpuOptions,
    summary: Summary,
    fingerprint: u64,
    needed: MemoryEstimate,
    /// Most tokens of context that the model takes and that memory holds.
    largest_context: usize,
    circuit: Arc<Circuit>,
    /// Whether the options say how many rows a step has.
    chunk_given: bool,
    /// Reads the weights of a packed file before they are needed.
    read_ahead: Option<ReadAhead>,
}

impl EngineOptions {
    /// Where the threads will run: one for each core that affinity and cgroup quotas leave to this process, unless the options say
    /// otherwise.
    pub fn place(&self) -> Placement {
        if let Some(placement) = &self.placement {
            return placement.clone();
        }
        let (topology, parallelism) = (Topology::detect(), thread_pool::parallelism());
        let threads = self.threads.unwrap_or_else(|| thread_pool::threads_for(&topology, parallelism));
        Placement::new(&topology, parallelism, threads, self.pin)
    }
}

impl Engine {
    /// Loads a model. `progress` hears how many weights of how many are in place.
    ///
    /// # Errors
    /// A contract, tensor or kernel that is missing or wrong; too little memory, with the table of what is needed.
    pub fn load(
        checkpoint: &Arc<Checkpoint>,
        options: &EngineOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Engine, EngineError> {
        let start = Instant::now();
        let config = ModelConfig::from_checkpoint(checkpoint)?;
        let tier = cpu::tier_for(options.tier).map_err(EngineError::Options)?;
        let exact = options.precision == Precision::Exact;
        let cache = options.cache.unwrap_or(if exact { CacheType::F32 } else { CacheType::F16 });
        if options.form == CacheForm::Expanded && options.mla != MlaChoice::Naive {
            let problem = "the expanded cache serves the naive formulation only: give --mla naive with it";
            return Err(EngineError::Options(problem.into()));
        }
        let placement = options.place();
        let mut cpu = CpuOptions {
            mla: options.mla,
            form: options.form,
            bind: BindOptions { precision: options.precision, tier, cache },
            threads: placement.threads(),
            max_batch_tokens: options.max_batch_tokens.unwrap_or(DEFAULT_BATCH_TOKENS).max(1),
            context: config.context_length,
        };
        let circuit = match &options.circuit {
            Some(circuit) => circuit.clone(),
            None => Arc::new(Circuit::named(&config.circuit)?.clone()),
        };
        let mut plans = cpu::make_plans_of(&circuit, &config, &CheckpointTensors(checkpoint), &cpu)?;
        let kv_layers = plans.0[0].ir.kv_layers.clone();
        let token_bytes: usize = kv_layers.iter().map(|kv_layer| kv_layer.row(cache).bytes()).sum();
        let weights = cpu::weight_bytes(&plans, checkpoint);
        let mut arena = cpu::arena_bytes(&config, &plans, &cpu);
        let first = cpu;
        let needed_with = |arena: u64, context: usize| MemoryEstimate {
            weights: weights.owned,
            mapped: weights.mapped,
            cache: (context.next_multiple_of(PAGE_ROWS) * token_bytes) as u64,
            arena,
            expanded: cpu::expanded_bytes(&config, &first, context),
        };
        let context = choose_context(&config, options, &|context| needed_with(arena, context))?;
        let available = memory::available();
        if options.max_batch_tokens.is_none() {
            // the arena grows with the rows
            let fits = |rows: usize| {
                let arena = arena * (rows / DEFAULT_BATCH_TOKENS) as u64;
                let free = available.as_ref().map_or(u64::MAX, |available| available.bytes);
                arena <= free / ARENA_SHARE && needed_with(arena, context).total() <= free
            };
            let sizes = std::iter::successors(Some(LARGEST_BATCH_TOKENS), |rows| Some(rows / 2));
            let mut sizes = sizes.take_while(|rows| *rows > DEFAULT_BATCH_TOKENS);
            let max_batch_tokens =
                sizes.find(|rows| *rows < 2 * context && fits(*rows)).unwrap_or(DEFAULT_BATCH_TOKENS);
            if max_batch_tokens > cpu.max_batch_tokens {
                let larger = CpuOptions { max_batch_tokens, ..cpu };
                plans = cpu::make_plans_of(&circuit, &config, &CheckpointTensors(checkpoint), &larger)?;
                arena = cpu::arena_bytes(&config, &plans, &larger);
                cpu.max_batch_tokens = max_batch_tokens;
            }
        }
        let doubts = cpu::audit(&circuit, &config, checkpoint, &plans, &cpu, options.circuit.is_some())?;
        let needed_for = |context: usize| needed_with(arena, context);
        let needed = needed_for(context);
        let (mut paged, mut fits) = (None, false);
        let largest_context = fitting_context(available.as_ref(), &needed_for, config.context_length);
        if let Some(available) = available {
            match memory::check(&needed_for, &available, context) {
                Ok(found) => (fits, paged) = (found.is_none(), found),
                Err(problem) if !options.force => return Err(EngineError::Memory(problem)),
                Err(_) => {}
            }
        }
        cpu.context = context;
        let thread_pool = ThreadPool::placed(&placement)
            .map_err(|error| EngineError::System { what: "starting threads", error })?;
        let mut summary = summarise(checkpoint, &config, &plans, &cpu, placement, token_bytes, weights);
        summary.paged = paged;
        summary.doubts = doubts;
        let pool = BlockPool::new(&kv_layers, cache, context)
            .map_err(|error| EngineError::System { what: "reserving memory for the cache", error })?;
        let in_place = cpu::tensors_in_tiles(&plans, checkpoint);
        let backend = CpuBackend::load(config, checkpoint, plans, cpu, thread_pool, progress)?;
        let read_ahead = if fits { ReadAhead::start(checkpoint, in_place) } else { None };
        let fingerprint = checkpoint.fingerprint();
        summary.load_time = start.elapsed();
        Ok(Engine {
            backend,
            pool,
            batch: Batch::default(),
            wanted: Vec::new(),
            options: cpu,
            summary,
            fingerprint,
            needed,
            largest_context: largest_context.max(context),
            circuit,
            chunk_given: options.max_batch_tokens.is_some(),
            read_ahead,
        })
    }

    /// What was decided at loading.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Waits until the weights of a packed file are in memory, where they fit: first steps are then as quick as later ones.
    pub fn wait_for_weights(&mut self) {
        if let Some(mut read_ahead) = self.read_ahead.take() {
            read_ahead.wait();
        }
    }

    /// Memory that the session needs.
    pub fn needed(&self) -> MemoryEstimate {
        self.needed
    }

    /// The model's contract.
    pub fn config(&self) -> &ModelConfig {
        self.backend.config()
    }

    /// The plans that steps run, of the layers and of the head: each one for a row alone, one for a few, one for many.
    pub fn plans(&self) -> (&[Plan], &[Plan]) {
        (self.backend.trunk(), self.backend.head())
    }

    /// What runs a step, and the cache.
    #[cfg(test)]
    pub(crate) fn parts(&mut self) -> (&mut CpuBackend, &mut BlockPool) {
        (&mut self.backend, &mut self.pool)
    }

    /// The cache.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Precision, tier and type of the cache.
    pub fn bind(&self) -> BindOptions {
        self.options.bind
    }

    /// Most rows of one step.
    pub fn max_batch_tokens(&self) -> usize {
        self.options.max_batch_tokens
    }

    /// Rows of the steps in which a prompt of so many tokens is read: a third of it, so that there is progress to show and a place to stop, within
    /// the bounds of [`DEFAULT_BATCH_TOKENS`] and [`largest`](Self::largest); or what the options say.
    pub fn chunk_for(&self, tokens: usize) -> usize {
        if self.chunk_given {
            return self.options.max_batch_tokens;
        }
        let third = tokens.div_ceil(3).next_multiple_of(PAGE_ROWS);
        third.max(DEFAULT_BATCH_TOKENS).min(self.options.max_batch_tokens)
    }

    /// Tokens of context: what was asked for, or what fits. (The cache itself holds whole pages.)
    pub fn context(&self) -> usize {
        self.options.context
    }

    /// Most tokens of context with which this model could be loaded here: its own limit, or what fitted into memory at loading. Never less than
    /// [`context`](Self::context).
    pub fn largest_context(&self) -> usize {
        self.largest_context
    }

    /// Runs new tokens of one or several sequences. `sink` hears the item, the row within it, and that row's logits.
    ///
    /// # Errors
    /// Nothing has changed then:
    /// * [`EngineError::Token`], [`EngineError::Rows`], [`EngineError::Options`] for tokens, a number of rows or wanted rows that there are not;
    /// * [`EngineError::ForeignSequence`] for a sequence that another engine has run;
    /// * [`EngineError::CacheFull`] where the only item finds no room in the cache, and [`EngineError::NotAdmitted`] where some of several do not,
    ///   which names them: a step without those finds room.
    pub fn step(
        &mut self,
        items: &mut [SeqInput<'_>],
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), EngineError> {
        self.check(items)?;
        self.admit(items)?;
        for item in items.iter_mut() {
            self.pool.reserve(item.sequence, item.tokens.len())?;
        }
        let wanted = &mut self.wanted;
        wanted.clear();
        self.batch.clear();
        for (number, item) in items.iter().enumerate() {
            let first = self.batch.rows();
            let path = self.backend.path(item.tokens.len());
            self.batch.push(item.tokens, item.sequence.len(), item.sequence.pages(), path);
            let mut want = |row: usize| {
                wanted.push((number, row));
                self.batch.wanted.push((first + row) as u32);
            };
            match item.wanted {
                LogitsRequest::Nothing => {}
                LogitsRequest::Last => want(item.tokens.len() - 1),
                LogitsRequest::All => (0..item.tokens.len()).for_each(want),
                LogitsRequest::Rows(rows) => rows.iter().copied().for_each(want),
            }
        }
        self.backend.forward(&self.batch, &self.pool);
        for item in items.iter_mut() {
            item.sequence.advance(item.tokens.len());
        }
        let wanted = &self.wanted;
        self.backend.logits(&self.batch, &self.pool, &mut |i, logits| sink(wanted[i].0, wanted[i].1, logits));
        Ok(())
    }

    fn check(&self, items: &[SeqInput<'_>]) -> Result<(), EngineError> {
        let rows: usize = items.iter().map(|item| item.tokens.len()).sum();
        if rows == 0
            || rows > self.options.max_batch_tokens
            || items.iter().any(|item| item.tokens.is_empty())
        {
            return Err(EngineError::Rows { rows, max_batch_tokens: self.options.max_batch_tokens });
        }
        let vocab = self.config().vocab_size;
        for (number, item) in items.iter().enumerate() {
            if !self.pool.owns(item.sequence) {
                return Err(EngineError::ForeignSequence { item: Some(number) });
            }
            if let Some(i) = item.tokens.iter().position(|&token| token as usize >= vocab) {
                return Err(EngineError::Token {
                    token: item.tokens[i],
                    position: item.sequence.len() + i,
                    vocab,
                });
            }
            if let LogitsRequest::Rows(rows) = item.wanted
                && let Some(row) = rows.iter().find(|&&row| row >= item.tokens.len())
            {
                let problem =
                    format!("logits of row {row} are wanted, but there are {} rows", item.tokens.len());
                return Err(EngineError::Options(problem));
            }
        }
        Ok(())
    }

    /// That every item finds room in the cache.
    fn admit(&self, items: &[SeqInput<'_>]) -> Result<(), EngineError> {
        let rows = items.iter().map(|item| (&*item.sequence, item.tokens.len()));
        let refused = self.pool.refused(rows);
        match (refused.first(), items.len()) {
            (None, _) => Ok(()),
            (Some((_, full)), 1) => Err(EngineError::CacheFull(*full)),
            (Some((_, full)), count) => Err(EngineError::NotAdmitted {
                items: refused.iter().map(|(item, _)| *item).collect(),
                count,
                full: *full,
            }),
        }
    }

    fn owned(&self, sequence: &Sequence) -> Result<(), EngineError> {
        if self.pool.owns(sequence) { Ok(()) } else { Err(EngineError::ForeignSequence { item: None }) }
    }

    /// Runs tokens of one sequence in chunks of at most `chunk` rows; `sink` hears rows counted from the first token.
    ///
    /// # Errors
    /// As for [`step`](Self::step); chunks before the failing one stay in the cache.
    pub fn prefill(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        chunk: usize,
        wanted: LogitsRequest<'_>,
        sink: &mut dyn FnMut(usize, &[f32]),
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), EngineError> {
        let chunk = chunk.clamp(1, self.options.max_batch_tokens);
        let mut done = 0;
        for part in tokens.chunks(chunk) {
            let last = done + part.len() == tokens.len();
            let inside: Vec<usize>;
            let here = match wanted {
                LogitsRequest::Last if !last => LogitsRequest::Nothing,
                LogitsRequest::Rows(rows) => {
                    inside = rows
                        .iter()
                        .filter(|&&r| r >= done && r < done + part.len())
                        .map(|r| r - done)
                        .collect();
                    LogitsRequest::Rows(&inside)
                }
                other => other,
            };
            let mut items = [SeqInput { sequence: &mut *sequence, tokens: part, wanted: here }];
            self.step(&mut items, &mut |_, row, logits| sink(done + row, logits))?;
            done += part.len();
            if !progress(done) {
                return Err(EngineError::Stopped);
            }
        }
        Ok(())
    }

    /// The points of comparison of `checkpoint`, which this engine was loaded from.
    ///
    /// # Errors
    /// As for loading: never for a checkpoint that was loaded.
    pub fn points(&self, checkpoint: &Checkpoint) -> Result<Activations, EngineError> {
        Ok(Activations::of(&self.circuit, self.config(), &CheckpointTensors(checkpoint))?)
    }

    /// Runs `tokens` as a sequence of their own, in chunks of the largest step, and copies the points of `layers` (those outside of
    /// layers, the residual stream and routing too) out of every phase that makes one. It computes what an ordinary run computes, bit for bit.
    ///
    /// # Errors
    /// As for [`prefill`](Self::prefill); too little memory for what is to be copied.
    pub fn trace(
        &mut self,
        points: &Activations,
        layers: Range<usize>,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Trace, EngineError> {
        let trace = Trace::new(points, layers, tokens)?;
        self.backend.start_trace(points, trace)?;
        let mut sequence = Sequence::default();
        let chunk = self.chunk_for(tokens.len());
        let done = self.prefill(&mut sequence, tokens, chunk, LogitsRequest::All, &mut |_, _| {}, progress);
        self.release(sequence);
        let trace = self.backend.stop_trace();
        done?;
        let mut trace = trace.unwrap_or_default();
        trace.derive_terms(points);
        Ok(trace)
    }

    /// Gives a sequence's cache back, as dropping it does.
    pub fn release(&mut self, sequence: Sequence) {
        drop(sequence);
    }

    /// Forgets all rows of a sequence from `len` on.
    pub fn truncate(&mut self, sequence: &mut Sequence, len: usize) {
        sequence.truncate(len);
    }

    /// A sequence that shares the first `len` rows of another.
    pub fn share(&mut self, other: &Sequence, len: usize) -> Sequence {
        other.share(len)
    }

    /// Forgets a stretch of rows and moves the later ones down.
    ///
    /// # Errors
    /// When shared pages would have to be copied and no page is free, or another engine has run the sequence.
    pub fn shift(&mut self, sequence: &mut Sequence, forgotten: Range<usize>) -> Result<(), EngineError> {
        self.owned(sequence)?;
        let a = self.backend.config().attention;
        let (rope, pairs) = self.backend.rope();
        let shape = ShiftShape { rope, pairs, rope_dims: a.rope, nope: a.nope, v: a.v };
        Ok(self.pool.shift(sequence, forgotten, &shape)?)
    }

    /// Saves a sequence and its tokens.
    ///
    /// # Errors
    /// When the file cannot be written, or another engine has run the sequence.
    pub fn save(&self, sequence: &Sequence, tokens: &[u32], path: &Path) -> Result<(), EngineError> {
        self.owned(sequence)?;
        Ok(self.pool.save(sequence, tokens, self.fingerprint, path)?)
    }

    /// Reads a saved sequence back.
    ///
    /// # Errors
    /// When the file is damaged, belongs to another model, or does not fit.
    pub fn restore(&mut self, path: &Path) -> Result<(Sequence, Vec<u32>), EngineError> {
        Ok(self.pool.restore(path, self.fingerprint)?)
    }

    /// Saves a session with an attachment, such as the conversation that its tokens were rendered from. Rows that have seen tokens which a
    /// context shift discarded are dropped first. Returns how many tokens the file holds.
    ///
    /// # Errors
    /// When the file cannot be written, or another engine has run the sequence.
    pub fn save_session(
        &mut self,
        session: &mut Session,
        attachment: Option<&[u8]>,
        path: &Path,
    ) -> Result<usize, EngineError> {
        self.owned(&session.sequence)?;
        self.truncate(&mut session.sequence, session.tokens.len());
        self.pool.save_with(&session.sequence, &session.tokens, self.fingerprint, attachment, path)?;
        Ok(session.tokens.len())
    }

    /// Reads a saved session back, with its attachment, if it has one.
    ///
    /// # Errors
    /// As for [`restore`](Self::restore).
    pub fn restore_session(&mut self, path: &Path) -> Result<(Session, Option<Vec<u8>>), EngineError> {
        let (sequence, tokens, attachment) = self.pool.restore_with(path, self.fingerprint)?;
        Ok((Session { sequence, tokens }, attachment))
    }

    /// The plans that a step runs, trunk and then head, each with its place among the clocks and the step that its costs are counted for.
    fn plans_of(&self, size: StepSize) -> Vec<(usize, &Plan, CostStep)> {
        let (trunk, head) = (self.backend.trunk(), self.backend.head());
        let cache = self.options.bind.cache;
        let StepSize { sequences, rows, cached, wanted } = size;
        let rows = sequences * rows;
        let step = CostStep { rows, sequences, past_len: cached, cache, path: self.backend.path(size.rows) };
        let bucket = BatchBucket::of(rows) as usize;
        let mut plans = vec![(bucket, &trunk[bucket], step)];
        for first in (0..wanted).step_by(HEAD_ROWS) {
            let rows = HEAD_ROWS.min(wanted - first);
            let bucket = BatchBucket::of(rows) as usize;
            plans.push((trunk.len() + bucket, &head[bucket], CostStep { rows, ..step }));
        }
        plans
    }

    /// Bytes and operations of a step.
    pub fn cost(&self, size: StepSize) -> Cost {
        let mut cost = Cost::default();
        self.plans_of(size).into_iter().for_each(|(_, plan, step)| cost += plan.cost(step));
        cost
    }

    /// The least time that the machine's limits allow for some steps, one after the other.
    pub fn roofline(&self, sizes: &[StepSize], limits: &Limits) -> Roofline {
        let mut roofline = Roofline::default();
        for size in sizes {
            roofline.add(self.plans_of(*size).into_iter().map(|(_, plan, step)| (plan, step)), limits);
        }
        roofline
    }

    /// Takes the time of each phase while `work` runs steps of these sizes. `repeated`: the steps are repetitions of one, so that the
    /// profile is of their average; otherwise it is of all of them together.
    ///
    /// # Errors
    /// What `work` fails with.
    pub fn profile(
        &mut self,
        sizes: &[StepSize],
        repeated: bool,
        limits: &Limits,
        work: &mut dyn FnMut(&mut Engine) -> Result<(), EngineError>,
    ) -> Result<StepProfile, EngineError> {
        self.backend.start_clocks();
        let done = work(self);
        let nanos = self.backend.stop_clocks();
        done?;
        let mut timed: Vec<Timed<'_>> = Vec::new();
        let plans = self.backend.trunk().iter().chain(self.backend.head());
        for (place, (plan, nanos)) in plans.zip(nanos).enumerate() {
            let ran = sizes.iter().flat_map(|size| self.plans_of(*size));
            let steps = ran.filter(|(at, ..)| *at == place).map(|(.., step)| step).collect();
            timed.push(Timed { plan, nanos, steps });
        }
        Ok(profile::report(&timed, sizes, repeated, limits))
    }
}

/// The context asked for, checked, or the largest that fits.
fn choose_context(
    config: &ModelConfig,
    options: &EngineOptions,
    needed: &dyn Fn(usize) -> MemoryEstimate,
) -> Result<usize, EngineError> {
    let limit = config.context_length;
    match options.context {
        Some(0) => Err(EngineError::Options("--ctx 0: a context needs at least one token".into())),
        Some(context) if context > limit => Err(EngineError::Options(format!(
            "--ctx {context} is more than the model was made for: {limit} tokens"
        ))),
        Some(context) => Ok(context),
        None => Ok(fitting_context(memory::available().as_ref(), needed, limit)),
    }
}

/// The largest context of at most `limit` tokens that fits into what is available; `limit` where nobody says what is.
fn fitting_context(
    available: Option<&memory::Available>,
    needed: &dyn Fn(usize) -> MemoryEstimate,
    limit: usize,
) -> usize {
    let Some(available) = available else { return limit };
    // a tenth is left for everything else
    memory::choose_context(needed, available.bytes / 10 * 9, limit)
}

#[allow(clippy::too_many_arguments, reason = "what a summary tells comes from everywhere")]
fn summarise(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    (trunk, head): &(Vec<latent_graph::Plan>, Vec<latent_graph::Plan>),
    options: &CpuOptions,
    placement: Placement,
    token_bytes: usize,
    weights: WeightBytes,
) -> Summary {
    let tier = options.bind.tier;
    let mut kernels = Vec::new();
    let mut portable = Vec::new();
    for plan in trunk.iter().chain(head) {
        let products = |op: Op| {
            matches!(
                op,
                Op::Linear
                    | Op::AbsorbK
                    | Op::AbsorbV
                    | Op::ExpertGateUp
                    | Op::ExpertDown
                    | Op::AttendExpanded
            )
        };
        for node in plan.ir.nodes.iter().filter(|node| products(node.op)) {
            for (i, kernel) in node.kernels.iter().enumerate().take(node.weights.len()) {
                if !kernels.contains(&kernel.name) {
                    kernels.push(kernel.name.clone());
                }
                if kernel.name.starts_with("portable") && tier > Tier::Portable {
                    let ty = plan.ir.weight(node.weights[i].1).ty;
                    let note = format!("{} of {ty}", node.op.word());
                    if !portable.contains(&note) {
                        portable.push(note);
                    }
                }
            }
        }
    }
    let slots = trunk[0].ir.weights.iter().chain(head[0].ir.weights.iter().filter(|w| w.slot != "embed"));
    let file = checkpoint.path().file_name().map(|name| name.to_string_lossy().into_owned());
    Summary {
        name: config.name.clone().or(file).unwrap_or_default(),
        parameters: slots.map(|w| w.elements() as u64).sum(),
        weight_bytes: weights.owned + weights.mapped,
        paged: None,
        load_time: Duration::ZERO,
        tier,
        placement,
        cache: options.bind.cache,
        token_bytes,
        context: options.context,
        kernels,
        portable,
        doubts: Vec::new(),
    }
}
