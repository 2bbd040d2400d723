//! Compiles untrusted grammars and schemas, and follows them for some tokens.

use crate::bounds::run_bounded;
use latent_grammar::{GrammarError, GrammarLimits, GrammarSource, Grammars};
use latent_text::{GgufVocab, Tokenizer};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A grammar. The first byte chooses its kind: `l` for Lark, `r` for a regular expression, `c` for
/// choices, one per line. Any other byte is part of a GBNF grammar.
///
/// # Panics
/// If a library panics, the input exceeds the bounds of CPU time or memory, or a mask is empty
/// without an error.
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

/// Follows a grammar: each byte of the input chooses one of the allowed tokens.
pub(crate) fn follow(source: &GrammarSource, choices: &[u8]) {
    run_bounded(|| {
        follow_within(source, choices);
        // A refused compilation may still be running on its thread. Its CPU time belongs to this
        // input, so the bounds hold until it has ended.
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
            let message = error.to_string();
            // llguidance catches its own panics and reports them as errors with this text.
            assert!(!message.contains("please report this") && !message.contains("panic"), "{message}");
            assert!(error.is_of_request() || matches!(error, GrammarError::Busy(_)), "{message}");
            return;
        }
    };
    let (mut constraint, mut tokens) = (grammar.constraint(), Vec::new());
    for choice in choices.iter().take(24) {
        let mut logits = vec![0.0; TOKENS];
        constraint.process(&tokens, &mut logits);
        let allowed: Vec<u32> = (0..TOKENS as u32).filter(|id| logits[*id as usize] == 0.0).collect();
        if let Some(problem) = constraint.problem() {
            let message = problem.to_string();
            assert!(
                allowed.is_empty() && !message.contains("please report this") && !message.contains("panic"),
                "{message}"
            );
            return;
        }
        assert!(!allowed.is_empty(), "no token is allowed, and nothing says why");
        tokens.push(allowed[usize::from(*choice) % allowed.len()]);
        constraint.accepted(&tokens);
    }
}

/// 256 byte tokens and the end-of-sequence token.
const TOKENS: usize = 257;

fn grammars() -> &'static Grammars {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    GRAMMARS.get_or_init(|| {
        // A SentencePiece vocabulary, because its byte tokens name their bytes.
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
