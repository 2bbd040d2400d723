//! The models of a folder, for `--models-dir`.

use crate::exit::UsageError;
use crate::hub::file_set_name;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum models of a folder.
const MAX_MODELS: usize = 4096;

/// The models in a folder by name: each model file, and each folder with a model. A set of shards
/// is one model, represented by its first shard.
pub(super) fn models(folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let wrong = |problem: String| UsageError(format!("--models-dir {}: {problem}", folder.display()));
    let mut found = BTreeMap::new();
    for path in entries(folder).map_err(|error| wrong(error.to_string()))? {
        if found.len() >= MAX_MODELS {
            return Err(wrong(format!("more than {MAX_MODELS} models")).into());
        }
        if path.is_dir() {
            // An unreadable folder (`lost+found` on a mounted disk) holds no model and is not an
            // error.
            let inner = entries(&path).unwrap_or_default();
            let name = path.file_name().and_then(|name| name.to_str());
            if let (Some(name), Some(model)) = (name, of_folder(&path, &inner)) {
                found.insert(name.to_owned(), model);
            }
        } else if is_model_file(&path)
            && let Some(name) = file_set_name(&path)
        {
            // The entries are sorted, so `or_insert` keeps the first shard.
            found.entry(name.to_owned()).or_insert(path);
        }
    }
    if found.is_empty() {
        return Err(wrong(
            "it has no models: expected .gguf or .latent files, or folders with them or with .safetensors"
                .into(),
        )
        .into());
    }
    Ok(found)
}

/// The sorted entries of a folder.
fn entries(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|own| endings.iter().any(|ending| own.eq_ignore_ascii_case(ending)))
}

/// Whether a file is a model.
fn is_model_file(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    // llama.cpp's projectors for images (mmproj-*.gguf) are in the same folder as their model.
    has_ending(path, &["gguf", "latent"]) && !name.starts_with("mmproj")
}

/// The model of a folder: the folder itself if it holds safetensors, else its first model file.
fn of_folder(folder: &Path, inner: &[PathBuf]) -> Option<PathBuf> {
    if inner.iter().any(|path| has_ending(path, &["safetensors"])) {
        return Some(folder.to_owned());
    }
    inner.iter().find(|path| is_model_file(path)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_shards_and_folders_are_models() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        let problem = models(folder.path()).unwrap_err().to_string();
        assert!(problem.contains("it has no models"), "{problem}");
        for name in [
            "a.gguf",
            "b-00001-of-00002.gguf",
            "b-00002-of-00002.gguf",
            "mmproj-a.gguf",
            "notes.txt",
            "c/model.safetensors",
            "c/config.json",
            "d/d-00001-of-00002.gguf",
            "d/d-00002-of-00002.gguf",
            "e/readme",
        ] {
            file(name);
        }
        let found: Vec<String> = models(folder.path())
            .unwrap()
            .into_iter()
            .map(|(name, path)| format!("{name}={}", path.strip_prefix(folder.path()).unwrap().display()))
            .collect();
        assert_eq!(found, ["a=a.gguf", "b=b-00001-of-00002.gguf", "c=c", "d=d/d-00001-of-00002.gguf"]);
        assert!(models(&folder.path().join("none")).unwrap_err().to_string().contains("--models-dir"));
    }
}
