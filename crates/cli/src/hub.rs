//! Models of Hugging Face's hub where a path is expected, by reference or short name, and what downloading one shows.

use crate::exit::UsageError;
use crate::progress::LateBar;
use crate::{input, interrupt, output};
use anyhow::{Result, anyhow};
use latent_engine::memory;
use latent_hub::{
    HubError, HubSettings, ModelChoice, ModelRef, ModelSelector, PullEvent, PullResult, QuantPolicy, Repo,
    misspelled_name, path_short_name, set_name,
};
use latent_types::format_bytes;
use std::borrow::Cow;
use std::io::{IsTerminal, stderr, stdin};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The path of a model: of one of the hub that of its files, which are downloaded if they are not there.
pub(crate) fn located(path: &Path) -> Result<Cow<'_, Path>> {
    match reference(path)? {
        Some(model) => ready(&model, path_short_name(path)).map(Cow::Owned),
        None => match misspelled_name(path) {
            Some(problem) => Err(anyhow!(problem)),
            None => Ok(Cow::Borrowed(path)),
        },
    }
}

/// What to call something that is made from a model of the hub; none for other models.
pub(crate) fn local_name(path: &Path) -> Option<String> {
    let model = reference(path).ok()??;
    if let Some(text) = path_short_name(path) {
        return Some(text.replace(':', "-"));
    }
    let name = &model.repo.name;
    Some(match &model.choice {
        ModelSelector::Usual => name.clone(),
        ModelSelector::Quant(quant) => format!("{name}-{quant}"),
        ModelSelector::File(file) => file_set_name(Path::new(file))?.to_owned(),
    })
}

/// A file's name without its shard and ending.
pub(crate) fn file_set_name(file: &Path) -> Option<&str> {
    let name = file.file_name()?.to_str()?;
    let set = set_name(name);
    if set.len() < name.len() { Some(set) } else { file.file_stem()?.to_str() }
}

/// The repository of a model of the hub, `OWNER/NAME`; none for other models.
pub(crate) fn repository(path: &Path) -> Option<String> {
    reference(path).ok()?.map(|model| model.repo.to_string())
}

/// Whether a path is a reference to a model of the hub.
pub(crate) fn is_reference(path: &Path) -> Result<bool> {
    Ok(reference(path)?.is_some())
}

fn reference(path: &Path) -> Result<Option<ModelRef>> {
    latent_hub::path_reference(path).map_err(usage)
}

/// Whether `--offline` was given.
static OFFLINE: AtomicBool = AtomicBool::new(false);

/// Keeps this process from downloading anything.
pub(crate) fn stay_offline() {
    OFFLINE.store(true, Ordering::Relaxed);
}

/// The canonical path of a model on this machine: of one of the hub that of its files, if they are there.
pub(crate) fn found(path: &Path) -> Option<PathBuf> {
    let local = match reference(path).ok()? {
        Some(model) => latent_hub::find(&settings().ok()?, &model).ok()??.path,
        None => path.to_owned(),
    };
    local.canonicalize().ok()
}

/// The settings of the environment and of `--offline`.
pub(crate) fn settings() -> Result<HubSettings> {
    let mut settings = HubSettings::from_env()?;
    settings.offline |= OFFLINE.load(Ordering::Relaxed);
    Ok(settings)
}

/// What a short name without a quant takes.
pub(crate) fn policy(name: Option<&str>) -> QuantPolicy {
    QuantPolicy::of_short_name(name, memory::available().map(|free| free.bytes))
}

fn ready(model: &ModelRef, name: Option<&str>) -> Result<PathBuf> {
    let settings = settings()?;
    if let Some(local) = latent_hub::find(&settings, model)? {
        if model.choice == ModelSelector::Usual && !latent_hub::DEFAULT_QUANTS.contains(&local.name.as_str())
        {
            output::note(&format!("{model}: using {}, which is already downloaded", local.name));
        }
        return Ok(local.path);
    }
    Ok(pull(&settings, model, &policy(name), false)?.model.path)
}

