//! The two sides of a model as one: the residual rows of a step cross once, from the front to the back.

use super::store::OffloadedStore;
use latent_backend::{
    BackendError, Batch, DraftStep, HiddenSink, InputRows, KvStore, Model, PlanTimes, Step, Trace,
};
use latent_graph::activations::Activations;
use latent_graph::{ModelConfig, Stage};

/// A model whose first layers another backend runs.
pub(crate) struct OffloadedModel {
    front: Box<dyn Model>,
    back: Box<dyn Model>,
    /// Those of the back, and behind them that of the front.
    stages: Vec<Stage>,
    /// Residual rows on their way.
    rows: Vec<f32>,
    /// The step as each side gets it.
    entering: Batch,
    crossing: Batch,
}

impl OffloadedModel {
    pub(crate) fn new(front: Box<dyn Model>, back: Box<dyn Model>) -> OffloadedModel {
        let stages = back.stages().iter().chain(front.stages()).cloned().collect();
        let (entering, crossing) = (Batch::default(), Batch::default());
        OffloadedModel { front, back, stages, rows: Vec::new(), entering, crossing }
    }
}

/// Makes of a step the one behind the cut: its rows are those that cross.
fn cross(batch: &Batch, rows: &[f32], width: usize, crossing: &mut Batch) {
    crossing.clear();
    for span in &batch.spans {
        let values = &rows[span.rows.start * width..span.rows.end * width];
        crossing.push(InputRows::Embeddings { values, width }, span.first, &span.block_table, span.path);
    }
    crossing.wanted.extend_from_slice(&batch.wanted);
}

impl Model for OffloadedModel {
    fn config(&self) -> &ModelConfig {
        self.back.config()
    }

    fn stages(&self) -> &[Stage] {
        &self.stages
    }

    fn new_kv_store(&self, blocks: u32, _state_slots: u32) -> Result<Box<dyn KvStore>, BackendError> {
        let (front, back) = (self.front.new_kv_store(blocks, 0)?, self.back.new_kv_store(blocks, 0)?);
        Ok(Box::new(OffloadedStore::new(front, back)))
    }

    fn step(&mut self, step: Step<'_>) -> Result<(), BackendError> {
        let Step { batch, kv, cancel, on_logits, on_hidden } = step;
        let store: &mut OffloadedStore = kv.as_any_mut().downcast_mut().ok_or(BackendError::ForeignStore)?;
        self.entering.clone_from(batch);
        // logits come from the other side
        self.entering.wanted.clear();
        let rows = &mut self.rows;
        let mut hear = |hidden: &[f32]| {
            rows.clear();
            rows.extend_from_slice(hidden);
        };
        self.front.step(Step {
            batch: &self.entering,
            kv: &mut *store.front,
            cancel,
            on_logits: &mut |_, _| {},
            on_hidden: Some(&mut hear),
        })?;
        cross(batch, &self.rows, self.back.config().hidden_size, &mut self.crossing);
        let on_hidden = on_hidden.map(|hear| hear as HiddenSink<'_>);
        self.back.step(Step { batch: &self.crossing, kv: &mut *store.back, cancel, on_logits, on_hidden })
    }

    fn draft(&mut self, step: DraftStep<'_>) -> Result<(), BackendError> {
        let DraftStep { batch, hidden, kv, cancel, on_logits } = step;
        let store: &mut OffloadedStore = kv.as_any_mut().downcast_mut().ok_or(BackendError::ForeignStore)?;
        self.back.draft(DraftStep { batch, hidden, kv: &mut *store.back, cancel, on_logits })
    }

    fn wait_for_weights(&mut self) {
        self.front.wait_for_weights();
        self.back.wait_for_weights();
    }

    fn parallel(&mut self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        self.front.parallel(tasks, job);
    }

    fn start_profile(&mut self) {
        self.front.start_profile();
        self.back.start_profile();
    }

    fn stop_profile(&mut self) -> Vec<PlanTimes> {
        let mut times = self.back.stop_profile();
        times.extend(self.front.stop_profile());
        times
    }

    fn start_trace(&mut self, _activations: &Activations, _trace: Trace) -> Result<(), BackendError> {
        let problem = "activations of a model with layers on two devices are not recorded: leave -ngl out";
        Err(BackendError::Unsupported(problem.into()))
    }

    fn stop_trace(&mut self) -> Option<Trace> {
        None
    }

    fn start_input_squares(&mut self) -> Result<(), BackendError> {
        let problem =
            "importances of a model with layers on two devices are not collected: take --device cpu";
        Err(BackendError::Unsupported(problem.into()))
    }
}
