//! Packed copies of models: `latent pack` and `--pack-cache`, which writes one at the first start
//! of a model.

use crate::args::EngineArgs;
use crate::exit::UsageError;
use crate::progress::LateBar;
use crate::{hub, interrupt, output};
use anyhow::{Context, Result};
use latent_backend::BackendError;
use latent_backends::PackedFile;
use latent_formats::Checkpoint;
use latent_formats::pack::EXTENSION;
use latent_types::format_bytes;
use std::fs;
use std::path::{Path, PathBuf};

/// Packs a model into a file, with a progress bar. Ctrl-C cancels it and leaves no file.
pub(crate) fn pack(
    checkpoint: &Checkpoint,
    out: &Path,
    threads: Option<u16>,
) -> Result<PackedFile, BackendError> {
    let bar = LateBar::bytes(true, "packing");
    let packed = latent_backends::pack(checkpoint, out, threads.map(usize::from), &mut |done, total| {
        bar.set(done, total);
        !interrupt::asked()
    })?;
    packed.not_finite.iter().for_each(|(tensor, count)| {
        bar.note(&format!(
            "warning: tensor {tensor} has {count} numbers or scales that are NaN or infinite; they were \
             packed unchanged (see `latent verify --weights`)"
        ));
    });
    Ok(packed)
}

/// With `--pack-cache`, opens the packed copy of a model and writes it first if necessary. If it
/// cannot be written, a warning gives the reason and the model itself is used.
pub(crate) fn cached(checkpoint: Checkpoint, args: &EngineArgs) -> Result<Checkpoint> {
    let Some(folder) = &args.pack_cache else { return Ok(checkpoint) };
    // The model is a packed file already.
    if checkpoint.packed_from().is_some() {
        return Ok(checkpoint);
    }
    if args.partition.is_some() {
        return Err(UsageError(
            "--pack-cache cannot be used with ranks: every rank reads its own part of the model".into(),
        )
        .into());
    }
    if args.wants_gpu() {
        return Err(UsageError(
            "--pack-cache cannot be used with a GPU: packed weights are for CPU kernels".into(),
        )
        .into());
    }
    let folder = match folder {
        Some(folder) => folder.clone(),
        None => hub::settings()?.cache.join("packed"),
    };
    let path = folder.join(copy_name(&checkpoint));
    if let Some(copy) = opened(&path, &checkpoint) {
        return Ok(copy);
    }
    let made = fs::create_dir_all(&folder)
        .with_context(|| format!("creating {}", folder.display()))
        .and_then(|()| Ok(pack(&checkpoint, &path, args.threads)?));
    match made {
        Ok(packed) => {
            let size = format_bytes(packed.bytes);
            output::note(&format!("wrote a packed copy for later starts: {} ({size})", path.display()));
            // The copy is used from the first start on, so that the first and later runs execute
            // the same kernels on the same layout. Another process may have removed it meanwhile.
            Ok(opened(&path, &checkpoint).unwrap_or(checkpoint))
        }
        // Ctrl-C while packing ends the command. It must not start to load the model instead.
        Err(error) if interrupt::asked() => Err(error),
        Err(error) => {
            output::note(&format!("warning: --pack-cache: no packed copy was written: {error:#}"));
            Ok(checkpoint)
        }
    }
}

/// The copy at `path`, if it was packed from this model.
fn opened(path: &Path, checkpoint: &Checkpoint) -> Option<Checkpoint> {
    let copy = Checkpoint::open(path).ok()?;
    // The name holds the hashes already, but a file can be renamed or copied by hand.
    copy.packed_from().is_some_and(|from| from.identity == checkpoint.identity()).then_some(copy)
}

/// `NAME-HASHES.latent`: a different model of the same name, or a changed one, gets its own copy.
fn copy_name(checkpoint: &Checkpoint) -> PathBuf {
    let path = checkpoint.path();
    let stem = hub::file_set_name(path).or_else(|| path.file_name()?.to_str()).unwrap_or("model");
    // The name comes from a repository or a file and becomes part of a path: separators and shell
    // metacharacters are replaced.
    let stem: String =
        stem.chars().map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    let identity = checkpoint.identity();
    PathBuf::from(format!("{stem}-{:016x}{:016x}.{EXTENSION}", identity.header, identity.sample))
}
