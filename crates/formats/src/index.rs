//! model.safetensors.index.json: the file of each tensor of a folder.

use crate::absent::RequiredFiles;
use crate::error::FormatError;
use crate::json::{failed, read_text};
use crate::limits;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// A parsed index.
#[derive(Debug, Default)]
pub(crate) struct SafetensorsIndex {
    /// Names of files in the folder.
    pub(crate) files: Vec<String>,
    // `Box<str>` and u32 instead of two strings: an index may have 200 000 tensors.
    /// Each tensor and the number of its file.
    pub(crate) tensors: Vec<(Box<str>, u32)>,
}

impl SafetensorsIndex {
    /// Reads the index at `path`; `None` if the file does not exist.
    pub(crate) fn read(path: &Path) -> Result<Option<SafetensorsIndex>, FormatError> {
        let Some(text) = read_text(path, limits::MAX_INDEX_BYTES)? else { return Ok(None) };
        let parsed: Result<IndexFile, _> = serde_json::from_str(&text);
        let problem = match parsed {
            Ok(IndexFile(Some(index))) => return Ok(Some(index)),
            Ok(IndexFile(None)) => "it has no `weight_map` object".into(),
            Err(error) => error.to_string(),
        };
        Err(failed(path, &text, problem))
    }

    /// Paths of the files. All must exist; with [`RequiredFiles::Some`], at least one.
    pub(crate) fn paths(
        &self,
        path: &Path,
        folder: &Path,
        needed: RequiredFiles,
    ) -> Result<Vec<PathBuf>, FormatError> {
        let paths: Vec<PathBuf> = self.files.iter().map(|name| folder.join(name)).collect();
        let enough = needed == RequiredFiles::Some && paths.iter().any(|file| file.exists());
        match paths.iter().zip(&self.files).find(|(file, _)| !enough && !file.exists()) {
            None => Ok(paths),
            Some((_, name)) => {
                let missing = paths.iter().filter(|file| !file.exists()).count();
                let others =
                    if missing > 1 { format!(" ({missing} of its files are not)") } else { String::new() };
                let problem = format!(
                    "it names {name}, which is not in the folder{others}; the download is incomplete"
                );
                Err(FormatError::Incomplete { path: path.to_owned(), problem })
            }
        }
    }

    /// Removes copies of tensors that the index assigns to another file, if that file contains them
    /// or is missing. `place` gives the name and the file number of an element of `tensors`.
    pub(crate) fn remove_other_copies<T>(
        &self,
        tensors: &mut Vec<T>,
        place: &dyn Fn(&T) -> (&str, u32),
        is_here: &dyn Fn(u32) -> bool,
    ) {
        let files: HashMap<&str, u32> = self.tensors.iter().map(|(name, file)| (&**name, *file)).collect();
        let is_chosen = |tensor: &T| {
            let (name, file) = place(tensor);
            files.get(name).is_none_or(|chosen| *chosen == file)
        };
        // Almost all folders: no tensor is in two files.
        if tensors.iter().all(is_chosen) {
            return;
        }
        let chosen: HashSet<String> = tensors
            .iter()
            .filter(|tensor| is_chosen(tensor))
            .map(|tensor| place(tensor).0.to_owned())
            .collect();
        tensors.retain(|tensor| {
            let (name, _) = place(tensor);
            let absent = || files.get(name).is_some_and(|chosen| !is_here(*chosen));
            is_chosen(tensor) || !chosen.contains(name) && !absent()
        });
    }

    fn add(&mut self, numbers: &mut HashMap<String, u32>, tensor: String, file: &str) -> Result<(), String> {
        let number = match numbers.get(file) {
            Some(&number) => number,
            None => {
                // Once per file, not once per tensor.
                check_name(&tensor, file)?;
                if self.files.len() == limits::MAX_SHARDS {
                    return Err(format!("it names more than {} files", limits::MAX_SHARDS));
                }
                let number = self.files.len() as u32;
                numbers.insert(file.to_owned(), number);
                self.files.push(file.to_owned());
                number
            }
        };
        if self.tensors.len() == limits::MAX_FOLDER_TENSORS {
            return Err(format!("it names more than {} tensors", limits::MAX_FOLDER_TENSORS));
        }
        self.tensors.push((tensor.into_boxed_str(), number));
        Ok(())
    }

    fn check_twice(&self) -> Result<(), String> {
        // Sorting references needs less memory than a set of 200 000 names.
        let mut names: Vec<&str> = self.tensors.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("tensor {:?} occurs twice in it", pair[0])),
            None => Ok(()),
        }
    }
}

/// Checks that a file of an index is a name in the folder. A path out of the folder (`../`) would
/// make a downloaded model read other files.
fn check_name(tensor: &str, file: &str) -> Result<(), String> {
    let plain = Path::new(file).file_name().is_some_and(|name| name == file);
    // `\` and `:` have a meaning on Windows only, but a model should be valid on all systems or on
    // none.
    if !plain || file.contains(['/', '\\', '\0', ':']) {
        return Err(format!("the file {file:?} of tensor {tensor} is not the name of a file in this folder"));
    }
    if !file.ends_with(".safetensors") {
        return Err(format!(
            "tensor {tensor} is in {file:?}, which is not a .safetensors file; Latent reads only those"
        ));
    }
    Ok(())
}

/// The whole file; `None` without `weight_map`.
struct IndexFile(Option<SafetensorsIndex>);

impl<'de> Deserialize<'de> for IndexFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<IndexFile, D::Error> {
        struct IndexFileVisitor;
        impl<'de> Visitor<'de> for IndexFileVisitor {
            type Value = IndexFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with weight_map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IndexFile, A::Error> {
                let mut found = None;
                // Other keys (`metadata`) are skipped without building values.
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    if key != "weight_map" {
                        map.next_value::<IgnoredAny>()?;
                    } else if found.replace(map.next_value::<SafetensorsIndex>()?).is_some() {
                        return Err(A::Error::custom("weight_map occurs twice"));
                    }
                }
                Ok(IndexFile(found))
            }
        }
        deserializer.deserialize_map(IndexFileVisitor)
    }
}

// Not a map of strings, which would store the file's name with each tensor, and overwrite
// duplicates.
impl<'de> Deserialize<'de> for SafetensorsIndex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SafetensorsIndex, D::Error> {
        struct WeightMapVisitor;
        impl<'de> Visitor<'de> for WeightMapVisitor {
            type Value = SafetensorsIndex;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors and their files")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SafetensorsIndex, A::Error> {
                let mut index = SafetensorsIndex::default();
                let mut numbers = HashMap::new();
                while let Some((tensor, file)) = map.next_entry::<String, Cow<'de, str>>()? {
                    index.add(&mut numbers, tensor, &file).map_err(A::Error::custom)?;
                }
                index.check_twice().map_err(A::Error::custom)?;
                Ok(index)
            }
        }
        deserializer.deserialize_map(WeightMapVisitor)
    }
}
