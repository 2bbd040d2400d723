//! The backend traits, implemented with the interpreter.

use crate::interpret::{Interpreter, internal};
use crate::kv::HostKvStore;
use crate::recurrent::{self, ToyRecurrence};
use latent_backend::{
    ActivationTrace, Backend, BackendError, BackendModel, Batch, CancelToken, CheckpointRows, DraftStep,
    KvLayout, KvStore, LayerState, LoadRequest, MemoryEstimate, ModelOptions, ModelStep, PeakRates,
    PlanTimes, RankLinks, Rotation, WeightBytes, WeightSource,
};
use latent_formats::Checkpoint;
use latent_graph::activations::{ActivationSource, Activations, Probe};
use latent_graph::ir::Node;
use latent_graph::passes::BatchBucket;
use latent_graph::stage_index::{LAYERS, LM_HEAD, MTP, MTP_HEAD};
use latent_graph::{BackendTarget, ModelConfig, Stage, distinct_weights};
use latent_threads::Placement;
use latent_types::{CacheType, Tier};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Computes every operation from its definition, on one thread.
pub struct ReferenceBackend {
    target: BackendTarget,
    recurrences: Vec<ToyRecurrence>,
}

impl ReferenceBackend {
    /// Creates a backend whose models apply these toy recurrences before their first layer. Such
    /// models have layers with recurrent state in addition to those with cached rows.
    pub fn with_recurrences(recurrences: Vec<ToyRecurrence>) -> ReferenceBackend {
        ReferenceBackend { recurrences, ..ReferenceBackend::default() }
    }
}

impl Default for ReferenceBackend {
    fn default() -> ReferenceBackend {
        let target = BackendTarget {
            sparse_attention: true,
            expanded_stores: true,
            adapters: true,
            ..BackendTarget::unfused("reference")
        };
        ReferenceBackend { target, recurrences: Vec::new() }
    }
}

impl Backend for ReferenceBackend {
    fn name(&self) -> &'static str {
        self.target.name
    }

    fn target(&self) -> &BackendTarget {
        &self.target
    }

    fn isa(&self, _limit: Option<Tier>) -> Result<Tier, BackendError> {
        // No kernels, so no instruction set is selected.
        Ok(Tier::Portable)
    }

    fn layer_states(&self, stages: &[Stage]) -> Vec<LayerState> {
        recurrent::layer_states(stages, self.recurrences.len())
    }

    fn default_cache(&self, _exact: bool) -> CacheType {
        // The store has no other element type.
        CacheType::F32
    }

    fn weight_bytes(&self, stages: &[Stage], _source: WeightSource<'_>) -> WeightBytes {
        // Nothing is packed: weights are decoded from the mapped file whenever they are used.
        WeightBytes { owned: 0, mapped: distinct_weights(stages).map(|weight| weight.bytes() as u64).sum() }
    }

    fn scratch_bytes(
        &self,
        _config: &ModelConfig,
        stages: &[Stage],
        options: &ModelOptions,
        _context: usize,
    ) -> MemoryEstimate {
        // Memory is not reused: every value of a step has its own, until the step ends.
        let values = stages.iter().flat_map(|stage| &stage.plans[0].ir.values);
        let elements: usize = values.map(|value| value.rows.of(1) * value.row_width()).sum();
        let arena = 4 * elements as u64 * options.stages.max_batch_tokens as u64;
        MemoryEstimate { arena, ..MemoryEstimate::default() }
    }

    fn load(&self, request: LoadRequest<'_>) -> Result<Box<dyn BackendModel>, BackendError> {
        let LoadRequest { checkpoint, config, stages, options, progress, communicator, .. } = request;
        let cache = options.stages.bind.cache;
        if cache != CacheType::F32 {
            let problem = format!(
                "the reference backend supports only an f32 KV cache, not {cache}: omit --cache-type"
            );
            return Err(BackendError::Unsupported(problem));
        }
        let rotation = Rotation::new(&config, options.context);
        // No weight is read at load, so loading ends at once.
        progress(1, 1);
        let checkpoint = Arc::clone(checkpoint);
        let recurrences = self.recurrences.clone();
        let links = RankLinks::of(communicator, &config);
        let (clocks, trace) = (None, None);
        let model =
            ReferenceModel { checkpoint, config, stages, rotation, recurrences, links, clocks, trace };
        Ok(Box::new(model))
    }

    fn limits(&self, _placement: &Placement, _tier: Tier) -> Result<PeakRates, BackendError> {
        Err(BackendError::Unsupported("the reference backend cannot be benchmarked".into()))
    }
}

