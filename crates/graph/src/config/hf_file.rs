//! A config.json being read.

use super::families::ModelFamily;
use super::reader::Reader;
use super::source::ConfigTensors;

/// A config.json being read.
pub(super) struct HfConfig<'a> {
    pub(super) family: &'static ModelFamily,
    pub(super) text: Reader<'a>,
    pub(super) tensors: &'a dyn ConfigTensors,
    /// Prefix of the language model's tensor names.
    pub(super) prefix: &'static str,
    /// The first layer with latent attention, whose tensors decide its sizes.
    pub(super) attention_layer: usize,
}

impl HfConfig<'_> {
    /// The full name of a tensor of the language model.
    pub(super) fn tensor(&self, name: &str) -> String {
        format!("{}{}", self.prefix, self.family.names.stored(name))
    }

    /// The full name of a tensor of one layer.
    pub(super) fn layer_tensor(&self, layer: usize, name: &str) -> String {
        self.tensor(&format!("model.layers.{layer}.{name}"))
    }
}
