//! `latent-dynamo`: a worker of NVIDIA Dynamo.

use anyhow::{Result, bail};
use clap::Parser;
use dynamo_backend_common::{CommonArgs, DisaggregationMode};
use latent_dynamo::{LatentEngine, Options, card};
use std::sync::Arc;
use std::time::Duration;

/// A worker of NVIDIA Dynamo that runs a model with Latent.
///
/// Also run `python -m dynamo.frontend --router-mode kv` with the same --discovery-backend. See
/// README.md.
#[derive(Parser)]
#[command(name = "latent-dynamo", version)]
struct Arguments {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    options: Options,
}

/// The part of Dynamo's shutdown time that the worker needs after its requests have ended.
const RESERVE: Duration = Duration::from_secs(1);

/// How long requests may take after the worker has been told to shut down: Dynamo's shutdown time,
/// with Dynamo's default.
fn patience() -> Duration {
    let own = if cfg!(debug_assertions) { 5 } else { 30 };
    let told =
        std::env::var("DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT").ok().and_then(|value| value.parse().ok());
    Duration::from_secs(told.unwrap_or(own)).saturating_sub(RESERVE)
}

fn main() -> Result<()> {
    let Arguments { common, options } = Arguments::parse();
    if common.disaggregation_mode != DisaggregationMode::Aggregated {
        bail!("--disaggregation-mode: this worker reads prompts and answers them: only agg is supported");
    }
    let config = options.worker(common, &card(&options)?);
    let engine = Arc::new(LatentEngine::new(options, patience()));
    dynamo_backend_common::run(Arc::<LatentEngine>::clone(&engine) as _, config)?;
    match engine.fault() {
        Some(problem) => bail!("the engine has failed: {problem}"),
        None => Ok(()),
    }
}
