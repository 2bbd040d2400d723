//! `latent eval kl`.

use super::corpus;
use super::failure::failed;
use super::perplexity::measure;
use super::results::{self, evaluation, measured, percent, with_error};
use crate::args::KlArgs;
use crate::commands::diff;
use crate::exit::UsageError;
use crate::{model, progress, ranks};
use anyhow::{Context, Result};
use latent_evaluate::{Divergence, EvalError, EvaluatedModel, EvaluationResult, LogitsReader};
use latent_formats::{Checkpoint, output_file};
use latent_graph::ModelConfig;
use std::path::{Path, PathBuf};

/// The base: its file of log-probabilities, the exact −ln p of the text if it ran here, and its
/// description.
struct KlBase {
    path: PathBuf,
    token_nll: Option<Vec<f32>>,
    what: String,
}

pub(super) fn run(args: &KlArgs) -> Result<()> {
    results::check(&args.result, args.model.engine.force)?;
    let checkpoint = model::open_shared(&args.model)?;
    let vocab = ModelConfig::before_loading(&checkpoint)?.vocab_size;
    let bos = corpus::bos(&checkpoint)?;
    let quiet = args.result.json;
    // The folder is deleted when the command ends.
    let parent = std::env::temp_dir();
    let folder = output_file::temporary_folder(&parent).with_context(|| parent.display().to_string())?;
    let base = match (&args.kl_divergence_base, &args.text) {
        (Some(path), _) => KlBase { path: path.clone(), token_nll: None, what: path.display().to_string() },
        (None, Some(text)) => run_base(args, text, &checkpoint, vocab, folder.path())?,
        (None, None) => return Err(UsageError("give a text, or --kl-divergence-base FILE".into()).into()),
    };
    let mut reader = LogitsReader::open(&base.path, vocab).map_err(failed)?;
    let mut engine_args = args.model.engine.clone();
    // The base fixes the chunks: they must run with the same context.
    engine_args.ctx_size = Some(reader.chunks().context());
    let mut engine = model::load(&checkpoint, &engine_args, quiet)?;
    let bar = progress::bar(!quiet, "comparing");
    let chunks = reader.chunks().clone();
    let mut show = corpus::show(&bar, &chunks);
    let found =
        latent_evaluate::divergence(&mut engine, &mut reader, base.token_nll.as_deref(), bos, &mut show);
    bar.finish_and_clear();
    let found = found.map_err(failed)?;
    let lines = lines(&found);
    let model = EvaluatedModel { base: base.what, ..measured(&checkpoint, &engine) };
    results::show(&args.result, &evaluation(model, args.text.as_deref(), EvaluationResult::Kl(found)), &lines)
}

/// Runs the base and writes its log-probabilities to a file in `folder`, so that both models need
/// not fit into memory together.
fn run_base(
    args: &KlArgs,
    text: &Path,
    checkpoint: &Checkpoint,
    vocab: usize,
    folder: &Path,
) -> Result<KlBase> {
    if ranks::hosts(args.model.engine.partition.as_ref())?.is_some() {
        let problem = "several ranks cannot load a base model too: write its logits with `latent eval \
                       perplexity --kl-divergence-base FILE`, then pass that FILE with --kl-divergence-base";
        return Err(UsageError(problem.into()).into());
    }
    let mut settings = args.model.engine.clone();
    // Without a base, the model is compared with itself in exact precision.
    if args.base.is_empty() && args.base_model.is_none() {
        diff::set(&mut settings, "precision=exact", "--base")?;
    }
    args.base.iter().try_for_each(|word| diff::set(&mut settings, word, "--base"))?;
    let chunks = corpus::chunks(text, checkpoint, &args.model.engine, args.chunks)?;
    settings.ctx_size = Some(chunks.context());
    let other = model::open(args.base_model.as_deref().or(args.model.model.as_deref()))?;
    let theirs = ModelConfig::from_checkpoint(&other)?.vocab_size;
    // Probabilities over different vocabularies cannot be compared.
    if theirs != vocab {
        let path = other.path().to_owned();
        return Err(failed(EvalError::Vocabulary { path, theirs, ours: vocab }));
    }
    let (bos, path) = (corpus::bos(&other)?, folder.join("base.kld"));
    let mut engine = model::load(&other, &settings, args.result.json)?;
    let found = measure(&mut engine, &chunks, bos, Some(&path), !args.result.json)?;
    let EvaluatedModel { file, precision, cache, .. } = measured(&other, &engine);
    let what = format!("{file}, precision {precision}, {cache} cache");
    Ok(KlBase { path, token_nll: Some(found.token_nll), what })
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
