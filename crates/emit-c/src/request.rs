//! The request: a model to write as C, and its plans.

use crate::error::EmitError;
use latent_formats::{Checkpoint, CheckpointSource};
use latent_graph::passes::{BatchBucket, BindOptions, CacheForm, MlaChoice, Precision};
use latent_graph::stage_index::{LAYERS, LM_HEAD};
use latent_graph::{
    BackendTarget, CheckpointTensors, Circuit, Fusion, ModelConfig, Plan, Stage, StageOptions,
};
use latent_types::{CacheType, Tier};

/// Maximum tokens of a step of the C library; longer prompts take several steps.
// The arena and the scratch memory of experts grow with the rows of a step.
pub const MAX_EMITTED_ROWS: usize = 1024;

/// A model, and the options of the plan to write as C.
#[derive(Clone, Copy)]
pub struct EmitRequest<'a> {
    pub checkpoint: &'a Checkpoint,
    pub config: &'a ModelConfig,
    pub circuit: &'a Circuit,
    /// Formulation of MLA.
    pub mla: MlaChoice,
    /// Contents of the cache.
    pub form: CacheForm,
    /// Optional passes to omit.
    pub without: &'a [&'static str],
    /// Maximum tokens of a step, at most [`MAX_EMITTED_ROWS`].
    pub rows: usize,
}

/// The plans of the two stages. A model has one plan per stage, so the batch bucket is that of
/// `rows`.
pub(crate) struct EmittedPlans {
    pub(crate) layers: Plan,
    pub(crate) head: Plan,
}

/// The target of C plans: operations as the circuit states them, with independent ones in one
/// phase.
fn target() -> BackendTarget {
    // Phases only group nodes into functions here; one thread runs them in order. Nothing is fused:
    // the C code is for reading and debugging, so every value exists in memory.
    let fusion = Fusion { phases: true, ..Fusion::NONE };
    BackendTarget { fusion, sparse_attention: true, expanded_stores: true, ..BackendTarget::unfused("c") }
}

impl EmitRequest<'_> {
    /// The reasons why the C library cannot open the model's files. It maps one GGUF or packed
    /// file.
    pub(crate) fn refused_files(&self) -> Vec<String> {
        let mut refused = Vec::new();
        if matches!(self.checkpoint.source(), CheckpointSource::HuggingFace(_)) {
            refused.push("safetensors (make a GGUF file with `latent convert`)".to_owned());
        }
        if self.checkpoint.files() > 1 && refused.is_empty() {
            let files = self.checkpoint.files();
            refused.push(format!("a model in {files} files (write one with `latent convert`)"));
        }
        refused
    }

    pub(crate) fn plans(&self) -> Result<EmittedPlans, EmitError> {
        let rows = self.rows.clamp(1, MAX_EMITTED_ROWS);
        // The C code decodes weights as stored and has an f32 cache.
        let bind = BindOptions { precision: Precision::Exact, tier: Tier::Portable, cache: CacheType::F32 };
        let options =
            StageOptions { mla: self.mla, form: self.form, bind, max_batch_tokens: rows, mtp: false };
        let tensors = CheckpointTensors(self.checkpoint);
        let mut stages =
            Stage::of_model(self.circuit, self.config, &tensors, &target().without(self.without), &options)?;
        // A rank's part may have no head.
        if stages.len() <= LM_HEAD {
            return Err(EmitError::internal("a model without a head"));
        }
        let bucket = |rows: usize| BatchBucket::of(rows) as usize;
        // The head runs in chunks of `LM_HEAD_ROWS` rows, which is a small batch.
        let head_rows = rows.min(BatchBucket::SMALL_BATCH);
        let head = stages[LM_HEAD].plans.swap_remove(bucket(head_rows));
        let layers = stages[LAYERS].plans.swap_remove(bucket(rows));
        Ok(EmittedPlans { layers, head })
    }
}
