//! A loaded model: its weights, compiled plans, and the buffers of its steps.

use crate::compile;
use crate::context::{ModelData, SharedMemory, WorkerContext};
use crate::disjoint::{DisjointBuffer, ElementUses};
use crate::input_products::ProductRecorder;
use crate::input_recorder::InputRecorder;
use crate::interpret::{PhaseClock, ProgramRun};
use crate::kv_store::{CpuKvStore, ShiftRotation};
use crate::loader::{LoadedWeights, tensors_in_tiles};
use crate::ops::expanded_layout::expanded_len;
use crate::program::Program;
use crate::read_ahead::{ReadAhead, pieces};
use crate::scratch::WorkerScratch;
use crate::timeline::TimelineRecorder;
use crate::trace::TraceRecorder;
use latent_backend::{
    ActivationTrace, BackendError, BackendModel, Batch, CancelToken, DraftStep, InputProducts,
    InputSelection, InputSquares, KvLayout, KvStore, LayerState, LoadRequest, ModelOptions, ModelStep,
    PhaseSpan, PlanTimes, RankLinks, arithmetic_of_kernels,
};
use latent_graph::activations::Activations;
use latent_graph::config::{Gating, GroupMask, GroupScore, IndexerShape, ModelConfig, RopePairs};
use latent_graph::ir::{AttentionPath, Op};
use latent_graph::passes::{BatchBucket, Precision};
use latent_graph::stage_index::{LAYERS, LM_HEAD, MTP, MTP_HEAD};
use latent_graph::{LM_HEAD_ROWS, Plan, Stage, distinct_weights};
use latent_kernels::{Bf16x32, Q8Block, RopeTable, RouteSpec};
use latent_threads::ThreadPool;
use latent_types::{ActivationType, Arithmetic, Tier};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// f32 elements per cache line of 64 bytes.
const LINE_FLOATS: usize = size_of::<Bf16x32>() / size_of::<f32>();

pub(crate) struct CpuModel {
    model: ModelData,
    stages: Vec<Stage>,
    /// A program per stage and batch bucket.
    programs: Vec<Vec<Program>>,
    pub(crate) arena: Vec<f32>,
    pub(crate) hidden: Vec<f32>,
    logits: Vec<f32>,
    expanded: Vec<f32>,
    /// Indexer scores of cached tokens, in steps with fewer sparse rows than workers.
    scores: Vec<f32>,
    /// Cosines and sines of each row's position.
    rotations: Vec<f32>,
    /// The rows whose logits are being computed, at most [`LM_HEAD_ROWS`].
    head_batch: Batch,
    /// Inputs of a product as 8-bit blocks, converted by all workers together.
    blocks: Vec<Q8Block>,
    /// Inputs of a product as bf16, converted by all workers together.
    lines: Vec<Bf16x32>,
    /// Maximum `blocks` and maximum `lines` per row of a batch.
    row_blocks: [usize; 2],
    /// One per worker. A worker locks only its own, so the lock never waits.
    scratch: Vec<Mutex<WorkerScratch>>,
    thread_pool: ThreadPool,
    options: ModelOptions,
    /// Set while a profile is taken: one clock per plan, stage by stage.
    clocks: Option<Vec<PhaseClock>>,
    /// Set while a timeline is recorded.
    timeline: Option<TimelineRecorder>,
    /// Set while activations are traced.
    recorder: Option<TraceRecorder>,
    /// Set while the squares of weights' inputs are summed (importance matrix).
    inputs: Option<InputRecorder>,
    /// Set while the products of weights' inputs are summed (GPTQ).
    products: Option<ProductRecorder>,
    /// Reads the weights of a packed file before the first steps need them.
    read_ahead: Option<ReadAhead>,
    /// Links to the other ranks. None if this rank has the whole model.
    links: Option<RankLinks>,
}