struct ReferenceModel {
    checkpoint: Arc<Checkpoint>,
    config: ModelConfig,
    stages: Vec<Stage>,
    rotation: Rotation,
    recurrences: Vec<ToyRecurrence>,
    /// The other ranks, if several share the model.
    links: Option<RankLinks>,
    /// Nanoseconds of each node of each plan, while a profile is taken.
    clocks: Option<Vec<Vec<u64>>>,
    /// The recorded activations, and the nodes of each plan that compute them.
    trace: Option<(ActivationTrace, Vec<Vec<Probe>>)>,
}

impl ReferenceModel {
    /// Runs one stage over `batch` and returns its first output.
    fn run(
        &mut self,
        stage: usize,
        rows: usize,
        step: &mut ModelStep<'_>,
        batch: &Batch,
        hidden: &mut Vec<f32>,
    ) -> Result<Vec<f32>, BackendError> {
        let bucket = BatchBucket::of(rows) as usize;
        // The number counts plans over all stages, in the order of `start_profile` and
        // `start_trace`.
        let (plan, number) = (&self.stages[stage].plans[bucket], stage * BatchBucket::ALL.len() + bucket);
        let Some(kv) = step.kv.as_any_mut().downcast_mut::<HostKvStore>() else {
            return Err(BackendError::ForeignStore);
        };
        let mut interpreter = Interpreter {
            plan,
            config: &self.config,
            weights: CheckpointRows { checkpoint: &self.checkpoint },
            rotation: &self.rotation,
            batch,
            kv,
            // Plans number the KV layers of their own stage; the store has those of all stages.
            first_kv_layer: self.stages[..stage].iter().map(|stage| stage.kv_layers().len()).sum(),
            recurrences: &self.recurrences,
            links: self.links.as_ref(),
            rows,
            hidden,
            values: HashMap::new(),
            ids: HashMap::new(),
        };
        for (n, node) in plan.ir.nodes.iter().enumerate() {
            let start = Instant::now();
            interpreter.execute(node)?;
            // Each node is a sign of progress, so that a long step does not look hung to other
            // ranks.
            self.links.iter().for_each(RankLinks::beat);
            if let Some(clocks) = &mut self.clocks {
                clocks[number][n] += start.elapsed().as_nanos() as u64;
            }
            if let Some((trace, probes)) = &mut self.trace {
                for probe in probes[number].iter().filter(|probe| probe.node == n) {
                    record(&interpreter, node, probe, trace)?;
                }
            }
            if step.cancel.is_cancelled() {
                return Err(BackendError::Cancelled);
            }
        }
        let output = plan.ir.outputs.first().and_then(|(_, id)| interpreter.values.remove(id));
        output.map_or_else(|| internal("a stage without a result".into()), Ok)
    }
}

impl ReferenceModel {
    /// Computes the logits of the wanted rows with a head's stage, and passes them on.
    fn logits(
        &mut self,
        head: usize,
        step: &mut ModelStep<'_>,
        hidden: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        if step.batch.wanted.is_empty() {
            return Ok(());
        }
        // A head's stage starts by gathering the wanted rows, so its batch has only those.
        let wanted = Batch::wanted_of(step.batch);
        let logits = self.run(head, wanted.wanted.len(), step, &wanted, hidden)?;
        for (i, row) in logits.chunks_exact(self.config.vocab_size).enumerate() {
            (step.on_logits)(i, row);
        }
        Ok(())
    }
}

/// Copies the results of a node into the trace.
fn record(
    interpreter: &Interpreter<'_>,
    node: &Node,
    probe: &Probe,
    trace: &mut ActivationTrace,
) -> Result<(), BackendError> {
    // Traced steps have one sequence, so that its first span decides which path was taken.
    let span = interpreter.batch.spans.first();
    if !trace.wants(probe.activation) || span.is_some_and(|span| !probe.path.meets(span.path)) {
        return Ok(());
    }
    let made_by = interpreter.plan.ir.line(node);
    for row in 0..interpreter.rows {
        let position = interpreter.batch.positions[row];
        let out = trace.row(probe.activation, position, &made_by);
        match &probe.source {
            ActivationSource::Value { value, columns } => {
                let shape = interpreter.ir().value(*value);
                let Some(elements) = interpreter.values.get(value) else { continue };
                let elements = &elements[row * shape.row_width()..(row + 1) * shape.row_width()];
                let heads = elements.chunks_exact(shape.width).flat_map(|head| &head[columns.clone()]);
                out.iter_mut().zip(heads).for_each(|(out, element)| *out = *element);
            }
            ActivationSource::Cache { kv_layer, columns } => {
                let Some(span) = span else { return Ok(()) };
                let slot = latent_backend::slot(&span.block_table, position);
                let layer = interpreter.first_kv_layer + kv_layer.0;
                out.copy_from_slice(&interpreter.kv.row(layer, slot)[columns.clone()]);
            }
            ActivationSource::Routing { topk_ids, topk_weights } => {
                let (Some(ids), Some(weights)) =
                    (interpreter.ids.get(topk_ids), interpreter.values.get(topk_weights))
                else {
                    continue;
                };
                let used = ids.len() / interpreter.rows;
                let here = row * used..(row + 1) * used;
                // Experts that the row did not select have the weight 0.
                out.fill(0.0);
                ids[here.clone()]
                    .iter()
                    .zip(&weights[here])
                    .for_each(|(id, weight)| out[*id as usize] = *weight);
            }
        }
    }
    Ok(())
}

