//! `latent convert`: a model in a file of the other kind.

use crate::args::ConvertArgs;
use crate::exit::{NotSupported, Usage};
use crate::progress::LateBar;
use crate::{hub, interrupt, model, output};
use anyhow::Result;
use latent_convert::{ConvertError, Encoding, FolderOptions, GgufOptions, Uniform, to_folder, to_gguf};
use latent_formats::{Checkpoint, Source};
use latent_types::format_bytes;
use std::path::{Path, PathBuf};

pub(super) fn run(args: &ConvertArgs) -> Result<()> {
    let given = args.path.as_deref().or(args.model.as_deref()).unwrap_or(Path::new(""));
    let checkpoint = model::open(Some(given))?;
    let mut bar = LateBar::bytes(true, "converting");
    let mut tell = |done, total| {
        bar.set(done, total);
        !interrupt::asked()
    };
    let report = match checkpoint.source() {
        Source::HuggingFace(_) => {
            let id = hub::repository(given);
            let encoding = args.ty.map(Uniform::new).transpose().map_err(usage)?;
            let options = GgufOptions {
                encoding: encoding.as_ref().map(|encoding| encoding as &dyn Encoding),
                split: args.split_max_size,
                pre: args.pre.as_deref(),
                id: id.as_deref(),
                force: args.force,
            };
            let ty = args.ty.unwrap_or_else(|| latent_convert::matrix_type(&checkpoint));
            let name = || PathBuf::from(format!("{}-{ty}.gguf", own_name(&checkpoint, given)));
            let out = args.out.clone().unwrap_or_else(|| beside(&checkpoint, given, &name()));
            to_gguf(&checkpoint, &out, &options, &mut tell)
        }
        Source::Gguf(_) => {
            if args.pre.is_some() {
                return Err(Usage("--pre is for writing a .gguf file; this writes a folder".into()).into());
            }
            let options = FolderOptions { ty: args.ty, split: args.split_max_size, force: args.force };
            let name = || PathBuf::from(own_name(&checkpoint, given));
            let out = args.out.clone().unwrap_or_else(|| beside(&checkpoint, given, &name()));
            to_folder(&checkpoint, &out, &options, &mut tell)
        }
    };
    bar.finish();
    let report = report.map_err(usage)?;
    report.notes.iter().for_each(|note| output::note(&format!("note: {note}")));
    let others = match report.files.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let (tensors, bytes) = (report.tensors, format_bytes(report.bytes));
    output::line(&format!("{}{others}: {tensors} tensors, {bytes}", report.files[0].display()))
}

/// What the new file is called after: the model's folder, or its file without ending and number.
fn own_name(checkpoint: &Checkpoint, model: &Path) -> String {
    let path = checkpoint.path();
    // `.` and `..` have no name
    let path = if path.file_name().is_none() {
        path.canonicalize().unwrap_or(path.to_owned())
    } else {
        path.to_owned()
    };
    let folder = matches!(checkpoint.source(), Source::HuggingFace(_));
    let name = if folder { path.file_name() } else { path.file_stem() };
    let name = hub::local_name(model).or_else(|| name.map(|name| name.to_string_lossy().into_owned()));
    let name = name.unwrap_or_else(|| "model".into());
    match name.split_once("-00001-of-") {
        Some((set, _)) => set.to_owned(),
        None => name,
    }
}

/// A name beside the model; in this folder for a model of the hub.
fn beside(checkpoint: &Checkpoint, model: &Path, name: &Path) -> PathBuf {
    let path = checkpoint.path();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    match path.parent() {
        Some(parent) if hub::local_name(model).is_none() => {
            // as short as the user wrote it
            let short = checkpoint.path().parent().filter(|_| checkpoint.path().file_name().is_some());
            short.unwrap_or(parent).join(name)
        }
        _ => name.to_owned(),
    }
}

/// The error with its exit code: a type that is not offered is wrong usage.
fn usage(error: ConvertError) -> anyhow::Error {
    match error {
        ConvertError::Type { .. } => Usage(error.to_string()).into(),
        ConvertError::NoGguf { .. } => NotSupported(error.to_string()).into(),
        other => other.into(),
    }
}
