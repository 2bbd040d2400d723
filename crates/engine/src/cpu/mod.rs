//! The CPU backend: a compiled plan for each class of rows, run by a thread pool of threads over one arena.
//!
//! Public is what plans a model. What runs it serves the engine alone, which checks rows, tokens and sequences before each step:
//!
//! ```
//! use latent_engine::cpu::{CpuOptions, tier_for};
//! ```
//!
//! ```compile_fail
//! use latent_engine::cpu::CpuBackend;
//! ```
//!
//! ```compile_fail
//! use latent_engine::cpu::{Batch, SeqSpan};
//! ```

mod attention;
mod batch;
mod compile;
mod elementwise;
mod expanded;
mod experts;
mod linear;
mod mla_projection;
mod pack;
mod run;
mod scratch;
mod trace;
mod weight_arena;
mod weights;

pub(crate) use batch::Batch;
pub(crate) use pack::Matrices;
pub(crate) use weights::LoadedWeight;

use crate::cache::BlockPool;
use crate::error::EngineError;
use crate::thread_pool::ThreadPool;
use crate::trace::Trace;
use compile::Program;
use latent_formats::{Checkpoint, TensorInfo};
use latent_graph::activations::Activations;
use latent_graph::audit::Finding;
use latent_graph::circuit::{TensorIndex, Weight};
use latent_graph::config::{Gating, GroupScore, ModelConfig, RopePairs};
use latent_graph::ir::{AttentionPath, Span};
use latent_graph::passes::{BatchBucket, BindOptions, CacheForm, MlaChoice};
use latent_graph::{CheckpointTensors, Circuit, Plan, PlanOptions};
use latent_kernels::{Bf16x32, Q8Block, RopeTable, RouteSpec};
use latent_quant::tiles::TileLayout;
use latent_types::{ActivationType, CpuFeatures, KernelContract, Tier, WeightLayout};
use run::{Model, Numbers, Shared, Thread};
use scratch::WorkerScratch;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use trace::Recorder;
use weight_arena::WeightArena;

/// Rows whose logits are computed at once.
pub const HEAD_ROWS: usize = 16;

const CLASSES: [BatchBucket; 3] = [BatchBucket::Decode, BatchBucket::SmallBatch, BatchBucket::Prefill];

/// What the backend is made for.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Formulation of MLA.
    pub mla: MlaChoice,
    /// What the cache stores.
    pub form: CacheForm,
    /// Precision, tier, type of the cache.
    pub bind: BindOptions,
    /// Threads, the caller counted.
    pub threads: usize,
    /// Most rows of a step.
    pub max_batch_tokens: usize,
    /// Tokens of context, which decides between LongRoPE's factors.
    pub context: usize,
}

/// A model on the CPU.
pub(crate) struct CpuBackend {
    model: Model,
    trunk: Vec<Plan>,
    head: Vec<Plan>,
    trunk_programs: Vec<Program>,
    head_programs: Vec<Program>,
    arena: Vec<f32>,
    hidden: Vec<f32>,
    logits: Vec<f32>,
    expanded: Vec<f32>,
    rotations: Vec<f32>,
    head_batch: Batch,
    /// Inputs that all threads convert together, as 8-bit blocks and as bf16.
    blocks: Vec<Q8Block>,
    lines: Vec<Bf16x32>,
    /// Blocks and lines that a row needs at most.
    row_blocks: [usize; 2],
    partials: Vec<f32>,
    locals: Vec<Mutex<WorkerScratch>>,
    thread_pool: ThreadPool,
    options: CpuOptions,
    /// Nanoseconds of the phases of all plans, trunk and then head, while a profile is taken.
    clocks: Option<Vec<Vec<AtomicU64>>>,
    /// What is copied out of each phase, while a trace is taken.
    recorder: Option<Recorder>,
}

/// The configs of all kernels.
pub fn kernel_contracts() -> Vec<KernelContract> {
    latent_kernels::table().iter().map(|(config, _)| *config).collect()
}

