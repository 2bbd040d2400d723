//! Conversations as JSON files without the KV cache: any model can continue them.

use crate::commands::conversation::MessageList;
use anyhow::{Context, Result};
use latent_formats::{input_file, output_file};
use std::io::Read;
use std::path::Path;

/// Maximum bytes of a file.
const MAX_BYTES: u64 = 256 << 20;

/// Whether the extension selects JSON.
pub(super) fn is_text(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"))
}

pub(super) fn save(conversation: &MessageList, path: &Path) -> Result<String> {
    // Readable by the owner only, as the history is: a conversation may hold secrets.
    output_file::write_private(path, &conversation.to_bytes())?;
    Ok(format!("saved {} messages to {}", conversation.messages().len(), path.display()))
}

/// Reads a conversation from a JSON file; `None` if the file is not JSON.
pub(super) fn load(path: &Path) -> Result<Option<(MessageList, String)>> {
    let mut first = [0];
    // An error is not reported here: the caller opens the file as a saved cache and reports it.
    let read = input_file::open(path).map_or(0, |(mut file, _)| file.read(&mut first).unwrap_or(0));
    // A JSON file with another extension is recognized by its first byte.
    if !is_text(path) && (read == 0 || first != *b"{") {
        return Ok(None);
    }
    let text = input_file::read_text(path, MAX_BYTES)?;
    let conversation = MessageList::from_bytes(text.as_bytes())
        .with_context(|| format!("{}: its conversation cannot be read", path.display()))?;
    let message = format!("restored {} messages from {}", conversation.messages().len(), path.display());
    Ok(Some((conversation, message)))
}
