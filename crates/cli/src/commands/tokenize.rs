//! `latent tokenize`: prints the tokens of a text.

use crate::args::TokenizeArgs;
use crate::{input, model, output};
use anyhow::{Context, Result};
use latent_text::{EncodeOptions, Tokenizer};
use serde::{Serialize, Serializer};
use std::borrow::Cow;

pub(super) fn run(args: &TokenizeArgs) -> Result<()> {
    let checkpoint = model::open(args.model.as_deref())?;
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).context(checkpoint.display_name())?;
    let text = match (&args.prompt, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => input::file_text(path)?,
        (None, None) => input::stdin_text()?,
    };
    let ids = tokenizer
        .encode(&text, EncodeOptions { add_special: !args.no_special, parse_special: !args.plain })?;
    // With a text of hundreds of megabytes the memory is needed for the output.
    drop(text);
    if args.json {
        return output::json(&Tokens { count: ids.len(), ids: &ids, tokens: TokenPieces(&ids, &tokenizer) });
    }
    for id in &ids {
        output::line(&format!("{id:>7}  {:?}", piece(&tokenizer, *id)))?;
    }
    output::line(&format!("{} tokens", ids.len()))
}

fn piece(tokenizer: &Tokenizer, id: u32) -> Cow<'_, str> {
    // A token may be part of a UTF-8 character (byte fallback, byte-level BPE).
    String::from_utf8_lossy(tokenizer.piece(id).unwrap_or_default())
}

/// The report, whose tokens are serialized one by one.
#[derive(Serialize)]
struct Tokens<'a> {
    count: usize,
    ids: &'a [u32],
    tokens: TokenPieces<'a>,
}

struct TokenPieces<'a>(&'a [u32], &'a Tokenizer);

#[derive(Serialize)]
struct Token<'a> {
    id: u32,
    piece: Cow<'a, str>,
}

impl Serialize for TokenPieces<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|id| Token { id: *id, piece: piece(self.1, *id) }))
    }
}
