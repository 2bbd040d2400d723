//! A list of models that can change while the server runs.

use super::load::Setup;
use super::read_config;
use super::sources::{self, WantedModel};
use crate::args::ServeArgs;
use crate::hub;
use anyhow::Result;
use latent_hub::{ModelRef, ModelSelector, PullEvent};
use latent_server::{DownloadProgress, FileConfig, ModelCatalog, ModelSource};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The models of the arguments, which are read again when they may have changed.
pub(super) struct Catalog {
    args: ServeArgs,
    setup: Arc<Setup>,
}

/// Whether the list of models can grow, so that even a model that is alone is loaded when a request names it.
pub(super) fn is_router(args: &ServeArgs) -> bool {
    args.server.models_cache || args.server.models_preset.is_some()
}

/// Whether the list of models can change.
pub(super) fn changes(args: &ServeArgs, file: &FileConfig) -> bool {
    is_router(args) || args.server.models_dir.is_some() || !file.models.is_empty()
}

/// Adds the models that were pulled, under the names of the hub.
pub(super) fn add_pulled(wanted: &mut Vec<WantedModel>) -> Result<()> {
    for listed in latent_hub::list(&hub::settings()?).into_iter().filter(|listed| listed.complete) {
        let name = listed.reference.trim_start_matches(latent_hub::PREFIX).to_owned();
        // files of drafters and projectors cannot be served alone
        let file = listed.model.path.file_name().map(|name| name.to_string_lossy().to_lowercase());
        let is_companion =
            file.is_some_and(|file| ["mmproj", "mtp-"].iter().any(|begin| file.starts_with(begin)));
        if is_companion || wanted.iter().any(|one| one.name.as_ref() == Some(&name)) {
            continue;
        }
        let path = Some(PathBuf::from(listed.reference));
        wanted.push(WantedModel { name: Some(name), path, pulled: true, ..WantedModel::default() });
    }
    Ok(())
}

impl Catalog {
    pub(super) fn new(args: &ServeArgs, setup: &Arc<Setup>) -> Catalog {
        // what has no effect was told at the start
        let mut args = ServeArgs { quiet: true, ..args.clone() };
        args.engine.verbose = false;
        Catalog { args, setup: Arc::clone(setup) }
    }
}

/// The reference of a model that clients name without the prefix.
fn reference(name: &str) -> Result<ModelRef, String> {
    let name = name.strip_prefix(latent_hub::PREFIX).unwrap_or(name);
    format!("{}{name}", latent_hub::PREFIX).parse().map_err(text)
}

fn text(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

impl ModelCatalog for Catalog {
    fn sources(&self) -> Result<Vec<ModelSource>, String> {
        let file = read_config(self.args.server.config.as_deref()).map_err(text)?;
        sources::sources_again(&self.args, &file, &self.setup).map_err(text)
    }

    fn downloads(&self) -> bool {
        is_router(&self.args)
    }

    fn check_download(&self, name: &str) -> Result<String, String> {
        let (model, settings) = (reference(name)?, hub::settings().map_err(text)?);
        if settings.offline {
            return Err(
                "the server was started with --offline (or HF_HUB_OFFLINE): it downloads nothing".into()
            );
        }
        if let Some(found) = latent_hub::find(&settings, &model).map_err(text)? {
            return Err(format!("{name} is on this machine already: {}", found.path.display()));
        }
        Ok(model.to_string().trim_start_matches(latent_hub::PREFIX).to_owned())
    }

    fn download(&self, name: &str, report: &mut dyn FnMut(DownloadProgress) -> bool) -> Result<(), String> {
        let (model, settings) = (reference(name)?, hub::settings().map_err(text)?);
        let source = model.to_string();
        let pulled = latent_hub::pull(&settings, &model, &mut |event| match event {
            PullEvent::Progress { done, total } => {
                report(DownloadProgress { source: source.clone(), done, total })
            }
            _ => true,
        });
        pulled.map(drop).map_err(text)
    }

    fn delete(&self, name: &str, in_use: &[String]) -> Result<(), String> {
        let (model, settings) = (reference(name)?, hub::settings().map_err(text)?);
        if model.choice == ModelSelector::Usual {
            return Err("expected OWNER/NAME:QUANT, which names one model".into());
        }
        let path = hub::found(Path::new(&model.to_string()));
        let uses = |other: &&String| path.is_some() && hub::found(Path::new(other)) == path;
        if let Some(other) = in_use.iter().find(uses) {
            return Err(format!(
                "its files are those of {other}, which is in memory: POST /models/unload first"
            ));
        }
        latent_hub::remove(&settings, &model).map(drop).map_err(text)
    }
}
