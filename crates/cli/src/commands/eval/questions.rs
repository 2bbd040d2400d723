//! `latent eval questions`.

use super::asking::{QuestionPrompter, SignalListener, check_interrupt};
use super::failure::failed;
use super::results::{self, evaluation, measured, percent};
use crate::args::QuestionsArgs;
use crate::{model, progress};
use anyhow::{Context, Result};
use latent_engine::Session;
use latent_evaluate::{Estimate, EvaluationResult, Question, QuestionAccuracy};

/// Maximum number of wrong answers shown.
const MAX_SHOWN: usize = 5;

pub(super) fn run(args: &QuestionsArgs) -> Result<()> {
    results::check(&args.result, args.model.engine.force)?;
    let checkpoint = model::open_shared(&args.model)?;
    let config = latent_graph::ModelConfig::before_loading(&checkpoint)?;
    let questions = Question::read(&args.file, args.limit).map_err(failed)?;
    let mut engine_args = model::with_context(&args.model.engine, config.context_length).into_owned();
    let asker = QuestionPrompter::open(&checkpoint, &config, &args.template, engine_args.ctx_size)?;
    let mut prompts = Vec::with_capacity(questions.len());
    for question in &questions {
        let place = || format!("{}, line {}", args.file.display(), question.line);
        // All prompts are made before the model is loaded: a question that fails is reported with
        // its line at once.
        prompts.push(asker.prompt(&question.prompt).with_context(place)?);
    }
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    engine_args.ctx_size.get_or_insert((longest + args.n_predict).min(config.context_length));
    let quiet = args.result.json;
    let mut engine = model::load(&checkpoint, &engine_args, quiet)?;
    let bar = progress::bar(!quiet, "asking");
    bar.set_length(questions.len() as u64);
    // One session for all questions: their common beginning (template, system message) is computed
    // once.
    let (mut session, mut found) = (Session::default(), QuestionAccuracy::default());
    for (question, prompt) in questions.iter().zip(prompts) {
        let tokenizer = asker.formatter.tokenizer();
        let ask = (prompt, args.n_predict);
        let answer = latent_evaluate::answer(&mut engine, &mut session, tokenizer, ask, &mut SignalListener)?;
        check_interrupt()?;
        found.add(question, &answer.text);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let lines = lines(&found);
    let result =
        evaluation(measured(&checkpoint, &engine), Some(&args.file), EvaluationResult::Questions(found));
    results::show(&args.result, &result, &lines)
}

fn lines(found: &QuestionAccuracy) -> Vec<String> {
    let right = found.questions - found.wrong.len();
    let mut lines =
        vec![format!("exactly right  {right} of {}: {}", found.questions, percent(found.exact, 1))];
    for kind in found.kinds.iter().filter(|kind| !kind.kind.is_empty()) {
        let share = Estimate::share(kind.right, kind.questions);
        lines.push(format!(
            "  {:<12} {} of {}: {}",
            kind.kind,
            kind.right,
            kind.questions,
            percent(share, 1)
        ));
    }
    for wrong in found.wrong.iter().take(MAX_SHOWN) {
        lines.push(format!("line {}: expected {:?}, got {:?}", wrong.line, wrong.expected, wrong.answer));
    }
    if found.wrong.len() > MAX_SHOWN {
        lines.push(format!("and {} more: --json has them all", found.wrong.len() - MAX_SHOWN));
    }
    lines
}