/// The highest tier that this machine and `limit` allow.
///
/// # Errors
/// When the limit asks for more than the machine has.
pub fn tier_for(limit: Option<Tier>) -> Result<Tier, String> {
    let features: CpuFeatures = latent_kernels::features();
    let best = features.tier();
    match limit {
        Some(tier) if tier > best => {
            Err(format!("this machine has no {tier}: the best that it offers is {best}; leave --isa at auto"))
        }
        Some(tier) => Ok(tier),
        None => Ok(best),
    }
}

/// The plans of a model for all classes of rows.
///
/// # Errors
/// What is wrong with the model's tensors, or which kernel is missing.
pub fn make_plans(
    config: &ModelConfig,
    tensors: &dyn TensorIndex,
    options: &CpuOptions,
) -> Result<(Vec<Plan>, Vec<Plan>), EngineError> {
    make_plans_of(Circuit::named(&config.circuit)?, config, tensors, options)
}

/// The same with a circuit that need not be built in.
///
/// # Errors
/// As for [`make_plans`].
pub fn make_plans_of(
    circuit: &Circuit,
    config: &ModelConfig,
    tensors: &dyn TensorIndex,
    options: &CpuOptions,
) -> Result<(Vec<Plan>, Vec<Plan>), EngineError> {
    let kernels = kernel_contracts();
    let make = |span: Span, max_batch_tokens: usize| -> Result<Vec<Plan>, EngineError> {
        let ir = latent_graph::ir::Ir::build_with(circuit, config, &span, tensors)?;
        CLASSES
            .into_iter()
            .map(|bucket| {
                let options = PlanOptions {
                    span: span.clone(),
                    bucket,
                    max_batch_tokens,
                    mla: options.mla,
                    form: options.form,
                    bind: options.bind,
                };
                Ok(Plan::from_ir(ir.clone(), config, &kernels, &options)?)
            })
            .collect()
    };
    Ok((make(Span::backbone(config), options.max_batch_tokens)?, make(Span::lm_head(config), HEAD_ROWS)?))
}

/// Checks circuit, plans and the file's tensors against the rules of [`latent_graph::audit`]. With `leave_doubts`, findings about the circuit's meaning
/// alone are given back.
///
/// # Errors
/// [`EngineError::Audit`] with what breaks a rule.
pub fn audit(
    circuit: &Circuit,
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    (trunk, head): &(Vec<Plan>, Vec<Plan>),
    options: &CpuOptions,
    leave_doubts: bool,
) -> Result<Vec<Finding>, EngineError> {
    let bound = latent_graph::audit::Bound { table: &kernel_contracts(), options: options.bind };
    let findings =
        latent_graph::audit::session(circuit, config, &CheckpointTensors(checkpoint), (trunk, head), bound);
    let (doubts, findings): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|finding| leave_doubts && !finding.code.protects());
    if findings.is_empty() {
        return Ok(doubts);
    }
    Err(EngineError::Audit { file: checkpoint.display_name(), findings })
}

/// Bytes of arena, residual stream, logits and partial results that these plans need.
pub fn arena_bytes(config: &ModelConfig, plans: &(Vec<Plan>, Vec<Plan>), options: &CpuOptions) -> u64 {
    let a = &config.attention;
    let arena =
        plans.0.iter().chain(&plans.1).map(|plan| plan.arena.bytes / size_of::<f32>()).max().unwrap_or(0);
    let partials = attention::shared_partials(a.heads, a.kv_lora_rank, options.threads);
    let rows = options.max_batch_tokens * config.hidden_size + HEAD_ROWS * config.vocab_size;
    4 * (arena + partials + rows) as u64
}

/// Numbers of f32 of a line of the caches.
const LINE_FLOATS: usize = size_of::<Bf16x32>() / size_of::<f32>();

/// Bytes that prompts need to expand keys and values of up to `context` rows: none where no span is run in the naive formulation.
pub fn expanded_bytes(config: &ModelConfig, options: &CpuOptions, context: usize) -> u64 {
    let a = &config.attention;
    let naive = match options.mla {
        MlaChoice::Naive => true,
        MlaChoice::Auto => options.max_batch_tokens >= latent_graph::passes::crossover(a).unwrap_or(2),
        MlaChoice::Absorbed | MlaChoice::SeparateScores => false,
    };
    if naive { 4 * expanded::expanded_most(context, a) as u64 } else { 0 }
}

