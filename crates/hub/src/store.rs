//! The cache folder.
//!
//! `hub/OWNER/NAME/COMMIT/…` contains files, `hub/OWNER/NAME/COMMIT.json` records the pulled
//! models, and `hub/OWNER/NAME/parts` contains unfinished downloads. A file gets its final name
//! only when it is complete and its checksum is verified.

use crate::digest::{Digest, is_commit};
use crate::error::HubError;
use crate::listing::RepoFile;
use crate::paths::below;
use crate::repo::Repo;
use crate::settings::HubSettings;
use latent_files::{input_file, output_file};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum bytes of a `COMMIT.json`.
const MAX_RECORD: u64 = 16 << 20;

/// A pulled model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PulledSet {
    /// The name for users: the quant, `safetensors`, or the name of the file.
    pub(crate) name: String,
    /// The quant in the file's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<String>,
    /// The requested revision.
    pub(crate) revision: String,
    /// The file to open; empty for the folder.
    pub(crate) model: String,
    pub(crate) files: Vec<RepoFile>,
    /// Time in seconds since 1970.
    pub(crate) pulled: u64,
}

/// The contents of a `COMMIT.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct CommitRecord {
    pub(crate) sets: Vec<PulledSet>,
}

/// The folder of one repository.
#[derive(Clone, Debug)]
pub(crate) struct RepoStore {
    hub: PathBuf,
    pub(crate) folder: PathBuf,
}

impl RepoStore {
    pub(crate) fn new(settings: &HubSettings, repo: &Repo) -> RepoStore {
        let hub = settings.hub();
        RepoStore { folder: hub.join(&repo.owner).join(&repo.name), hub }
    }

    pub(crate) fn commit(&self, commit: &str) -> PathBuf {
        self.folder.join(commit)
    }

    pub(crate) fn parts(&self) -> PathBuf {
        self.folder.join("parts")
    }

    fn record_path(&self, commit: &str) -> PathBuf {
        self.folder.join(format!("{commit}.json"))
    }

    /// Commits with a record.
    pub(crate) fn commits(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut commits: Vec<String> = names
            .filter_map(|name| name.strip_suffix(".json").filter(|c| is_commit(c)).map(str::to_owned))
            .collect();
        commits.sort();
        commits
    }

    /// The record of a commit. A damaged record counts as empty: pulling again rebuilds it without
    /// downloading existing files.
    pub(crate) fn record(&self, commit: &str) -> CommitRecord {
        let text = input_file::read(&self.record_path(commit), MAX_RECORD).ok();
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Whether all files of a set are present.
    pub(crate) fn is_whole(&self, commit: &str, set: &PulledSet) -> bool {
        set.files.iter().all(|file| self.has(commit, file))
    }

    /// Whether a file is present with its final name and size.
    pub(crate) fn has(&self, commit: &str, file: &RepoFile) -> bool {
        let Ok(path) = below(&self.commit(commit), &file.path) else { return false };
        // Hashing gigabytes at each start would take minutes. Files get their names only after
        // verification.
        fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.size)
    }

    /// Updates the record of pulled sets; deletes it when no set is left.
    pub(crate) fn change(
        &self,
        commit: &str,
        change: impl FnOnce(&mut Vec<PulledSet>),
    ) -> Result<(), HubError> {
        // Two processes may pull models of one commit. The lock is released when the file is
        // closed.
        let path = self.folder.join("lock");
        let lock = output_file::create_in_place(&path).map_err(HubError::refused)?;
        lock.lock().map_err(HubError::io(&path))?;
        let mut record = self.record(commit);
        change(&mut record.sets);
        let target = self.record_path(commit);
        if record.sets.is_empty() {
            return match fs::remove_file(&target) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(HubError::io(&target)(error)),
                _ => Ok(()),
            };
        }
        let text =
            serde_json::to_string_pretty(&record).map_err(|error| HubError::io(&target)(error.into()))?;
        output_file::write(&target, text.as_bytes()).map_err(HubError::refused)
    }

    /// Adds a set to the record, and replaces an older entry.
    pub(crate) fn add(&self, commit: &str, set: PulledSet) -> Result<(), HubError> {
        self.change(commit, |sets| {
            sets.retain(|other| {
                (&other.name, &other.model, &other.revision) != (&set.name, &set.model, &set.revision)
            });
            sets.push(set);
        })
    }

    /// A file of any commit with this digest and size.
    pub(crate) fn same_bytes(&self, digest: &Digest, size: u64) -> Option<PathBuf> {
        self.commits().into_iter().find_map(|commit| {
            let sets = self.record(&commit).sets;
            let mut files = sets.iter().flat_map(|set| &set.files);
            let same = files.find(|file| {
                file.digest.as_ref() == Some(digest) && file.size == size && self.has(&commit, file)
            })?;
            below(&self.commit(&commit), &same.path).ok()
        })
    }

    /// Creates a folder below the cache folder. No part of the path below `hub` may be a link,
    /// which another user could point anywhere.
    pub(crate) fn make_folder(&self, folder: &Path) -> Result<(), HubError> {
        fs::create_dir_all(&self.hub).map_err(HubError::io(&self.hub))?;
        let inside = folder.strip_prefix(&self.hub).unwrap_or(Path::new(""));
        let mut path = self.hub.clone();
        for part in inside.components() {
            path.push(part);
            // One component at a time: `create_dir_all` would follow links.
            match fs::create_dir(&path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(HubError::io(&path)(error));
                }
                _ => {}
            }
            plain_folder(&path)?;
        }
        Ok(())
    }
}

/// Rejects symbolic links, and anything else that is not a folder.
pub(crate) fn plain_folder(path: &Path) -> Result<(), HubError> {
    let metadata = fs::symlink_metadata(path).map_err(HubError::io(path))?;
    if metadata.is_dir() {
        return Ok(());
    }
    let problem = if metadata.is_symlink() {
        "it is a symbolic link, which is not followed here: move the whole cache with LATENT_CACHE instead"
    } else {
        "it is not a folder"
    };
    Err(HubError::Cache { path: path.into(), problem: problem.into() })
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Free bytes for this user on the file system of `folder`, which need not exist yet.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let there = folder.ancestors().find(|folder| folder.exists())?;
        let stat = rustix::fs::statvfs(there).ok()?;
        // `f_bavail`, not `f_bfree`: some blocks are reserved for root.
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        None
    }
}
