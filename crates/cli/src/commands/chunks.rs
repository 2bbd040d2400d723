//! A text in chunks of tokens that are run independently.

use crate::exit::UsageError;
use crate::input;
use anyhow::{Context, Result};
use latent_formats::Checkpoint;
use latent_text::{EncodeOptions, Tokenizer};
use std::path::Path;

/// The first `most` whole chunks of `size` tokens. Each begins with the BOS token, if the model has
/// one.
pub(super) fn chunks(
    checkpoint: &Checkpoint,
    path: &Path,
    size: usize,
    most: Option<usize>,
) -> Result<Vec<Vec<u32>>> {
    let tokenizer = Tokenizer::from_checkpoint(checkpoint).with_context(|| checkpoint.display_name())?;
    let text = input::file_text(path)?;
    let encode =
        |text: &str| tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false });
    let begin = encode("")?.first().copied();
    let tokens = encode(&text)?;
    let mut chunks: Vec<Vec<u32>> = tokens.chunks_exact(size).map(<[u32]>::to_vec).collect();
    chunks.truncate(most.unwrap_or(usize::MAX));
    if chunks.is_empty() {
        let problem = format!(
            "{}: {} tokens are fewer than one chunk of {size}: use more text, or a smaller --chunk-size",
            path.display(),
            tokens.len(),
        );
        return Err(UsageError(problem).into());
    }
    if let Some(begin) = begin {
        // As llama.cpp's perplexity does: BOS replaces the first token of each chunk, so the
        // results can be compared.
        chunks.iter_mut().for_each(|chunk| chunk[0] = begin);
    }
    Ok(chunks)
}
