//! Where the models of a server come from, if the list can change while the server runs.

use crate::model::ModelSource;

/// Where the models of a server come from, if the list can change while the server runs. Its methods may read files and use the network: they
/// are called on threads that may wait.
pub trait ModelCatalog: Send + Sync {
    /// Reads the list again. A model whose [`ModelSource::definition`] is the same as before stays as it is.
    ///
    /// # Errors
    /// What is wrong with the list, and where. The server keeps the models that it has.
    fn sources(&self) -> Result<Vec<ModelSource>, String>;

    /// Whether requests may download and delete models.
    fn downloads(&self) -> bool {
        true
    }

    /// Checks whether a model can be downloaded. Returns the name that it will have, without using the network.
    fn check_download(&self, name: &str) -> Result<String, String>;

    /// Downloads a model. `report` is called with the progress and returns whether to continue.
    fn download(&self, name: &str, report: &mut dyn FnMut(DownloadProgress) -> bool) -> Result<(), String>;

    /// Deletes the files of a model that was downloaded. `in_use` are the paths of the models in memory, as [`ModelSource::path`] has them.
    ///
    /// # Errors
    /// It was not downloaded, a model in memory uses its files, or the system refuses.
    fn delete(&self, name: &str, in_use: &[String]) -> Result<(), String>;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DownloadProgress {
    pub source: String,
    /// Bytes that are here.
    pub done: u64,
    /// Bytes of all files; 0 before they are known.
    pub total: u64,
}
