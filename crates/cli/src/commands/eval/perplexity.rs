//! `latent eval perplexity`.

use super::corpus;
use super::failure::failed;
use super::results::{self, evaluation, measured, with_error};
use crate::args::PerplexityArgs;
use crate::{model, progress, target};
use anyhow::Result;
use latent_engine::Engine;
use latent_evaluate::{EvaluationResult, LogitsWriter, Perplexity, TokenChunks};
use std::path::Path;

pub(super) fn run(args: &PerplexityArgs) -> Result<()> {
    results::check(&args.result, args.model.engine.force)?;
    let checkpoint = model::open_shared(&args.model)?;
    // An unsupported model is reported before the text is encoded.
    latent_graph::ModelConfig::before_loading(&checkpoint)?;
    if let Some(path) = &args.kl_divergence_base {
        target::check(path, args.model.engine.force)?;
    }
    let mut engine_args = args.model.engine.clone();
    let chunks = corpus::chunks(&args.text, &checkpoint, &engine_args, args.chunks)?;
    engine_args.ctx_size = Some(chunks.context());
    let bos = corpus::bos(&checkpoint)?;
    let mut engine = model::load(&checkpoint, &engine_args, args.result.json)?;
    let found = measure(&mut engine, &chunks, bos, args.kl_divergence_base.as_deref(), !args.result.json)?;
    let lines = lines(&found);
    let result =
        evaluation(measured(&checkpoint, &engine), Some(&args.text), EvaluationResult::Perplexity(found));
    results::show(&args.result, &result, &lines)
}

/// Runs the chunks; writes their log-probabilities where a path is given.
pub(super) fn measure(
    engine: &mut Engine,
    chunks: &TokenChunks,
    bos: Option<u32>,
    write: Option<&Path>,
    show: bool,
) -> Result<Perplexity> {
    let vocab = engine.config().vocab_size;
    let mut writer =
        write.map(|path| LogitsWriter::create(path, chunks, vocab)).transpose().map_err(failed)?;
    let bar = progress::bar(show, "reading");
    let found =
        latent_evaluate::perplexity(engine, chunks, bos, writer.as_mut(), &mut corpus::show(&bar, chunks));
    bar.finish_and_clear();
    let found = found.map_err(failed)?;
    writer.map_or(Ok(()), LogitsWriter::finish).map_err(failed)?;
    Ok(found)
}

fn lines(found: &Perplexity) -> Vec<String> {
    let Perplexity { context, chunks, positions, nll, perplexity, .. } = found;
    vec![
        format!("perplexity     {}", with_error(*perplexity, 4)),
        format!("per token      {} nats", with_error(*nll, 5)),
        format!("{positions} tokens counted, in {chunks} chunks of {context}"),
    ]
}
