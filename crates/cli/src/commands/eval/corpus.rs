//! Texts on which models are measured.

use super::failure::failed;
use crate::args::EngineArgs;
use crate::exit::UsageError;
use crate::{input, interrupt, model};
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use latent_evaluate::TokenChunks;
use latent_formats::Checkpoint;
use latent_text::{EncodeOptions, TextError, Tokenizer};
use std::path::Path;

/// Default tokens of a chunk, as in llama-perplexity: perplexities depend on it.
const DEFAULT_CONTEXT: usize = 512;

/// The BOS token, if the tokenizer puts one before a text.
pub(crate) fn bos(checkpoint: &Checkpoint) -> Result<Option<u32>> {
    let tokenizer = match Tokenizer::from_checkpoint(checkpoint) {
        // Token IDs do not need a tokenizer.
        Err(TextError::Missing) => return Ok(None),
        tokenizer => tokenizer.with_context(|| checkpoint.display_name())?,
    };
    Ok(tokenizer.bos().filter(|_| tokenizer.adds_bos()))
}

/// Reads a text file, which must not be empty.
pub(super) fn read(path: &Path) -> Result<String> {
    let text = input::file_text(path)?;
    if text.trim().is_empty() {
        return Err(UsageError(format!("{}: the file is empty; use a file with text", path.display())).into());
    }
    Ok(text)
}

/// Reads and encodes a text file into chunks of --ctx-size tokens.
pub(super) fn chunks(
    path: &Path,
    checkpoint: &Checkpoint,
    engine: &EngineArgs,
    most: Option<usize>,
) -> Result<TokenChunks> {
    let text = read(path)?;
    let tokenizer = Tokenizer::from_checkpoint(checkpoint).context(checkpoint.display_name())?;
    // A corpus is data: names of control tokens in it stay text.
    let tokens = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: false })?;
    let limit = latent_graph::ModelConfig::before_loading(checkpoint)?.context_length;
    let context = model::with_context(engine, limit).ctx_size.unwrap_or(DEFAULT_CONTEXT);
    TokenChunks::cut(tokens, context, most).map_err(failed).with_context(|| path.display().to_string())
}

/// Shows the processed tokens on a bar, and stops at a signal.
pub(super) fn show(bar: &ProgressBar, chunks: &TokenChunks) -> impl FnMut(usize) -> bool {
    bar.set_length(chunks.tokens().len() as u64);
    move |done| {
        bar.set_position(done as u64);
        !interrupt::asked()
    }
}