/// What `latent pull` brings up to date for a reference or short name: without a quant, the model that is on this machine.
pub(crate) fn wanted(settings: &HubSettings, text: &str) -> Result<ModelRef> {
    let model = latent_hub::model_ref(text).map_err(usage)?;
    if latent_hub::short_name(text).is_none() || model.choice != ModelSelector::Usual {
        return Ok(model);
    }
    let choice = match latent_hub::find(settings, &model)?.map(|local| local.name) {
        Some(name) if name.to_ascii_lowercase().ends_with(".gguf") => ModelSelector::File(name),
        Some(name) => ModelSelector::Quant(name),
        None => ModelSelector::Usual,
    };
    Ok(ModelRef { choice, ..model })
}

/// Downloads a model, with a progress bar on a terminal. A user at a terminal is asked which of several models is meant.
pub(crate) fn pull(
    settings: &HubSettings,
    model: &ModelRef,
    policy: &QuantPolicy,
    quiet: bool,
) -> Result<PullResult> {
    match download(settings, model, policy, quiet) {
        Err(HubError::Choose { repo, problem, choices, more }) => match ask(&repo, &problem, &choices)? {
            Some(chosen) => {
                download(settings, &chosen.reference.parse().map_err(usage)?, policy, quiet).map_err(usage)
            }
            None => Err(HubError::Choose { repo, problem, choices, more }.into()),
        },
        pulled => pulled.map_err(usage),
    }
}

/// The model that a user chooses; none without a terminal, or when no number is typed.
fn ask<'a>(repo: &Repo, problem: &str, choices: &'a [ModelChoice]) -> Result<Option<&'a ModelChoice>> {
    if choices.is_empty() || !stdin().is_terminal() || !stderr().is_terminal() {
        return Ok(None);
    }
    output::note(&format!("{repo}: {problem}"));
    for (i, choice) in choices.iter().enumerate() {
        output::note(&format!("{:>4}  {choice}", i + 1));
    }
    output::note(&format!("Number of the model [1 to {}]:", choices.len()));
    let chosen = input::line()?.and_then(|line| line.trim().parse::<usize>().ok());
    Ok(chosen.and_then(|number| choices.get(number.checked_sub(1)?)))
}

fn download(
    settings: &HubSettings,
    model: &ModelRef,
    policy: &QuantPolicy,
    quiet: bool,
) -> Result<PullResult, HubError> {
    let mut bar = LateBar::bytes(!quiet, "pulling");
    let pulled = latent_hub::pull_with(settings, model, policy, &mut |event| {
        match event {
            PullEvent::Plan { name, files, bytes, here, folder } => {
                bar.begin_at(here, bytes);
                if !quiet {
                    bar.note(&plan(model, &name, files, bytes, here, &folder));
                }
            }
            PullEvent::Note(text) if !quiet => bar.note(&text),
            PullEvent::Progress { done, total } if total > 0 => bar.set(done, total),
            _ => {}
        }
        !interrupt::asked()
    });
    bar.finish();
    if let Err(stopped @ HubError::Stopped { .. }) = &pulled {
        // the exit code says that it was a signal; an error would not be printed
        output::note(&stopped.to_string());
    }
    pulled
}

/// `pulling hf:o/n: Q4_K_M, 2 files, 12.30 GB (1.00 GB of them here) into …`.
fn plan(model: &ModelRef, name: &str, files: usize, bytes: u64, here: u64, folder: &Path) -> String {
    let s = if files == 1 { "" } else { "s" };
    let here = if here > 0 { format!(" ({} of that is here)", format_bytes(here)) } else { String::new() };
    let bytes = format_bytes(bytes);
    format!("pulling {model}: {name}, {files} file{s}, {bytes}{here}, into {}", folder.display())
}

/// A reference that is none is wrong usage.
pub(crate) fn usage(error: HubError) -> anyhow::Error {
    match error {
        HubError::Reference { .. } => UsageError(error.to_string()).into(),
        other => other.into(),
    }
}
