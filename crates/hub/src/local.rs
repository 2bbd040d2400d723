//! Models on this machine: in Latent's cache folder, and in that of Hugging Face's own tools, which
//! is only read.

use crate::digest::is_commit;
use crate::error::HubError;
use crate::listing::RepoFile;
use crate::paths::below;
use crate::quant::{companion, matching};
use crate::reference::{ModelRef, ModelSelector};
use crate::repo::Repo;
use crate::select::{DefaultSelection, Selection, add_shards, select, usual};
use crate::settings::HubSettings;
use crate::store::{PulledSet, RepoStore};
use latent_files::input_file;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of files of a snapshot.
const MAX_FILES: usize = 10_000;

/// Maximum nesting of folders.
const MAX_DEPTH: usize = 4;

/// Maximum bytes of an index, as in the crate `latent-formats`.
pub(crate) const MAX_INDEX: u64 = 64 << 20;

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalModel {
    /// The path to open: a file, the first of a set of shards, or a folder.
    pub path: PathBuf,
    /// Its quant, `safetensors`, or the name of its file.
    pub name: String,
    /// The commit of its files.
    pub commit: String,
    /// Bytes of all files.
    pub bytes: u64,
}

/// The model of a reference, if it is on this machine. Of several commits, the one that was pulled
/// last. The network is not used.
///
/// # Errors
/// None at present: files that cannot be read count as missing.
pub fn find(settings: &HubSettings, model: &ModelRef) -> Result<Option<LocalModel>, HubError> {
    let store = RepoStore::new(settings, &model.repo);
    if let Some((commit, set)) = pulled(&store, model) {
        let name = set.name.clone();
        return Ok(opened(&store.commit(&commit), &commit, name, &set.model, &set.files));
    }
    let Some(folder) = settings.hf_cache.as_ref().map(|cache| hf_folder(cache, &model.repo)) else {
        return Ok(None);
    };
    let revision = model.revision();
    let commit = if is_commit(revision) { Some(revision.to_owned()) } else { hf_commit(&folder, revision) };
    Ok(commit.and_then(|commit| in_snapshot(&folder.join("snapshots").join(&commit), &commit, model)))
}

/// The pulled set of a revision that fits the reference best.
fn pulled(store: &RepoStore, model: &ModelRef) -> Option<(String, PulledSet)> {
    let revision = model.revision();
    let commits = store.commits().into_iter();
    let sets = commits
        .flat_map(|commit| store.record(&commit).sets.into_iter().map(move |set| (commit.clone(), set)));
    let mut sets: Vec<(String, PulledSet)> = sets
        // A model that was pulled by branch is also found by its commit.
        .filter(|(commit, set)| set.revision == revision || commit == revision)
        .filter(|(commit, set)| store.is_whole(commit, set))
        .collect();
    // A drafter that was pulled by its file name is not the model.
    let named = matches!(model.choice, ModelSelector::File(_));
    sets.retain(|(_, set)| named || companion(&model.repo.name, &set.model).is_none());
    // Newest first: the searches below return the first match.
    sets.sort_by_key(|(_, set)| std::cmp::Reverse(set.pulled));
    let at = match &model.choice {
        ModelSelector::File(path) => {
            sets.iter().position(|(_, set)| set.files.iter().any(|file| file.path == *path))?
        }
        ModelSelector::Quant(quant) => {
            let same = |set: &PulledSet| set.name.eq_ignore_ascii_case(quant);
            let names: Vec<_> = sets.iter().map(|(_, set)| (set.tag.as_deref(), set.name.as_str())).collect();
            let exact = sets.iter().position(|(_, set)| same(set));
            exact.or_else(|| matching(&names, quant).first().copied())?
        }
        ModelSelector::Usual => {
            let mut seen = Vec::new();
            // Keep only the newest state of each model.
            sets.retain(|(_, set)| {
                !seen.contains(&set.name) && {
                    seen.push(set.name.clone());
                    true
                }
            });
            let tags: Vec<_> = sets.iter().map(|(_, set)| set.tag.as_deref()).collect();
            match usual(&tags) {
                DefaultSelection::One(at) => at,
                // The newest, because of the order above.
                DefaultSelection::Several(_, several) => several[0],
                DefaultSelection::None => (!sets.is_empty()).then_some(0)?,
            }
        }
    };
    Some(sets.swap_remove(at))
}

