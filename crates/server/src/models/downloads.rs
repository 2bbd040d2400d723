//! Downloads and deletion of models while the server runs.

use super::download_list::RunningDownload;
use super::events::ModelChange;
use super::{ListTurn, Models};
use crate::catalog::{DownloadProgress, ModelCatalog};
use crate::error::{ApiError, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum number of concurrent downloads. Each has a thread, and its files fill the disk.
const MAX_DOWNLOADS: usize = 2;

/// Removes a download from the list when its thread ends, also by a panic.
struct DownloadGuard {
    models: Arc<Models>,
    name: String,
    stopped: Arc<AtomicBool>,
}

impl DownloadGuard {
    /// Downloads the model and adds it to the list of models.
    fn run(self, catalog: &dyn ModelCatalog) {
        let result = catalog.download(&self.name, &mut |progress| self.report(progress));
        if let Err(error) = result.as_ref().map_err(Clone::clone).and_then(|()| self.reload()) {
            tracing::warn!("{}: {error}", self.name);
        }
        let (models, name) = (Arc::clone(&self.models), self.name.clone());
        // Dropped before the event is sent: a client that reacts to it must be able to download
        // again.
        drop(self);
        let change = result.map_or_else(ModelChange::DownloadFailed, |()| ModelChange::Downloaded);
        models.table.events().send(&name, change);
    }

    fn reload(&self) -> Result<(), String> {
        let turn = ListTurn { _guard: Arc::clone(&self.models.changing).blocking_lock_owned() };
        self.models.reload(&turn).map_err(|error| error.to_string())
    }

    /// Reports progress. Returns whether to continue.
    fn report(&self, progress: DownloadProgress) -> bool {
        if let Some(download) = self.models.downloads.lock().get_mut(&self.name)
            && download.progress.as_ref() != Some(&progress)
        {
            download.progress = Some(progress.clone());
            self.models.table.events().send(&self.name, ModelChange::Downloading(progress));
        }
        // Relaxed: no other data depends on the flag.
        !self.stopped.load(Ordering::Relaxed) && !self.models.is_draining()
    }
}

impl Drop for DownloadGuard {
    fn drop(&mut self) {
        self.models.downloads.lock().remove(&self.name);
    }
}

impl Models {
    fn catalog(&self) -> Result<&Arc<dyn ModelCatalog>, ApiError> {
        self.catalog.as_ref().filter(|catalog| catalog.downloads()).ok_or_else(|| {
            let problem = "this server does not download or delete models: use `latent pull` and `latent \
                           rm`, or start it with --models-cache";
            ApiError::new(ErrorKind::NotImplemented, problem)
        })
    }

    /// Starts a download. The model is listed once it is complete.
    ///
    /// # Errors
    /// The name is invalid, the model exists already, or too many downloads are running.
    pub(crate) fn download(self: &Arc<Self>, name: &str) -> Result<(), ApiError> {
        self.open()?;
        let catalog = Arc::clone(self.catalog()?);
        let name = catalog.check_download(name).map_err(|problem| ApiError::field("model", problem))?;
        if self.position(&name).is_some() {
            return Err(ApiError::field("model", format!("the server already has the model {name}")));
        }
        let stopped = Arc::<AtomicBool>::default();
        // Held until the insertion, so that no other request can pass the checks in between.
        let mut downloads = self.downloads.lock();
        if downloads.contains_key(&name) {
            return Err(ApiError::field("model", format!("{name} is already being downloaded")));
        }
        if downloads.len() >= MAX_DOWNLOADS {
            let problem = format!("{MAX_DOWNLOADS} models are being downloaded: try again later");
            return Err(ApiError::new(ErrorKind::Busy, problem).retry(Duration::from_secs(30)));
        }
        downloads.insert(name.clone(), RunningDownload { progress: None, stopped: Arc::clone(&stopped) });
        // Before the guard exists: it locks the list when it is dropped.
        drop(downloads);
        let running = DownloadGuard { models: Arc::clone(self), name, stopped };
        // If the thread cannot be started, the closure and its guard are dropped, which removes the
        // entry.
        let thread = std::thread::Builder::new().name("download".into());
        match thread.spawn(move || running.run(&*catalog)) {
            Ok(thread) => self.table.keep_thread(thread),
            Err(error) => return Err(ApiError::internal(format!("cannot start a thread: {error}"))),
        }
        Ok(())
    }

    /// The running downloads with their progress.
    pub(crate) fn downloads(&self) -> Vec<(String, Option<DownloadProgress>)> {
        let downloads = self.downloads.lock();
        downloads.iter().map(|(name, download)| (name.clone(), download.progress.clone())).collect()
    }

    /// Cancels the download of a model. Its partial files remain for the next one. Returns whether
    /// a download was running.
    pub(crate) fn stop_download(&self, name: &str) -> bool {
        let downloads = self.downloads.lock();
        let Some(download) = downloads.get(name) else { return false };
        download.stopped.store(true, Ordering::Relaxed);
        true
    }

    /// Deletes the files of a downloaded model. Blocks, so it must not be called on the HTTP
    /// thread.
    pub(crate) fn delete(&self, name: &str, turn: &ListTurn) -> Result<(), ApiError> {
        self.open()?;
        let catalog = Arc::clone(self.catalog()?);
        let index = self.position(name).ok_or_else(|| self.unknown(name))?;
        let known = self.known();
        if !known[index].removable {
            let problem = format!("{name} was not downloaded into the cache: its files are kept");
            return Err(ApiError::field("model", problem));
        }
        if self.downloads.lock().contains_key(name) {
            let problem = format!("{name} is being downloaded: POST /models/unload to stop");
            return Err(ApiError::field("model", problem));
        }
        let in_use: Vec<String> = {
            let mut entries = self.table.lock();
            if entries[index].is_in_use() {
                let problem = format!("{name} is in memory: POST /models/unload first");
                return Err(ApiError::field("model", problem));
            }
            // Marked under the lock: no request may begin to load the model while its files are
            // deleted.
            entries[index].removed = true;
            let in_use = entries.iter().zip(known.iter()).filter(|(entry, _)| entry.is_in_use());
            in_use.map(|(_, known)| known.path.clone()).collect()
        };
        if let Err(problem) = catalog.delete(name, &in_use) {
            self.table.change(index, |entry| entry.removed = false);
            return Err(ApiError::field("model", problem));
        }
        self.table.events().send(name, ModelChange::Removed);
        if let Err(error) = self.reload(turn) {
            // The files are deleted, so this is not an error of the request.
            tracing::warn!("{error}");
        }
        Ok(())
    }
}
