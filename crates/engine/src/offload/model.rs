//! Both sides of an offloaded model as one model. The residual rows of a step cross once, from the
//! front to the back.

use super::store::OffloadedStore;
use latent_backend::{
    ActivationTrace, BackendError, BackendModel, Batch, CancelToken, DraftStep, HiddenSink, InputRows,
    Instant, KvStore, LargestLogits, ModelStep, NodeCalls, PhaseSpan, PlanTimes, ProfileClock,
};
use latent_graph::activations::Activations;
use latent_graph::{ModelConfig, Stage};
use latent_types::{Arithmetic, Setting};

/// A model whose first layers run on another backend.
pub(crate) struct OffloadedModel {
    front: Box<dyn BackendModel>,
    back: Box<dyn BackendModel>,
    /// The stages of the back, then that of the front. The order keeps the indices of
    /// `stage_index`, such as that of `lm_head`, valid.
    stages: Vec<Stage>,
    /// Residual rows from the front to the back.
    rows: Vec<f32>,
    /// The batch of the front: the tokens of the step.
    entering: Batch,
    /// The batch of the back: the residual rows of the step.
    crossing: Batch,
}

impl OffloadedModel {
    pub(crate) fn new(front: Box<dyn BackendModel>, back: Box<dyn BackendModel>) -> OffloadedModel {
        let stages = back.stages().iter().chain(front.stages()).cloned().collect();
        let (entering, crossing) = (Batch::default(), Batch::default());
        OffloadedModel { front, back, stages, rows: Vec::new(), entering, crossing }
    }

    /// Runs a step on the front, and makes the batch of the back from its residual rows.
    fn run_front(
        &mut self,
        batch: &Batch,
        kv: &mut dyn KvStore,
        cancel: &CancelToken,
    ) -> Result<(), BackendError> {
        self.entering.clone_from(batch);
        // The back computes the logits.
        self.entering.wanted.clear();
        let rows = &mut self.rows;
        let mut keep = |hidden: &[f32]| {
            rows.clear();
            rows.extend_from_slice(hidden);
        };
        self.front.step(ModelStep {
            batch: &self.entering,
            kv,
            cancel,
            on_logits: &mut |_, _| {},
            on_hidden: Some(&mut keep),
        })?;
        cross(batch, &self.rows, self.back.config().hidden_size, &mut self.crossing);
        Ok(())
    }
}

/// Downcasts to the store of this model.
fn store_of(kv: &mut dyn KvStore) -> Result<&mut OffloadedStore, BackendError> {
    kv.as_any_mut().downcast_mut().ok_or(BackendError::ForeignStore)
}

/// Makes the batch of the back: the same spans, with residual rows as embeddings.
fn cross(batch: &Batch, rows: &[f32], width: usize, crossing: &mut Batch) {
    crossing.clear();
    for span in &batch.spans {
        let values = &rows[span.rows.start * width..span.rows.end * width];
        let rows = InputRows::Embeddings { values, width };
        crossing.push(rows, span.first, &span.block_table, span.path).state.clone_from(&span.state);
    }
    crossing.wanted.extend_from_slice(&batch.wanted);
}

impl BackendModel for OffloadedModel {
    fn config(&self) -> &ModelConfig {
        self.back.config()
    }

    fn stages(&self) -> &[Stage] {
        &self.stages
    }

    fn new_kv_store(&self, blocks: u32, state_slots: u32) -> Result<Box<dyn KvStore>, BackendError> {
        let front = self.front.new_kv_store(blocks, state_slots)?;
        let back = self.back.new_kv_store(blocks, state_slots)?;
        Ok(Box::new(OffloadedStore::new(front, back)))
    }

