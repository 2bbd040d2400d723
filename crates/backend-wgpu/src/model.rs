//! A model on the device, and its steps.

use crate::buffers::{Buffer, Readback, float_bytes, floats};
use crate::commands::Commands;
use crate::compile::Compiler;
use crate::device::Device;
use crate::kv_store::GpuKvStore;
use crate::largest::{TopLogitsSearch, pairs};
use crate::matmul::products::ProductContext;
use crate::memory::ModelBuffers;
use crate::needs::needs;
use crate::observe::StepObserver;
use crate::ops::embedded_rows;
use crate::portions::{PendingCommands, work};
use crate::program::{Program, instructions};
use crate::run::StageRun;
use crate::step_data::StepData;
use crate::values::{ValueBuffer, ValueRegisters, internal};
use crate::weights::DeviceWeights;
use latent_backend::{
    ActivationTrace, BackendError, BackendModel, Batch, CancelToken, CheckpointRows, DraftStep, HiddenSink,
    KvLayout, KvStore, LargestLogits, LayerState, LoadRequest, MAX_TOP_LOGITS, ModelStep, NodeCalls,
    PlanTimes, ProfileClock, Rotation,
};
use latent_formats::Checkpoint;
use latent_graph::activations::Activations;
use latent_graph::ir::Op;
use latent_graph::passes::BatchBucket;
use latent_graph::stage_index::{LAYERS, LM_HEAD, MTP, MTP_HEAD};
use latent_graph::{LM_HEAD_ROWS, ModelConfig, Plan, Stage};
use latent_types::{Arithmetic, CacheType};
use std::ops::Range;
use std::sync::Arc;

/// A model whose weights are on the device.
pub(crate) struct GpuModel {
    device: Arc<Device>,
    checkpoint: Arc<Checkpoint>,
    config: ModelConfig,
    stages: Vec<Stage>,
    rotation: Rotation,
    cache_type: CacheType,
    /// A program per stage and batch bucket.
    programs: Vec<Vec<Program>>,
    /// Whether the host looks up rows of the embedding.
    looks_up: bool,
    /// Maximum arithmetic operations per portion of a step.
    portion: f64,
    memory: ModelBuffers,
    step_buffer: Buffer,
    embedded: Buffer,
    results: Readback,
    largest: TopLogitsSearch,
    observer: StepObserver,
}

/// The callbacks and the cancel token of a step.
struct StepSinks<'s, 'l> {
    cancel: &'s CancelToken,
    on_logits: &'s mut dyn FnMut(usize, &[f32]),
    on_hidden: Option<HiddenSink<'s>>,
    largest: Option<LargestLogits<'l>>,
}

impl GpuModel {
    /// Loads a model. `scratch` is the maximum size of a scratch buffer for operations that can
    /// split their work into passes. `portion` is the number of operations per submission.
    pub(crate) fn load(
        device: &Arc<Device>,
        (scratch, portion): (u64, f64),
        request: LoadRequest<'_>,
    ) -> Result<GpuModel, BackendError> {
        let LoadRequest { checkpoint, config, stages, options, progress, .. } = request;
        let cache_type = options.stages.bind.cache;
        let rotation = Rotation::new(&config, options.context);
        let rows = CheckpointRows { checkpoint };
        let products = ProductContext::new(device, options.stages.bind.precision);
        let weights = DeviceWeights::load(&products, &stages, &config, rows, progress)?;
        // The registers of all plans share buffers, which grow to the largest plan. So all plans
        // are compiled before the buffers are allocated.
        let mut needs = needs(&stages, &config, &products, &options, scratch);
        let mut programs = Vec::new();
        for stage in &stages {
            let mut compiled = Vec::new();
            for plan in &stage.plans {
                let registers = ValueRegisters::assign(plan, &mut needs.registers);
                let compiler = Compiler {
                    device,
                    plan,
                    config: &config,
                    rotation: &rotation,
                    weights: &weights,
                    cache_type,
                    scratch,
                    portion,
                    registers: &registers,
                };
                let instructions = instructions(&compiler)?;
                check_result(plan, &registers)?;
                compiled.push(Program { instructions, registers });
            }
            programs.push(compiled);
        }
        let memory = ModelBuffers::new(device, &needs)?;
        products.reserve(needs.quantized)?;
        let looks_up = looks_up(&stages, &weights);
        let (step_buffer, embedded) = (Buffer::new(device, "the rows of a step", needs.step)?, needs.hidden);
        Ok(GpuModel {
            device: Arc::clone(device),
            checkpoint: Arc::clone(checkpoint),
            rotation,
            cache_type,
            programs,
            looks_up,
            portion,
            memory,
            step_buffer,
            embedded: Buffer::new(device, "rows of the embedding", embedded)?,
            results: Readback::new(device, needs.results)?,
            largest: TopLogitsSearch::new(device, config.vocab_size)?,
            observer: StepObserver::default(),
            config,
            stages,
        })
    }