impl CpuModel {
    /// Loads the weights that the plans use, and compiles the plans.
    pub(crate) fn load(request: LoadRequest<'_>) -> Result<CpuModel, BackendError> {
        let LoadRequest { checkpoint, config, stages, options, placement, weights_fit, keep_pages, .. } =
            request;
        let (communicator, progress) = (request.communicator, request.progress);
        let links = RankLinks::of(communicator, &config);
        // Row-wise kernels (norms, RoPE, conversions) are not in plans and choose their tier at run
        // time.
        latent_kernels::limit_tier(options.stages.bind.tier);
        let mut thread_pool = ThreadPool::placed(placement)
            .map_err(|error| BackendError::System { what: "starting threads", error })?;
        let derived = latent_backend::with_derived_weights(checkpoint, &stages)?.map(Arc::new);
        let checkpoint = derived.as_ref().unwrap_or(checkpoint);
        let loaded = LoadedWeights::load(&stages, checkpoint, &mut thread_pool, keep_pages, progress)?;
        // The KV cache numbers the layers of all stages in turn, each plan those of its own stage.
        let mut kv_layers = 0;
        let compile_all = |stage: &Stage| -> Result<Vec<Program>, BackendError> {
            let first = kv_layers;
            kv_layers += stage.kv_layers().len();
            let of = |plan: &Plan| compile::compile(plan, &|id| loaded.find(plan.ir.weight(id)), first);
            stage.plans.iter().map(of).collect()
        };
        let programs = stages.iter().map(compile_all).collect::<Result<Vec<_>, _>>()?;
        let all = || programs.iter().flatten();
        let arena = all().map(|program| program.arena).max().unwrap_or(0);
        let row_blocks = [ActivationType::A8, ActivationType::Bf16]
            .map(|form| all().map(|program| program.row_blocks(&loaded.weights, form)).max().unwrap_or(0));
        let rope = RopeTable::new(config.rope.inverse_frequencies(options.context), config.rope.magnitude());
        let pairing = |pairs| match pairs {
            RopePairs::Interleaved => latent_kernels::RopePairing::Interleaved,
            RopePairs::NeoX => latent_kernels::RopePairing::NeoX,
        };
        let pairs = pairing(config.rope.pairs);
        let index_pairs = config.attention.indexer.map_or(pairs, |indexer| pairing(indexer.pairs));
        let in_place = pieces(checkpoint, &tensors_in_tiles(&stages, checkpoint));
        // Weights that do not fit into memory would evict each other.
        let read_ahead = if weights_fit { ReadAhead::start(checkpoint, in_place, None) } else { None };
        Ok(CpuModel {
            arena: vec![0.0; arena],
            hidden: vec![0.0; options.stages.max_batch_tokens * config.hidden_size],
            logits: vec![0.0; LM_HEAD_ROWS * config.vocab_size],
            expanded: Vec::new(),
            scores: Vec::new(),
            rotations: Vec::new(),
            head_batch: Batch::default(),
            blocks: Vec::new(),
            lines: Vec::new(),
            row_blocks,
            scratch: (0..options.threads).map(|_| Mutex::default()).collect(),
            model: ModelData {
                norm_eps: distinct_weights(&stages)
                    .map(|weight| config.norm_eps(&weight.slot) as f32)
                    .collect(),
                route: route_spec(&config),
                config,
                weights: loaded.weights,
                rope: Arc::new(rope),
                pairs,
                index_pairs,
                tier: options.stages.bind.tier,
                exact: options.stages.bind.precision == Precision::Exact,
            },
            stages,
            programs,
            thread_pool,
            options,
            clocks: None,
            timeline: None,
            recorder: None,
            products: None,
            inputs: None,
            read_ahead,
            links,
        })
    }

    /// Runs the layers on a batch, which fills the KV cache and the residual stream.
    ///
    /// # Panics
    /// As for [`forward_stage`](Self::forward_stage).
    pub(crate) fn forward(
        &mut self,
        batch: &Batch,
        kv: &CpuKvStore,
        cancel: &CancelToken,
    ) -> Result<(), BackendError> {
        if self.clocks.is_some() || self.timeline.is_some() {
            // A profile compares the threads of a phase: the number of workers must not change
            // between the steps that it sums up.
            self.thread_pool.use_all_workers();
        } else {
            self.thread_pool.begin_step(BatchBucket::of(batch.rows()) as usize, batch.rows());
        }
        self.forward_stage(LAYERS, batch, kv, cancel)
    }

    /// Runs a stage with layers on a batch.
    ///
    /// # Panics
    /// When the batch has more rows than the arena was made for.
    fn forward_stage(
        &mut self,
        stage: usize,
        batch: &Batch,
        kv: &CpuKvStore,
        cancel: &CancelToken,
    ) -> Result<(), BackendError> {
        let (rows, max_rows) = (batch.rows(), self.options.stages.max_batch_tokens);
        assert!(rows <= max_rows, "a batch of {rows} rows exceeds the maximum of {max_rows}");
        let a = self.model.config.attention;
        let naive = batch.spans.iter().filter(|s| s.path == AttentionPath::Naive);
        let longest = naive.map(|s| s.first + s.rows.len()).max().unwrap_or(0);
        // Kernels read whole cache lines, so the values must begin on one. A Vec<f32> is aligned to
        // 4 bytes only: `run` skips up to one line.
        let needed = expanded_len(longest, &a) + LINE_FLOATS;
        if longest > 0 && self.expanded.len() < needed {
            // The old buffer is freed first: both may not fit into memory together, and no step
            // reads the expanded values of an earlier one.
            self.expanded = Vec::new();
            self.expanded = vec![0.0; needed];
        }
        let scored = scores_len(batch, a.indexer, self.options.threads);
        if self.scores.len() < scored {
            self.scores.resize(scored, 0.0);
        }
        // Computed once per step, since every layer and head rotates by the same angles.
        let len = self.model.rope.rotation_len();
        self.rotations.resize(batch.rows() * len, 0.0);
        for (position, out) in batch.positions.iter().zip(self.rotations.chunks_exact_mut(len.max(1))) {
            self.model.rope.rotation(*position as i64, out);
        }
        self.run(stage, batch, kv, batch.rows(), cancel)
    }

