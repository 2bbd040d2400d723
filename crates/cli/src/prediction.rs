//! Predicted performance of a model on several hosts.

use crate::args::ModelArgs;
use crate::hosts_file::HostsFile;
use crate::{exit, model};
use anyhow::Result;
use latent_engine::EngineOptions;
use latent_formats::{CheckpointSource, Outline};
use latent_graph::{ModelConfig, Partition};
use latent_hosts::predict::{self, PlannedModel, PlannedPart, Prediction, PredictionCase};
use std::sync::Arc;

/// Calls `then` with the plans of a model whose weights are not loaded.
///
/// # Errors
/// A model or options without plans, or an error of `then`.
pub(crate) fn planned<T>(
    args: &ModelArgs,
    then: impl FnOnce(&PlannedModel<'_>, usize, &Outline) -> Result<T>,
) -> Result<T> {
    let described = model::describe(args.model.as_deref(), args.engine.circuit.as_deref());
    // An incomplete set of shards fails in `describe` only if a needed tensor is missing. The count
    // of shards is checked in both cases and gives the clearer error.
    match &described {
        Ok(model) => check_shards(&model.outline)?,
        Err(_) => check_shards(&model::outline(args.model.as_deref())?)?,
    }
    let model = described?;
    let circuit = Some(Arc::new(model.circuit.clone().into_owned()));
    let options = EngineOptions { circuit, ..args.engine.options() };
    let backend = args.engine.backend()?;
    let resolved = options.resolve(&*backend, &model.config).map_err(exit::usage_of)?;
    let context = options.context.unwrap_or(model.config.context_length);
    let plan = |config: &ModelConfig| -> Result<PlannedPart, String> {
        let tensors = model.tensors();
        let stages = resolved.stages(config, tensors).map_err(|error| error.to_string())?;
        if config.part.is_some() {
            latent_engine::check_cut(&model.outline, tensors, &stages).map_err(|error| error.to_string())?;
        }
        // Scratch for collectives depends on the number of ranks. The predictor adds it, so it is
        // left out here.
        let alone = ModelConfig { part: None, ..config.clone() };
        let scratch = backend.scratch_bytes(&alone, &stages, &resolved.options, context);
        Ok(PlannedPart { stages, scratch: (scratch.arena + scratch.expanded) as f64 })
    };
    let bound = resolved.options.stages;
    let planned = PlannedModel {
        config: &model.config,
        mla: bound.mla,
        cache: bound.bind.cache,
        step_rows: bound.max_batch_tokens,
        plan: &plan,
    };
    then(&planned, context, &model.outline)
}

/// Refuses an incomplete set of shards: it does not tell the tensors of the missing ones.
fn check_shards(outline: &Outline) -> Result<()> {
    let CheckpointSource::Gguf(source) = outline.source() else { return Ok(()) };
    let (here, all) = (source.shards as u64, source.metadata.u64("split.count")?.unwrap_or(0));
    if here >= all {
        return Ok(());
    }
    let problem = format!(
        "{}: {here} of its {all} shards are present; predictions assume all of them",
        outline.display_name()
    );
    Err(exit::UsageError(problem).into())
}

/// The predicted run of a model over ranks; `None` without a hosts file or on one host.
pub(crate) fn of_partition(
    args: &ModelArgs,
    partition: Option<&Partition>,
    case: &PredictionCase,
) -> Result<Option<Prediction>> {
    let (Some(path), Some(partition)) = (&args.engine.hosts_file, partition) else {
        return Ok(None);
    };
    let file = HostsFile::read(path)?;
    let found =
        planned(args, |model, _, _| Ok(predict::predict(model, &file.hosts, file.link, partition, case)?))?;
    Ok(Some(found))
}
