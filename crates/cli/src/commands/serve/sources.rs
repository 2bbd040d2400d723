//! Which models are served: from flags, the environment, or the file of settings.

use super::load::{self, ModelNaming, Setup};
use super::wanted::{OwnSettings, WantedModel, add_pulled, is_router};
use super::{folder, presets};
use crate::args::ServeArgs;
use crate::exit::UsageError;
use crate::{hub, model, ranks};
use anyhow::Result;
use latent_formats::input_file;
use latent_server::{FileConfig, FileModel, ModelSettings, ModelSource};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// Maximum bytes of a configuration file or a file of keys.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;

pub(super) fn read_config(path: Option<&Path>) -> Result<FileConfig> {
    let Some(path) = path else { return Ok(FileConfig::default()) };
    let text = input_file::read_text(path, MAX_FILE_BYTES)
        .map_err(|error| UsageError(format!("--config: {error}")))?;
    let wrong = |error| UsageError(format!("--config {}: {error}", path.display()));
    Ok(FileConfig::parse(&text).map_err(wrong)?)
}

/// The models to serve at the start. One that is alone is opened here, so that what is wrong with it is said at once.
pub(super) fn sources(args: &ServeArgs, file: &FileConfig, setup: &Arc<Setup>) -> Result<Vec<ModelSource>> {
    let mut wanted = wanted(args, file)?;
    let shared = ranks::hosts(args.engine.partition.as_ref())?.is_some();
    if shared && (wanted.len() > 1 || is_router(args)) {
        return Err(UsageError("ranks share one model: give one --model".into()).into());
    }
    if wanted.len() == 1 && !is_router(args) {
        let only = wanted.remove(0);
        let setup = with_context(setup, only.ctx_size);
        let checkpoint = model::open_for_rank(only.path.as_deref(), args.engine.partition.as_ref())?;
        let own = || only.name.clone().unwrap_or_else(|| load::name(only.path.as_deref(), &checkpoint));
        let naming = naming(args, file, &only, own);
        return Ok(vec![load::opened(&setup, naming, only.path, checkpoint)?]);
    }
    unopened(args, file, setup, wanted)
}

/// The models to serve when the list is read again.
pub(super) fn sources_again(
    args: &ServeArgs,
    file: &FileConfig,
    setup: &Arc<Setup>,
) -> Result<Vec<ModelSource>> {
    let mut wanted = wanted(args, file)?;
    if wanted.len() == 1 && !is_router(args) {
        let only = wanted.remove(0);
        let own = || only.name.clone().or_else(|| stem(only.path.as_deref()?)).unwrap_or_default();
        let naming = naming(args, file, &only, own);
        let path = only.path.unwrap_or_default();
        return Ok(vec![load::unopened(&with_context(setup, only.ctx_size), naming, path)]);
    }
    unopened(args, file, setup, wanted)
}

/// What a model that is alone is called; `own`: its own name.
fn naming(args: &ServeArgs, file: &FileConfig, only: &WantedModel, own: impl Fn() -> String) -> ModelNaming {
    let mut aliases =
        args.server.alias.as_ref().or(file.alias.as_ref()).map(|alias| names(alias)).unwrap_or_default();
    let name = if aliases.is_empty() { own() } else { aliases.remove(0) };
    let tags = args.server.tags.clone();
    ModelNaming { name, aliases, tags, definition: definition(only), ..ModelNaming::default() }
}