    /// Computes the logits of the batch's wanted rows with a head's stage, [`LM_HEAD_ROWS`] rows
    /// per run. Logits of a whole prompt would take far more memory than the arena.
    fn logits(
        &mut self,
        head: usize,
        batch: &Batch,
        kv: &CpuKvStore,
        cancel: &CancelToken,
        on_logits: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), BackendError> {
        let vocab = self.model.config.vocab_size;
        // Taken out of `self`, because `run` borrows all of it; put back below for its capacity.
        let mut part = std::mem::take(&mut self.head_batch);
        for (chunk, wanted) in batch.wanted.chunks(LM_HEAD_ROWS).enumerate() {
            part.wanted.clear();
            part.wanted.extend_from_slice(wanted);
            part.positions.clear();
            part.positions.extend(wanted.iter().map(|&row| batch.positions[row as usize]));
            part.take_adapters(batch, wanted);
            self.run(head, &part, kv, wanted.len(), cancel)?;
            for (i, row) in self.logits.chunks_exact(vocab).take(wanted.len()).enumerate() {
                on_logits(chunk * LM_HEAD_ROWS + i, row);
            }
        }
        self.head_batch = part;
        Ok(())
    }

    fn run(
        &mut self,
        stage: usize,
        batch: &Batch,
        kv: &CpuKvStore,
        rows: usize,
        cancel: &CancelToken,
    ) -> Result<(), BackendError> {
        let bucket = BatchBucket::of(rows) as usize;
        let [blocks, lines] = self.row_blocks.map(|of_row| rows * of_row);
        if self.blocks.len() < blocks {
            self.blocks.resize(blocks, Q8Block::ZERO);
        }
        if self.lines.len() < lines {
            self.lines.resize(lines, Bf16x32::ZERO);
        }
        // `align_offset` may exceed the length of an empty buffer.
        let skipped = self.expanded.as_ptr().align_offset(align_of::<Bf16x32>()).min(self.expanded.len());
        let memory = SharedMemory {
            arena: DisjointBuffer::new(&mut self.arena),
            hidden: DisjointBuffer::new(&mut self.hidden),
            logits: DisjointBuffer::new(&mut self.logits),
            expanded: DisjointBuffer::new(&mut self.expanded[skipped..]),
            scores: DisjointBuffer::new(&mut self.scores),
            blocks: DisjointBuffer::new(&mut self.blocks),
            lines: DisjointBuffer::new(&mut self.lines),
            kv_rows: ElementUses::default(),
            states: ElementUses::default(),
        };
        let (model, scratch, rotations) = (&self.model, &self.scratch, &self.rotations[..]);
        let (links, failure) = (self.links.as_ref(), Mutex::default());
        let plan = stage * BatchBucket::ALL.len() + bucket;
        let traced = self.recorder.is_some() || self.inputs.is_some() || self.products.is_some();
        let last_phase = AtomicUsize::new(usize::MAX);
        let program = &self.programs[stage][bucket];
        let run = ProgramRun {
            program,
            clock: self.clocks.as_ref().map(|clocks| &clocks[plan]),
            timeline: self.timeline.as_mut().and_then(|own| own.begin(plan, program.phases.len())),
            recording: self.recorder.as_ref().map(|recorder| recorder.of(plan)),
            inputs: self.inputs.as_ref(),
            products: self.products.as_ref(),
            cancel,
            last_phase: &last_phase,
        };
        self.thread_pool.run(&|worker| {
            let mut scratch = scratch[worker.index].lock().unwrap_or_else(PoisonError::into_inner);
            let (memory, barriers) = (&memory, Cell::new(0));
            let ctx = WorkerContext {
                worker,
                model,
                batch,
                rows,
                kv,
                rotations,
                traced,
                memory,
                barriers,
                links,
                failure: &failure,
            };
            run.run(&ctx, &mut scratch);
        });
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error.into());
        }
        // Relaxed: `ThreadPool::run` has ended, which orders the worker's store before this load.
        if last_phase.load(Ordering::Relaxed) == usize::MAX { Ok(()) } else { Err(BackendError::Cancelled) }
    }
}

