//! `latent eval routing`.

use super::corpus;
use super::failure::failed;
use super::results::{self, evaluation, measured};
use crate::args::RoutingArgs;
use crate::{model, progress};
use anyhow::Result;
use latent_evaluate::{EvalError, EvaluationResult, RoutingStatistics};

pub(super) fn run(args: &RoutingArgs) -> Result<()> {
    results::check(&args.result, args.model.engine.force)?;
    let checkpoint = model::open_shared(&args.model)?;
    let config = latent_graph::ModelConfig::before_loading(&checkpoint)?;
    if config.moe.is_none() {
        return Err(failed(EvalError::NoRouter));
    }
    let mut engine_args = args.model.engine.clone();
    let chunks = corpus::chunks(&args.text, &checkpoint, &engine_args, args.chunks)?;
    engine_args.ctx_size = Some(chunks.context());
    let bos = corpus::bos(&checkpoint)?;
    let quiet = args.result.json;
    let mut engine = model::load(&checkpoint, &engine_args, quiet)?;
    let activations = engine.activations(&checkpoint)?;
    let bar = progress::bar(!quiet, "reading");
    let mut show = corpus::show(&bar, &chunks);
    let found = latent_evaluate::routing(&mut engine, &activations, (&chunks, bos), &args.rows, &mut show)
        .map_err(failed);
    bar.finish_and_clear();
    let found = found?;
    let lines = lines(&found);
    let result =
        evaluation(measured(&checkpoint, &engine), Some(&args.text), EvaluationResult::Routing(found));
    results::show(&args.result, &result, &lines)
}

fn lines(found: &RoutingStatistics) -> Vec<String> {
    let mut lines = vec![format!("{} tokens", found.tokens)];
    lines.push(format!("{:>5}{:>9}{:>11}{:>11}{:>8}", "layer", "experts", "entropy", "imbalance", "unused"));
    for layer in &found.layers {
        lines.push(format!(
            "{:>5}{:>9}{:>11.4}{:>9.2} ×{:>8}",
            layer.layer,
            layer.load.len(),
            layer.entropy,
            layer.imbalance,
            layer.unused
        ));
    }
    lines.push(
        "different experts per layer that a step reads, and its bytes over those of a step of one row:"
            .into(),
    );
    lines.push(format!(
        "{:>5}{:>12}{:>9}{:>12}{:>9}{:>10}",
        "rows", "neighbours", "bytes", "far apart", "bytes", "uniform"
    ));
    for step in &found.steps {
        lines.push(format!(
            "{:>5}{:>12.2}{:>7.2} ×{:>12.2}{:>7.2} ×{:>10.2}",
            step.rows, step.neighbours, step.neighbours_bytes, step.apart, step.apart_bytes, step.uniform
        ));
    }
    lines
}
