//! A text in the user's own editor.

use crate::interrupt;
use anyhow::{Context, Result, bail};
use latent_formats::input_file;
use std::io::Write;
use std::process::Command;

/// Longest text that is read back, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The editor that the environment names.
pub(super) fn name() -> Option<String> {
    ["VISUAL", "EDITOR"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
}

/// Lets the user edit a text with the editor of this name, which may have arguments.
pub(super) fn edit(editor: &str, text: &str) -> Result<String> {
    let mut file = tempfile::Builder::new().prefix("latent-").suffix(".md").tempfile()?;
    file.write_all(text.as_bytes())?;
    file.flush()?;
    let path = file.path();
    let mut command = if cfg!(unix) {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{editor} \"$1\""), "sh"]);
        shell
    } else {
        let mut words = editor.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or(editor));
        command.args(words);
        command
    };
    let status = interrupt::lend_terminal(command.arg(path))
        .with_context(|| format!("cannot start the editor {editor:?}"))?;
    if !status.success() {
        bail!("the editor {editor:?} failed ({status}); the question is unchanged");
    }
    // editors may write a new file in the old one's place
    let text = input_file::read_text(path, MAX_BYTES)
        .context("the edited text cannot be read: nothing is changed")?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}