impl BackendModel for CpuModel {
    fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    fn stages(&self) -> &[Stage] {
        &self.stages
    }

    fn new_kv_store(&self, blocks: u32, state_slots: u32) -> Result<Box<dyn KvStore>, BackendError> {
        let layout = KvLayout {
            layers: LayerState::of_stages(&self.stages),
            cache_type: self.options.stages.bind.cache,
            blocks,
            state_slots,
        };
        let rotation = {
            let pairs = [self.model.pairs, self.model.index_pairs];
            ShiftRotation::new(&self.model.config, Arc::clone(&self.model.rope), pairs)
        };
        Ok(Box::new(CpuKvStore::new(layout, rotation)?))
    }

    fn step(&mut self, step: ModelStep<'_>) -> Result<(), BackendError> {
        let kv: &CpuKvStore = step.kv.as_any().downcast_ref().ok_or(BackendError::ForeignStore)?;
        self.forward(step.batch, kv, step.cancel)?;
        if let Some(on_hidden) = step.on_hidden {
            on_hidden(&self.hidden[..step.batch.rows() * self.model.config.hidden_size]);
        }
        self.logits(LM_HEAD, step.batch, kv, step.cancel, step.on_logits)
    }

    fn steps_in_flight(&self) -> usize {
        self.links.as_ref().map_or(1, RankLinks::steps_in_flight)
    }

    fn submit(&mut self, batch: &Batch, kv: &mut dyn KvStore) -> Result<(), BackendError> {
        let kv: &CpuKvStore = kv.as_any().downcast_ref().ok_or(BackendError::ForeignStore)?;
        // The operation that waits for the last rank's rows is skipped: `collect` receives them, so
        // that this rank can submit the next step meanwhile. A step that other ranks have begun
        // cannot be cancelled, hence the token of its own.
        self.links.iter().for_each(|links| links.leave_returned(true));
        let result = self.forward(batch, kv, &CancelToken::new());
        self.links.iter().for_each(|links| links.leave_returned(false));
        result
    }

    fn collect(&mut self, step: ModelStep<'_>) -> Result<(), BackendError> {
        let kv: &CpuKvStore = step.kv.as_any().downcast_ref().ok_or(BackendError::ForeignStore)?;
        let hidden = &mut self.hidden[..step.batch.rows() * self.model.config.hidden_size];
        self.links.as_ref().map_or(Ok(()), |links| links.receive_rows(hidden))?;
        if let Some(on_hidden) = step.on_hidden {
            on_hidden(hidden);
        }
        self.logits(LM_HEAD, step.batch, kv, &CancelToken::new(), step.on_logits)
    }

    fn draft(&mut self, step: DraftStep<'_>) -> Result<(), BackendError> {
        if self.stages.len() <= MTP_HEAD {
            return Err(BackendError::Unsupported("the model was loaded without its MTP layer".into()));
        }
        let kv: &CpuKvStore = step.kv.as_any().downcast_ref().ok_or(BackendError::ForeignStore)?;
        // The MTP layer reads the residual stream of the main model's step. `self.hidden` may hold
        // another step's by now, so the engine passes a copy.
        let width = self.model.config.hidden_size;
        for (span, hidden) in step.batch.spans.iter().zip(step.hidden) {
            self.hidden[span.rows.start * width..span.rows.end * width].copy_from_slice(hidden);
        }
        self.forward_stage(MTP, step.batch, kv, step.cancel)?;
        self.logits(MTP_HEAD, step.batch, kv, step.cancel, step.on_logits)
    }

    fn wait_for_weights(&mut self) {
        if let Some(mut read_ahead) = self.read_ahead.take() {
            read_ahead.wait();
        }
    }

    fn parallel(&mut self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        // Waking the pool would cost more than it saves.
        if tasks < 2 {
            return (0..tasks).for_each(job);
        }
        self.thread_pool.run(&|worker| (worker.index..tasks).step_by(worker.count).for_each(job));
    }

    fn arithmetic(&self, (stage, bucket): (usize, usize), node: usize, _rows: usize) -> Arithmetic {
        let plan = self.stages.get(stage).and_then(|stage| stage.plans.get(bucket));
        match plan.and_then(|plan| plan.ir.nodes.get(node)) {
            // The plan binds no kernel to this operation: `index_scores` chooses at run time.
            Some(node) if node.op == Op::IndexSelect => {
                let avx512 = self.model.tier >= Tier::Avx512;
                latent_kernels::index_arithmetic(self.options.stages.bind.cache, self.model.exact, avx512)
            }
            node => node.map_or(Arithmetic::F32, arithmetic_of_kernels),
        }
    }

