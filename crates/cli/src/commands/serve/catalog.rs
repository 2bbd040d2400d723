//! The list of models that can change while the server runs.

use super::load::Setup;
use super::sources;
use super::wanted::is_router;
use crate::args::ServeArgs;
use crate::hub;
use anyhow::Result;
use latent_hub::{ModelRef, ModelSelector, PullEvent};
use latent_server::{DownloadProgress, ModelCatalog, ModelSource};
use std::path::Path;
use std::sync::Arc;

/// The models of the arguments, read again on request.
pub(super) struct Catalog {
    args: ServeArgs,
    setup: Arc<Setup>,
}

/// Whether the list of models can change.
pub(super) fn changes(args: &ServeArgs) -> bool {
    // Files can appear in a folder, the cache or a config file at any time. A list of flags cannot
    // change.
    is_router(args) || args.server.models_dir.is_some() || !args.file.models.is_empty()
}

impl Catalog {
    pub(super) fn new(args: &ServeArgs, setup: &Arc<Setup>) -> Catalog {
        // Keys without effect were reported at the start.
        let mut args = ServeArgs { quiet: true, ..args.clone() };
        args.engine.verbose = false;
        Catalog { args, setup: Arc::clone(setup) }
    }
}

/// Parses a model's name as clients write it: without the prefix, or a short name.
fn reference(name: &str) -> Result<ModelRef, String> {
    latent_hub::model_ref(name).map_err(text)
}

fn text(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

impl ModelCatalog for Catalog {
    fn sources(&self) -> Result<Vec<ModelSource>, String> {
        let mut args = sources::with_config(&self.args).map_err(text)?;
        // Set again, because the config file may have changed both.
        (args.quiet, args.engine.verbose) = (true, false);
        sources::sources_again(&args, &self.setup).map_err(text)
    }

    fn downloads(&self) -> bool {
        is_router(&self.args)
    }

    fn check_download(&self, name: &str) -> Result<String, String> {
        let (model, settings) = (reference(name)?, hub::settings().map_err(text)?);
        if settings.offline {
            return Err(
                "downloads are disabled: the server was started with --offline (or HF_HUB_OFFLINE)".into()
            );
        }
        if let Some(found) = latent_hub::find(&settings, &model).map_err(text)? {
            return Err(format!("{name} is already downloaded: {}", found.path.display()));
        }
        Ok(model.to_string().trim_start_matches(latent_hub::PREFIX).to_owned())
    }

    fn download(&self, name: &str, report: &mut dyn FnMut(DownloadProgress) -> bool) -> Result<(), String> {
        let (model, settings) = (reference(name)?, hub::settings().map_err(text)?);
        let source = model.to_string();
        let pulled =
            latent_hub::pull_with(&settings, &model, &hub::policy(Some(name)), &mut |event| match event {
                PullEvent::Progress { done, total } => {
                    report(DownloadProgress { source: source.clone(), done, total })
                }
                _ => true,
            });
        pulled.map(drop).map_err(text)
    }

    fn delete(&self, name: &str, in_use: &[String]) -> Result<(), String> {
        let (model, settings) = (reference(name)?, hub::settings().map_err(text)?);
        // A repository may hold several cached quants. Deleting "the usual one" could remove the
        // wrong files.
        if model.choice == ModelSelector::Usual {
            return Err("expected OWNER/NAME:QUANT, a single model".into());
        }
        // Two names may mean the same files, so canonical paths are compared.
        let path = hub::cached_path(Path::new(&model.to_string()));
        let uses = |other: &&String| path.is_some() && hub::cached_path(Path::new(other)) == path;
        if let Some(other) = in_use.iter().find(uses) {
            return Err(format!(
                "it shares files with {other}, which is in memory: POST /models/unload first"
            ));
        }
        latent_hub::remove(&settings, &model).map(drop).map_err(text)
    }
}
