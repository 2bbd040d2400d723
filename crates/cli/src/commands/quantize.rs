//! `latent quantize`: rewrites a GGUF file with other tensor types.

use super::quantize_kl::Trials;
use super::types::{self, Costs, DEFAULT_MIX};
use crate::args::{LoraFile, QuantizeArgs, QuantizeMethod, TypeArgs};
use crate::exit::UsageError;
use crate::model;
use crate::progress::LateBar;
use crate::{hub, interrupt, output, target};
use anyhow::{Context, Result, bail};
use latent_convert::ConvertError;
use latent_convert::quantize::{
    AdapterNames, Assignment, DEFAULT_DAMPING, GptqOptions, Hessians, MergedWeights, Mix, Weights, write,
};
use latent_engine::memory;
use latent_formats::{AdapterFile, AdapterNaming, Checkpoint, FormatError};
use latent_types::format_bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) fn run(args: &QuantizeArgs) -> Result<()> {
    let environment = std::env::var_os("LATENT_MODEL").map(PathBuf::from);
    let task = args.task(environment).map_err(UsageError)?;
    let args =
        &QuantizeArgs { types: TypeArgs { threads: task.threads, ..args.types.clone() }, ..args.clone() };
    let checkpoint = model::open(Some(&task.model))?;
    let hessians = hessians(args)?;
    let of_imatrix = args.types.importances()?;
    // The diagonals of the Hessians are importances: types without GPTQ and experts that met few
    // tokens use them.
    let importances = of_imatrix.as_ref().or(hessians.as_ref().map(Hessians::importances));
    let mix = task.mix.or_else(|| Mix::from_name(DEFAULT_MIX)).context("no TYPE")?;
    let merged = merged(&checkpoint, &task.model, args)?;
    let weights: &dyn Weights = merged.as_ref().map_or(&*checkpoint, |merged| merged);
    let mut assignment = Assignment::new(weights, &args.types.options(mix), importances)?;
    if let Some(hessians) = &hessians {
        let damping = args.damping.unwrap_or(DEFAULT_DAMPING);
        assignment.use_hessians(hessians, GptqOptions { damping, act_order: args.act_order })?;
    }
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
    if hessians.is_some() {
        check_memory(&assignment, args.types.threads())?;
    }
    let mut bar = LateBar::bytes(true, "quantizing");
    let written = write(&assignment, &out, args.types.threads(), &mut |done, total| {
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
        written => written?,
    };
    if args.types.json {
        output::json(&types::report(&written, fit.as_ref(), &[]))
    } else {
        output::multiline(&types::table(&written, fit.as_ref(), mix))
    }
}

/// Merges the adapters of `--merge-lora`.
fn merged<'a>(
    checkpoint: &'a Checkpoint,
    model: &Path,
    args: &QuantizeArgs,
) -> Result<Option<MergedWeights<'a>>> {
    if args.merge_lora.is_empty() {
        return Ok(None);
    }
    let open = |lora: &LoraFile| Ok((AdapterFile::open(&lora.path)?, lora.scale));
    let adapters = args.merge_lora.iter().map(open).collect::<Result<Vec<_>, FormatError>>()?;
    // PEFT's adapters name modules of Hugging Face, which the circuit maps to tensors. GGUF
    // adapters name the tensors.
    let names = match adapters.iter().any(|(adapter, _)| adapter.naming == AdapterNaming::HuggingFace) {
        true => {
            let model = model::describe(Some(model), None)?;
            AdapterNames::new(&model.circuit, &model.config)
        }
        false => AdapterNames::default(),
    };
    let merged = MergedWeights::new(checkpoint, &adapters, &names, args.types.allow_requantize)?;
    output::note(&format!("adapters change {} tensors", merged.changed()));
    Ok(Some(merged))
}

/// Opens the Hessians of `--method gptq`.
fn hessians(args: &QuantizeArgs) -> Result<Option<Hessians>> {
    match (args.method, &args.hessians) {
        (QuantizeMethod::Gptq, Some(path)) => Ok(Some(Hessians::open(path)?)),
        (QuantizeMethod::Gptq, None) => {
            let problem = "--method gptq needs --hessians FILE: `latent imatrix --hessians FILE` writes it";
            Err(UsageError(problem.into()).into())
        }
        (QuantizeMethod::Search, Some(_)) => {
            Err(UsageError("--hessians requires --method gptq".into()).into())
        }
        (QuantizeMethod::Search, None) => Ok(None),
    }
}

/// Prints the memory for the factors of Hessians, and fails if that is not free.
fn check_memory(assignment: &Assignment<'_>, threads: usize) -> Result<()> {
    let bytes = assignment.gptq_bytes(threads);
    output::note(&format!("Hessians take up to {} of memory with {threads} threads", format_bytes(bytes)));
    if let Some(free) = memory::available().filter(|free| bytes > free.bytes) {
        bail!(
            "the Hessians of {threads} threads take {}, more than the {} of free memory: use fewer --threads",
            format_bytes(bytes),
            format_bytes(free.bytes)
        );
    }
    Ok(())
}

/// Chooses types for the requested size or KL divergence.
fn fitted(
    checkpoint: &Arc<Checkpoint>,
    assignment: &mut Assignment<'_>,
    args: &QuantizeArgs,
    out: &Path,
) -> Result<Option<Costs>> {
    let Some(text) = &args.file else { return types::sized(assignment, &args.types) };
    if args.target_kl.is_none() && args.types.target_size.is_none() {
        return Err(UsageError("--file requires --target-kl or --target-size".into()).into());
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

/// `model-Q4_K_M.gguf` for `model-BF16` or `model`.
pub(super) fn named_by_type(set: &str, ty: &str) -> String {
    match latent_hub::base_name(set) {
        "" => format!("{ty}.gguf"),
        base => format!("{base}-{ty}.gguf"),
    }
}

/// `model-Q4_K_M.gguf` next to `model-BF16.gguf` or `model.gguf`. For a model of the hub, in the
/// current folder.
fn named(given: &Path, model: &Path, ty: &str) -> PathBuf {
    let name = hub::local_name(given);
    let file = named_by_type(name.as_deref().or_else(|| hub::file_set_name(model)).unwrap_or("model"), ty);
    if name.is_some() { PathBuf::from(file) } else { model.with_file_name(file) }
}
