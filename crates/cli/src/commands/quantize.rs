//! `latent quantize`: a GGUF file in other types.

use super::quantize_kl::Trials;
use super::types::{self, Costs, USUAL};
use crate::args::{QuantizeArgs, TypeArgs};
use crate::exit::UsageError;
use crate::model;
use crate::progress::LateBar;
use crate::{hub, interrupt, output, target};
use anyhow::{Context, Result};
use latent_convert::quantize::{Assignment, Mix, QuantizeError, write};
use latent_formats::Checkpoint;
use latent_types::format_bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) fn run(args: &QuantizeArgs) -> Result<()> {
    let environment = std::env::var_os("LATENT_MODEL").map(PathBuf::from);
    let task = args.task(environment).map_err(UsageError)?;
    let args =
        &QuantizeArgs { types: TypeArgs { threads: task.threads, ..args.types.clone() }, ..args.clone() };
    let checkpoint = model::open(Some(&task.model))?;
    let importances = args.types.importances()?;
    let mix = task.mix.or_else(|| Mix::from_name(USUAL)).context("no TYPE")?;
    let mut assignment = Assignment::new(&*checkpoint, &args.types.options(mix), importances.as_ref())?;
    let name = match (args.types.target_size, args.target_kl) {
        (Some(size), _) => format_bytes(size).replace(' ', ""),
        (None, Some(kl)) => format!("kl{kl}"),
        (None, None) => mix.name().to_owned(),
    };
    let out = task.out.unwrap_or_else(|| named(&task.model, checkpoint.path(), &name));
    let fit = fitted(&checkpoint, &mut assignment, args, &out)?;
    if args.types.dry_run {
        return types::dry_run(&assignment, fit.as_ref(), &args.types, &[]);
    }
    target::check(&out, args.force)?;
    let mut bar = LateBar::bytes(true, "quantizing");
    let written = write(&assignment, &out, args.types.threads(), &mut |done, total| {
        bar.set(done, total);
        !interrupt::asked()
    });
    bar.finish();
    let written = match written {
        // an interrupted program says no more than its exit code otherwise
        Err(stopped @ QuantizeError::Stopped { .. }) => {
            output::note(&stopped.to_string());
            return Ok(());
        }
        written => written?,
    };
    if args.types.json {
        output::json(&types::report(&written, fit.as_ref(), &[]))
    } else {
        output::now(&types::table(&written, fit.as_ref(), mix))
    }
}

/// Types for the size, or for the nearness, that is asked for.
fn fitted(
    checkpoint: &Arc<Checkpoint>,
    assignment: &mut Assignment<'_>,
    args: &QuantizeArgs,
    out: &Path,
) -> Result<Option<Costs>> {
    let Some(text) = &args.file else { return types::sized(assignment, &args.types) };
    if args.target_kl.is_none() && args.types.target_size.is_none() {
        return Err(UsageError("--file is the text for --target-kl or --target-size".into()).into());
    }
    let mut measured = types::measured(assignment, &args.types)?;
    let trials = Trials::new(checkpoint, text, out, args)?;
    trials.measure_sensitivities(assignment, &mut measured)?;
    if let Some(target) = args.target_kl {
        let (fit, kl) = trials.nearest(assignment, &measured, target)?;
        return Ok(Some(Costs { fit, kl: Some(kl) }));
    }
    let size = args.types.target_size.unwrap_or(u64::MAX);
    Ok(Some(Costs { fit: assignment.fit(&measured, size)?, kl: None }))
}

/// `model-Q4_K_M.gguf` of `model-BF16` and `model`.
pub(super) fn named_by_type(set: &str, ty: &str) -> String {
    match latent_hub::base_name(set) {
        "" => format!("{ty}.gguf"),
        base => format!("{base}-{ty}.gguf"),
    }
}

/// `model-Q4_K_M.gguf` next to `model-BF16.gguf` or `model.gguf`; in the current folder for a model of the hub.
fn named(given: &Path, model: &Path, ty: &str) -> PathBuf {
    let name = hub::local_name(given);
    let file = named_by_type(name.as_deref().or_else(|| hub::file_set_name(model)).unwrap_or("model"), ty);
    if name.is_some() { PathBuf::from(file) } else { model.with_file_name(file) }
}
