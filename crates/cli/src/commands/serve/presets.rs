//! Models of `--models-preset`, llama-server's INI file of models and their options.

use super::wanted::{OwnSettings, WantedModel};
use crate::args::{Preset, ServeArgs, hub_model, of_serve, preset_sections};
use crate::exit::UsageError;
use crate::{hub, output};
use anyhow::Result;
use latent_formats::input_file;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Maximum bytes of a preset file.
const MAX_BYTES: u64 = 1 << 20;

/// Adds the models of a preset file to the wanted ones, and applies each model's settings.
pub(super) fn apply(args: &ServeArgs, path: &Path, wanted: &mut Vec<WantedModel>) -> Result<()> {
    let wrong = |problem: String| UsageError(format!("--models-preset {}: {problem}", path.display()));
    let text = input_file::read_text(path, MAX_BYTES)
        .map_err(|error| UsageError(format!("--models-preset: {error}")))?;
    let sections = preset_sections(&text).map_err(wrong)?;
    let (defaults, named): (Vec<_>, Vec<_>) = sections.iter().partition(|section| section.is_defaults());
    let (defaults, serve) = (defaults.first().copied(), of_serve());
    // The defaults are checked even if no section inherits them.
    let base = Preset::new(defaults, None, &serve).map_err(wrong)?;
    report(args, path, &base, &Preset::default());
    let mut has_section = HashSet::new();
    let mut covered = Vec::new();
    for section in named {
        let preset = Preset::new(defaults, Some(section), &serve).map_err(wrong)?;
        report(args, path, &preset, &base);
        let model = preset.model();
        let existing = wanted.iter().position(|one| is_called(one, &section.name));
        let at = match (existing, model) {
            // A section without a model adds settings to a model known by that name.
            (Some(at), None) => at,
            (existing, model) => {
                let model = model.or_else(|| reference(&section.name));
                let model = model.ok_or_else(|| {
                    let problem = "has no model: add a `model` or an `hf-repo`";
                    wrong(format!("line {}: [{}] {problem}", section.line, section.name))
                })?;
                let at =
                    |problem: String| wrong(format!("line {}: [{}]: {problem}", section.line, section.name));
                let is_reference = hub::is_reference(&model).map_err(|error| at(error.to_string()))?;
                if !is_reference && !model.exists() {
                    return Err(at(format!("{}: file not found", model.display())).into());
                }
                // The cached files of these presets are hidden from the list, which would otherwise
                // show each model twice.
                if preset.dedup_cache_models {
                    let draft = preset.draft_repo.as_deref().map(|draft| hub_model(draft, None).into());
                    covered.extend([Some(model.clone()), draft].into_iter().flatten());
                }
                let name = existing.and_then(|at| wanted[at].name.take());
                let name = name.or_else(|| Some(section.name.clone()));
                let made = WantedModel { name, path: Some(model), ..WantedModel::default() };
                match existing {
                    Some(at) => wanted[at] = made,
                    None => wanted.push(made),
                }
                existing.unwrap_or(wanted.len() - 1)
            }
        };
        wanted[at].own = Some(own(args, &preset).map_err(wrong)?);
        has_section.insert(at);
    }
    let covered: Vec<PathBuf> = covered.iter().filter_map(|model| hub::cached_path(model)).collect();
    let common = own(args, &base).map_err(wrong)?;
    for (_, one) in wanted.iter_mut().enumerate().filter(|(at, _)| !has_section.contains(at)) {
        let mut settings = common.clone();
        let file = || one.path.as_deref().and_then(hub::cached_path);
        settings.hidden =
            one.pulled && !covered.is_empty() && file().is_some_and(|file| covered.contains(&file));
        one.own = Some(settings);
    }
    Ok(())
}

/// Reports keys without effect, except those that `base` has reported.
fn report(args: &ServeArgs, path: &Path, preset: &Preset, base: &Preset) {
    let line = |line: &String| output::note(&format!("note: {}, {line}", path.display()));
    if args.engine.verbose {
        preset.without_effect.iter().filter(|line| !base.without_effect.contains(line)).for_each(line);
    }
    if !args.quiet {
        preset.server_wide.iter().filter(|line| !base.server_wide.contains(line)).for_each(line);
    }
}

/// The settings of a model from a preset.
pub(super) fn own(args: &ServeArgs, preset: &Preset) -> Result<OwnSettings, String> {
    let words = preset.options.iter().flat_map(|option| &option.words);
    let text: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    Ok(OwnSettings {
        text: text.join("\n"),
        args: if text.is_empty() { None } else { Some(Box::new(args.with_preset(&preset.options)?)) },
        load_on_startup: preset.load_on_startup,
        hidden: false,
    })
}

/// The model of the hub whose reference is the section's name, `OWNER/NAME[:QUANT]`.
fn reference(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(hub_model(name, None));
    (name.contains('/') && hub::is_reference(&path).is_ok_and(|is| is)).then_some(path)
}

/// Whether a section belongs to a model. The case of the quant does not matter.
fn is_called(wanted: &WantedModel, section: &str) -> bool {
    let Some(name) = wanted.name.as_deref() else { return false };
    let quant =
        |name: &str| name.rsplit_once(':').map(|(repo, quant)| (repo.to_owned(), quant.to_ascii_uppercase()));
    name == section || quant(name).is_some_and(|name| quant(section) == Some(name))
}