    /// Runs a stage of layers, then computes the logits of the wanted rows with a head's stage.
    fn run(
        &mut self,
        (layers, head): (usize, usize),
        batch: &Batch,
        kv: &GpuKvStore,
        mut sinks: StepSinks<'_, '_>,
    ) -> Result<(), BackendError> {
        // Pending copies and shifts of cached rows must run before the step reads them.
        kv.flush()?;
        let data = self.step_data(batch)?;
        self.embed(layers, batch)?;
        let mut portions = PendingCommands::new(&self.device, self.portion, sinks.cancel);
        self.record(layers, batch, &data, kv, 0..batch.rows(), &mut portions)?;
        if let Some(on_hidden) = sinks.on_hidden.as_mut() {
            let bytes = 4 * (batch.rows() * self.config.hidden_size) as u64;
            let hidden = [(&self.memory.hidden, 0..bytes)];
            read_back(
                (&mut self.results, &mut self.observer),
                portions.take(),
                &hidden,
                "the residual stream",
                &mut |_, rows| {
                    on_hidden(&floats(rows));
                },
            )?;
        }
        // The buffer of logits has `LM_HEAD_ROWS` rows.
        for first in (0..batch.wanted.len()).step_by(LM_HEAD_ROWS) {
            if sinks.cancel.is_cancelled() {
                return Err(BackendError::Cancelled);
            }
            let last = batch.wanted.len().min(first + LM_HEAD_ROWS);
            self.record(head, batch, &data, kv, first..last, &mut portions)?;
            self.logits(portions.take(), first..last, &mut sinks)?;
        }
        // Reading logits waits for all earlier work. Without logits the step waits here, so that
        // its errors do not appear in a later step.
        if batch.wanted.is_empty() {
            self.observer.submit(portions.take(), &[])?;
            self.device.wait()?;
        }
        if sinks.cancel.is_cancelled() { Err(BackendError::Cancelled) } else { Ok(()) }
    }

    fn run_mtp(
        &mut self,
        step: DraftStep<'_>,
        largest: Option<LargestLogits<'_>>,
    ) -> Result<(), BackendError> {
        if self.stages.len() <= MTP_HEAD {
            return Err(BackendError::Unsupported("the model was loaded without its MTP layer".into()));
        }
        let DraftStep { batch, hidden, kv, cancel, on_logits } = step;
        let kv = kv.as_any().downcast_ref::<GpuKvStore>().ok_or(BackendError::ForeignStore)?;
        // The plan of the MTP layer reads its input rows from the residual stream's buffer.
        self.memory.hidden.write("the residual stream", 0, &float_bytes(&hidden.concat()))?;
        self.run((MTP, MTP_HEAD), batch, kv, StepSinks { cancel, on_logits, on_hidden: None, largest })
    }

    /// Uploads the data of a step for the shaders. Its buffer grows if needed.
    fn step_data(&mut self, batch: &Batch) -> Result<StepData, BackendError> {
        let data = StepData::of(batch, &self.config.attention, &self.rotation);
        data.send(&self.device, &mut self.step_buffer)?;
        Ok(data)
    }

    /// Uploads the rows of the batch that the device does not look up: embeddings, and tokens if
    /// the embedding's table is not on the device.
    fn embed(&mut self, stage: usize, batch: &Batch) -> Result<(), BackendError> {
        let ir = &self.stages[stage].plan(batch.rows()).ir;
        for node in &ir.nodes {
            if let (Op::Embed { scale }, [(_, id)]) = (node.op, &node.weights[..]) {
                let rows = CheckpointRows { checkpoint: &self.checkpoint };
                let elements = embedded_rows(batch, (rows, ir.weight(*id), scale), self.looks_up)?;
                // Takes effect before the calls of this step, which are submitted later.
                self.embedded.write("rows of the embedding", 0, &float_bytes(&elements))?;
            }
        }
        Ok(())
    }

