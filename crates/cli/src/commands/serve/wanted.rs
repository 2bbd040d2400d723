//! The models that a server shall serve, before they are opened.

use crate::args::ServeArgs;
use crate::hub;
use anyhow::Result;
use std::path::PathBuf;

/// A model to serve. Without a path: the demo model.
#[derive(Debug, Default)]
pub(super) struct WantedModel {
    pub(super) name: Option<String>,
    pub(super) path: Option<PathBuf>,
    /// Whether `latent pull` has downloaded it.
    pub(super) pulled: bool,
    /// Its own settings, if any.
    pub(super) own: Option<OwnSettings>,
}

/// Settings of one model.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnSettings {
    pub(super) args: Option<Box<ServeArgs>>,
    /// The settings as text, to detect changes.
    pub(super) text: String,
    pub(super) load_on_startup: bool,
    /// Whether the list shows the same model under another name.
    pub(super) hidden: bool,
}

/// Whether the list of models can grow. Even a single model is then loaded on request.
pub(super) fn is_router(args: &ServeArgs) -> bool {
    args.server.models_cache || args.server.models_preset.is_some()
}

/// Adds the cached models under their names on the hub.
pub(super) fn add_pulled(wanted: &mut Vec<WantedModel>) -> Result<()> {
    // An interrupted download has files, but cannot be served.
    for listed in latent_hub::list(&hub::settings()?).into_iter().filter(|listed| listed.complete) {
        let name = listed.reference.trim_start_matches(latent_hub::PREFIX).to_owned();
        // Projectors (mmproj) and MTP drafters (mtp-) are parts of a model and cannot be served
        // alone.
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
