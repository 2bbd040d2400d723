//! Models of the Hugging Face Hub in place of a path, by reference or short name, and the output of
//! downloads.

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

/// The local path of a model. A model of the hub is downloaded if it is not cached.
pub(crate) fn resolve(path: &Path) -> Result<Cow<'_, Path>> {
    match reference(path)? {
        Some(model) => downloaded(&model, path_short_name(path)).map(Cow::Owned),
        // A name such as `deepsek-v2-lite` would otherwise be reported as a missing file.
        None => match misspelled_name(path) {
            Some(problem) => Err(anyhow!(problem)),
            None => Ok(Cow::Borrowed(path)),
        },
    }
}

/// The base of the names of files made from a model of the hub; `None` for local models.
pub(crate) fn local_name(path: &Path) -> Option<String> {
    let model = reference(path).ok()??;
    if let Some(text) = path_short_name(path) {
        // Windows forbids colons in file names.
        return Some(text.replace(':', "-"));
    }
    let name = &model.repo.name;
    Some(match &model.choice {
        ModelSelector::Usual => name.clone(),
        ModelSelector::Quant(quant) => format!("{name}-{quant}"),
        ModelSelector::File(file) => file_set_name(Path::new(file))?.to_owned(),
    })
}

/// A file's name without its shard number and extension.
pub(crate) fn file_set_name(file: &Path) -> Option<&str> {
    let name = file.file_name()?.to_str()?;
    let set = set_name(name);
    if set.len() < name.len() { Some(set) } else { file.file_stem()?.to_str() }
}

/// The repository `OWNER/NAME` of a model of the hub; `None` for local models.
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

/// Disables downloads in this process.
pub(crate) fn stay_offline() {
    // Relaxed: set before the server's threads exist.
    OFFLINE.store(true, Ordering::Relaxed);
}

/// The canonical local path of a model; `None` if it is not on this machine.
pub(crate) fn cached_path(path: &Path) -> Option<PathBuf> {
    let local = match reference(path).ok()? {
        Some(model) => latent_hub::find(&settings().ok()?, &model).ok()??.path,
        None => path.to_owned(),
    };
    local.canonicalize().ok()
}

/// The settings from the environment and `--offline`.
pub(crate) fn settings() -> Result<HubSettings> {
    let mut settings = HubSettings::from_env()?;
    settings.offline |= OFFLINE.load(Ordering::Relaxed);
    Ok(settings)
}

/// The quant policy of a short name: it depends on the free memory.
pub(crate) fn policy(name: Option<&str>) -> QuantPolicy {
    QuantPolicy::of_short_name(name, memory::available().map(|free| free.bytes))
}

fn downloaded(model: &ModelRef, name: Option<&str>) -> Result<PathBuf> {
    let settings = settings()?;
    if let Some(local) = latent_hub::find(&settings, model)? {
        // Without a quant, a cached model is preferred over a download. The user learns of it if
        // the cached quant is not one of the defaults.
        if model.choice == ModelSelector::Usual && !latent_hub::DEFAULT_QUANTS.contains(&local.name.as_str())
        {
            output::note(&format!("{model}: using {}, which is already downloaded", local.name));
        }
        return Ok(local.path);
    }
    Ok(pull(&settings, model, &policy(name), false)?.model.path)
}

/// The model that `latent pull` updates for a reference or short name. Without a quant, the one
/// that is cached.
pub(crate) fn wanted(settings: &HubSettings, text: &str) -> Result<ModelRef> {
    let model = latent_hub::model_ref(text).map_err(usage)?;
    // A short name without a quant chooses by free memory. Free memory varies, so `pull` could
    // otherwise download a second quant and leave the first one outdated.
    if latent_hub::short_name(text).is_none() || model.choice != ModelSelector::Usual {
        return Ok(model);
    }
    // A cached model is named by its quant or by its file.
    let choice = match latent_hub::find(settings, &model)?.map(|local| local.name) {
        Some(name) if name.to_ascii_lowercase().ends_with(".gguf") => ModelSelector::File(name),
        Some(name) => ModelSelector::Quant(name),
        None => ModelSelector::Usual,
    };
    Ok(ModelRef { choice, ..model })
}

/// Downloads a model, with a progress bar on a terminal. If several models match, a user at a
/// terminal chooses.
pub(crate) fn pull(
    settings: &HubSettings,
    model: &ModelRef,
    policy: &QuantPolicy,
    quiet: bool,
) -> Result<PullResult> {
    match download(settings, model, policy, quiet) {
        Err(HubError::Choose { repo, problem, choices, more }) => match ask(&repo, &problem, &choices)? {
            // The chosen reference names one model, so the second download does not ask again.
            Some(chosen) => {
                download(settings, &chosen.reference.parse().map_err(usage)?, policy, quiet).map_err(usage)
            }
            None => Err(HubError::Choose { repo, problem, choices, more }.into()),
        },
        pulled => pulled.map_err(usage),
    }
}

/// The model that the user chooses; `None` without a terminal or if no valid number is typed.
fn ask<'a>(repo: &Repo, problem: &str, choices: &'a [ModelChoice]) -> Result<Option<&'a ModelChoice>> {
    // Both must be terminals: the list goes to standard error and the answer comes from standard
    // input. In a script the error with its list is the answer.
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
        // The callback returns false to stop. The partial file stays and the next pull resumes it.
        !interrupt::asked()
    });
    bar.finish();
    if let Err(stopped @ HubError::Stopped { .. }) = &pulled {
        // `exit::code` prints no error after a signal, so the state of the download is printed
        // here.
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

/// Converts an error in a reference to a usage error.
pub(crate) fn usage(error: HubError) -> anyhow::Error {
    match error {
        HubError::Reference { .. } => UsageError(error.to_string()).into(),
        other => other.into(),
    }
}
