//! Missing files of a model. Each of several ranks needs only the files with its own tensors.

use std::collections::HashMap;

/// The files of a model that must be present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequiredFiles {
    All,
    /// Those with metadata. Any others may be missing.
    Some,
}

/// The missing files and their known tensors.
#[derive(Clone, Debug, Default)]
pub(crate) struct MissingFiles {
    /// Names of the missing files, in the order of the set.
    pub(crate) files: Vec<String>,
    /// Index in `files` by the name of a tensor or module.
    pub(crate) places: HashMap<String, usize>,
    /// Number of tensors in the missing files, if the set records it.
    pub(crate) tensors: Option<u64>,
    /// Missing files that no other rank has either.
    pub(crate) nowhere: Vec<String>,
}

impl MissingFiles {
    /// The file of a tensor, if known.
    pub(crate) fn file_of(&self, tensor: &str) -> Option<&str> {
        let place = self.places.get(tensor).or_else(|| self.places.get(module_of(tensor)?))?;
        self.files.get(*place).map(String::as_str)
    }

    /// Notes that a tensor is in the missing file `file`.
    pub(crate) fn note(&mut self, tensor: &str, file: usize) {
        // By module: the other tensors of a module, such as scales, are useless without this one.
        let known = module_of(tensor).unwrap_or(tensor);
        if !self.places.contains_key(known) {
            self.places.insert(known.to_owned(), file);
        }
    }
}

/// `model.layers.0.mlp.up_proj` for `model.layers.0.mlp.up_proj.weight`; `None` for a name without
/// dots.
fn module_of(tensor: &str) -> Option<&str> {
    tensor.rsplit_once('.').map(|(module, _)| module)
}
