//! A config.json being read.

use super::families::Family;
use super::reader::Reader;
use super::source::Tensors;

/// A config.json being read.
pub(super) struct Config<'a> {
    pub(super) family: &'static Family,
    pub(super) text: Reader<'a>,
    pub(super) tensors: &'a dyn Tensors,
    /// What stands before the names of the language model's tensors.
    pub(super) prefix: &'static str,
}

impl Config<'_> {
    /// The full name of a tensor of the language model.
    pub(super) fn tensor(&self, name: &str) -> String {
        format!("{}{}", self.prefix, self.family.names.stored(name))
    }

    /// The full name of a tensor of one layer.
    pub(super) fn layer_tensor(&self, layer: usize, name: &str) -> String {
        self.tensor(&format!("model.layers.{layer}.{name}"))
    }
}