impl CpuBackend {
    /// Loads the weights that the plans use and compiles them, for `thread pool` to run. `progress` hears how many weights of how many are in place.
    ///
    /// # Errors
    /// A weight that cannot be decoded; memory that the system refuses.
    pub fn load(
        config: ModelConfig,
        checkpoint: &Arc<Checkpoint>,
        plans: (Vec<Plan>, Vec<Plan>),
        options: CpuOptions,
        mut thread_pool: ThreadPool,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<CpuBackend, EngineError> {
        let (trunk, head) = plans;
        latent_kernels::limit_tier(options.bind.tier);
        let tiled = tiled_tensors(trunk.iter().chain(&head));
        let weights = || trunk[0].ir.weights.iter().chain(&head[0].ir.weights);
        let to_pack = distinct(weights()).filter_map(|weight| {
            let layout = layout_to_pack(weight, &tiled, checkpoint)?;
            Some((weight.matrices(), layout.matrix_bytes(weight.outputs())))
        });
        let memory = WeightArena::reserve(to_pack, thread_pool.placement().nodes().len())?;
        let mut loader = Loader { checkpoint, memory, weights: Vec::new(), index: HashMap::new() };
        let total = weights().count();
        for weight in weights() {
            let tiles = tiled.contains(weight.parts[0].tensor.as_str());
            loader.load(
                weight,
                if tiles { WeightLayout::Tiles } else { WeightLayout::Rows },
                &mut thread_pool,
            )?;
            progress(loader.weights.len(), total);
        }
        let compile_all = |plans: &[Plan]| -> Result<Vec<Program>, EngineError> {
            plans.iter().map(|plan| compile::compile(plan, &|id| loader.find(plan.ir.weight(id)))).collect()
        };
        let trunk_programs = compile_all(&trunk)?;
        let head_programs = compile_all(&head)?;
        let arena = trunk_programs.iter().chain(&head_programs).map(|p| p.arena).max().unwrap_or(0);
        let a = config.attention;
        let rope = RopeTable::new(config.rope.inverse_frequencies(options.context), config.rope.magnitude());
        let pairs = match config.rope.pairs {
            RopePairs::Interleaved => latent_kernels::RopePairs::Interleaved,
            RopePairs::NeoX => latent_kernels::RopePairs::NeoX,
        };
        Ok(CpuBackend {
            arena: vec![0.0; arena],
            hidden: vec![0.0; options.max_batch_tokens * config.hidden_size],
            logits: vec![0.0; HEAD_ROWS * config.vocab_size],
            expanded: Vec::new(),
            rotations: Vec::new(),
            head_batch: Batch::default(),
            blocks: Vec::new(),
            lines: Vec::new(),
            row_blocks: [ActivationType::A8, ActivationType::Bf16].map(|form| {
                let programs = trunk_programs.iter().chain(&head_programs);
                programs.map(|program| program.row_blocks(&loader.weights, form)).max().unwrap_or(0)
            }),
            partials: vec![0.0; attention::shared_partials(a.heads, a.kv_lora_rank, options.threads)],
            locals: (0..options.threads).map(|_| Mutex::default()).collect(),
            model: Model { route: route_spec(&config), config, weights: loader.weights, rope, pairs },
            trunk,
            head,
            trunk_programs,
            head_programs,
            thread_pool,
            options,
            clocks: None,
            recorder: None,
        })
    }

    /// The contract.
    pub fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    /// The plans of the layers, one a class of rows.
    pub fn trunk(&self) -> &[Plan] {
        &self.trunk
    }

    /// The plans of the head.
    pub fn head(&self) -> &[Plan] {
        &self.head
    }

    /// Rotation angles and pairs, for context shift.
    pub fn rope(&self) -> (&RopeTable, latent_kernels::RopePairs) {
        (&self.model.rope, self.model.pairs)
    }

    /// The formulation of a span of `new` rows.
    pub fn path(&self, new: usize) -> AttentionPath {
        match self.options.mla {
            MlaChoice::Naive => AttentionPath::Naive,
            MlaChoice::Auto => {
                let crossover = latent_graph::passes::crossover(&self.model.config.attention).unwrap_or(2);
                if new >= crossover { AttentionPath::Naive } else { AttentionPath::Absorbed }
            }
            MlaChoice::Absorbed | MlaChoice::SeparateScores => AttentionPath::Absorbed,
        }
    }

    /// Runs the layers on a batch: its rows are in the cache and in the residual stream afterwards.
    ///
    /// # Panics
    /// When the batch has more rows than the arena was made for.
    pub fn forward(&mut self, batch: &Batch, pool: &BlockPool) {
        let (rows, max_batch_tokens) = (batch.rows(), self.options.max_batch_tokens);
        assert!(rows <= max_batch_tokens, "a batch of {rows} rows, but at most {max_batch_tokens} fit");
        let a = self.model.config.attention;
        let naive = batch.spans.iter().filter(|s| s.path == AttentionPath::Naive);
        let longest = naive.map(|s| s.first + s.rows.len()).max().unwrap_or(0);
        // it is read by whole lines of the caches, and begins with one
        let needed = expanded::expanded_len(longest, &a) + LINE_FLOATS;
        if longest > 0 && self.expanded.len() < needed {
            // never both at once
            self.expanded = Vec::new();
            self.expanded = vec![0.0; needed];
        }
        let len = self.model.rope.rotation_len();
        self.rotations.resize(batch.rows() * len, 0.0);
        for (position, out) in batch.positions.iter().zip(self.rotations.chunks_exact_mut(len.max(1))) {
            self.model.rope.rotation(*position as i64, out);
        }
        self.run(batch, pool, batch.rows(), false);
    }

    /// Logits of the batch's wanted rows, [`HEAD_ROWS`] at a time: `sink` hears which wanted row and its logits.
    pub fn logits(&mut self, batch: &Batch, pool: &BlockPool, sink: &mut dyn FnMut(usize, &[f32])) {
        let vocab = self.model.config.vocab_size;
        let mut part = std::mem::take(&mut self.head_batch);
        for (chunk, wanted) in batch.wanted.chunks(HEAD_ROWS).enumerate() {
            part.wanted.clear();
            part.wanted.extend_from_slice(wanted);
            part.positions.clear();
            part.positions.extend(wanted.iter().map(|&row| batch.positions[row as usize]));
            self.run(&part, pool, wanted.len(), true);
            for (i, row) in self.logits.chunks_exact(vocab).take(wanted.len()).enumerate() {
                sink(chunk * HEAD_ROWS + i, row);
            }
        }
        self.head_batch = part;
    }

    /// Begins to take the time of each phase.
    pub fn start_clocks(&mut self) {
        let clock = |plan: &Plan| (0..plan.phase_count()).map(|_| AtomicU64::new(0)).collect();
        self.clocks = Some(self.trunk.iter().chain(&self.head).map(clock).collect());
    }

    /// Ends it: nanoseconds of each phase of the plans, trunk and then head.
    pub fn stop_clocks(&mut self) -> Vec<Vec<u64>> {
        let clocks = self.clocks.take().unwrap_or_default();
        clocks.into_iter().map(|clock| clock.into_iter().map(AtomicU64::into_inner).collect()).collect()
    }

    /// Begins to copy values out after each phase.
    ///
    /// # Errors
    /// When a plan gives a value no place: an error of Latent.
    pub fn start_trace(&mut self, points: &Activations, trace: Trace) -> Result<(), EngineError> {
        let plans = self.trunk.iter().chain(&self.head);
        self.recorder = Some(Recorder::new(plans, points, trace)?);
        Ok(())
    }

    /// Ends it: what was copied.
    pub fn stop_trace(&mut self) -> Option<Trace> {
        self.recorder.take().map(Recorder::finish)
    }

    fn run(&mut self, batch: &Batch, pool: &BlockPool, rows: usize, head: bool) {
        let bucket = BatchBucket::of(rows) as usize;
        let program = if head { &self.head_programs[bucket] } else { &self.trunk_programs[bucket] };
        let [blocks, lines] = self.row_blocks.map(|of_row| rows * of_row);
        if self.blocks.len() < blocks {
            self.blocks.resize(blocks, Q8Block::ZERO);
        }
        if self.lines.len() < lines {
            self.lines.resize(lines, Bf16x32::ZERO);
        }
        let skipped = self.expanded.as_ptr().align_offset(align_of::<Bf16x32>()).min(self.expanded.len());
        let shared = Shared {
            blocks: self.blocks.as_mut_ptr(),
            blocks_len: self.blocks.len(),
            lines: self.lines.as_mut_ptr(),
            lines_len: self.lines.len(),
            arena: Numbers::of(&mut self.arena),
            hidden: Numbers::of(&mut self.hidden),
            logits: Numbers::of(&mut self.logits),
            expanded: self.expanded[skipped..].as_mut_ptr(),
            expanded_len: self.expanded.len() - skipped,
            partials: self.partials.as_mut_ptr(),
            partial_softmax_len: self.partials.len(),
        };
        let (model, locals, rotations) = (&self.model, &self.locals, &self.rotations[..]);
        let plan = if head { CLASSES.len() + bucket } else { bucket };
        let clock = self.clocks.as_ref().map(|clocks| &clocks[plan][..]);
        let recorder = self.recorder.as_ref();
        self.thread_pool.run(&|worker| {
            let mut local = locals[worker.index].lock().unwrap_or_else(PoisonError::into_inner);
            run::run(
                program,
                &Thread {
                    worker,
                    model,
                    batch,
                    rows,
                    pool,
                    rotations,
                    clock,
                    recording: recorder.map(|recorder| recorder.of(plan)),
                    shared,
                },
                &mut local,
            );
        });
    }
}

/// Bytes that the weights of these plans take in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightBytes {
    /// In memory of their own: packed into tiles, and factors.
    pub owned: u64,
    /// Read where they lie in the mapped file, so that the system can drop and read them again.
    pub mapped: u64,
}