impl BackendModel for ReferenceModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn stages(&self) -> &[Stage] {
        &self.stages
    }

    fn new_kv_store(&self, blocks: u32, state_slots: u32) -> Result<Box<dyn KvStore>, BackendError> {
        let layers = recurrent::layer_states(&self.stages, self.recurrences.len());
        let layout = KvLayout { layers, cache_type: CacheType::F32, blocks, state_slots };
        Ok(Box::new(HostKvStore::of_model(layout, self.rotation.clone())))
    }

    fn step(&mut self, mut step: ModelStep<'_>) -> Result<(), BackendError> {
        let batch = step.batch;
        let mut hidden = Vec::new();
        hidden = self.run(LAYERS, batch.rows(), &mut step, batch, &mut hidden)?;
        if let Some(on_hidden) = &mut step.on_hidden {
            on_hidden(&hidden);
        }
        self.logits(LM_HEAD, &mut step, &mut hidden)
    }

    fn steps_in_flight(&self) -> usize {
        self.links.as_ref().map_or(1, RankLinks::steps_in_flight)
    }

    fn submit(&mut self, batch: &Batch, kv: &mut dyn KvStore) -> Result<(), BackendError> {
        // A step in flight cannot be cancelled, because the other ranks run it too.
        let (cancel, on_logits) = (CancelToken::new(), &mut |_: usize, _: &[f32]| {});
        let mut step = ModelStep { batch, kv, cancel: &cancel, on_logits, on_hidden: None };
        // `collect` receives the rows that the last rank returns.
        self.links.iter().for_each(|links| links.leave_returned(true));
        let ran = self.run(LAYERS, batch.rows(), &mut step, batch, &mut Vec::new());
        // Reset after errors too: a later `step` must wait for its rows.
        self.links.iter().for_each(|links| links.leave_returned(false));
        ran.map(drop)
    }

    fn collect(&mut self, step: ModelStep<'_>) -> Result<(), BackendError> {
        let (cancel, ModelStep { batch, kv, on_logits, on_hidden, .. }) = (CancelToken::new(), step);
        let mut hidden = vec![0.0; batch.rows() * self.config.hidden_size];
        self.links.as_ref().map_or(Ok(()), |links| links.receive_rows(&mut hidden))?;
        if let Some(on_hidden) = on_hidden {
            on_hidden(&hidden);
        }
        let mut step = ModelStep { batch, kv, cancel: &cancel, on_logits, on_hidden: None };
        self.logits(LM_HEAD, &mut step, &mut hidden)
    }

    fn draft(&mut self, step: DraftStep<'_>) -> Result<(), BackendError> {
        if self.stages.len() <= MTP_HEAD {
            return Err(BackendError::Unsupported("the model was loaded without its MTP layer".into()));
        }
        let DraftStep { batch, hidden, kv, cancel, on_logits } = step;
        let mut hidden = hidden.concat();
        let mut step = ModelStep { batch, kv, cancel, on_logits, on_hidden: None };
        hidden = self.run(MTP, batch.rows(), &mut step, batch, &mut hidden)?;
        self.logits(MTP_HEAD, &mut step, &mut hidden)
    }

    fn start_profile(&mut self) {
        let plans = self.stages.iter().flat_map(|stage| &stage.plans);
        self.clocks = Some(plans.map(|plan| vec![0; plan.ir.nodes.len()]).collect());
    }

    fn stop_profile(&mut self) -> Vec<PlanTimes> {
        let clocks = self.clocks.take().unwrap_or_default();
        clocks.into_iter().map(|phases| PlanTimes { phases, nodes: Vec::new() }).collect()
    }

    fn start_trace(&mut self, activations: &Activations, trace: ActivationTrace) -> Result<(), BackendError> {
        let plans = self.stages.iter().flat_map(|stage| &stage.plans);
        self.trace = Some((trace, plans.map(|plan| activations.probes(plan)).collect()));
        Ok(())
    }

    fn stop_trace(&mut self) -> Option<ActivationTrace> {
        self.trace.take().map(|(trace, _)| trace)
    }
}
