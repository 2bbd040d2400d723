//! Checks of the files that commands write.
//!
//! One rule for all commands: an existing file is replaced only with `--force`. Exempt are files
//! that are updated in place: `--prompt-cache`, `/save` of a conversation, the history of `chat`,
//! and the caches of `serve` and `pull`.

use anyhow::{Result, bail};
use latent_formats::OutputFile;
use std::path::Path;

/// Refuses a target that cannot be written, or that exists if `replace` is false.
pub(crate) fn check(path: &Path, replace: bool) -> Result<()> {
    OutputFile::check(path)?;
    // `symlink_metadata`, not `exists`: a dangling symbolic link would otherwise be replaced
    // without --force.
    if !replace && path.symlink_metadata().is_ok() {
        bail!("{}: the file exists; --force replaces it", path.display());
    }
    Ok(())
}
