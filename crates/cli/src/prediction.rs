//! What is predicted of a model on several hosts.

use crate::args::ModelArgs;
use crate::hosts_file::HostsFile;
use crate::{exit, model};
use anyhow::Result;
use latent_engine::{Engine, EngineOptions};
use latent_graph::{ModelConfig, Stage};
use latent_hosts::predict::{self, Case, PlannedModel, Prediction};
use std::sync::Arc;

/// Does something with a model of which only plans are made.
///
/// # Errors
/// A model or options that no plans can be made of; what `then` fails with.
pub(crate) fn planned<T>(
    args: &ModelArgs,
    then: impl FnOnce(&PlannedModel<'_>, usize) -> Result<T>,
) -> Result<T> {
    let model = model::describe(args.model.as_deref(), args.engine.circuit.as_deref())?;
    let circuit = Some(Arc::new(model.circuit.clone().into_owned()));
    let options = EngineOptions { circuit, ..args.engine.options() };
    let backend = args.engine.backend()?;
    let resolved = options.resolve(&*backend, &model.config).map_err(exit::usage_of)?;
    let stages = |config: &ModelConfig| -> Result<Vec<Stage>, String> {
        let stages = resolved.stages(config, model.tensors()).map_err(|error| error.to_string())?;
        let weights = stages.iter().flat_map(Stage::weights);
        match weights.into_iter().find(|weight| weight.ty.row_bytes(weight.inputs()).is_none()) {
            Some(weight) => {
                Err(format!("tensor {} would be cut within a block of its format", weight.parts[0].tensor))
            }
            None => Ok(stages),
        }
    };
    let bound = resolved.options.stages;
    let planned =
        PlannedModel { config: &model.config, mla: bound.mla, cache: bound.bind.cache, stages: &stages };
    then(&planned, options.context.unwrap_or(model.config.context_length))
}

/// What is expected of a run of this engine over ranks; none without a file of hosts, or where the model is on one host.
///
/// # Errors
/// A file of hosts that is none, or is for other ranks.
pub(crate) fn of_engine(args: &ModelArgs, engine: &Engine, case: &Case) -> Result<Option<Prediction>> {
    let (Some(path), Some(partition)) = (&args.engine.hosts_file, engine.partition()) else {
        return Ok(None);
    };
    let file = HostsFile::read(path)?;
    let found =
        planned(args, |model, _| Ok(predict::predict(model, &file.hosts, file.link, partition, case)?))?;
    Ok(Some(found))
}
