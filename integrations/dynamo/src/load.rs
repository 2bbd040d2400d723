//! Loading the model.

use crate::options::Options;
use anyhow::{Context, Result};
use latent_engine::cache::DiskCache;
use latent_engine::sampling::RecommendedParams;
use latent_engine::scheduler::SchedulerOptions;
use latent_engine::worker::WorkerModel;
use latent_engine::{Engine, EngineError, EngineOptions};
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;
use latent_text::Tokenizer;
use std::sync::Arc;

/// Longest default of a request's context: a cache of several of the model's own limit would seldom
/// fit.
const DEFAULT_CONTEXT: usize = 32_768;

/// Default number of contexts in the KV cache, memory permitting.
const CONTEXTS: usize = 4;

/// What requests need to know of a loaded model.
pub(crate) struct Served {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) recommended: RecommendedParams,
    pub(crate) context: usize,
}

/// Loads the model, and says how far it is.
pub(crate) fn load(options: &Options) -> Result<(WorkerModel, Served)> {
    let checkpoint = Arc::new(Checkpoint::open(&options.model)?);
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint).context(checkpoint.display_name())?);
    let recommended = RecommendedParams::of(&checkpoint)?;
    let engine = engine(options, &checkpoint)?;
    let options = SchedulerOptions {
        max_running: options.parallel.into(),
        disk: disk(options)?,
        ..SchedulerOptions::default()
    };
    let served = Served { tokenizer: Arc::clone(&tokenizer), recommended, context: engine.context() };
    Ok((WorkerModel { engine, tokenizer, options }, served))
}

fn engine(options: &Options, checkpoint: &Arc<Checkpoint>) -> Result<Engine> {
    let backend = latent_backends::by_name(&options.device)?;
    let limit = ModelConfig::from_checkpoint(checkpoint)?.context_length;
    let context = options.ctx_size.map_or(limit.min(DEFAULT_CONTEXT), |tokens| tokens as usize);
    let own = EngineOptions {
        context: Some(context),
        cache_tokens: options.cache_tokens.map(|tokens| tokens as usize),
        threads: options.threads.map(usize::from),
        cache: options.cache_type,
        precision: options.precision,
        ..EngineOptions::default()
    };
    let mut tenth = 0;
    let mut progress = |done: u64, total: u64| {
        let now = (done * 10).checked_div(total).unwrap_or(0);
        if now > tenth {
            tenth = now;
            tracing::info!("loading the model: {} %", now * 10);
        }
    };
    if own.cache_tokens.is_none() {
        let several = EngineOptions { cache_tokens: Some(CONTEXTS * context), ..own.clone() };
        match Engine::load(&*backend, checkpoint, &several, &mut progress) {
            Err(EngineError::Memory(_) | EngineError::Piece(_)) => tracing::info!("the KV cache holds one context: memory is short"),
            loaded => return Ok(loaded?),
        }
    }
    Ok(Engine::load(&*backend, checkpoint, &own, &mut progress)?)
}

fn disk(options: &Options) -> Result<Option<DiskCache>> {
    let Some(path) = &options.cache_disk else { return Ok(None) };
    let disk = DiskCache { path: path.clone(), max_bytes: options.cache_disk_size };
    disk.check().context("--cache-disk")?;
    Ok(Some(disk))
}
