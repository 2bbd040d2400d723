//! The list of models to serve: from flags, the environment, or the config file.

use super::load::{self, ModelNaming, Setup};
use super::wanted::{OwnSettings, WantedModel, add_pulled, is_router};
use super::{folder, presets};
use crate::args::{ConfigFile, ConfigModel, ServeArgs, of_serve};
use crate::exit::UsageError;
use crate::{hub, model, output, ranks};
use anyhow::Result;
use latent_formats::input_file;
use latent_server::{ModelSettings, ModelSource};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// Maximum bytes of a configuration file or a file of keys.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;

/// The arguments with the settings of the `--config` file.
pub(super) fn with_config(args: &ServeArgs) -> Result<ServeArgs> {
    let Some(path) = &args.server.config else { return Ok(args.clone()) };
    let text = input_file::read_text(path, MAX_FILE_BYTES)
        .map_err(|error| UsageError(format!("--config: {error}")))?;
    let wrong = |error| UsageError(format!("--config {}: {error}", path.display()));
    let file = ConfigFile::parse(&text, &of_serve()).map_err(wrong)?;
    let args = args.with_config(file).map_err(wrong)?;
    if args.engine.verbose {
        let line = |line: &String| output::note(&format!("note: {}, {line}", path.display()));
        args.file.without_effect.iter().for_each(line);
    }
    Ok(args)
}

/// The models to serve at the start.
pub(super) fn sources(args: &ServeArgs, setup: &Arc<Setup>) -> Result<Vec<ModelSource>> {
    let mut wanted = wanted(args)?;
    let shared = ranks::hosts(args.engine.partition.as_ref())?.is_some();
    if shared && (wanted.len() > 1 || is_router(args)) {
        return Err(UsageError("ranks share one model: use a single --model".into()).into());
    }
    if wanted.len() == 1 && !is_router(args) {
        // A single model is opened here, so that its errors end the command at once.
        let only = wanted.remove(0);
        let setup = setup_of(&only, setup)?;
        let checkpoint = model::open_for_rank(only.path.as_deref(), &args.engine)?;
        let own = || only.name.clone().unwrap_or_else(|| load::name(only.path.as_deref(), &checkpoint));
        let naming = naming(args, &only, own);
        return Ok(vec![load::opened(&setup, naming, only.path, checkpoint)?]);
    }
    unopened(args, setup, wanted)
}

/// The models to serve when the list is read again.
pub(super) fn sources_again(args: &ServeArgs, setup: &Arc<Setup>) -> Result<Vec<ModelSource>> {
    let mut wanted = wanted(args)?;
    if wanted.len() == 1 && !is_router(args) {
        let only = wanted.remove(0);
        let own = || only.name.clone().or_else(|| stem(only.path.as_deref()?)).unwrap_or_default();
        let naming = naming(args, &only, own);
        let setup = setup_of(&only, setup)?;
        return Ok(vec![load::unopened(&setup, naming, only.path.unwrap_or_default())]);
    }
    unopened(args, setup, wanted)
}

/// The names of a single model. `own`: its own name, if --alias gives none.
fn naming(args: &ServeArgs, only: &WantedModel, own: impl Fn() -> String) -> ModelNaming {
    let mut aliases = args.server.alias.as_deref().map(names).unwrap_or_default();
    let name = if aliases.is_empty() { own() } else { aliases.remove(0) };
    let tags = args.server.tags.clone();
    ModelNaming { name, aliases, tags, definition: definition(only), ..ModelNaming::default() }
}

