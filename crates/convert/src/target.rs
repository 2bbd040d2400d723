//! Checks of the target paths.

use crate::error::ConvertError;
use latent_formats::{Checkpoint, CheckpointSource, OutputError, OutputFile};
use std::path::{Path, PathBuf};

/// Refuses a target inside the model's own folder, where it would become a part of the model.
fn outside(checkpoint: &Checkpoint, target: &Path) -> Result<(), ConvertError> {
    if !matches!(checkpoint.source(), CheckpointSource::HuggingFace(_)) {
        return Ok(());
    }
    let folder = checkpoint.path();
    let whole = std::path::absolute(target).unwrap_or_else(|_| target.to_owned());
    // `canonicalize` needs an existing path: use the nearest existing ancestor of the target.
    let there = whole.ancestors().find_map(|path| path.canonicalize().ok());
    match (folder.canonicalize(), there) {
        (Ok(own), Some(there)) if there.starts_with(&own) => {
            Err(ConvertError::Inside { path: target.to_owned(), folder: folder.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Refuses targets that cannot be written and, without `force`, those that exist.
pub(crate) fn check_files(
    checkpoint: &Checkpoint,
    targets: &[PathBuf],
    force: bool,
) -> Result<(), ConvertError> {
    for target in targets {
        outside(checkpoint, target)?;
        if let Some(folder) =
            target.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        {
            return Err(ConvertError::NoFolder { path: target.clone(), folder: folder.to_owned() });
        }
        OutputFile::check(target)?;
        // symlink_metadata: a dangling link exists too.
        if !force && target.symlink_metadata().is_ok() {
            return Err(ConvertError::Exists { path: target.clone() });
        }
    }
    Ok(())
}

/// Whether readers take a file of this name for a part of the model in its folder.
fn of_a_model(name: &str) -> bool {
    const FILES: [&str; 8] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tiktoken.model",
        "tokenizer.model",
        "chat_template.jinja",
        "model.safetensors.index.json",
    ];
    FILES.contains(&name) || name.ends_with(".safetensors")
}

/// Refuses a folder that is not empty. With `force`, refuses only a folder with model files other
/// than `names`, which would mix with the new model.
pub(crate) fn check_folder(
    checkpoint: &Checkpoint,
    folder: &Path,
    names: &[String],
    force: bool,
) -> Result<(), ConvertError> {
    outside(checkpoint, folder)?;
    let io = |error| OutputError::Io { path: folder.to_owned(), error };
    let entries = match std::fs::read_dir(folder) {
        // The folder is created later.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(io)?,
    };
    for entry in entries {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if !force {
            return Err(ConvertError::Exists { path: folder.to_owned() });
        }
        if of_a_model(&name) && !names.contains(&name) {
            return Err(ConvertError::Leftover { path: folder.to_owned(), name });
        }
    }
    let targets: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    check_files(checkpoint, &targets, force)
}
