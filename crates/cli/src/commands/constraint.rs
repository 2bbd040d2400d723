//! Constraints of answers: `--json-schema` and `--grammar`.

use crate::args::ConstraintArgs;
use crate::exit::UsageError;
use anyhow::Result;
use latent_formats::{input_file, json};
use latent_grammar::{Constraint, Grammar, GrammarError, GrammarLimits, GrammarSource, Grammars, Reasoning};
use latent_text::Tokenizer;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum bytes of a schema or grammar file.
const MAX_BYTES: u64 = 1 << 20;

/// Opening and closing tags of reasoning in the templates of most models.
const THINKING: [&str; 2] = ["<think>", "</think>"];

/// The constraint of the flags, with a name for messages.
pub(super) fn asked(args: &ConstraintArgs) -> Result<Option<(String, GrammarSource)>> {
    match (&args.json_schema, &args.grammar) {
        (Some(schema), _) => schema_of(schema).map(Some),
        // llama.cpp's `--grammar` takes the GBNF text itself, Latent's a file. `::=` occurs in
        // every GBNF rule and hardly in a path.
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
    /// Whether the model's template has reasoning, which the constraint leaves free.
    thinks: bool,
}

impl AnswerConstraint {
    /// Reads and compiles the constraint of the flags.
    pub(super) fn new(
        args: &ConstraintArgs,
        tokenizer: &Arc<Tokenizer>,
        template: Option<&str>,
    ) -> Result<Option<AnswerConstraint>> {
        let Some((name, source)) = asked(args)? else { return Ok(None) };
        // The server's default limits protect other users. A command has only one.
        let limits = GrammarLimits {
            source_bytes: MAX_BYTES as usize,
            compile_time: Duration::from_secs(30),
            ..GrammarLimits::default()
        };
        let grammars = Grammars::new(tokenizer, limits)?;
        let thinks = template.is_some_and(|template| template.contains(THINKING[1]));
        let tokenizer = Arc::clone(tokenizer);
        let constraint = AnswerConstraint { name, source, grammars, tokenizer, thinks };
        // Reports a faulty grammar before the model is loaded.
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

    /// The constraint of the answer to a prompt.
    pub(super) fn processor(&self, prompt: &[u32]) -> Result<Constraint> {
        // A template that ends with `<think>` starts the answer within reasoning. Eight tokens hold
        // the tag and a line end, even if each byte is a token.
        let tail = &prompt[prompt.len().saturating_sub(8)..];
        let open = self.tokenizer.decode(tail, true).trim_end().ends_with(THINKING[0]);
        let [begin, end] = THINKING.map(str::to_owned);
        let reasoning = self.thinks.then_some(Reasoning { begin, end, open });
        // `Grammars` caches compiled grammars, so later answers of a chat do not compile again.
        Ok(self.compile(reasoning.as_ref())?.constraint())
    }
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
