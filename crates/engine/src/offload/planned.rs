//! The plans of a model, or of one side of it, and what it takes of memory.

use crate::error::EngineError;
use crate::options::Resolved;
use latent_backend::{LayerState, MemoryEstimate, WeightBytes, WeightSource};
use latent_formats::Checkpoint;
use latent_graph::{CheckpointTensors, ModelConfig, Stage};

/// What runs on one backend.
pub(crate) struct Planned<'a> {
    pub(crate) resolved: Resolved<'a>,
    pub(crate) stages: Vec<Stage>,
    pub(crate) weights: WeightBytes,
}

impl<'a> Planned<'a> {
    /// Plans; `own` holds the weights.
    pub(crate) fn new(
        resolved: Resolved<'a>,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
    ) -> Result<Planned<'a>, EngineError> {
        let stages = resolved.stages(config, &CheckpointTensors(checkpoint))?;
        let weights = resolved.weight_bytes(&stages, WeightSource::File(checkpoint));
        Ok(Planned { resolved, stages, weights })
    }

    /// Plans anew for steps of so many tokens.
    pub(crate) fn with_steps_of(
        &mut self,
        tokens: usize,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
    ) -> Result<(), EngineError> {
        self.resolved.options.stages.max_batch_tokens = tokens;
        self.stages = self.resolved.stages(config, &CheckpointTensors(checkpoint))?;
        Ok(())
    }

    /// What it takes with a context of so many tokens.
    pub(crate) fn needed(&self, config: &ModelConfig, context: usize) -> MemoryEstimate {
        self.resolved.estimate(config, &self.stages, self.weights, context)
    }

    /// Whether a layer keeps a state in place of rows.
    pub(crate) fn is_recurrent(&self) -> bool {
        let layers = self.resolved.backend.layer_states(&self.stages);
        layers.iter().any(|layer| matches!(layer, LayerState::Recurrent(_)))
    }
}
