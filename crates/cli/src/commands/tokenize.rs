//! `latent tokenize`: the tokens of a text.

use crate::args::TokenizeArgs;
use crate::{input, model, output};
use anyhow::{Context, Result};
use latent_text::{Encode, Tokenizer};
use serde_json::json;

pub(super) fn run(args: &TokenizeArgs) -> Result<()> {
    let checkpoint = model::open(args.model.as_deref())?;
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).context(checkpoint.display_name())?;
    let text = match (&args.prompt, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => input::file_text(path)?,
        (None, None) => input::stdin_text()?,
    };
    let ids =
        tokenizer.encode(&text, Encode { add_special: !args.no_special, parse_special: !args.plain })?;
    let piece = |id: u32| String::from_utf8_lossy(tokenizer.piece(id).unwrap_or_default()).into_owned();
    if args.json {
        let tokens: Vec<_> = ids.iter().map(|id| json!({"id": id, "piece": piece(*id)})).collect();
        return output::json(&json!({"count": ids.len(), "ids": ids, "tokens": tokens}));
    }
    for id in &ids {
        output::line(&format!("{id:>7}  {:?}", piece(*id)))?;
    }
    output::line(&format!("{} tokens", ids.len()))
}