    fn step(&mut self, step: ModelStep<'_>) -> Result<(), BackendError> {
        let ModelStep { batch, kv, cancel, on_logits, on_hidden } = step;
        let store = store_of(kv)?;
        self.run_front(batch, &mut *store.front, cancel)?;
        // The cast shortens the lifetime of the trait object, which is not coerced in an `Option`.
        let on_hidden = on_hidden.map(|hear| hear as HiddenSink<'_>);
        self.back.step(ModelStep {
            batch: &self.crossing,
            kv: &mut *store.back,
            cancel,
            on_logits,
            on_hidden,
        })
    }

    fn step_for_largest(
        &mut self,
        step: ModelStep<'_>,
        largest: LargestLogits<'_>,
    ) -> Result<(), BackendError> {
        let ModelStep { batch, kv, cancel, on_logits, on_hidden } = step;
        let store = store_of(kv)?;
        self.run_front(batch, &mut *store.front, cancel)?;
        let on_hidden = on_hidden.map(|hear| hear as HiddenSink<'_>);
        let behind = ModelStep { batch: &self.crossing, kv: &mut *store.back, cancel, on_logits, on_hidden };
        self.back.step_for_largest(behind, largest)
    }

    fn draft(&mut self, step: DraftStep<'_>) -> Result<(), BackendError> {
        // The MTP layer and its rows are on the back.
        let DraftStep { batch, hidden, kv, cancel, on_logits } = step;
        let store = store_of(kv)?;
        self.back.draft(DraftStep { batch, hidden, kv: &mut *store.back, cancel, on_logits })
    }

    fn draft_for_largest(
        &mut self,
        step: DraftStep<'_>,
        largest: LargestLogits<'_>,
    ) -> Result<(), BackendError> {
        let DraftStep { batch, hidden, kv, cancel, on_logits } = step;
        let store = store_of(kv)?;
        let behind = DraftStep { batch, hidden, kv: &mut *store.back, cancel, on_logits };
        self.back.draft_for_largest(behind, largest)
    }

    fn kernel_calls(&mut self, batch: &Batch, kv: &dyn KvStore) -> Result<Vec<NodeCalls>, BackendError> {
        let store: &OffloadedStore = kv.as_any().downcast_ref().ok_or(BackendError::ForeignStore)?;
        let width = self.back.config().hidden_size;
        // Nothing runs, so the values of the rows do not matter.
        self.rows.clear();
        self.rows.resize(batch.rows() * width, 0.0);
        cross(batch, &self.rows, width, &mut self.crossing);
        let mut calls = self.back.kernel_calls(&self.crossing, &*store.back)?;
        self.entering.clone_from(batch);
        self.entering.wanted.clear();
        // Stage indices of the front follow those of the back, as in `stages`.
        let behind = self.back.stages().len();
        let before = self.front.kernel_calls(&self.entering, &*store.front)?;
        calls.extend(before.into_iter().map(|node| NodeCalls { stage: behind + node.stage, ..node }));
        Ok(calls)
    }

    fn arithmetic(&self, (stage, bucket): (usize, usize), node: usize, rows: usize) -> Arithmetic {
        let behind = self.back.stages().len();
        match stage.checked_sub(behind) {
            None => self.back.arithmetic((stage, bucket), node, rows),
            Some(stage) => self.front.arithmetic((stage, bucket), node, rows),
        }
    }

    fn profile_clock(&self) -> ProfileClock {
        self.back.profile_clock()
    }

    fn wait_for_weights(&mut self) {
        self.front.wait_for_weights();
        self.back.wait_for_weights();
    }

    fn parallel(&mut self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        // The front is the CPU, which has threads.
        self.front.parallel(tasks, job);
    }

    fn start_profile(&mut self) {
        self.front.start_profile();
        self.back.start_profile();
    }

    fn stop_profile(&mut self) -> Vec<PlanTimes> {
        // In the order of `stages`: the back, then the front.
        let mut times = self.back.stop_profile();
        times.extend(self.front.stop_profile());
        times
    }

    fn start_timeline(&mut self, origin: Instant) {
        self.front.start_timeline(origin);
        self.back.start_timeline(origin);
    }

    fn stop_timeline(&mut self) -> Vec<PhaseSpan> {
        // Plan indices of the front follow those of the back, as in `stages`.
        let behind = self.back.stages().iter().map(|stage| stage.plans.len()).sum::<usize>();
        let mut spans = self.back.stop_timeline();
        let front = self.front.stop_timeline();
        spans.extend(front.into_iter().map(|span| PhaseSpan { plan: behind + span.plan, ..span }));
        spans
    }

    fn start_trace(
        &mut self,
        _activations: &Activations,
        _trace: ActivationTrace,
    ) -> Result<(), BackendError> {
        Err(BackendError::Unsupported(format!(
            "activations of a model with layers on two devices are not recorded: omit {}",
            Setting::Offload
        )))
    }

    fn stop_trace(&mut self) -> Option<ActivationTrace> {
        None
    }

    fn start_input_squares(&mut self) -> Result<(), BackendError> {
        Err(BackendError::Unsupported(format!(
            "importances of a model with layers on two devices are not collected: use {}",
            Setting::Device.to("cpu")
        )))
    }
}