/// Bytes that the weights of these plans, taken from `checkpoint`, take in memory; a tied one counts once.
pub fn weight_bytes(plans: &(Vec<Plan>, Vec<Plan>), checkpoint: &Checkpoint) -> WeightBytes {
    let tiled = tiled_tensors(plans.0.iter().chain(&plans.1));
    let mut bytes = WeightBytes::default();
    for weight in distinct(plans.0[0].ir.weights.iter().chain(&plans.1[0].ir.weights)) {
        if let Some(tiles) = layout_to_pack(weight, &tiled, checkpoint) {
            bytes.owned += (weight.matrices() * tiles.matrix_bytes(weight.outputs())) as u64;
        } else {
            bytes.mapped += infos(weight, checkpoint).map(|info| info.bytes as u64).sum::<u64>();
        }
        // factors are copied
        let scales = weight.parts.iter().filter_map(|part| checkpoint.tensor(part.scale.as_ref()?));
        bytes.owned += scales.map(|scale| 4 * scale.info.shape.iter().product::<usize>() as u64).sum::<u64>();
    }
    bytes
}

/// The same of a model whose data are missing: `tensors` has the names, types and shapes of its header, or those that its keys promise. None lies
/// in tiles.
pub fn declared_weight_bytes(plans: &(Vec<Plan>, Vec<Plan>), tensors: &dyn TensorIndex) -> WeightBytes {
    let tiled = tiled_tensors(plans.0.iter().chain(&plans.1));
    let mut bytes = WeightBytes::default();
    for weight in distinct(plans.0[0].ir.weights.iter().chain(&plans.1[0].ir.weights)) {
        let tiles = TileLayout::new(weight.ty, weight.inputs());
        match tiles.filter(|_| tiled.contains(weight.parts[0].tensor.as_str())) {
            Some(tiles) => bytes.owned += (weight.matrices() * tiles.matrix_bytes(weight.outputs())) as u64,
            None => bytes.mapped += weight.bytes() as u64,
        }
        let scales = weight.parts.iter().filter_map(|part| tensors.find(part.scale.as_ref()?));
        bytes.owned += scales.map(|(_, shape)| 4 * shape.iter().product::<usize>() as u64).sum::<u64>();
    }
    bytes
}

