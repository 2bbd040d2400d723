//! Conversations as JSON files, without a cache: any model can go on with them.

use crate::commands::conversation::MessageList;
use anyhow::{Context, Result};
use latent_formats::{input_file, output_file};
use std::io::Read;
use std::path::Path;

/// Largest file that is read.
const MAX_BYTES: u64 = 256 << 20;

/// Whether a name asks for JSON.
pub(super) fn is_text(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"))
}

pub(super) fn save(conversation: &MessageList, path: &Path) -> Result<String> {
    output_file::write_private(path, &conversation.to_bytes())?;
    Ok(format!("saved {} messages to {}", conversation.messages().len(), path.display()))
}

/// The conversation of a JSON file; none if the file is another.
pub(super) fn load(path: &Path) -> Result<Option<(MessageList, String)>> {
    let mut first = [0];
    // what cannot be read, the caller says of its own kind of file
    let read = input_file::open(path).map_or(0, |(mut file, _)| file.read(&mut first).unwrap_or(0));
    if !is_text(path) && (read == 0 || first != *b"{") {
        return Ok(None);
    }
    let text = input_file::read_text(path, MAX_BYTES)?;
    let conversation = MessageList::from_bytes(text.as_bytes())
        .with_context(|| format!("{}: its conversation cannot be read", path.display()))?;
    let said = format!("restored {} messages from {}", conversation.messages().len(), path.display());
    Ok(Some((conversation, said)))
}
