//! Stages: the parts of a model that a step runs one after the other, each with a plan per batch bucket.

use crate::circuit::{Circuit, StageSpec, TensorIndex, Weight, check_all_used};
use crate::config::ModelConfig;
use crate::error::GraphError;
use crate::ir::{Ir, KvLayer, ModelSide, ModelSpan};
use crate::passes::{BatchBucket, BindOptions, CacheForm, MlaChoice};
use crate::plan::{Plan, PlanOptions};
use crate::target::BackendTarget;
use std::collections::HashSet;

/// Rows of the residual stream whose logits one run of the last stage computes.
pub const LM_HEAD_ROWS: usize = 16;

/// One part of a model. Its input and its result are rows of the residual stream, unless it begins with token ids or ends in logits.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Its name in the circuit.
    pub name: String,
    /// One plan per [`BatchBucket`], in its order.
    pub plans: Vec<Plan>,
}

/// What the plans of a model are made with, whatever the backend.
#[derive(Clone, Copy, Debug)]
pub struct StageOptions {
    /// Formulation of MLA.
    pub mla: MlaChoice,
    /// What the KV cache stores.
    pub form: CacheForm,
    /// Precision, ISA limit and element type of the KV cache.
    pub bind: BindOptions,
    /// Most tokens of one step.
    pub max_batch_tokens: usize,
    /// Whether there are stages of the MTP layer too, which drafts tokens.
    pub mtp: bool,
}

impl Stage {
    /// The plan that a step of `rows` rows runs.
    pub fn plan(&self, rows: usize) -> &Plan {
        &self.plans[BatchBucket::of(rows) as usize]
    }

    /// The weights of the stage. All its plans use the same ones, in the same order.
    pub fn weights(&self) -> &[Weight] {
        &self.plans[0].ir.weights
    }

    /// The layers of KV cache that it writes and reads.
    pub fn kv_layers(&self) -> &[KvLayer] {
        &self.plans[0].ir.kv_layers
    }

    /// The stages of `circuit` in order: token ids to residual stream through all layers, then residual stream to logits. With
    /// [`StageOptions::mtp`] those of the first MTP layer follow: residual stream and next tokens through that layer, then to logits.
    ///
    /// # Errors
    /// A stage that nothing runs; no MTP layer where one is wanted; a tensor that is missing or has another shape; no kernel of the target for an operation.
    pub fn of_model(
        circuit: &Circuit,
        config: &ModelConfig,
        tensors: &dyn TensorIndex,
        target: &BackendTarget,
        options: &StageOptions,
    ) -> Result<Vec<Stage>, GraphError> {
        let spans = ModelSpan::of_stages(circuit, config, options.mtp)?;
        let stages = Stage::of_spans((circuit, spans), config, tensors, target, options)?;
        if config.part.is_none() {
            check_all_used(
                stages.iter().flat_map(Stage::weights),
                tensors,
                config.layers..config.all_layers(),
            )?;
        }
        Ok(stages)
    }

    /// The stages of one side of a model that is cut in two. Those of [`ModelSide::From`] are in the order of [`of_model`](Self::of_model), and their first
    /// one reads residual rows as embeddings; [`ModelSide::Before`] has the layers' stage alone.
    pub fn of_side(
        (circuit, side): (&Circuit, ModelSide),
        config: &ModelConfig,
        tensors: &dyn TensorIndex,
        target: &BackendTarget,
        options: &StageOptions,
    ) -> Result<Vec<Stage>, GraphError> {
        let spans = ModelSpan::of_side(circuit, config, options.mtp, side)?;
        Stage::of_spans((circuit, spans), config, tensors, target, options)
    }

    fn of_spans(
        (circuit, spans): (&Circuit, Vec<(&StageSpec, ModelSpan)>),
        config: &ModelConfig,
        tensors: &dyn TensorIndex,
        target: &BackendTarget,
        options: &StageOptions,
    ) -> Result<Vec<Stage>, GraphError> {
        let stage = |(spec, span): (&StageSpec, ModelSpan)| {
            let max_batch_tokens = if span.head { LM_HEAD_ROWS } else { options.max_batch_tokens };
            let ir = Ir::build_with(circuit, config, &span, tensors)?;
            let plan = |bucket| {
                let &StageOptions { mla, form, bind, .. } = options;
                let options = PlanOptions { span: span.clone(), bucket, max_batch_tokens, mla, form, bind };
                Plan::from_ir(ir.clone(), config, target, &options)
            };
            let plans = BatchBucket::ALL.into_iter().map(plan).collect::<Result<_, _>>()?;
            Ok(Stage { name: spec.name.clone(), plans })
        };
        spans.into_iter().map(stage).collect()
    }
}

/// Which of the stages of [`Stage::of_model`] one is, by its index.
pub mod stage_index {
    /// From token ids through all layers.
    pub const LAYERS: usize = 0;
    /// From the residual stream to logits.
    pub const LM_HEAD: usize = 1;
    /// From the residual stream and the next tokens through the MTP layer.
    pub const MTP: usize = 2;
    /// From the MTP layer to logits.
    pub const MTP_HEAD: usize = 3;

    /// The index of the MTP layer's stage, if any.
    pub fn mtp(stages: &[super::Stage]) -> Option<usize> {
        stages.get(MTP).filter(|stage| stage.plans[0].span.mtp).map(|_| MTP)
    }

    /// The stage of the first layers, in a model that runs them on another backend than the others: it stands behind all others, so that these are
    /// where they always are.
    pub fn front(stages: &[super::Stage]) -> Option<usize> {
        let last = stages.len().checked_sub(1).filter(|last| *last > LM_HEAD)?;
        let span = &stages[last].plans[0].span;
        (!span.mtp && !span.head).then_some(last)
    }
}

/// Each weight of some stages once: a tied embedding is one tensor under two slots.
pub fn distinct_weights(stages: &[Stage]) -> impl Iterator<Item = &Weight> {
    let mut seen = HashSet::new();
    stages.iter().flat_map(Stage::weights).filter(move |weight| seen.insert(weight.key()))
}
