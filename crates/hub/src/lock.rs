//! A lock that allows one download of a file at a time, across processes.

use crate::client::HubClient;
use crate::error::HubError;
use latent_files::output_file;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file lock. The system releases it when the process ends, even after a crash.
pub(crate) struct Lock {
    _file: File,
    path: PathBuf,
}

/// The result of an attempt to take a lock.
pub(crate) enum LockAttempt {
    Here(Lock),
    /// Another process has the lock.
    Elsewhere,
}

impl Lock {
    pub(crate) fn try_at(path: &Path) -> Result<LockAttempt, HubError> {
        let file = output_file::create_in_place(path).map_err(HubError::refused)?;
        match file.try_lock() {
            Ok(()) => Ok(LockAttempt::Here(Lock { _file: file, path: path.to_owned() })),
            Err(TryLockError::WouldBlock) => Ok(LockAttempt::Elsewhere),
            Err(TryLockError::Error(error)) => Err(HubError::io(path)(error)),
        }
    }

    /// Waits for the lock. Returns `None` if the caller stops.
    pub(crate) fn wait(
        path: &Path,
        client: &HubClient,
        note: &dyn Fn(String),
    ) -> Result<Option<Lock>, HubError> {
        let mut noted = false;
        // Polled, because a blocking lock could not be stopped.
        loop {
            if let LockAttempt::Here(lock) = Lock::try_at(path)? {
                return Ok(Some(lock));
            }
            if client.stopped() {
                return Ok(None);
            }
            if !noted {
                note("another process is downloading the same file: waiting for it".into());
                noted = true;
            }
            client.wait(Duration::from_millis(200));
        }
    }

    /// Deletes the lock file. Call it once the guarded file has its final name, which the next
    /// owner of the lock checks first.
    pub(crate) fn remove(self) {
        // A remaining lock file is empty and harmless.
        let _ = std::fs::remove_file(&self.path);
    }
}
