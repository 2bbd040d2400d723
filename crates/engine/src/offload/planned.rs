//! The plans of a model or of one side of it, and the memory that it needs.

use crate::error::EngineError;
use crate::options::ResolvedOptions;
use crate::pieces::{LargePiece, PieceKind};
use latent_backend::{LayerState, MemoryEstimate, WeightBytes, WeightSource};
use latent_formats::Checkpoint;
use latent_graph::{CheckpointTensors, ModelConfig, Stage};
use latent_types::CacheType;

/// The plans of one backend.
pub(crate) struct BackendPlan<'a> {
    pub(crate) resolved: ResolvedOptions<'a>,
    pub(crate) stages: Vec<Stage>,
    pub(crate) weights: WeightBytes,
}

impl<'a> BackendPlan<'a> {
    pub(crate) fn new(
        resolved: ResolvedOptions<'a>,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
    ) -> Result<BackendPlan<'a>, EngineError> {
        let stages = resolved.stages(config, &CheckpointTensors(checkpoint))?;
        let weights = resolved.weight_bytes(&stages, WeightSource::File(checkpoint));
        Ok(BackendPlan { resolved, stages, weights })
    }

    /// Replaces the plans with plans for steps of `tokens` tokens.
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

    /// Memory with a context of `context` tokens.
    pub(crate) fn needed(&self, config: &ModelConfig, context: usize) -> MemoryEstimate {
        self.resolved.estimate(config, &self.stages, self.weights, context)
    }

    /// The largest allocation of its KV cache with a context of `context` tokens.
    pub(crate) fn cache_piece(&self, context: usize) -> LargePiece {
        let cache = self.resolved.options.stages.bind.cache;
        let layers = self.resolved.backend.layer_states(&self.stages);
        let row = layers.iter().filter_map(LayerState::per_token).map(|rows| rows.row(cache).bytes()).max();
        let tokens = self.resolved.cache_rows(context);
        let bytes = (tokens as u64).saturating_mul(row.unwrap_or(0) as u64);
        let of = PieceKind::Cache { tokens, smaller_cache: cache == CacheType::F32 };
        LargePiece { of, bytes, most: self.resolved.backend.largest_piece() }
    }

    /// The largest intermediate of a step of `tokens` tokens.
    pub(crate) fn step_piece(&self, config: &ModelConfig, tokens: usize) -> LargePiece {
        let planned = self.resolved.options.stages.max_batch_tokens;
        let plans = self.stages.iter().flat_map(|stage| &stage.plans);
        // Plans of heads have another maximum number of rows, which does not grow with the step.
        let plans = plans.filter(|plan| plan.max_rows == planned);
        let values = plans.map(|plan| plan.largest_value() as u64);
        // At least the residual stream, in f32.
        let values = values.fold((planned as u64).saturating_mul(4 * config.hidden_size as u64), u64::max);
        // Values grow linearly with the rows, so that steps of any size need no plans of their own.
        let bytes = (values / planned.max(1) as u64).saturating_mul(tokens as u64);
        LargePiece { of: PieceKind::Step { tokens }, bytes, most: self.resolved.backend.largest_piece() }
    }
}
