//! The cache folder: `hub/OWNER/NAME/COMMIT/…` holds files, `hub/OWNER/NAME/COMMIT.json` says what was pulled, `hub/OWNER/NAME/parts` holds
//! what is still coming. A file has its final name only when it is whole and its checksum is right.

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

/// Most bytes of a `COMMIT.json`.
const MAX_RECORD: u64 = 16 << 20;

/// A model that was pulled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PulledSet {
    /// What a user calls it: the quant, `safetensors`, or the name of the file.
    pub(crate) name: String,
    /// The quant as the file's name has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<String>,
    /// The revision that was asked for.
    pub(crate) revision: String,
    /// The file to open, or nothing for the whole folder.
    pub(crate) model: String,
    pub(crate) files: Vec<RepoFile>,
    /// Seconds since 1970.
    pub(crate) pulled: u64,
}

/// What a `COMMIT.json` holds.
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

    /// Commits of which something was pulled.
    pub(crate) fn commits(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut commits: Vec<String> = names
            .filter_map(|name| name.strip_suffix(".json").filter(|c| is_commit(c)).map(str::to_owned))
            .collect();
        commits.sort();
        commits
    }

    /// What was pulled of a commit. A record that cannot be read counts as none: pulling again makes it anew, and downloads nothing that is there.
    pub(crate) fn record(&self, commit: &str) -> CommitRecord {
        let text = input_file::read(&self.record_path(commit), MAX_RECORD).ok();
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Whether all files of a set are there.
    pub(crate) fn is_whole(&self, commit: &str, set: &PulledSet) -> bool {
        set.files.iter().all(|file| self.has(commit, file))
    }

    /// Whether a file is there, under its final name.
    pub(crate) fn has(&self, commit: &str, file: &RepoFile) -> bool {
        let Ok(path) = below(&self.commit(commit), &file.path) else { return false };
        fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.size)
    }

    /// Updates the record of pulled sets; deletes it when no set is left.
    pub(crate) fn change(
        &self,
        commit: &str,
        change: impl FnOnce(&mut Vec<PulledSet>),
    ) -> Result<(), HubError> {
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

    /// Notes that a set was pulled.
    pub(crate) fn add(&self, commit: &str, set: PulledSet) -> Result<(), HubError> {
        self.change(commit, |sets| {
            sets.retain(|other| {
                (&other.name, &other.model, &other.revision) != (&set.name, &set.model, &set.revision)
            });
            sets.push(set);
        })
    }

    /// A file with these bytes that was pulled with another commit.
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

    /// Makes a folder below the cache folder. No part of the way below `hub` may be a link: what is at the other end is another's choice.
    pub(crate) fn make_folder(&self, folder: &Path) -> Result<(), HubError> {
        fs::create_dir_all(&self.hub).map_err(HubError::io(&self.hub))?;
        let inside = folder.strip_prefix(&self.hub).unwrap_or(Path::new(""));
        let mut path = self.hub.clone();
        for part in inside.components() {
            path.push(part);
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

/// Refuses a symbolic link, and anything else that is not a folder.
pub(crate) fn plain_folder(path: &Path) -> Result<(), HubError> {
    let metadata = fs::symlink_metadata(path).map_err(HubError::io(path))?;
    if metadata.is_dir() {
        return Ok(());
    }
    let problem = if metadata.is_symlink() {
        "it is a symbolic link, and nothing is written or removed through links: move the whole cache with LATENT_CACHE instead"
    } else {
        "it is not a folder"
    };
    Err(HubError::Cache { path: path.into(), problem: problem.into() })
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Bytes that are free for this user where `folder` is, or will be.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let there = folder.ancestors().find(|folder| folder.exists())?;
        let stat = rustix::fs::statvfs(there).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        None
    }
}
