//! Running downloads.

use crate::catalog::DownloadProgress;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The running downloads by model name.
#[derive(Default)]
pub(super) struct DownloadList(Mutex<BTreeMap<String, RunningDownload>>);

#[derive(Default)]
pub(super) struct RunningDownload {
    pub(super) progress: Option<DownloadProgress>,
    /// Set to cancel the download.
    pub(super) stopped: Arc<AtomicBool>,
}

impl DownloadList {
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, RunningDownload>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
