//! The CPU backend: a compiled plan for each class of rows, run by a team of threads over one arena.
//!
//! Public is what plans a model. What runs it serves the engine alone, which checks rows, tokens and sequences before each step:
//!
//! ```
//! use engine::cpu::{CpuOptions, tier_for};
//! ```
//!
//! ```compile_fail
//! use engine::cpu::CpuBackend;
//! ```
//!
//! ```compile_fail
//! use engine::cpu::{Batch, Segment};
//! ```

mod absorb;
mod attention;
mod batch;
mod compile;
mod expanded;
mod experts;
mod linear;
mod local;
mod pack;
mod rows;
mod run;
mod tile_memory;
mod trace;
mod weights;

pub(crate) use batch::Batch;
pub(crate) use pack::Matrices;
pub(crate) use weights::LoadedWeight;

use crate::cache::CachePool;
use crate::error::EngineError;
use crate::team::Team;
use crate::trace::Trace;
use base::{Activation, CpuFeatures, KernelContract, Layout, Tier};
use compile::Program;
use formats::{Checkpoint, TensorInfo};
use graph::audit::Finding;
use graph::circuit::{TensorIndex, Weight};
use graph::contract::{Contract, Gating, GroupScore, RopePairs};
use graph::ir::{Lane, Span};
use graph::passes::{BindOptions, CacheForm, MlaChoice, RowClass};
use graph::points::Points;
use graph::{CheckpointTensors, Circuit, Plan, PlanOptions};
use kernels::{A8Block, Bf16Line, RopeTable, RouteSpec};
use local::Local;
use quant::tiles::TileLayout;
use run::{Model, Numbers, Shared, Thread};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use tile_memory::TileMemory;
use trace::Recorder;

/// Rows whose logits are computed at once.
pub const HEAD_ROWS: usize = 16;

const CLASSES: [RowClass; 3] = [RowClass::One, RowClass::Few, RowClass::Many];

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
    pub largest: usize,
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
    blocks: Vec<A8Block>,
    lines: Vec<Bf16Line>,
    /// Blocks and lines that a row needs at most.
    row_blocks: [usize; 2],
    partials: Vec<f32>,
    locals: Vec<Mutex<Local>>,
    team: Team,
    options: CpuOptions,
    /// Nanoseconds of the phases of all plans, trunk and then head, while a profile is taken.
    clocks: Option<Vec<Vec<AtomicU64>>>,
    /// What is copied out of each phase, while a trace is taken.
    recorder: Option<Recorder>,
}

/// The contracts of all kernels.
pub fn kernel_contracts() -> Vec<KernelContract> {
    kernels::table().iter().map(|(contract, _)| *contract).collect()
}

/// The highest tier that this machine and `limit` allow.
///
/// # Errors
/// When the limit asks for more than the machine has.
pub fn tier_for(limit: Option<Tier>) -> Result<Tier, String> {
    let features: CpuFeatures = kernels::features();
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
    contract: &Contract,
    tensors: &dyn TensorIndex,
    options: &CpuOptions,
) -> Result<(Vec<Plan>, Vec<Plan>), EngineError> {
    make_plans_of(Circuit::named(&contract.circuit)?, contract, tensors, options)
}

/// The same with a circuit that need not be built in.
///
/// # Errors
/// As for [`make_plans`].
pub fn make_plans_of(
    circuit: &Circuit,
    contract: &Contract,
    tensors: &dyn TensorIndex,
    options: &CpuOptions,
) -> Result<(Vec<Plan>, Vec<Plan>), EngineError> {
    let kernels = kernel_contracts();
    let make = |span: Span, largest: usize| -> Result<Vec<Plan>, EngineError> {
        let ir = graph::ir::Ir::build_with(circuit, contract, &span, tensors)?;
        CLASSES
            .into_iter()
            .map(|class| {
                let options = PlanOptions {
                    span: span.clone(),
                    class,
                    largest,
                    mla: options.mla,
                    form: options.form,
                    bind: options.bind,
                };
                Ok(Plan::from_ir(ir.clone(), contract, &kernels, &options)?)
            })
            .collect()
    };
    Ok((make(Span::trunk(contract), options.largest)?, make(Span::head(contract), HEAD_ROWS)?))
}

/// Checks circuit, plans and the file's tensors against the rules of [`graph::audit`]. With `leave_doubts`, findings about the circuit's meaning
/// alone are given back.
///
/// # Errors
/// [`EngineError::Audit`] with what breaks a rule.
pub fn audit(
    circuit: &Circuit,
    contract: &Contract,
    checkpoint: &Checkpoint,
    (trunk, head): &(Vec<Plan>, Vec<Plan>),
    options: &CpuOptions,
    leave_doubts: bool,
) -> Result<Vec<Finding>, EngineError> {
    let bound = graph::audit::Bound { table: &kernel_contracts(), options: options.bind };
    let findings =
        graph::audit::session(circuit, contract, &CheckpointTensors(checkpoint), (trunk, head), bound);
    let (doubts, findings): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|finding| leave_doubts && !finding.code.protects());
    if findings.is_empty() {
        return Ok(doubts);
    }
    Err(EngineError::Audit { file: checkpoint.display_name(), findings })
}