/// Each weight once, though it may be tied to others.
fn distinct<'w>(weights: impl Iterator<Item = &'w Weight>) -> impl Iterator<Item = &'w Weight> {
    let mut seen = HashSet::new();
    weights.filter(move |weight| seen.insert(&weight.parts[0].tensor))
}

/// The tensors of a weight.
fn infos<'c>(weight: &'c Weight, checkpoint: &'c Checkpoint) -> impl Iterator<Item = &'c TensorInfo> {
    weight.parts.iter().filter_map(|part| checkpoint.tensor(&part.tensor)).map(|tensor| tensor.info)
}

/// The tiles that a weight is packed into while loading: none where it is read as rows, or lies in tiles in the file.
fn layout_to_pack(weight: &Weight, tiled: &HashSet<&str>, checkpoint: &Checkpoint) -> Option<TileLayout> {
    TileLayout::new(weight.ty, weight.inputs()).filter(|_| {
        tiled.contains(weight.parts[0].tensor.as_str())
            && infos(weight, checkpoint).all(|info| info.tile_rows.is_none())
    })
}

/// The tensors that lie in tiles in the file, which is a packed one, in the order in which steps read them.
pub fn tensors_in_tiles(plans: &(Vec<Plan>, Vec<Plan>), checkpoint: &Checkpoint) -> Vec<String> {
    let weights = distinct(plans.0[0].ir.weights.iter().chain(&plans.1[0].ir.weights));
    let infos = weights.flat_map(|weight| infos(weight, checkpoint));
    infos.filter(|info| info.tile_rows.is_some()).map(|info| info.name.clone()).collect()
}

