//! Which models are served: from flags, the environment, or the file of settings.

use super::folder;
use super::load::{self, Naming, Setup};
use crate::args::ServeArgs;
use crate::exit::Usage;
use crate::{hub, model, ranks};
use anyhow::Result;
use latent_server::{FileConfig, ModelSource};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model that is wanted: none for the demo model.
#[derive(Debug, Default, PartialEq)]
struct Wanted {
    name: Option<String>,
    path: Option<PathBuf>,
    ctx_size: Option<usize>,
}

/// The models to serve. One that is alone is opened here, so that what is wrong with it is said at once.
pub(super) fn sources(args: &ServeArgs, file: &FileConfig, setup: &Arc<Setup>) -> Result<Vec<ModelSource>> {
    let mut wanted = wanted(args, file)?;
    let shared = ranks::hosts(args.engine.partition.as_ref())?.is_some();
    if shared && wanted.len() > 1 {
        return Err(Usage("ranks share one model: give one --model".into()).into());
    }
    let alias = args.server.alias.clone().or_else(|| file.alias.clone());
    let mut aliases = alias.iter().flat_map(|alias| alias.split(',')).map(str::trim).map(str::to_owned);
    let mut aliases: Vec<String> = aliases.by_ref().filter(|alias| !alias.is_empty()).collect();
    let tags = args.server.tags.clone();
    if let [only] = wanted.as_mut_slice() {
        let only = std::mem::take(only);
        let setup = with_context(setup, only.ctx_size);
        let checkpoint = model::open_for_rank(only.path.as_deref(), args.engine.partition.as_ref())?;
        let own = || only.name.clone().unwrap_or_else(|| load::name(only.path.as_deref(), &checkpoint));
        let name = if aliases.is_empty() { own() } else { aliases.remove(0) };
        let naming = Naming { name, aliases, tags };
        return Ok(vec![load::opened(&setup, naming, only.path, checkpoint)?]);
    }
    if !tags.is_empty() {
        return Err(Usage("--tags are those of a model that is alone".into()).into());
    }
    if alias.is_some() {
        let problem = "--alias names a model that is alone: give each of several as NAME=MODEL";
        return Err(Usage(problem.into()).into());
    }
    let mut names = HashSet::new();
    let mut sources = Vec::new();
    for Wanted { name, path, ctx_size } in wanted {
        let path = path.unwrap_or_default();
        let name = name.or_else(|| stem(&path)).unwrap_or_default();
        if name.is_empty() || !names.insert(name.clone()) {
            let problem = format!(
                "--model {}: each of several models needs a name of its own: NAME=MODEL",
                path.display()
            );
            return Err(Usage(problem).into());
        }
        if !hub::is_reference(&path)? && !path.exists() {
            return Err(Usage(format!("--model {name}={}: file not found", path.display())).into());
        }
        let naming = Naming { name, ..Naming::default() };
        sources.push(load::unopened(&with_context(setup, ctx_size), naming, path));
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

/// Flags and environment before the file; without any of them the demo model.
fn wanted(args: &ServeArgs, file: &FileConfig) -> Result<Vec<Wanted>> {
    let mut given: Vec<Wanted> = args.models.iter().flat_map(|text| listed(text)).collect();
    if let Some(folder) = &args.server.models_dir {
        let models = folder::models(folder)?.into_iter();
        given.extend(models.map(|(name, path)| Wanted {
            name: Some(name),
            path: Some(path),
            ctx_size: None,
        }));
    }
    if !given.is_empty() {
        return Ok(given);
    }
    let in_file = file.models.iter().map(|model| Wanted {
        name: Some(model.name.clone()),
        path: Some(model.model.clone()),
        ctx_size: model.ctx_size,
    });
    let all: Vec<Wanted> = in_file.collect();
    Ok(if all.is_empty() { vec![Wanted { path: file.model.clone(), ..Wanted::default() }] } else { all })
}

/// One model, or several with names between commas, as an environment variable has them.
fn listed(text: &str) -> Vec<Wanted> {
    let parts: Vec<Wanted> = text.split(',').map(|part| named(part.trim())).collect();
    if parts.iter().all(|part| part.name.is_some()) { parts } else { vec![named(text)] }
}

/// `NAME=MODEL`, or a model alone: a path may hold `=`, too. A name may be that of a repository, `OWNER/NAME:QUANT`.
fn named(text: &str) -> Wanted {
    let part =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_.:".contains(c));
    let relative = |name: &str| name.starts_with('.') || name.contains("/.");
    let plain = |name: &str| name.split('/').count() <= 2 && name.split('/').all(part) && !relative(name);
    match text.split_once('=').filter(|(name, path)| plain(name) && !path.is_empty()) {
        Some((name, path)) if !Path::new(text).exists() => {
            Wanted { name: Some(name.to_owned()), path: Some(path.into()), ctx_size: None }
        }
        _ => Wanted { path: Some(text.into()), ..Wanted::default() },
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
