//! Predicted speed of a model over ranks, compared with the measured speed.

use crate::args::ModelArgs;
use crate::{output, prediction};
use anyhow::Result;
use latent_engine::Engine;
use latent_hosts::predict::PredictionCase;

/// What is predicted of a test.
#[derive(Clone, Copy)]
pub(super) struct BenchPrediction {
    /// Tokens per second.
    pub(super) speed: f64,
    /// Seconds of a decode step that values are on their way between ranks.
    pub(super) links: f64,
}

/// What is predicted of a test; none without a file of hosts, or on one host.
pub(super) fn of_test(
    args: &ModelArgs,
    engine: &Engine,
    case: &PredictionCase,
) -> Result<Option<BenchPrediction>> {
    let found = prediction::of_engine(args, engine, case)?;
    Ok(found.and_then(|found| {
        let speed = match (case.prompt, found.first_token) {
            (0, _) => found.tokens_per_second,
            (prompt, Some(seconds)) => prompt as f64 / seconds,
            (_, None) => return None,
        };
        Some(BenchPrediction { speed, links: found.links })
    }))
}

/// A line for each test that something is predicted of.
pub(super) fn print(rows: &[(&str, f64, Option<BenchPrediction>)]) -> Result<()> {
    if rows.iter().all(|(_, _, predicted)| predicted.is_none()) {
        return Ok(());
    }
    output::line("")?;
    output::line("| test | predicted t/s | measured t/s | measured / predicted |")?;
    output::line("| --- | ---: | ---: | ---: |")?;
    for (test, measured, predicted) in rows {
        if let Some(BenchPrediction { speed, .. }) = predicted {
            let part = measured / speed;
            output::line(&format!("| {test} | {speed:.2} | {measured:.2} | {part:.2} |"))?;
        }
    }
    Ok(())
}
