//! Models of Hugging Face's hub.

use crate::error::{Error, ErrorKind};
use latent_engine::memory;
use latent_hub::{
    HubError, HubSettings, PullEvent, QuantPolicy, find_or_pull, path_reference, path_short_name,
};
use std::path::{Path, PathBuf};

/// How models of the hub are downloaded.
pub(crate) struct HubDownload {
    pub(crate) settings: Option<HubSettings>,
    /// Is told the bytes that are here, and those of all files.
    pub(crate) progress: Box<dyn FnMut(u64, u64) + Send>,
}

impl HubDownload {
    /// The path of a model's files, which are downloaded if they are not on this machine, as long as `go_on` answers true. Paths of files are
    /// returned as they are.
    pub(crate) fn locate(mut self, path: &Path, go_on: &mut dyn FnMut() -> bool) -> Result<PathBuf, Error> {
        let Some(model) = path_reference(path)? else { return Ok(path.to_owned()) };
        let settings = self.settings.map_or_else(HubSettings::from_env, Ok)?;
        let available = memory::available().map(|free| free.bytes);
        let policy = QuantPolicy::of_short_name(path_short_name(path), available);
        let found = find_or_pull(&settings, &model, &policy, &mut |event| {
            if let PullEvent::Progress { done, total } = event
                && total > 0
            {
                (self.progress)(done, total);
            }
            go_on()
        })?;
        Ok(found.path)
    }
}

impl From<HubError> for Error {
    fn from(error: HubError) -> Error {
        let kind = match &error {
            HubError::Reference { .. } | HubError::Choose { .. } | HubError::Setting { .. } => {
                ErrorKind::Argument { name: None }
            }
            HubError::Unsupported { .. } => ErrorKind::Unsupported,
            HubError::Offline { .. }
            | HubError::NoRepo { .. }
            | HubError::NoRevision { .. }
            | HubError::NoFile { .. }
            | HubError::NoModel { .. } => ErrorKind::NotFound,
            HubError::Stopped { .. } => ErrorKind::Cancelled,
            _ => ErrorKind::Download,
        };
        Error::new(kind, error.to_string())
    }
}
