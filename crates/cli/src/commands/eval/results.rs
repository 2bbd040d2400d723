//! Output of results: text, JSON, and an HTML page.

use crate::args::ResultArgs;
use crate::{output, target};
use anyhow::Result;
use latent_engine::Engine;
use latent_evaluate::{Estimate, EvaluatedModel, Evaluation, EvaluationResult};
use latent_formats::{Checkpoint, OutputFile};
use std::io::Write;
use std::path::Path;

/// `1.7345 ± 0.0123`.
pub(super) fn with_error(estimate: Estimate, digits: usize) -> String {
    format!("{:.digits$} ± {:.digits$}", estimate.value, estimate.error)
}

/// `83.0 ± 2.2 %`.
pub(super) fn percent(share: Estimate, digits: usize) -> String {
    format!("{} %", with_error(Estimate { value: 100.0 * share.value, error: 100.0 * share.error }, digits))
}

/// Checks that the page can be written, before the work begins.
pub(super) fn check(args: &ResultArgs, replace: bool) -> Result<()> {
    args.html.as_deref().map_or(Ok(()), |path| target::check(path, replace))
}

/// Describes a model that was run, with the settings that affect its results.
pub(super) fn measured(checkpoint: &Checkpoint, engine: &Engine) -> EvaluatedModel {
    let summary = engine.summary();
    EvaluatedModel {
        name: summary.name.clone(),
        precision: engine.bind().precision.to_string(),
        isa: summary.tier.name().to_owned(),
        cache: summary.cache.name().to_owned(),
        ..unmeasured(checkpoint)
    }
}

/// Describes a model that was not run.
pub(super) fn unmeasured(checkpoint: &Checkpoint) -> EvaluatedModel {
    EvaluatedModel {
        file: checkpoint.display_name(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..EvaluatedModel::default()
    }
}

/// Prints a result and writes its page.
pub(super) fn show(args: &ResultArgs, evaluation: &Evaluation, lines: &[String]) -> Result<()> {
    if let Some(path) = &args.html {
        // Before the output: printing fails if the pipe is closed, and the measurements would be
        // lost.
        write_page(path, std::slice::from_ref(evaluation))?;
    }
    if args.json {
        return output::json(&serde_json::to_value(evaluation)?);
    }
    lines.iter().try_for_each(|line| output::line(line))
}

pub(super) fn write_page(path: &Path, evaluations: &[Evaluation]) -> Result<()> {
    let mut out = OutputFile::create(path)?;
    let page = latent_evaluate::report(evaluations);
    out.write_all(page.as_bytes()).map_err(|error| out.failed(error))?;
    out.finish()?;
    Ok(())
}

/// A result and the input file that it was measured with.
pub(super) fn evaluation(model: EvaluatedModel, input: Option<&Path>, found: EvaluationResult) -> Evaluation {
    let input = input.map(|path| path.display().to_string()).unwrap_or_default();
    Evaluation { model, input, found }
}
