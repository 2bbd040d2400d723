//! `latent ls`: lists the models in the cache folder.

use crate::local::LocalModel;
use crate::paths::below;
use crate::repo::Repo;
use crate::settings::HubSettings;
use crate::store::{PulledSet, RepoStore};
use std::fs;
use std::path::Path;

/// A model in the cache folder, or an incomplete download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// Its repository.
    pub repo: Repo,
    /// The model; for an incomplete download, the folder of its parts.
    pub model: LocalModel,
    /// The requested revision.
    pub revision: String,
    /// Number of its files.
    pub files: usize,
    /// Time of the pull in seconds since 1970.
    pub pulled: u64,
    /// Whether all files are present.
    pub complete: bool,
    /// The reference that names it.
    pub reference: String,
}

/// All models in the cache folder, by name.
pub fn list(settings: &HubSettings) -> Vec<ListedModel> {
    let mut all = Vec::new();
    for repo in repos(settings) {
        let store = RepoStore::new(settings, &repo);
        for commit in store.commits() {
            let sets = store.record(&commit).sets;
            all.extend(sets.into_iter().filter_map(|set| listed(&repo, &store, &commit, set)));
        }
        all.extend(incomplete(&repo, &store));
    }
    all
}

/// Repositories in the cache folder. Links are not followed.
pub(crate) fn repos(settings: &HubSettings) -> Vec<Repo> {
    let hub = settings.hub();
    let mut repos = Vec::new();
    for owner in folders(&hub) {
        let names = folders(&hub.join(&owner));
        repos.extend(names.into_iter().map(|name| Repo { owner: owner.clone(), name }));
    }
    repos.sort();
    repos
}

fn folders(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let plain = entries.filter(|entry| entry.file_type().is_ok_and(|ty| ty.is_dir()));
    plain.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn listed(repo: &Repo, store: &RepoStore, commit: &str, set: PulledSet) -> Option<ListedModel> {
    let folder = store.commit(commit);
    let path = if set.model.is_empty() { folder } else { below(&folder, &set.model).ok()? };
    // Only files that are present take space.
    let bytes = set
        .files
        .iter()
        .filter(|file| store.has(commit, file))
        .fold(0u64, |sum, file| sum.saturating_add(file.size));
    let complete = store.is_whole(commit, &set);
    Some(ListedModel {
        reference: reference(repo, &set),
        model: LocalModel { path, name: set.name, commit: commit.into(), bytes },
        repo: repo.clone(),
        revision: set.revision,
        files: set.files.len(),
        pulled: set.pulled,
        complete,
    })
}

/// `hf:OWNER/NAME:Q4_K_M`, with the revision unless it is the default one.
pub(crate) fn reference(repo: &Repo, set: &PulledSet) -> String {
    // A slash in a revision (`refs/pr/1`) would begin the name of a file.
    let revision =
        if set.revision == "main" { String::new() } else { format!("@{}", set.revision.replace('/', "%2F")) };
    let file = set.name.to_ascii_lowercase().ends_with(".gguf");
    format!("hf:{repo}{revision}{}{}", if file { '/' } else { ':' }, set.name)
}

/// The unfinished downloads of a repository.
fn incomplete(repo: &Repo, store: &RepoStore) -> Option<ListedModel> {
    let entries = fs::read_dir(store.parts()).into_iter().flatten().flatten();
    // The names of parts are hashes, which do not tell the model. So all parts of a repository are
    // one entry.
    let parts = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "part"));
    let files = parts.filter_map(|entry| entry.metadata().ok()).filter(std::fs::Metadata::is_file);
    let sizes: Vec<u64> = files.map(|metadata| metadata.len()).collect();
    let model = LocalModel {
        path: store.parts(),
        name: String::new(),
        commit: String::new(),
        bytes: sizes.iter().sum(),
    };
    (!sizes.is_empty()).then(|| ListedModel {
        reference: format!("hf:{repo}"),
        repo: repo.clone(),
        model,
        revision: String::new(),
        files: sizes.len(),
        pulled: 0,
        complete: false,
    })
}
