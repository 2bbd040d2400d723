//! Grammars and schemas of others: compiled, and followed for some tokens.

use crate::bounds::within;
use latent_grammar::{GrammarError, GrammarLimits, GrammarSource, Grammars};
use latent_text::{GgufVocab, Tokenizer};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A grammar. The first byte says of which kind: `l` Lark, `r` a regular expression, `c` choices, one per line; any other is part of a GBNF
/// grammar.
///
/// # Panics
/// Where a library panics, it costs more CPU time or memory than its bounds, or a mask is empty without a reason.
pub fn grammar(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let source = match bytes.first() {
        Some(b'l') => GrammarSource::Lark(text[1..].to_owned()),
        Some(b'r') => GrammarSource::Regex(text[1..].to_owned()),
        Some(b'c') => GrammarSource::Choice(text[1..].lines().map(str::to_owned).collect()),
        _ => GrammarSource::Gbnf(text),
    };
    follow(&source, bytes);
}

/// A JSON schema.
///
/// # Panics
/// As for [`grammar`].
pub fn json_schema(bytes: &[u8]) {
    let Ok(schema) = serde_json::from_slice(bytes) else { return };
    follow(&GrammarSource::JsonSchema(schema), bytes);
}

/// Follows a grammar: each byte of the input chooses a token among those that are allowed. Bounds hold until nothing runs any more.
pub(crate) fn follow(source: &GrammarSource, choices: &[u8]) {
    within(|| {
        follow_within(source, choices);
        let start = Instant::now();
        while grammars().compiling() > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "a compilation does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

fn follow_within(source: &GrammarSource, choices: &[u8]) {
    let compiled = grammars().compile(source, None);
    let grammar = match compiled {
        Ok(grammar) => grammar,
        Err(error) => {
            let said = error.to_string();
            assert!(!said.contains("please report this") && !said.contains("panic"), "{said}");
            assert!(error.is_of_request() || matches!(error, GrammarError::Busy(_)), "{said}");
            return;
        }
    };
    let (mut constraint, mut tokens) = (grammar.constraint(), Vec::new());
    for choice in choices.iter().take(24) {
        let mut logits = vec![0.0; TOKENS];
        constraint.process(&tokens, &mut logits);
        let allowed: Vec<u32> = (0..TOKENS as u32).filter(|id| logits[*id as usize] == 0.0).collect();
        if let Some(problem) = constraint.problem() {
            let said = problem.to_string();
            assert!(
                allowed.is_empty() && !said.contains("please report this") && !said.contains("panic"),
                "{said}"
            );
            return;
        }
        assert!(!allowed.is_empty(), "no token is allowed, and nothing says why");
        tokens.push(allowed[usize::from(*choice) % allowed.len()]);
        constraint.accepted(&tokens);
    }
}

/// All bytes, and the end.
const TOKENS: usize = 257;

fn grammars() -> &'static Grammars {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    GRAMMARS.get_or_init(|| {
        // of a SentencePiece vocabulary, whose byte tokens name their bytes
        let mut texts: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
        texts.push("</s>".to_owned());
        let mut types = vec![6; 256];
        types.push(3);
        let vocab = GgufVocab {
            model: "llama",
            tokens: texts.iter().map(String::as_bytes).collect(),
            token_types: Some(types),
            scores: Some(vec![0.0; TOKENS]),
            eos: Some(256),
            ..GgufVocab::default()
        };
        let limits = GrammarLimits { mask_threads: 0, ..GrammarLimits::default() };
        let tokenizer = Tokenizer::from_gguf(&vocab);
        let tokenizer = tokenizer.unwrap_or_else(|error| panic!("{error}"));
        Grammars::new(&tokenizer, limits).unwrap_or_else(|error| panic!("{error}"))
    })
}
