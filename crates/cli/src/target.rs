//! Files that commands write.
//!
//! One rule for all commands: an existing file is replaced only with `--force`. Exempt are files that a run continues, which are
//! read and updated: `--prompt-cache`, `/save` of a conversation, the history of `chat`, and the caches of `serve` and `pull`.

use anyhow::{Result, bail};
use latent_formats::OutputFile;
use std::path::Path;

/// Refuses a target that cannot be written, and one that exists if it is not to be replaced.
pub(crate) fn check(path: &Path, replace: bool) -> Result<()> {
    OutputFile::check(path)?;
    if !replace && path.symlink_metadata().is_ok() {
        bail!("{}: the file exists; --force replaces it", path.display());
    }
    Ok(())
}
