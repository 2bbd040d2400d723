//! Stages: the parts of a model that a step runs one after another, each with a plan per batch
//! bucket.

use crate::circuit::{Circuit, StageSpec, TensorIndex, Weight, check_all_used};
use crate::config::ModelConfig;
use crate::error::GraphError;
use crate::ir::{Ir, KvLayer, ModelSide, ModelSpan};
use crate::passes::{BatchBucket, BindOptions, CacheForm, MlaChoice};
use crate::plan::{Plan, PlanOptions};
use crate::target::BackendTarget;
use std::collections::HashSet;

/// Rows whose logits one run of the head's stage computes.
// Logits take 4 bytes × vocabulary per row, and a prompt needs only those of its last row. Backends
// run the stage in chunks if more rows need logits.
pub const LM_HEAD_ROWS: usize = 16;

/// One part of a model. Rows of the residual stream enter and leave it, unless it starts with token
/// ids or ends in logits.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Its name in the circuit.
    pub name: String,
    /// One plan per [`BatchBucket`], in the order of [`BatchBucket::ALL`].
    pub plans: Vec<Plan>,
}

/// Options of a model's plans that do not depend on the backend.
#[derive(Clone, Copy, Debug)]
pub struct StageOptions {
    /// Formulation of MLA.
    pub mla: MlaChoice,
    /// What the KV cache stores.
    pub form: CacheForm,
    /// Precision, ISA limit and element type of the KV cache.
    pub bind: BindOptions,
    /// Maximum batch size in tokens.
    pub max_batch_tokens: usize,
    /// Whether to add the stages of the MTP layer, which drafts tokens.
    pub mtp: bool,
}

impl Stage {
    /// The plan for a step of `rows` rows.
    pub fn plan(&self, rows: usize) -> &Plan {
        &self.plans[BatchBucket::of(rows) as usize]
    }

    /// The weights of the stage. All its plans use the same weights in the same order, so they are
    /// loaded once.
    pub fn weights(&self) -> &[Weight] {
        &self.plans[0].ir.weights
    }

    /// The KV layers that it writes and reads.
    pub fn kv_layers(&self) -> &[KvLayer] {
        &self.plans[0].ir.kv_layers
    }

    /// The stages of `circuit` in order: token ids to the residual stream through all layers, then
    /// residual stream to logits. With [`StageOptions::mtp`], those of the first MTP layer follow:
    /// residual stream and next tokens through that layer, then to logits.
    ///
    /// # Errors
    /// A stage that is not supported; a requested MTP layer that does not exist; a missing tensor
    /// or one of another shape; an operation without a kernel on the target.
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
            // A rank's plans contain only its own layers, so unused adapter matrices mean nothing
            // there.
            check_all_used(
                stages.iter().flat_map(Stage::weights),
                tensors,
                config.layers..config.all_layers(),
            )?;
        }
        Ok(stages)
    }

    /// The stages of one side of a model that is cut in two. [`ModelSide::From`] has those of
    /// [`of_model`](Self::of_model) in the same order, and its first stage reads residual rows as
    /// embeddings. [`ModelSide::Before`] has the stage of the layers alone.
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
            // The head's arena holds one chunk of rows, whatever the batch size.
            let max_batch_tokens = if span.head { LM_HEAD_ROWS } else { options.max_batch_tokens };
            // Built once and cloned: looking up tensors is the expensive part, and the buckets
            // differ only in passes.
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

/// Indices of the stages of [`Stage::of_model`].
pub mod stage_index {
    /// Token ids through all layers.
    pub const LAYERS: usize = 0;
    /// Residual stream to logits.
    pub const LM_HEAD: usize = 1;
    /// Residual stream and next tokens through the MTP layer.
    pub const MTP: usize = 2;
    /// MTP layer to logits.
    pub const MTP_HEAD: usize = 3;

    /// The index of the MTP layer's stage, if any.
    pub fn mtp(stages: &[super::Stage]) -> Option<usize> {
        stages.get(MTP).filter(|stage| stage.plans[0].span.mtp).map(|_| MTP)
    }

    /// The stage of the first layers, if another backend runs them. It is the last stage, so that
    /// the indices of the others do not change.
    pub fn front(stages: &[super::Stage]) -> Option<usize> {
        let last = stages.len().checked_sub(1).filter(|last| *last > LM_HEAD)?;
        let span = &stages[last].plans[0].span;
        // The last stage of other models ends in logits, or belongs to the MTP layer.
        (!span.mtp && !span.head).then_some(last)
    }
}

/// Each weight of some stages once. A tied embedding is one tensor in two slots.
pub fn distinct_weights(stages: &[Stage]) -> impl Iterator<Item = &Weight> {
    let mut seen = HashSet::new();
    // By tensor name: the same tensor can fill slots of several stages.
    stages.iter().flat_map(Stage::weights).filter(move |weight| seen.insert(weight.key()))
}