/// Tensors, by the first of each weight, that some bound kernel reads in tiles.
pub fn tiled_tensors<'p>(plans: impl Iterator<Item = &'p Plan>) -> HashSet<&'p str> {
    let table = latent_kernels::table();
    let mut tiled = HashSet::new();
    for plan in plans {
        for node in &plan.ir.nodes {
            for ((_, weight), kernel) in node.weights.iter().zip(&node.kernels) {
                if table[kernel.index].0.layout == WeightLayout::Tiles {
                    tiled.insert(plan.ir.weight(*weight).parts[0].tensor.as_str());
                }
            }
        }
    }
    tiled
}

/// Weights by the tensor that they begin with, so that a tied embedding is loaded once.
struct Loader<'a> {
    checkpoint: &'a Arc<Checkpoint>,
    memory: WeightArena,
    weights: Vec<LoadedWeight>,
    index: HashMap<String, usize>,
}

impl Loader<'_> {
    fn load(
        &mut self,
        weight: &Weight,
        layout: WeightLayout,
        thread_pool: &mut ThreadPool,
    ) -> Result<(), EngineError> {
        let key = &weight.parts[0].tensor;
        if !self.index.contains_key(key) {
            self.weights.push(LoadedWeight::load(
                weight,
                self.checkpoint,
                layout,
                &mut self.memory,
                thread_pool,
            )?);
            self.index.insert(key.clone(), self.weights.len() - 1);
        }
        Ok(())
    }

    fn find(&self, weight: &Weight) -> usize {
        self.index.get(&weight.parts[0].tensor).copied().unwrap_or_default()
    }
}

/// The router's rules in the words of the kernel.
fn route_spec(config: &ModelConfig) -> Option<RouteSpec<'static>> {
    let router = config.moe?.router;
    Some(RouteSpec {
        gating: match router.gating {
            Gating::Softmax => latent_kernels::Gating::Softmax,
            Gating::Sigmoid => latent_kernels::Gating::Sigmoid,
            Gating::SoftmaxOfSelected => latent_kernels::Gating::SoftmaxOfSelected,
            Gating::SqrtSoftplus => latent_kernels::Gating::SqrtSoftplus,
        },
        bias: None,
        groups: router.groups,
        groups_used: router.groups_used,
        group_score: match router.group_score {
            GroupScore::TopTwoSum => latent_kernels::GroupScore::TopTwoSum,
            GroupScore::Max => latent_kernels::GroupScore::Max,
        },
        norm: router.normalise,
        norm_floor: router.norm_floor as f32,
        scale: router.scale as f32,
    })
}

#[cfg(test)]
mod tests;
