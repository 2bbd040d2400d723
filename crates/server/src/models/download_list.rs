//! The downloads that run.

use crate::catalog::DownloadProgress;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The downloads that run, by the names of their models.
#[derive(Default)]
pub(super) struct DownloadList(Mutex<BTreeMap<String, RunningDownload>>);

#[derive(Default)]
pub(super) struct RunningDownload {
    pub(super) progress: Option<DownloadProgress>,
    /// Whether it is to end.
    pub(super) stopped: Arc<AtomicBool>,
}

impl DownloadList {
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, RunningDownload>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
