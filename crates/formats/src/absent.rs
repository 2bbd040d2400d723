//! Missing files of a model: each of several ranks needs only those with its own tensors.

use std::collections::HashMap;

/// Which files of a model must be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequiredFiles {
    All,
    /// Those with metadata; of the others any.
    Some,
}

/// The files that are missing, and what is known of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct MissingFiles {
    /// Their names, in the order of the set.
    pub(crate) files: Vec<String>,
    /// Which of them has a tensor, or one of a module's tensors, by name.
    pub(crate) places: HashMap<String, usize>,
    /// The number of their tensors, if the set records it.
    pub(crate) tensors: Option<u64>,
    /// Those that no other rank has either.
    pub(crate) nowhere: Vec<String>,
}

impl MissingFiles {
    /// The file of a tensor, if known.
    pub(crate) fn file_of(&self, tensor: &str) -> Option<&str> {
        let place = self.places.get(tensor).or_else(|| self.places.get(module_of(tensor)?))?;
        self.files.get(*place).map(String::as_str)
    }

    /// Notes that a tensor of an index is in file `file` of [`files`](Self::files). What belongs to it, as scales do to quants, is of no use without it.
    pub(crate) fn note(&mut self, tensor: &str, file: usize) {
        let known = module_of(tensor).unwrap_or(tensor);
        if !self.places.contains_key(known) {
            self.places.insert(known.to_owned(), file);
        }
    }
}

/// `model.layers.0.mlp.up_proj` of `model.layers.0.mlp.up_proj.weight`; none of a name without dots.
fn module_of(tensor: &str) -> Option<&str> {
    tensor.rsplit_once('.').map(|(module, _)| module)
}
