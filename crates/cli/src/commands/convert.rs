//! `latent convert`: converts safetensors folders to GGUF files and back.

use super::quantize::named_by_type;
use super::types::{self, DEFAULT_MIX};
use crate::args::{ConvertArgs, TypeArgs};
use crate::exit::{UnsupportedModel, UsageError};
use crate::progress::LateBar;
use crate::{hub, interrupt, model, output};
use anyhow::Result;
use latent_convert::quantize::Mix;
use latent_convert::{
    AdapterBase, ConvertError, FolderOptions, FolderWeights, GgufOptions, matrix_type, to_folder,
};
use latent_formats::{AdapterFile, Checkpoint, CheckpointSource};
use latent_types::{TensorType, format_bytes};
use std::path::{Path, PathBuf};

pub(super) fn run(args: &ConvertArgs) -> Result<()> {
    let given = args.path.as_deref().or(args.model.as_deref()).unwrap_or(Path::new(""));
    if let Some(base) = &args.base_model {
        return adapter(args, given, base);
    }
    let checkpoint = model::open(Some(given))?;
    match checkpoint.source() {
        CheckpointSource::HuggingFace(_) => into_gguf(args, &checkpoint, given),
        CheckpointSource::Gguf(_) => into_folder(args, &checkpoint, given),
    }
}

/// Converts a LoRA adapter to the other format.
fn adapter(args: &ConvertArgs, given: &Path, base: &Path) -> Result<()> {
    if args.ty.is_some() || args.pre.is_some() || args.split_max_size.is_some() {
        return Err(
            UsageError("--type, --pre and --split-max-size cannot be used with an adapter".into()).into()
        );
    }
    let model = model::describe(Some(base), None)?;
    let adapter = AdapterFile::open(given)?;
    let out = args.out.as_deref().unwrap_or(Path::new("adapter"));
    if out.exists() && !args.force {
        return Err(ConvertError::Exists { path: out.to_owned() }.into());
    }
    let name = base.display().to_string();
    let target = AdapterBase { circuit: &model.circuit, config: &model.config, name: &name };
    let tensors = latent_convert::convert_adapter(&adapter, &target, out)?;
    output::line(&format!("{}: {tensors} adapted tensors", out.display()))
}

fn into_gguf(args: &ConvertArgs, checkpoint: &Checkpoint, given: &Path) -> Result<()> {
    let stored = matrix_type(checkpoint).name();
    // Without --type, matrices keep their type. A target size needs a mix to begin with.
    let usual = if args.types.target_size.is_some() { DEFAULT_MIX } else { stored };
    let name = args.ty.as_deref().unwrap_or(usual);
    let unknown = || UsageError(ConvertError::UnknownMix(name.to_owned()).to_string());
    let mix = Mix::from_name(name).ok_or_else(unknown)?;
    let (types, importances) = (args.types.options(mix), args.types.importances()?);
    let id = hub::repository(given);
    let options = GgufOptions {
        types: Some(&types),
        importances: importances.as_ref(),
        threads: Some(args.types.threads()),
        split: args.split_max_size.filter(|_| !args.types.dry_run),
        pre: args.pre.as_deref(),
        id: id.as_deref(),
        force: args.force,
    };
    let weights = FolderWeights::new(checkpoint, &options).map_err(usage)?;
    let mut assignment = weights.assignment(&options).map_err(usage)?;
    let fit = types::sized(&mut assignment, &args.types)?;
    let tell_notes = || weights.notes().iter().for_each(|note| output::note(&format!("note: {note}")));
    if args.types.dry_run {
        tell_notes();
        return types::dry_run(&assignment, fit.as_ref(), &args.types, weights.notes());
    }
    let size = args.types.target_size.map(|size| format_bytes(size).replace(' ', ""));
    let end = size.as_deref().unwrap_or(mix.name());
    let file = || PathBuf::from(named_by_type(&own_name(checkpoint, given), end));
    let out = args.out.clone().unwrap_or_else(|| next_to_model(checkpoint, given, &file()));
    let mut bar = LateBar::bytes(true, "converting");
    let written = weights.write(&assignment, &out, &options, &mut |done, total| {
        bar.set(done, total);
        !interrupt::asked()
    });
    bar.finish();
    let written = match written {
        // `exit::code` prints no error after a signal, so the state of the partial file is printed
        // here.
        Err(stopped @ ConvertError::Stopped { .. }) => {
            output::note(&stopped.to_string());
            return Ok(());
        }
        written => written.map_err(usage)?,
    };
    tell_notes();
    if args.types.json {
        output::json(&types::report(&written, fit.as_ref(), weights.notes()))
    } else if written.tensors.iter().any(|tensor| tensor.assigned.to.is_quantized()) {
        output::multiline(&types::table(&written, fit.as_ref(), mix))
    } else {
        let (tensors, bytes) = (written.tensors.len(), format_bytes(written.bytes));
        output::line(&format!("{}: {tensors} tensors, {bytes}", types::names(&written)))
    }
}

