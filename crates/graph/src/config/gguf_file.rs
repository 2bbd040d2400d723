//! A GGUF file whose config is being read, and what its architecture fixes.

use super::error::ConfigError;
use super::reader::Reader;
use super::source::Tensors;
use super::{FfnActivation, LayerKind, RopePairs};

/// What the architectures of GGUF files differ in.
pub(super) struct Architecture {
    /// `general.architecture`, and the circuit's name.
    pub(super) name: &'static str,
    pub(super) pairs: RopePairs,
    pub(super) activation: FfnActivation,
    /// Whether it may have experts, multi-token-prediction layers, `*_mla` keys and YaRN's log multiplier.
    pub(super) deepseek: bool,
    /// Whether it has MiniCPM3's scales, which its files do not state.
    pub(super) scaled: bool,
}

const DEEPSEEK2: Architecture = Architecture {
    name: "deepseek2",
    pairs: RopePairs::Interleaved,
    activation: FfnActivation::SiluGated,
    deepseek: true,
    scaled: false,
};

pub(super) static ARCHITECTURES: [Architecture; 3] = [
    DEEPSEEK2,
    Architecture { name: "minicpm3", pairs: RopePairs::NeoX, deepseek: false, scaled: true, ..DEEPSEEK2 },
    Architecture { name: "plm", activation: FfnActivation::ReluSquared, deepseek: false, ..DEEPSEEK2 },
];

/// A GGUF file being read.
pub(super) struct Gguf<'a> {
    /// Keys of the architecture.
    pub(super) keys: Reader<'a>,
    /// All keys.
    pub(super) whole: Reader<'a>,
    pub(super) tensors: &'a dyn Tensors,
    pub(super) architecture: &'static Architecture,
}

impl Gguf<'_> {
    /// A value that a file may repeat per block; all must agree.
    pub(super) fn uniform(
        &self,
        key: &str,
        range: std::ops::RangeInclusive<usize>,
        blocks: usize,
    ) -> Result<Option<usize>, ConfigError> {
        let Some(values) = self.keys.sizes(key, range, blocks)? else { return Ok(None) };
        match values.iter().find(|value| **value != values[0]) {
            None => Ok(Some(values[0])),
            Some(other) => {
                let value = format!("{} in one layer and {other} in another", values[0]);
                Err(self.keys.wrong(key, value, "the same in every layer"))
            }
        }
    }

    /// That a tensor is there and has the shape that the keys require.
    pub(super) fn check(&self, tensor: &str, wanted: &[usize], meaning: &str) -> Result<(), ConfigError> {
        match self.tensors.shape(tensor) {
            None => Err(self
                .keys
                .missing_tensor(tensor, format!("the keys require it, of shape {wanted:?} = {meaning}"))),
            Some(shape) if shape != wanted => {
                Err(self.keys.wrong_shape(tensor, &shape, format!("{wanted:?} = {meaning}")))
            }
            Some(_) => Ok(()),
        }
    }
}

/// Whether a layer is of a kind that `kinds` counts.
pub(super) fn first_moe(kinds: &[LayerKind]) -> Option<usize> {
    kinds.iter().position(|kind| *kind == LayerKind::Moe)
}