/// Bytes of arena, residual stream, logits and partial results that these plans need.
pub fn arena_bytes(contract: &Contract, plans: &(Vec<Plan>, Vec<Plan>), options: &CpuOptions) -> u64 {
    let a = &contract.attention;
    let arena = plans.0.iter().chain(&plans.1).map(|plan| plan.arena.floats).max().unwrap_or(0);
    let partials = attention::shared_partials(a.heads, a.kv_lora_rank, options.threads);
    let rows = options.largest * contract.hidden_size + HEAD_ROWS * contract.vocab_size;
    4 * (arena + partials + rows) as u64
}

/// Numbers of f32 of a line of the caches.
const LINE_FLOATS: usize = size_of::<Bf16Line>() / size_of::<f32>();

/// Bytes that prompts need to expand keys and values of up to `context` rows: none where no segment is run in the naive formulation.
pub fn expanded_bytes(contract: &Contract, options: &CpuOptions, context: usize) -> u64 {
    let a = &contract.attention;
    let naive = match options.mla {
        MlaChoice::Naive => true,
        MlaChoice::Auto => options.largest >= graph::passes::crossover(a).unwrap_or(2),
        MlaChoice::Absorbed | MlaChoice::Split => false,
    };
    if naive { 4 * expanded::expanded_most(context, a) as u64 } else { 0 }
}

