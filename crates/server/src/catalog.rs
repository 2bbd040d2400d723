//! The interface to a list of models that can change while the server runs.

use crate::model::ModelSource;

/// A list of models that can change while the server runs. Its methods are called on blocking
/// threads, so they may read files and use the network.
pub trait ModelCatalog: Send + Sync {
    /// Reads the list. A model whose [`ModelSource::definition`] has not changed stays loaded.
    ///
    /// # Errors
    /// A description of the problem. The server keeps its current models.
    fn sources(&self) -> Result<Vec<ModelSource>, String>;

    /// Whether requests may download and delete models.
    fn downloads(&self) -> bool {
        true
    }

    /// Checks a name before a download, without using the network. Returns the name that the model
    /// will have.
    fn check_download(&self, name: &str) -> Result<String, String>;

    /// Downloads a model. `report` is called with the progress and returns whether to continue.
    fn download(&self, name: &str, report: &mut dyn FnMut(DownloadProgress) -> bool) -> Result<(), String>;

    /// Deletes the files of a downloaded model. `in_use` are the [`ModelSource::path`]s of the
    /// models in memory.
    ///
    /// # Errors
    /// The model was not downloaded, a model in memory uses its files, or an I/O error.
    fn delete(&self, name: &str, in_use: &[String]) -> Result<(), String>;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DownloadProgress {
    pub source: String,
    /// Downloaded bytes.
    pub done: u64,
    /// Bytes of all files; 0 if not known yet.
    pub total: u64,
}
