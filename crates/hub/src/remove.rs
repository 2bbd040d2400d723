//! `latent rm`: removes models from the cache folder.

use crate::error::HubError;
use crate::list::{reference, repos};
use crate::lock::{Lock, LockAttempt};
use crate::paths::below;
use crate::quant::matching;
use crate::reference::{ModelRef, ModelSelector};
use crate::repo::Repo;
use crate::settings::HubSettings;
use crate::short_names::{model_ref, short_name};
use crate::store::{PulledSet, RepoStore, plain_folder};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The result of [`remove`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovalReport {
    /// References of the models.
    pub models: Vec<String>,
    /// Freed bytes. A file that another commit shares by a hard link frees nothing.
    pub freed: u64,
}

/// The reference that a user means: `OWNER/NAME` with or without `hf:`, a `NAME` of one repository
/// in the cache folder, or a short name.
///
/// # Errors
/// An invalid reference, or a name of several repositories.
pub fn pulled_reference(settings: &HubSettings, text: &str) -> Result<ModelRef, HubError> {
    if !text.contains('/') && !ModelRef::is_one(text) {
        let (name, rest) = text.split_at(text.find([':', '@']).unwrap_or(text.len()));
        let found: Vec<Repo> = repos(settings).into_iter().filter(|repo| repo.name == name).collect();
        return match found.as_slice() {
            [one] => format!("{one}{rest}").parse(),
            [] if short_name(text).is_some() => model_ref(text),
            [] => Err(not_pulled(settings, text)),
            several => {
                let owners: Vec<String> = several.iter().map(Repo::to_string).collect();
                let problem = format!("it is ambiguous: {}", owners.join(" and "));
                Err(HubError::Reference { text: text.into(), problem })
            }
        };
    }
    text.parse()
}

/// Removes the model of a reference: one quant, or without a quant the whole repository. With a
/// revision, only files that were pulled from it.
///
/// # Errors
/// The model was not pulled; it is being downloaded; an error of the system.
pub fn remove(settings: &HubSettings, model: &ModelRef) -> Result<RemovalReport, HubError> {
    let store = RepoStore::new(settings, &model.repo);
    if fs::symlink_metadata(&store.folder).is_err() {
        return Err(not_pulled(settings, &model.to_string()));
    }
    // Removal through a link would delete files elsewhere.
    for folder in [store.folder.parent().unwrap_or(&store.folder), &store.folder] {
        plain_folder(folder)?;
    }
    let whole = model.choice == ModelSelector::Usual && model.revision.is_none();
    let mut removed = RemovalReport::default();
    // Held until the end: a process that waits for a lock must not download into a folder that is
    // being removed.
    let _locks = if whole { locks(&store)? } else { Vec::new() };
    for commit in store.commits() {
        let sets = store.record(&commit).sets;
        let (discarded, remaining): (Vec<PulledSet>, Vec<PulledSet>) = chosen(model, &commit, sets);
        if discarded.is_empty() {
            continue;
        }
        let names = |sets: &[PulledSet]| -> BTreeSet<String> {
            sets.iter().flat_map(|set| &set.files).map(|file| file.path.clone()).collect()
        };
        // Files that other models of the commit share, such as a README, stay.
        let shared = names(&remaining);
        let folder = store.commit(&commit);
        // All paths are checked before the first removal, so that an error leaves a complete set.
        let paths: Result<Vec<PathBuf>, HubError> =
            names(&discarded).difference(&shared).map(|path| below(&folder, path)).collect();
        let paths = paths?;
        paths.iter().try_for_each(|path| no_links(&store, path))?;
        // The record first: a half-removed model must not be found.
        store.change(&commit, |sets| {
            sets.retain(|set| !discarded.iter().any(|discarded| same(discarded, set)))
        })?;
        for path in &paths {
            removed.freed += remove_file(&store, path)?;
        }
        removed.models.extend(discarded.iter().map(|set| reference(&model.repo, set)));
    }
    if whole {
        removed.freed += remove_rest(&store.folder)?;
        if removed.models.is_empty() {
            removed.models.push(format!("hf:{} (incomplete)", model.repo));
        }
    } else if store.commits().is_empty() {
        remove_empty(&store);
    }
    if removed.models.is_empty() {
        return Err(not_pulled(settings, &model.to_string()));
    }
    Ok(removed)
}

fn same(a: &PulledSet, b: &PulledSet) -> bool {
    (&a.name, &a.model, &a.revision) == (&b.name, &b.model, &b.revision)
}

fn not_pulled(settings: &HubSettings, what: &str) -> HubError {
    HubError::NotPulled { what: what.into(), cache: settings.cache.clone() }
}

/// The sets to remove and those to keep.
fn chosen(model: &ModelRef, commit: &str, sets: Vec<PulledSet>) -> (Vec<PulledSet>, Vec<PulledSet>) {
    let names: Vec<_> = sets.iter().map(|set| (set.tag.as_deref(), set.name.as_str())).collect();
    let by_quant = match &model.choice {
        ModelSelector::Quant(quant) => matching(&names, quant),
        _ => Vec::new(),
    };
    let is_chosen: Vec<bool> = (0..sets.len())
        .map(|i| {
            let set = &sets[i];
            let revision =
                model.revision.as_ref().is_none_or(|wanted| *wanted == set.revision || wanted == commit);
            revision
                && match &model.choice {
                    ModelSelector::Usual => true,
                    ModelSelector::File(path) => set.files.iter().any(|file| file.path == *path),
                    ModelSelector::Quant(quant) => {
                        by_quant.contains(&i) || set.name.eq_ignore_ascii_case(quant)
                    }
                }
        })
        .collect();
    let mut is_chosen = is_chosen.into_iter();
    sets.into_iter().partition(|_| is_chosen.next().unwrap_or(false))
}

/// Takes the locks of all downloads into a repository. Fails if a download is running.
fn locks(store: &RepoStore) -> Result<Vec<Lock>, HubError> {
    let mut held = Vec::new();
    for entry in fs::read_dir(store.parts()).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "lock") {
            match Lock::try_at(&path) {
                Ok(LockAttempt::Here(lock)) => held.push(lock),
                // Not a lock file. It is removed with the folder.
                Err(HubError::Cache { .. }) => {}
                Err(error) => return Err(error),
                Ok(LockAttempt::Elsewhere) => {
                    let problem = "a download into it is in progress: stop it first".into();
                    return Err(HubError::Cache { path: store.folder.clone(), problem });
                }
            }
        }
    }
    Ok(held)
}

