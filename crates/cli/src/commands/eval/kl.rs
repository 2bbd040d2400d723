//! `latent eval kl`.

use super::perplexity::measure;
use super::results::{self, percent, with_error};
use super::{corpus, failed};
use crate::args::KlArgs;
use crate::commands::diff;
use crate::{model, output, progress};
use anyhow::{Context, Result};
use latent_evaluate::{Divergence, LogitsReader};
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;
use std::path::{Path, PathBuf};

pub(super) fn run(args: &KlArgs) -> Result<()> {
    let checkpoint = model::open(args.model.model.as_deref())?;
    let vocab = ModelConfig::from_checkpoint(&checkpoint)?.vocab_size;
    let bos = corpus::bos(&checkpoint)?;
    let quiet = args.result.json;
    // deleted when the command ends
    let folder = tempfile::tempdir().context("a folder for the base")?;
    let base = match (&args.kl_divergence_base, &args.text) {
        (Some(path), _) => path.clone(),
        (None, Some(text)) => run_base(args, text, &checkpoint, vocab, folder.path())?,
        (None, None) => {
            return Err(crate::exit::Usage("give a text, or --kl-divergence-base FILE".into()).into());
        }
    };
    let mut reader = LogitsReader::open(&base, vocab).map_err(failed)?;
    let mut engine_args = args.model.engine.clone();
    engine_args.ctx_size = Some(reader.chunks().context());
    let mut engine = model::load(&checkpoint, &engine_args, quiet)?;
    let bar = progress::bar(!quiet, "comparing");
    let chunks = reader.chunks().clone();
    let found = latent_evaluate::divergence(&mut engine, &mut reader, bos, &mut corpus::show(&bar, &chunks));
    bar.finish_and_clear();
    let found = found.map_err(failed)?;
    results::show(&args.result, &engine, "kl", &found, &lines(&found))
}

/// Runs the base and leaves its log-probabilities in a file in `folder`: the two models need not fit into memory together.
fn run_base(
    args: &KlArgs,
    text: &Path,
    checkpoint: &Checkpoint,
    vocab: usize,
    folder: &Path,
) -> Result<PathBuf> {
    let mut settings = args.model.engine.clone();
    if args.base.is_empty() && args.base_model.is_none() {
        diff::set(&mut settings, "precision=exact", "--base")?;
    }
    args.base.iter().try_for_each(|word| diff::set(&mut settings, word, "--base"))?;
    let chunks = corpus::chunks(text, checkpoint, &args.model.engine, args.chunks)?;
    settings.ctx_size = Some(chunks.context());
    let other = model::open(args.base_model.as_deref().or(args.model.model.as_deref()))?;
    let theirs = ModelConfig::from_checkpoint(&other)?.vocab_size;
    let path = folder.join("base.kld");
    if theirs != vocab {
        let path = other.path().to_owned();
        return Err(failed(latent_evaluate::EvalError::Vocabulary { path, theirs, ours: vocab }));
    }
    let bos = corpus::bos(&other)?;
    let mut engine = model::load(&other, &settings, args.result.json)?;
    measure(&mut engine, &chunks, bos, Some(&path), !args.result.json)?;
    if !args.result.json {
        output::note("the base has run; now the model");
    }
    Ok(path)
}

fn lines(found: &Divergence) -> Vec<String> {
    let kl = &found.kl_quantiles;
    vec![
        format!("KL divergence     {} nats", with_error(found.kl, 6)),
        format!(
            "  median {:.6}, 90 % {:.6}, 99 % {:.6}, 99.9 % {:.6}, largest {:.6}",
            kl.median, kl.p90, kl.p99, kl.p99_9, kl.maximum
        ),
        format!("same top token    {}", percent(found.same_top, 3)),
        format!(
            "p of next token   {} on average, {} rms",
            percent(found.p_difference, 3),
            percent(found.p_difference_rms, 3)
        ),
        format!("perplexity        {}", with_error(found.perplexity, 4)),
        format!("  of the base     {}", with_error(found.base_perplexity, 4)),
        format!(
            "  ln of the ratio {}, correlation {:.2} %",
            with_error(found.ln_ratio, 6),
            100.0 * found.correlation
        ),
        format!("{} tokens counted, in {} chunks of {}", found.positions, found.chunks, found.context),
    ]
}