    /// Records the calls of a stage. `rows` are rows of the batch, or for a head's stage indices
    /// into the rows whose logits are wanted.
    fn record(
        &mut self,
        stage: usize,
        batch: &Batch,
        data: &StepData,
        kv: &GpuKvStore,
        rows: Range<usize>,
        portions: &mut PendingCommands<'_>,
    ) -> Result<(), BackendError> {
        let bucket = BatchBucket::of(rows.len()) as usize;
        let program = &self.programs[stage][bucket];
        // KV layers are numbered through all stages, but each plan counts its own from 0.
        let first_kv_layer = self.stages[..stage].iter().map(|stage| stage.kv_layers().len()).sum();
        let number = stage * BatchBucket::ALL.len() + bucket;
        let plan = &self.stages[stage].plans[bucket];
        for instruction in &program.instructions {
            let (operation, path) = (&instruction.operation, instruction.path);
            let node = &plan.ir.nodes[instruction.node];
            let place = (number, plan.phases[instruction.node]);
            // A listing only counts calls and submits nothing, so they need not be split.
            let lists = self.observer.lists();
            let parts = if lists { 1 } else { operation.parts(data, (batch, rows.len()), path) };
            let work = work(plan, node, batch, rows.len(), self.cache_type) / parts as f64;
            for part in 0..parts {
                if !lists {
                    portions.before(work, &mut self.observer)?;
                }
                let mut run = StageRun {
                    commands: &mut portions.commands,
                    memory: &self.memory,
                    kv,
                    batch,
                    step: data,
                    step_buffer: &self.step_buffer,
                    embedded: &self.embedded,
                    rows: rows.len(),
                    wanted: matches!(stage, LM_HEAD | MTP_HEAD).then(|| rows.clone()),
                    first_kv_layer,
                };
                self.observer.before(&mut run, &self.device, place)?;
                match parts {
                    1 => operation.record(&mut run, path)?,
                    _ => operation.record_part(&mut run, path, part)?,
                }
                if part + 1 < parts {
                    self.observer.after_part(&mut run, &self.device, place)?;
                } else {
                    let node = (number, instruction.node);
                    self.observer.after(&mut run, &self.device, plan, &program.registers, node)?;
                }
            }
        }
        Ok(())
    }

    /// Submits commands that compute the logits of these wanted rows, and passes each row, or its
    /// largest logits, to the callbacks.
    fn logits(
        &mut self,
        mut commands: Commands,
        wanted: Range<usize>,
        sinks: &mut StepSinks<'_, '_>,
    ) -> Result<(), BackendError> {
        let whole = 4 * self.config.vocab_size as u64;
        let counts: Vec<usize> = match &sinks.largest {
            // The buffers of the search have room for this count.
            Some(largest) => wanted.clone().map(|row| largest.counts[row].min(MAX_TOP_LOGITS)).collect(),
            None => vec![0; wanted.len()],
        };
        // One search serves all rows, with the largest count of any. A row may get more logits than
        // it needs.
        let keep = counts.iter().copied().max().unwrap_or(0);
        let rows = counts.iter().enumerate().map(|(row, count)| match count {
            0 => (&self.memory.logits, row as u64 * whole..(row as u64 + 1) * whole),
            _ => self.largest.of_row(row, keep),
        });
        let rows: Vec<_> = rows.collect();
        if keep > 0 {
            self.largest.record(&mut commands, &self.memory.logits, counts.len(), keep);
        }
        read_back((&mut self.results, &mut self.observer), commands, &rows, "logits", &mut |row, bytes| {
            let number = wanted.start + row;
            match &mut sinks.largest {
                Some(largest) if counts[row] > 0 => (largest.on_largest)(number, &pairs(bytes)),
                _ => (sinks.on_logits)(number, &floats(bytes)),
            }
        })
    }
}

/// Submits commands and reads parts of buffers afterwards. `on_part` is called with the index and
/// the bytes of each part.
fn read_back(
    (results, observer): (&mut Readback, &mut StepObserver),
    commands: Commands,
    parts: &[(&Buffer, Range<u64>)],
    what: &str,
    on_part: &mut dyn FnMut(usize, &[u8]),
) -> Result<(), BackendError> {
    let bytes = parts.iter().map(|(_, range)| range.end - range.start).sum();
    if results.bytes() < bytes {
        // The buffer is never made smaller, so it stops growing after the largest step.
        *results = Readback::new(commands.device(), bytes)?;
    }
    let mut at = 0;
    let mut copies = Vec::with_capacity(parts.len());
    for (buffer, range) in parts {
        copies.push((&*results, *buffer, range.clone(), at));
        at += range.end - range.start;
    }
    observer.submit(commands, &copies)?;
    results.read(what, bytes, |all| {
        let mut rest = all;
        for (number, (_, range)) in parts.iter().enumerate() {
            let (part, others) = rest.split_at((range.end - range.start) as usize);
            on_part(number, part);
            rest = others;
        }
    })?;
    Ok(())
}