    fn start_profile(&mut self) {
        let clock = |plan: &Plan| PhaseClock::new(plan.phase_count(), plan.ir.nodes.len());
        self.clocks = Some(self.stages.iter().flat_map(|stage| &stage.plans).map(clock).collect());
    }

    fn stop_profile(&mut self) -> Vec<PlanTimes> {
        self.clocks.take().unwrap_or_default().into_iter().map(PhaseClock::finish).collect()
    }

    fn start_timeline(&mut self, origin: Instant) {
        self.timeline = Some(TimelineRecorder::new(origin, self.options.threads));
    }

    fn stop_timeline(&mut self) -> Vec<PhaseSpan> {
        self.timeline.take().map(TimelineRecorder::finish).unwrap_or_default()
    }

    fn start_trace(&mut self, activations: &Activations, trace: ActivationTrace) -> Result<(), BackendError> {
        self.recorder = Some(TraceRecorder::new(&self.stages, activations, trace)?);
        Ok(())
    }

    fn stop_trace(&mut self) -> Option<ActivationTrace> {
        self.recorder.take().map(TraceRecorder::finish)
    }

    fn start_input_squares(&mut self) -> Result<(), BackendError> {
        self.inputs = Some(InputRecorder::default());
        Ok(())
    }

    fn stop_input_squares(&mut self) -> Vec<(String, InputSquares)> {
        let sums = self.inputs.take().map(InputRecorder::finish).unwrap_or_default();
        // The recorder counts weights in the order in which they were loaded.
        let names: Vec<&str> =
            distinct_weights(&self.stages).map(|weight| weight.parts[0].tensor.as_str()).collect();
        sums.into_iter().map(|(weight, squares)| (names[weight].to_owned(), squares)).collect()
    }

    fn start_input_products(&mut self, selections: &[InputSelection]) -> Result<(), BackendError> {
        let names: Vec<&str> =
            distinct_weights(&self.stages).map(|weight| weight.parts[0].tensor.as_str()).collect();
        let index = |selection: &InputSelection| {
            names.iter().position(|name| *name == selection.tensor).ok_or_else(|| {
                BackendError::Unsupported(format!("the model has no matmul with weight {}", selection.tensor))
            })
        };
        let weights = selections.iter().map(index).collect::<Result<Vec<_>, _>>()?;
        self.products = Some(ProductRecorder::new(weights.into_iter().zip(selections.iter().cloned())));
        Ok(())
    }

    fn stop_input_products(&mut self) -> Vec<InputProducts> {
        self.products.take().map(ProductRecorder::finish).unwrap_or_default()
    }
}

/// Converts the config's router to the kernel's type. The bias is a weight, and is set per layer.
fn route_spec(config: &ModelConfig) -> Option<RouteSpec<'static>> {
    let router = config.moe?.router;
    Some(RouteSpec {
        gating: match router.gating {
            Gating::Softmax => latent_kernels::RouteGating::Softmax,
            Gating::Sigmoid => latent_kernels::RouteGating::Sigmoid,
            Gating::SoftmaxOfSelected => latent_kernels::RouteGating::SoftmaxOfSelected,
            Gating::SqrtSoftplus => latent_kernels::RouteGating::SqrtSoftplus,
        },
        bias: None,
        groups: router.groups,
        groups_used: router.groups_used,
        group_score: match router.group_score {
            GroupScore::TopTwoSum => latent_kernels::RouteGroupScore::TopTwoSum,
            GroupScore::Max => latent_kernels::RouteGroupScore::Max,
        },
        masked_score: match router.group_mask {
            GroupMask::Excluded => f32::NEG_INFINITY,
            GroupMask::Zero => 0.0,
        },
        norm: router.normalise,
        norm_floor: router.norm_floor as f32,
        scale: router.scale as f32,
    })
}

/// Number of indexer scores that the workers of a step share: one per cached token of each sparse
/// row. 0 if there is a sparse row for each worker, since each then scores its rows by itself.
fn scores_len(batch: &Batch, indexer: Option<IndexerShape>, workers: usize) -> usize {
    let Some(indexer) = indexer else { return 0 };
    // A row at position `topk - 1` or below attends to every token, without scores.
    let sparse = || batch.positions.iter().filter(|position| **position >= indexer.topk);
    if sparse().count() >= workers { 0 } else { sparse().map(|position| position + 1).sum() }
}