/// Splits names at commas.
fn names(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// A fingerprint of a model's file and settings. A changed one makes the server reload the model.
fn definition(wanted: &WantedModel) -> String {
    let path = wanted.path.as_deref().unwrap_or(Path::new(""));
    let file = std::fs::metadata(path).ok().map(|file| (file.len(), file.modified().ok()));
    let settings = wanted.own.as_ref().map_or("", |own| &own.text);
    format!("{}\n{file:?}\n{settings}", path.display())
}

/// Several models, which are opened on their first request.
fn unopened(args: &ServeArgs, setup: &Arc<Setup>, all: Vec<WantedModel>) -> Result<Vec<ModelSource>> {
    if !args.server.tags.is_empty() {
        return Err(UsageError("--tags needs a single model".into()).into());
    }
    if args.server.alias.is_some() {
        let problem = "--alias needs a single model: name each of several as NAME=MODEL";
        return Err(UsageError(problem.into()).into());
    }
    let mut known = HashSet::new();
    let mut sources = Vec::new();
    for wanted in all {
        let definition = definition(&wanted);
        let WantedModel { name, path, pulled, own } = wanted;
        let path = path.unwrap_or_default();
        let name = name.or_else(|| stem(&path)).unwrap_or_default();
        // Two files in different folders may have the same name.
        if name.is_empty() || !known.insert(name.clone()) {
            let problem =
                format!("--model {}: each of several models needs its own name: NAME=MODEL", path.display());
            return Err(UsageError(problem).into());
        }
        // Models of the hub are downloaded on their first request, so only local files must exist.
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
            Some(own) => Arc::new(Setup::new(own)?),
            None => Arc::clone(setup),
        };
        let naming = ModelNaming { name, aliases, tags, definition, settings };
        sources.push(load::unopened(&setup, naming, path));
    }
    Ok(sources)
}

/// Follows rank 0, which serves the single model.
pub(super) fn follow(args: &ServeArgs, setup: &Arc<Setup>) -> Result<()> {
    let Some(only) = wanted(args)?.into_iter().next() else { return Ok(()) };
    let checkpoint = model::open_for_rank(only.path.as_deref(), &args.engine)?;
    load::follow(&*setup_of(&only, setup)?, &checkpoint)
}

/// The setup of a single model with its own settings.
fn setup_of(only: &WantedModel, setup: &Arc<Setup>) -> Result<Arc<Setup>> {
    match only.own.as_ref().and_then(|own| own.args.as_ref()) {
        Some(own) => Ok(Arc::new(Setup::new(own)?)),
        None => Ok(Arc::clone(setup)),
    }
}

/// The wanted models: flags and environment take precedence over the config file. Without any, the
/// demo model. A router adds the cached models and those of the presets.
fn wanted(args: &ServeArgs) -> Result<Vec<WantedModel>> {
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
        given = args.file.models.iter().map(|model| of_file(args, model)).collect::<Result<_>>()?;
    }
    if given.is_empty() && !is_router(args) {
        given = vec![WantedModel::default()];
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

fn of_file(args: &ServeArgs, model: &ConfigModel) -> Result<WantedModel> {
    let own = presets::own(args, &model.preset).map_err(UsageError)?;
    let (name, path) = (Some(model.name.clone()), Some(model.path.clone()));
    Ok(WantedModel { name, path, own: Some(own), ..WantedModel::default() })
}

/// One model, or several as `NAME=MODEL,NAME=MODEL`.
fn listed(text: &str) -> Vec<WantedModel> {
    let parts: Vec<WantedModel> = text.split(',').map(|part| named(part.trim())).collect();
    // An environment variable (LATENT_MODEL) has one value for all models. A comma may be part of a
    // path, so all parts must have a name.
    if parts.iter().all(|part| part.name.is_some()) { parts } else { vec![named(text)] }
}

/// Parses `NAME=MODEL` or a model alone. A name may be `OWNER/NAME:QUANT`.
fn named(text: &str) -> WantedModel {
    // A path may contain `=`, so the text before it must look like a name: at most one slash, no
    // leading dots, and the whole text is not an existing file.
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

/// The default name of a model at a path.
fn stem(path: &Path) -> Option<String> {
    hub::local_name(path).or_else(|| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_may_be_named_and_paths_may_contain_equals_signs() {
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