impl CpuBackend {
    /// Loads the weights that the plans use and compiles them, for `team` to run. `progress` hears how many weights of how many are in place.
    ///
    /// # Errors
    /// A weight that cannot be decoded; memory that the system refuses.
    pub fn load(
        contract: Contract,
        checkpoint: &Arc<Checkpoint>,
        plans: (Vec<Plan>, Vec<Plan>),
        options: CpuOptions,
        mut team: Team,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<CpuBackend, EngineError> {
        let (trunk, head) = plans;
        kernels::limit_tier(options.bind.tier);
        let tiled = tiled_tensors(trunk.iter().chain(&head));
        let weights = || trunk[0].ir.weights.iter().chain(&head[0].ir.weights);
        let to_pack = distinct(weights()).filter_map(|weight| {
            let layout = layout_to_pack(weight, &tiled, checkpoint)?;
            Some((weight.matrices(), layout.matrix_bytes(weight.outputs())))
        });
        let memory = TileMemory::reserve(to_pack, team.placement().nodes().len())?;
        let mut loader = Loader { checkpoint, memory, weights: Vec::new(), index: HashMap::new() };
        let total = weights().count();
        for weight in weights() {
            let tiles = tiled.contains(weight.parts[0].tensor.as_str());
            loader.load(weight, if tiles { Layout::Tiles } else { Layout::Rows }, &mut team)?;
            progress(loader.weights.len(), total);
        }
        let compile_all = |plans: &[Plan]| -> Result<Vec<Program>, EngineError> {
            plans.iter().map(|plan| compile::compile(plan, &|id| loader.find(plan.ir.weight(id)))).collect()
        };
        let trunk_programs = compile_all(&trunk)?;
        let head_programs = compile_all(&head)?;
        let arena = trunk_programs.iter().chain(&head_programs).map(|p| p.arena).max().unwrap_or(0);
        let a = contract.attention;
        let rope =
            RopeTable::new(contract.rope.inverse_frequencies(options.context), contract.rope.magnitude());
        let pairs = match contract.rope.pairs {
            RopePairs::Interleaved => kernels::RopePairs::Interleaved,
            RopePairs::Split => kernels::RopePairs::Split,
        };
        Ok(CpuBackend {
            arena: vec![0.0; arena],
            hidden: vec![0.0; options.largest * contract.hidden_size],
            logits: vec![0.0; HEAD_ROWS * contract.vocab_size],
            expanded: Vec::new(),
            rotations: Vec::new(),
            head_batch: Batch::default(),
            blocks: Vec::new(),
            lines: Vec::new(),
            row_blocks: [Activation::A8, Activation::Bf16].map(|form| {
                let programs = trunk_programs.iter().chain(&head_programs);
                programs.map(|program| program.row_blocks(&loader.weights, form)).max().unwrap_or(0)
            }),
            partials: vec![0.0; attention::shared_partials(a.heads, a.kv_lora_rank, options.threads)],
            locals: (0..options.threads).map(|_| Mutex::default()).collect(),
            model: Model { route: route_spec(&contract), contract, weights: loader.weights, rope, pairs },
            trunk,
            head,
            trunk_programs,
            head_programs,
            team,
            options,
            clocks: None,
            recorder: None,
        })
    }

    /// The contract.
    pub fn contract(&self) -> &Contract {
        &self.model.contract
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
    pub fn rope(&self) -> (&RopeTable, kernels::RopePairs) {
        (&self.model.rope, self.model.pairs)
    }

    /// The formulation of a segment of `new` rows.
    pub fn lane(&self, new: usize) -> Lane {
        match self.options.mla {
            MlaChoice::Naive => Lane::Naive,
            MlaChoice::Auto => {
                let crossover = graph::passes::crossover(&self.model.contract.attention).unwrap_or(2);
                if new >= crossover { Lane::Naive } else { Lane::Absorbed }
            }
            MlaChoice::Absorbed | MlaChoice::Split => Lane::Absorbed,
        }
    }

    /// Runs the layers on a batch: its rows are in the cache and in the residual stream afterwards.
    ///
    /// # Panics
    /// When the batch has more rows than the arena was made for.
    pub fn forward(&mut self, batch: &Batch, pool: &CachePool) {
        let (rows, largest) = (batch.rows(), self.options.largest);
        assert!(rows <= largest, "a batch of {rows} rows, but at most {largest} fit");
        let a = self.model.contract.attention;
        let naive = batch.segments.iter().filter(|s| s.lane == Lane::Naive);
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
    pub fn logits(&mut self, batch: &Batch, pool: &CachePool, sink: &mut dyn FnMut(usize, &[f32])) {
        let vocab = self.model.contract.vocab_size;
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
    pub fn start_trace(&mut self, points: &Points, trace: Trace) -> Result<(), EngineError> {
        let plans = self.trunk.iter().chain(&self.head);
        self.recorder = Some(Recorder::new(plans, points, trace)?);
        Ok(())
    }

    /// Ends it: what was copied.
    pub fn stop_trace(&mut self) -> Option<Trace> {
        self.recorder.take().map(Recorder::finish)
    }

    fn run(&mut self, batch: &Batch, pool: &CachePool, rows: usize, head: bool) {
        let class = RowClass::of(rows) as usize;
        let program = if head { &self.head_programs[class] } else { &self.trunk_programs[class] };
        let [blocks, lines] = self.row_blocks.map(|of_row| rows * of_row);
        if self.blocks.len() < blocks {
            self.blocks.resize(blocks, A8Block::ZERO);
        }
        if self.lines.len() < lines {
            self.lines.resize(lines, Bf16Line::ZERO);
        }
        let skipped = self.expanded.as_ptr().align_offset(align_of::<Bf16Line>()).min(self.expanded.len());
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
            partials_len: self.partials.len(),
        };
        let (model, locals, rotations) = (&self.model, &self.locals, &self.rotations[..]);
        let plan = if head { CLASSES.len() + class } else { class };
        let clock = self.clocks.as_ref().map(|clocks| &clocks[plan][..]);
        let recorder = self.recorder.as_ref();
        self.team.run(&|member| {
            let mut local = locals[member.index].lock().unwrap_or_else(PoisonError::into_inner);
            run::run(
                program,
                &Thread {
                    member,
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
    let table = kernels::table();
    let mut tiled = HashSet::new();
    for plan in plans {
        for node in &plan.ir.nodes {
            for ((_, weight), kernel) in node.weights.iter().zip(&node.kernels) {
                if table[kernel.index].0.layout == Layout::Tiles {
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
    memory: TileMemory,
    weights: Vec<LoadedWeight>,
    index: HashMap<String, usize>,
}

impl Loader<'_> {
    fn load(&mut self, weight: &Weight, layout: Layout, team: &mut Team) -> Result<(), EngineError> {
        let key = &weight.parts[0].tensor;
        if !self.index.contains_key(key) {
            self.weights.push(LoadedWeight::load(weight, self.checkpoint, layout, &mut self.memory, team)?);
            self.index.insert(key.clone(), self.weights.len() - 1);
        }
        Ok(())
    }

    fn find(&self, weight: &Weight) -> usize {
        self.index.get(&weight.parts[0].tensor).copied().unwrap_or_default()
    }
}

/// The router's rules in the words of the kernel.
fn route_spec(contract: &Contract) -> Option<RouteSpec<'static>> {
    let router = contract.moe?.router;
    Some(RouteSpec {
        gating: match router.gating {
            Gating::Softmax => kernels::Gating::Softmax,
            Gating::Sigmoid => kernels::Gating::Sigmoid,
            Gating::SoftmaxOfSelected => kernels::Gating::SoftmaxOfSelected,
            Gating::SqrtSoftplus => kernels::Gating::SqrtSoftplus,
        },
        bias: None,
        groups: router.groups,
        groups_used: router.groups_used,
        group_score: match router.group_score {
            GroupScore::TopTwoSum => kernels::GroupScore::TopTwoSum,
            GroupScore::Max => kernels::GroupScore::Max,
        },
        norm: router.normalise,
        norm_floor: router.norm_floor as f32,
        scale: router.scale as f32,
    })
}

#[cfg(test)]
mod tests;
