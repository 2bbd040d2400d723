//! `--json-schema` and `--grammar`: what answers have to obey.

use crate::args::ConstraintArgs;
use crate::exit::UsageError;
use anyhow::Result;
use latent_engine::LogitsProcessor;
use latent_formats::{input_file, json};
use latent_grammar::{Grammar, GrammarError, GrammarLimits, GrammarSource, Grammars, Reasoning};
use latent_text::Tokenizer;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Largest file of a schema or grammar, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// What opens and closes reasoning in the templates of most models.
const THINKING: [&str; 2] = ["<think>", "</think>"];

/// What the flags name, for messages, and what it says.
pub(super) fn asked(args: &ConstraintArgs) -> Result<Option<(String, GrammarSource)>> {
    match (&args.json_schema, &args.grammar) {
        (Some(schema), _) => schema_of(schema).map(Some),
        (None, Some(given)) => match given.to_str().filter(|text| text.contains("::=")) {
            Some(text) => Ok(Some(("--grammar".to_owned(), GrammarSource::Gbnf(text.to_owned())))),
            None => grammar_of(Path::new(given)).map(Some),
        },
        (None, None) => Ok(None),
    }
}

/// A schema or grammar for every answer of a command.
pub(super) struct AnswerConstraint {
    /// The flag and the file, for messages.
    name: String,
    source: GrammarSource,
    grammars: Grammars,
    tokenizer: Arc<Tokenizer>,
    /// Whether the model's template knows reasoning, which then is free.
    thinks: bool,
}

impl AnswerConstraint {
    /// Reads the flags, and compiles what they name.
    pub(super) fn new(
        args: &ConstraintArgs,
        tokenizer: &Arc<Tokenizer>,
        template: Option<&str>,
    ) -> Result<Option<AnswerConstraint>> {
        let Some((name, source)) = asked(args)? else { return Ok(None) };
        // a user of the command line waits only for their own grammar
        let limits = GrammarLimits {
            source_bytes: MAX_BYTES as usize,
            compile_time: Duration::from_secs(30),
            ..GrammarLimits::default()
        };
        let grammars = Grammars::new(tokenizer, limits)?;
        let thinks = template.is_some_and(|template| template.contains(THINKING[1]));
        let tokenizer = Arc::clone(tokenizer);
        let constraint = AnswerConstraint { name, source, grammars, tokenizer, thinks };
        constraint.compile(None)?;
        Ok(Some(constraint))
    }

    fn compile(&self, reasoning: Option<&Reasoning>) -> Result<Arc<Grammar>> {
        let wrong = |error: GrammarError| match error.is_of_request() {
            true => UsageError(format!("{}: {error}", self.name)).into(),
            false => anyhow::Error::from(error),
        };
        self.grammars.compile(&self.source, reasoning).map_err(wrong)
    }

    pub(super) fn processor(&self, prompt: &[u32]) -> Result<Box<dyn LogitsProcessor>> {
        let tail = &prompt[prompt.len().saturating_sub(8)..];
        let open = self.tokenizer.decode(tail, true).trim_end().ends_with(THINKING[0]);
        let [begin, end] = THINKING.map(str::to_owned);
        let reasoning = self.thinks.then_some(Reasoning { begin, end, open });
        Ok(Box::new(self.compile(reasoning.as_ref())?.constraint()))
    }
}

pub(super) fn processors(
    constraint: Option<&AnswerConstraint>,
    prompt: &[u32],
) -> Result<Vec<Box<dyn LogitsProcessor>>> {
    constraint.map(|constraint| constraint.processor(prompt)).into_iter().collect()
}

fn schema_of(given: &str) -> Result<(String, GrammarSource)> {
    let (name, text) = if given.trim_start().starts_with('{') {
        ("--json-schema".to_owned(), given.to_owned())
    } else {
        let name = format!("--json-schema {given}");
        let text = input_file::read_text(Path::new(given), MAX_BYTES)
            .map_err(|error| UsageError(format!("--json-schema: {error}; a schema itself begins with {{")))?;
        (name, text)
    };
    let schema = json::parse(&text).map_err(|problem| UsageError(format!("{name}: {problem}")))?;
    Ok((name, GrammarSource::JsonSchema(schema)))
}

fn grammar_of(path: &Path) -> Result<(String, GrammarSource)> {
    let text =
        input_file::read_text(path, MAX_BYTES).map_err(|error| UsageError(format!("--grammar: {error}")))?;
    let source = match path.extension().and_then(|extension| extension.to_str()) {
        Some("gbnf") => GrammarSource::Gbnf(text),
        Some("lark") => GrammarSource::Lark(text),
        _ => GrammarSource::grammar(text),
    };
    Ok((format!("--grammar {}", path.display()), source))
}
