//! Downloads from the Hugging Face Hub.

use crate::error::{Error, ErrorKind};
use latent_engine::memory;
use latent_hub::{
    HubError, HubSettings, PullEvent, QuantPolicy, find_or_pull, path_reference, path_short_name,
};
use std::path::{Path, PathBuf};

pub(crate) struct HubDownload {
    /// `None`: those of the environment.
    pub(crate) settings: Option<HubSettings>,
    /// Called with the received and the total bytes.
    pub(crate) progress: Box<dyn FnMut(u64, u64) + Send>,
}

impl HubDownload {
    /// The path of a model's files, which are downloaded if they are not cached, while `go_on`
    /// returns true. Paths of files are returned unchanged.
    pub(crate) fn locate(mut self, path: &Path, go_on: &mut dyn FnMut() -> bool) -> Result<PathBuf, Error> {
        let Some(model) = path_reference(path)? else { return Ok(path.to_owned()) };
        let settings = self.settings.map_or_else(HubSettings::from_env, Ok)?;
        // A short name without a quantization selects its default, or a smaller one that fits into
        // memory.
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
            // The caller must give another reference or setting.
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
