//! `latent eval choice`.

use super::asking::check_interrupt;
use super::failure::failed;
use super::results::{self, evaluation, measured, percent};
use crate::args::ChoiceArgs;
use crate::exit::UsageError;
use crate::{model, progress};
use anyhow::{Context, Result};
use latent_evaluate::{ChoiceAccuracy, ChoiceCount, ChoiceQuestion, EvaluationResult};
use latent_text::Tokenizer;

pub(super) fn run(args: &ChoiceArgs) -> Result<()> {
    results::check(&args.result, args.model.engine.force)?;
    let checkpoint = model::open_shared(&args.model)?;
    let config = latent_graph::ModelConfig::before_loading(&checkpoint)?;
    let choices = ChoiceQuestion::read(&args.file, args.limit).map_err(failed)?;
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).context(checkpoint.display_name())?;
    let mut longest = (0, 0);
    for choice in &choices {
        let texts = latent_evaluate::encoded(&tokenizer, choice)?;
        let tokens = texts.iter().map(Vec::len).max().unwrap_or(0);
        longest = longest.max((tokens, choice.line));
    }
    let mut engine_args = model::with_context(&args.model.engine, config.context_length).into_owned();
    // The longest text decides the size of the cache.
    let context = *engine_args.ctx_size.get_or_insert(longest.0.min(config.context_length));
    if longest.0 > context {
        return Err(UsageError(format!(
            "{}, line {}: the text has {} tokens with an ending, but the context holds {context}",
            args.file.display(),
            longest.1,
            longest.0
        ))
        .into());
    }
    let quiet = args.result.json;
    let mut engine = model::load(&checkpoint, &engine_args, quiet)?;
    let bar = progress::bar(!quiet, "choosing");
    bar.set_length(choices.len() as u64);
    let mut count = ChoiceCount::default();
    for choice in &choices {
        check_interrupt()?;
        let scores = latent_evaluate::score_endings(&mut engine, &tokenizer, choice).map_err(failed)?;
        count.add(choice.label, &scores);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let found = count.finish();
    let lines = lines(&found);
    let result =
        evaluation(measured(&checkpoint, &engine), Some(&args.file), EvaluationResult::Choice(found));
    results::show(&args.result, &result, &lines)
}

fn lines(found: &ChoiceAccuracy) -> Vec<String> {
    vec![
        format!("right by the sum of ln p   {}", percent(found.accuracy, 2)),
        format!("right by ln p per token    {} (llama.cpp's HellaSwag score)", percent(found.per_token, 2)),
        format!(
            "right by ln p per character {} (acc_norm of lm-evaluation-harness)",
            percent(found.per_character, 2)
        ),
        format!("{} texts; guessing gives {:.1} %", found.tasks, 100.0 * found.chance),
    ]
}
