//! `latent eval retrieval`.

use super::asking::{QuestionPrompter, SignalListener, check_interrupt};
use super::corpus;
use super::results::{self, evaluation, measured, percent};
use crate::args::RetrievalArgs;
use crate::exit::UsageError;
use crate::{model, progress};
use anyhow::Result;
use latent_engine::{Engine, Session};
use latent_evaluate::{
    Estimate, EvaluationResult, Haystack, Needle, Retrieval, RetrievalCase, RetrievalCell,
};
use std::path::Path;

pub(super) fn run(args: &RetrievalArgs) -> Result<()> {
    results::check(&args.result, args.model.engine.force)?;
    let checkpoint = model::open_shared(&args.model)?;
    let config = latent_graph::ModelConfig::before_loading(&checkpoint)?;
    let longest = args.lengths.iter().copied().max().unwrap_or(0);
    let mut engine_args = model::with_context(&args.model.engine, config.context_length).into_owned();
    let room = engine_args.ctx_size.unwrap_or(config.context_length);
    if longest + args.n_predict > room {
        let problem = format!(
            "prompts of {longest} tokens and answers of {} do not fit into a context of {room} tokens: use \
             smaller --lengths",
            args.n_predict
        );
        return Err(UsageError(problem).into());
    }
    let haystack = haystack(args.haystack.as_deref())?;
    let context = *engine_args.ctx_size.get_or_insert(longest + args.n_predict);
    let asker = QuestionPrompter::open(&checkpoint, &config, &args.template, Some(context))?;
    let quiet = args.result.json;
    let mut engine = model::load(&checkpoint, &engine_args, quiet)?;
    let bar = progress::bar(!quiet, "looking");
    bar.set_length((args.lengths.len() * args.depths.len() * args.trials) as u64);
    let (mut cells, mut right) = (Vec::new(), 0);
    for &length in &args.lengths {
        for &depth in &args.depths {
            let depth = f64::from(depth) / 100.0;
            let mut cell = RetrievalCell { length, depth, ..RetrievalCell::default() };
            let mut here = 0;
            for trial in 0..args.trials {
                let needle = hide(&haystack, RetrievalCase { length, depth, trial }, &asker)?;
                // Sentences are not cut, so prompts are a little shorter than the requested length.
                // The report shows the mean.
                cell.tokens += needle.tokens.len() as f64 / args.trials as f64;
                here += usize::from(finds(&mut engine, &asker, needle, args.n_predict)?);
                bar.inc(1);
            }
            cell.found = here as f64 / args.trials as f64;
            right += here;
            cells.push(cell);
        }
    }
    bar.finish_and_clear();
    let all = cells.len() * args.trials;
    let hidden = args.haystack.as_ref().map_or("facts".into(), |path| path.display().to_string());
    let found =
        Retrieval { haystack: hidden, trials: args.trials, found: Estimate::share(right, all), cells };
    let lines = lines(&found, args);
    let result = evaluation(measured(&checkpoint, &engine), None, EvaluationResult::Retrieval(found));
    results::show(&args.result, &result, &lines)
}

/// The text in which facts are hidden.
fn haystack(path: Option<&Path>) -> Result<Haystack> {
    let Some(path) = path else { return Ok(Haystack::SimilarFacts) };
    Haystack::of_text(&corpus::read(path)?)
        .ok_or_else(|| UsageError(format!("{}: the text has no sentences", path.display())).into())
}

fn hide(haystack: &Haystack, case: RetrievalCase, asker: &QuestionPrompter) -> Result<Needle> {
    let tokens = &mut |text: &str| asker.prompt_if_fits(text);
    haystack
        .hide(case, tokens)?
        .ok_or_else(|| UsageError(format!("--lengths {}: the question alone is longer", case.length)).into())
}

/// Whether the answer to a prompt contains the code.
fn finds(engine: &mut Engine, asker: &QuestionPrompter, needle: Needle, most: usize) -> Result<bool> {
    // Prompts of one length and depth share a prefix. A new session per prompt keeps each an
    // ordinary, uncached prompt.
    let mut session = Session::default();
    let ask = (needle.tokens, most);
    let answer =
        latent_evaluate::answer(engine, &mut session, asker.formatter.tokenizer(), ask, &mut SignalListener)?;
    // The cache has room for one prompt, so the next one needs these rows.
    engine.release(session.sequence);
    check_interrupt()?;
    Ok(latent_evaluate::found(&answer.text, &needle.expected))
}

fn lines(found: &Retrieval, args: &RetrievalArgs) -> Vec<String> {
    let mut lines = vec![format!("found  {}, {} prompts per cell", percent(found.found, 1), found.trials)];
    let lengths: String = args.lengths.iter().map(|length| format!("{length:>8}")).collect();
    lines.push(format!("{:>8}{lengths} tokens", "depth"));
    for depth in &args.depths {
        let of_depth = found.cells.iter().filter(|cell| cell.depth == f64::from(*depth) / 100.0);
        let shares: String = of_depth.map(|cell| format!("{:>6.0} %", 100.0 * cell.found)).collect();
        lines.push(format!("{depth:>6} %{shares}"));
    }
    lines
}