/// Names with commas between.
fn names(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Everything that a model is made from.
fn definition(wanted: &WantedModel) -> String {
    let path = wanted.path.as_deref().unwrap_or(Path::new(""));
    let file = std::fs::metadata(path).ok().map(|file| (file.len(), file.modified().ok()));
    let settings = wanted.own.as_ref().map_or("", |own| &own.text);
    format!("{}\n{file:?}\n{:?}\n{settings}", path.display(), wanted.ctx_size)
}

/// Several models, which are opened when they are needed.
fn unopened(
    args: &ServeArgs,
    file: &FileConfig,
    setup: &Arc<Setup>,
    all: Vec<WantedModel>,
) -> Result<Vec<ModelSource>> {
    if !args.server.tags.is_empty() {
        return Err(UsageError("--tags are those of a model that is alone".into()).into());
    }
    if args.server.alias.is_some() || file.alias.is_some() {
        let problem = "--alias names a model that is alone: give each of several as NAME=MODEL";
        return Err(UsageError(problem.into()).into());
    }
    let mut known = HashSet::new();
    let mut sources = Vec::new();
    for wanted in all {
        let definition = definition(&wanted);
        let WantedModel { name, path, ctx_size, pulled, own } = wanted;
        let path = path.unwrap_or_default();
        let name = name.or_else(|| stem(&path)).unwrap_or_default();
        if name.is_empty() || !known.insert(name.clone()) {
            let problem = format!(
                "--model {}: each of several models needs a name of its own: NAME=MODEL",
                path.display()
            );
            return Err(UsageError(problem).into());
        }
        if !hub::is_reference(&path)? && !path.exists() {
            return Err(UsageError(format!("--model {name}={}: file not found", path.display())).into());
        }
        let OwnSettings { args: own, load_on_startup, hidden, .. } = own.unwrap_or_default();
        let settings = ModelSettings {
            parallel: own.as_ref().and_then(|own| own.server.parallel),
            unload_idle: own.as_ref().and_then(|own| own.server.unload_idle).map(|idle| idle.0),
            load_on_startup,
            hidden,
            removable: pulled,
        };
        let tags = own.as_ref().map(|own| own.server.tags.clone()).unwrap_or_default();
        let aliases = own.as_ref().and_then(|own| own.server.alias.as_deref()).map(names).unwrap_or_default();
        let setup = match &own {
            Some(own) => Arc::new(Setup::new(own, file)?),
            None => Arc::clone(setup),
        };
        let naming = ModelNaming { name, aliases, tags, definition, settings };
        sources.push(load::unopened(&with_context(&setup, ctx_size), naming, path));
    }
    Ok(sources)
}

/// Follows rank 0, which serves the one model.
pub(super) fn follow(args: &ServeArgs, file: &FileConfig, setup: &Arc<Setup>) -> Result<()> {
    let Some(only) = wanted(args, file)?.into_iter().next() else { return Ok(()) };
    let checkpoint = model::open_for_rank(only.path.as_deref(), args.engine.partition.as_ref())?;
    load::follow(&with_context(setup, only.ctx_size), &checkpoint)
}

fn with_context(setup: &Arc<Setup>, ctx_size: Option<usize>) -> Arc<Setup> {
    match ctx_size {
        None => Arc::clone(setup),
        Some(_) => {
            let mut own = Setup::clone(setup);
            own.engine.ctx_size = ctx_size;
            Arc::new(own)
        }
    }
}

/// Flags and environment before the file; without any of them the demo model. A router has the models that were pulled and those of the presets
/// as well.
fn wanted(args: &ServeArgs, file: &FileConfig) -> Result<Vec<WantedModel>> {
    let mut given: Vec<WantedModel> = args.models.iter().flat_map(|text| listed(text)).collect();
    if let Some(folder) = &args.server.models_dir {
        let models = folder::models(folder)?.into_iter();
        given.extend(models.map(|(name, path)| WantedModel {
            name: Some(name),
            path: Some(path),
            ..WantedModel::default()
        }));
    }
    if given.is_empty() {
        given = file.models.iter().map(of_file).collect();
    }
    if given.is_empty() && (file.model.is_some() || !is_router(args)) {
        given = vec![WantedModel { path: file.model.clone(), ..WantedModel::default() }];
    }
    if is_router(args) {
        for one in &mut given {
            one.name = one.name.take().or_else(|| stem(one.path.as_deref()?));
        }
        add_pulled(&mut given)?;
        if let Some(path) = &args.server.models_preset {
            presets::apply(args, path, &mut given)?;
        }
    }
    Ok(given)
}

fn of_file(model: &FileModel) -> WantedModel {
    WantedModel {
        name: Some(model.name.clone()),
        path: Some(model.model.clone()),
        ctx_size: model.ctx_size,
        ..WantedModel::default()
    }
}

/// One model, or several with names between commas, as an environment variable has them.
fn listed(text: &str) -> Vec<WantedModel> {
    let parts: Vec<WantedModel> = text.split(',').map(|part| named(part.trim())).collect();
    if parts.iter().all(|part| part.name.is_some()) { parts } else { vec![named(text)] }
}

/// `NAME=MODEL`, or a model alone: a path may hold `=`, too. A name may be that of a repository, `OWNER/NAME:QUANT`.
fn named(text: &str) -> WantedModel {
    let part =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_.:".contains(c));
    let relative = |name: &str| name.starts_with('.') || name.contains("/.");
    let plain = |name: &str| name.split('/').count() <= 2 && name.split('/').all(part) && !relative(name);
    match text.split_once('=').filter(|(name, path)| plain(name) && !path.is_empty()) {
        Some((name, path)) if !Path::new(text).exists() => {
            WantedModel { name: Some(name.to_owned()), path: Some(path.into()), ..WantedModel::default() }
        }
        _ => WantedModel { path: Some(text.into()), ..WantedModel::default() },
    }
}

/// A name from the model's own.
fn stem(path: &Path) -> Option<String> {
    hub::local_name(path).or_else(|| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_may_have_names_and_paths_may_have_signs() {
        let pair = |text: &str| {
            let all = listed(text).into_iter().map(|w| (w.name, w.path.unwrap().display().to_string()));
            all.collect::<Vec<_>>()
        };
        let some = |name: &str, path: &str| (Some(name.to_owned()), path.to_owned());
        assert_eq!(pair("a=/x.gguf"), [some("a", "/x.gguf")]);
        assert_eq!(pair("a=/x.gguf, b=hf:o/n:Q4"), [some("a", "/x.gguf"), some("b", "hf:o/n:Q4")]);
        assert_eq!(pair("/x,y.gguf"), [(None, "/x,y.gguf".to_owned())]);
        assert_eq!(pair("/x/a=b.gguf"), [(None, "/x/a=b.gguf".to_owned())]);
        assert_eq!(pair("hf:o/n:Q4"), [(None, "hf:o/n:Q4".to_owned())]);
        assert_eq!(pair("o/n:Q4=/x.gguf"), [some("o/n:Q4", "/x.gguf")]);
        assert_eq!(pair("o/n:Q4=hf:o/n:Q4,b=/x.gguf"), [some("o/n:Q4", "hf:o/n:Q4"), some("b", "/x.gguf")]);
        for path in ["./a=b.gguf", "../a=b.gguf", "x/y/a=b.gguf", "/a=b.gguf", "x/./a=b"] {
            assert_eq!(pair(path), [(None, path.to_owned())]);
        }
    }
}