fn opened(folder: &Path, commit: &str, name: String, model: &str, files: &[RepoFile]) -> Option<LocalModel> {
    let path = if model.is_empty() { folder.to_owned() } else { below(folder, model).ok()? };
    let bytes = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.size));
    Some(LocalModel { path, name, commit: commit.into(), bytes })
}

fn hf_folder(cache: &Path, repo: &Repo) -> PathBuf {
    cache.join(format!("models--{}--{}", repo.owner, repo.name))
}

/// The commit of a branch in Hugging Face's cache.
fn hf_commit(folder: &Path, revision: &str) -> Option<String> {
    // A revision may contain slashes (`refs/pr/1`), but must not lead out of the folder.
    let path = below(&folder.join("refs"), revision).ok()?;
    let text = input_file::read_text(&path, 64).ok()?;
    Some(text.trim().to_owned()).filter(|text| is_commit(text))
}

/// The model in a snapshot of Hugging Face's cache, if it is complete. Files there are links to
/// complete files.
fn in_snapshot(folder: &Path, commit: &str, model: &ModelRef) -> Option<LocalModel> {
    let mut files = Vec::new();
    walk(folder, "", 0, &mut files);
    let mut selection = select(model, &files).ok()?;
    if let Some(index) = selection.index {
        let index = input_file::read(&folder.join(index), MAX_INDEX).ok()?;
        add_shards(&mut selection, &model.repo, &index, &files).ok()?;
    }
    let has = |name: &str| selection.files.iter().any(|file| file.path == name);
    // Other tools download single files, so a snapshot may lack any of them. A folder without a
    // tokenizer counts as incomplete.
    let whole = !selection.model.is_empty()
        || has("tokenizer.json")
        || has("tiktoken.model")
        || has("tokenizer.model")
        || has("tekken.json");
    whole.then(|| opened(folder, commit, selection.name, &selection.model, &selection.files))?
}

/// Files below a folder, including links to files.
fn walk(folder: &Path, front: &str, depth: usize, files: &mut Vec<RepoFile>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let (path, place) = (format!("{front}{name}"), entry.path());
        let Ok(there) = fs::metadata(&place) else { continue };
        if there.is_dir() && depth < MAX_DEPTH && entry.file_type().is_ok_and(|ty| ty.is_dir()) {
            walk(&place, &format!("{path}/"), depth + 1, files);
        // `metadata` follows links: files of snapshots are links to blobs. Folders are entered only
        // if they are not links, so that a cycle cannot occur.
        } else if there.is_file() && files.len() < MAX_FILES {
            files.push(RepoFile { path, size: there.len(), digest: None });
        }
    }
}

/// A selection of the hub's files in Hugging Face's cache, if all files are present with their
/// sizes.
pub(crate) fn in_hf_cache(
    settings: &HubSettings,
    repo: &Repo,
    commit: &str,
    selection: &Selection,
) -> Option<LocalModel> {
    let folder = hf_folder(settings.hf_cache.as_ref()?, repo).join("snapshots").join(commit);
    let there = |file: &RepoFile| {
        let path = below(&folder, &file.path).ok()?;
        fs::metadata(path).ok().filter(|there| there.is_file() && there.len() == file.size)
    };
    let whole = selection.files.iter().all(|file| there(file).is_some());
    whole.then(|| opened(&folder, commit, selection.name.clone(), &selection.model, &selection.files))?
}

/// A file of a snapshot of Hugging Face's cache.
pub(crate) fn hf_file(settings: &HubSettings, repo: &Repo, commit: &str, name: &str) -> Option<PathBuf> {
    let path = hf_folder(settings.hf_cache.as_ref()?, repo).join("snapshots").join(commit).join(name);
    path.is_file().then_some(path)
}