/// Whether an embedding's table is not on the device, so that the host looks up tokens.
fn looks_up(stages: &[Stage], weights: &DeviceWeights) -> bool {
    let plans = stages.iter().flat_map(|stage| &stage.plans);
    let mut nodes = plans.flat_map(|plan| plan.ir.nodes.iter().map(move |node| (plan, node)));
    nodes.any(|(plan, node)| {
        matches!(node.op, Op::Embed { .. })
            && node.weights.iter().any(|(_, id)| weights.table(plan.ir.weight(*id)).is_none())
    })
}

/// Checks that the plan's result is in the residual stream or the logits, where the next stage or
/// the readback expects it.
fn check_result(plan: &Plan, registers: &ValueRegisters) -> Result<(), BackendError> {
    let Some((name, id)) = plan.ir.outputs.first() else {
        return internal("a stage without a result".into());
    };
    match registers.operand(plan, *id)?.home {
        ValueBuffer::Hidden | ValueBuffer::Logits => Ok(()),
        home => internal(format!("the result {name} is in {home:?}")),
    }
}

impl BackendModel for GpuModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn stages(&self) -> &[Stage] {
        &self.stages
    }

    fn new_kv_store(&self, blocks: u32, state_slots: u32) -> Result<Box<dyn KvStore>, BackendError> {
        let layers = LayerState::of_stages(&self.stages);
        let layout = KvLayout { layers, cache_type: self.cache_type, blocks, state_slots };
        Ok(Box::new(GpuKvStore::new(&self.device, layout, &self.rotation)?))
    }

    fn step(&mut self, step: ModelStep<'_>) -> Result<(), BackendError> {
        let ModelStep { batch, kv, cancel, on_logits, on_hidden } = step;
        let kv = kv.as_any().downcast_ref::<GpuKvStore>().ok_or(BackendError::ForeignStore)?;
        self.run((LAYERS, LM_HEAD), batch, kv, StepSinks { cancel, on_logits, on_hidden, largest: None })
    }

    fn step_for_largest(
        &mut self,
        step: ModelStep<'_>,
        largest: LargestLogits<'_>,
    ) -> Result<(), BackendError> {
        let ModelStep { batch, kv, cancel, on_logits, on_hidden } = step;
        let kv = kv.as_any().downcast_ref::<GpuKvStore>().ok_or(BackendError::ForeignStore)?;
        let sinks = StepSinks { cancel, on_logits, on_hidden, largest: Some(largest) };
        self.run((LAYERS, LM_HEAD), batch, kv, sinks)
    }

    fn draft(&mut self, step: DraftStep<'_>) -> Result<(), BackendError> {
        self.run_mtp(step, None)
    }

    fn draft_for_largest(
        &mut self,
        step: DraftStep<'_>,
        largest: LargestLogits<'_>,
    ) -> Result<(), BackendError> {
        self.run_mtp(step, Some(largest))
    }

    fn kernel_calls(&mut self, batch: &Batch, kv: &dyn KvStore) -> Result<Vec<NodeCalls>, BackendError> {
        let kv = kv.as_any().downcast_ref::<GpuKvStore>().ok_or(BackendError::ForeignStore)?;
        let (data, cancel) = (self.step_data(batch)?, CancelToken::new());
        let mut portions = PendingCommands::new(&self.device, self.portion, &cancel);
        self.observer.start_listing();
        let listed = self
            .record(LAYERS, batch, &data, kv, 0..batch.rows(), &mut portions)
            .and_then(|()| self.record(LM_HEAD, batch, &data, kv, 0..batch.wanted.len(), &mut portions));
        // Listing must end after an error too.
        let calls = self.observer.stop_listing();
        listed.map(|()| calls)
    }

    fn arithmetic(&self, (stage, bucket): (usize, usize), node: usize, rows: usize) -> Arithmetic {
        let program = self.programs.get(stage).and_then(|programs| programs.get(bucket));
        program.map_or(Arithmetic::F32, |program| program.arithmetic(node, rows))
    }

    fn profile_clock(&self) -> ProfileClock {
        match self.device.description.timestamps {
            true => ProfileClock::Timestamps,
            false => ProfileClock::OneByOne,
        }
    }

    fn start_profile(&mut self) {
        let plans = self.stages.iter().flat_map(|stage| &stage.plans);
        self.observer.start_profile(plans.map(Plan::phase_count));
    }

    fn stop_profile(&mut self) -> Vec<PlanTimes> {
        self.observer.stop_profile()
    }

    fn start_trace(&mut self, activations: &Activations, trace: ActivationTrace) -> Result<(), BackendError> {
        let plans = self.stages.iter().flat_map(|stage| &stage.plans);
        self.observer.start_trace(plans.map(|plan| activations.probes(plan)).collect(), trace);
        Ok(())
    }

    fn stop_trace(&mut self) -> Option<ActivationTrace> {
        self.observer.stop_trace()
    }
}