/// Rejects a path that contains a link inside the repository's folder: removing through it would
/// delete files elsewhere.
fn no_links(store: &RepoStore, path: &Path) -> Result<(), HubError> {
    let inside = path.strip_prefix(&store.folder).unwrap_or(Path::new(""));
    let mut folder = store.folder.clone();
    for part in inside.parent().unwrap_or(Path::new("")).components() {
        folder.push(part);
        if fs::symlink_metadata(&folder).is_err() {
            return Ok(());
        }
        plain_folder(&folder)?;
    }
    Ok(())
}

/// Removes a file and the folders that become empty. Returns the freed bytes.
fn remove_file(store: &RepoStore, path: &Path) -> Result<u64, HubError> {
    let freed = freed_by(path);
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(HubError::io(path)(error)),
        _ => {}
    }
    // `remove_dir` fails on folders that are not empty.
    path.ancestors()
        .skip(1)
        .take_while(|folder| *folder != store.folder)
        .for_each(|folder| drop(fs::remove_dir(folder)));
    Ok(freed)
}

/// Bytes that removing a file frees.
fn freed_by(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // Another commit shares the file by a hard link.
        if metadata.nlink() > 1 {
            return 0;
        }
    }
    if metadata.is_file() { metadata.len() } else { 0 }
}

/// Removes the folder of a repository without models, unless a download is in progress.
fn remove_empty(store: &RepoStore) {
    let parts = fs::remove_dir(store.parts());
    if parts.is_ok() || parts.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        let _ = fs::remove_file(store.folder.join("lock"));
        // Fails on folders that are not empty, such as an owner with other models.
        store.folder.ancestors().take(2).for_each(|folder| drop(fs::remove_dir(folder)));
    }
}

/// Removes the rest of a repository's folder: parts, locks, files without a record. Links are
/// removed, not followed.
fn remove_rest(folder: &Path) -> Result<u64, HubError> {
    let freed = bytes_below(folder);
    fs::remove_dir_all(folder).map_err(HubError::io(folder))?;
    if let Some(owner) = folder.parent() {
        // Fails if the owner has other models.
        let _ = fs::remove_dir(owner);
    }
    Ok(freed)
}

fn bytes_below(folder: &Path) -> u64 {
    let entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let one = |path: &PathBuf| match fs::symlink_metadata(path) {
        Ok(there) if there.is_dir() => bytes_below(path),
        // Records and ETags are not part of a model.
        Ok(there)
            if there.is_file() && !path.extension().is_some_and(|end| end == "json" || end == "etag") =>
        {
            freed_by(path)
        }
        _ => 0,
    };
    entries.iter().map(one).sum()
}
