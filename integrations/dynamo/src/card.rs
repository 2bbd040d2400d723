//! Model cards for the frontend: a folder with configuration, tokenizer and chat template.
//!
//! Dynamo treats workers as replicas of one model only if their folders have the same path and the
//! same files. So the folder of a GGUF file is in the user's cache, under a name derived from the
//! model, and is kept.

use crate::options::Options;
use anyhow::{Context, Result, bail};
use latent_convert::SmallFiles;
use latent_formats::{Checkpoint, CheckpointSource};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The folder that the options name, else the model's own, else one that is made from the model's
/// file.
///
/// # Errors
/// A model without a tokenizer that can be written as tokenizer.json, or files that cannot be read
/// or written.
pub fn card(options: &Options) -> Result<PathBuf> {
    if let Some(folder) = &options.model_files {
        return existing(folder);
    }
    let checkpoint = Checkpoint::open(&options.model)?;
    match checkpoint.source() {
        CheckpointSource::HuggingFace(_) if checkpoint.packed_from().is_none() => existing(&options.model),
        CheckpointSource::Gguf(_) if checkpoint.packed_from().is_none() => made(&checkpoint, &cards(options)),
        _ => bail!(
            "{}: a packed file does not tell the frontend's part of the model: give its folder with --model-files",
            options.model.display()
        ),
    }
}

fn existing(folder: &Path) -> Result<PathBuf> {
    for name in ["config.json", "tokenizer_config.json"] {
        if !folder.join(name).is_file() {
            bail!("{}: missing {name}, which Dynamo's frontend reads", folder.display());
        }
    }
    folder.canonicalize().with_context(|| folder.display().to_string())
}

/// Where folders that are made stand.
fn cards(options: &Options) -> PathBuf {
    let of = |name, inside: &str| {
        let folder = PathBuf::from(std::env::var_os(name)?);
        folder.is_absolute().then(|| folder.join(inside))
    };
    let cache = || of("XDG_CACHE_HOME", "latent/cards").or_else(|| of("HOME", ".cache/latent/cards"));
    let given = options.cards.clone().or_else(cache);
    given.unwrap_or_else(|| std::env::temp_dir().join("latent-cards"))
}

fn made(checkpoint: &Checkpoint, cards: &Path) -> Result<PathBuf> {
    let SmallFiles { files, notes } = latent_convert::small_files(checkpoint)?;
    if !files.iter().any(|(name, _)| name == "tokenizer.json") {
        let name = checkpoint.display_name();
        bail!("{name}: {}; give a folder with its tokenizer.json as --model-files", notes.join("; "));
    }
    let folder = cards.join(format!("{:016x}", checkpoint.fingerprint()));
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for (name, text) in files {
        let path = folder.join(name);
        if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
        // another worker may be reading it, or writing the same
        write_whole(&folder, &path, &text).with_context(|| path.display().to_string())?;
    }
    folder.canonicalize().with_context(|| folder.display().to_string())
}

fn write_whole(folder: &Path, path: &Path, text: &str) -> Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // the frontend may be another user's
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
    }
    file.persist(path)?;
    Ok(())
}
