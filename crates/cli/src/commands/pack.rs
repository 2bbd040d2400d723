//! `latent pack`: writes a model as a packed file.

use crate::args::PackArgs;
use crate::{hub, model, output, pack_cache};
use anyhow::{Result, bail};
use latent_formats::Checkpoint;
use latent_formats::pack::EXTENSION;
use latent_types::format_bytes;
use std::path::{Path, PathBuf};

pub(super) fn run(args: &PackArgs) -> Result<()> {
    let checkpoint = model::open(args.model.as_deref())?;
    if checkpoint.packed_from().is_some() {
        bail!("{}: already a packed file", checkpoint.display_name());
    }
    let out = args.out.clone().unwrap_or_else(|| match args.model.as_deref().and_then(hub::local_name) {
        Some(name) => PathBuf::from(format!("{name}.{EXTENSION}")),
        None => packed_path(checkpoint.path()),
    });
    // A repeated `latent pack` in a script is a no-op if the model has not changed.
    if !args.force && out.try_exists()? {
        match older(&checkpoint, &out) {
            None => return output::line(&format!("{}: up to date", out.display())),
            Some(what) => bail!("{}: {what}; --force replaces it", out.display()),
        }
    }
    // Replacing a file whose weights are mapped would destroy the source.
    if same_file(checkpoint.path(), &out) {
        bail!("{}: this is the model itself; use another file with --out", out.display());
    }
    match pack_cache::pack(&checkpoint, &out, args.threads) {
        Ok(packed) => output::line(&format!(
            "{}: {} tensors, {}",
            out.display(),
            checkpoint.tensors().len(),
            format_bytes(packed.bytes)
        )),
        Err(error) => Err(latent_engine::EngineError::from(error).into()),
    }
}

/// `model.latent` next to `model.gguf`; `folder.latent` next to a folder.
fn packed_path(path: &Path) -> PathBuf {
    // `.` and `..` have no file name.
    let path = if path.file_name().is_none() {
        path.canonicalize().unwrap_or(path.to_owned())
    } else {
        path.to_owned()
    };
    if path.is_dir() {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{EXTENSION}"));
        return path.with_file_name(name);
    }
    match hub::file_set_name(&path) {
        Some(set) => path.with_file_name(format!("{set}.{EXTENSION}")),
        None => path.with_extension(EXTENSION),
    }
}

/// Why the file at `out` is not the packed form of this model; `None` if it is.
fn older(checkpoint: &Checkpoint, out: &Path) -> Option<String> {
    let Ok(there) = Checkpoint::open(out) else {
        return Some("the file exists and is not a readable packed file".into());
    };
    match there.packed_from() {
        None => Some("the file exists and is a model that is not packed".into()),
        Some(from) if from.identity == checkpoint.identity() => None,
        Some(from) => Some(format!("it was packed from another model, or {} has changed since", from.name)),
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