fn into_folder(args: &ConvertArgs, checkpoint: &Checkpoint, given: &Path) -> Result<()> {
    if let Some(flag) = args.pre.as_ref().map(|_| "--pre").or_else(|| of_gguf(&args.types)) {
        return Err(UsageError(format!("{flag} requires a .gguf output, but this writes a folder")).into());
    }
    let ty = args.ty.as_deref().map(TensorType::from_name).transpose();
    let ty = ty.map_err(|error| UsageError(error.to_string()))?;
    let options = FolderOptions { ty, split: args.split_max_size, force: args.force };
    let name = || PathBuf::from(own_name(checkpoint, given));
    let out = args.out.clone().unwrap_or_else(|| next_to_model(checkpoint, given, &name()));
    let mut bar = LateBar::bytes(true, "converting");
    let report = to_folder(checkpoint, &out, &options, &mut |done, total| {
        bar.set(done, total);
        !interrupt::asked()
    });
    bar.finish();
    let report = report.map_err(usage)?;
    report.notes.iter().for_each(|note| output::note(&format!("note: {note}")));
    let (tensors, bytes) = (report.tensors, format_bytes(report.bytes));
    let others = report.files.len() - 1;
    output::line(&format!("{} and {others} more: {tensors} tensors, {bytes}", report.files[0].display()))
}

/// The first given flag that has no meaning for a folder.
fn of_gguf(args: &TypeArgs) -> Option<&'static str> {
    let given = [
        (args.imatrix.is_some(), "--imatrix"),
        (!args.tensor_type.is_empty(), "--tensor-type"),
        (args.output_tensor_type.is_some(), "--output-tensor-type"),
        (args.token_embedding_type.is_some(), "--token-embedding-type"),
        (args.pure, "--pure"),
        (args.allow_requantize, "--allow-requantize"),
        (args.target_size.is_some(), "--target-size"),
        (args.dry_run, "--dry-run"),
        (args.threads.is_some(), "--threads"),
        (args.json, "--json"),
    ];
    given.into_iter().find(|(given, _)| *given).map(|(_, flag)| flag)
}

/// The base of the new file's name: the model's folder, or its file without extension and shard
/// number.
fn own_name(checkpoint: &Checkpoint, model: &Path) -> String {
    let path = checkpoint.path();
    // `.` and `..` have no file name.
    let path = if path.file_name().is_none() {
        path.canonicalize().unwrap_or(path.to_owned())
    } else {
        path.to_owned()
    };
    let folder = matches!(checkpoint.source(), CheckpointSource::HuggingFace(_));
    let of_folder = || path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = || if folder { of_folder() } else { hub::file_set_name(&path).map(str::to_owned) };
    hub::local_name(model).or_else(name).unwrap_or_else(|| "model".into())
}

/// A path next to the model, or in the current folder for a model of the hub.
fn next_to_model(checkpoint: &Checkpoint, model: &Path, name: &Path) -> PathBuf {
    let path = checkpoint.path();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    match path.parent() {
        // Files in the cache folder belong to the hub, so nothing is written there.
        Some(parent) if hub::local_name(model).is_none() => {
            // Relative if the user gave a relative path.
            let short = checkpoint.path().parent().filter(|_| checkpoint.path().file_name().is_some());
            short.unwrap_or(parent).join(name)
        }
        _ => name.to_owned(),
    }
}

/// Maps errors to exit codes: an unknown type is wrong usage.
fn usage(error: ConvertError) -> anyhow::Error {
    match error {
        ConvertError::Type { .. } => UsageError(error.to_string()).into(),
        ConvertError::NoGguf { .. } => UnsupportedModel(error.to_string()).into(),
        other => other.into(),
    }
}
