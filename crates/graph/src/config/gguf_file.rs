//! A GGUF file whose config is being read, and what its architecture fixes.

use super::error::ConfigError;
use super::reader::Reader;
use super::source::ConfigTensors;
use super::{FfnActivation, GroupMask, GroupScore, LayerKind, RopePairs};

/// What the architectures of GGUF files differ in.
pub(super) struct Architecture {
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// The circuit that runs it.
    pub(super) circuit: &'static str,
    pub(super) pairs: RopePairs,
    /// The same in the indexer of sparse attention.
    pub(super) index_pairs: RopePairs,
    pub(super) activation: FfnActivation,
    /// Whether it may have experts, multi-token-prediction layers, `*_mla` keys and YaRN's log multiplier.
    pub(super) deepseek: bool,
    /// What YaRN's keys mean.
    pub(super) yarn: YarnKeys,
    /// Whether routers of files that do not say have sigmoid scores; else those with a bias do.
    pub(super) sigmoid: bool,
    /// What groups of experts are judged by where the router has no bias.
    pub(super) group_score: GroupScore,
    /// What experts of other groups count as.
    pub(super) group_mask: GroupMask,
    /// Whether its layers' norms have gates, and the output gate is made of the query's latent.
    pub(super) gated_norms: bool,
    /// Whether it has MiniCPM3's scales, which its files do not state.
    pub(super) scaled: bool,
    /// β of the attention temperature, where the model has one that its files do not state.
    pub(super) temperature: Option<f64>,
    /// Whether the shared key is rotated by position.
    pub(super) rotates: bool,
    /// How it stores the rates of recurrent layers' decay; none where it has no such layers.
    pub(super) rates: Option<StoredRates>,
}

/// What YaRN's keys mean in the files of an architecture ([`super::gguf_rope`]).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum YarnKeys {
    /// `mscale` is `mscale_all_dim`; with an attention temperature there is neither (Mistral Large 3).
    Deepseek2,
    /// `mscale` is 1.
    Mla,
    /// `mscale` is 1, `mscale_all_dim` is none, and scores are not scaled.
    Frequencies,
}

/// How `ssm_a` holds the rates of decay, which are positive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredRates {
    /// As they are.
    Positive,
    /// With a minus sign.
    Negative,
}

const DEEPSEEK2: Architecture = Architecture {
    name: "deepseek2",
    circuit: "deepseek2",
    pairs: RopePairs::Interleaved,
    index_pairs: RopePairs::NeoX,
    activation: FfnActivation::SiluGated,
    deepseek: true,
    yarn: YarnKeys::Deepseek2,
    sigmoid: false,
    group_score: GroupScore::Max,
    group_mask: GroupMask::Excluded,
    gated_norms: false,
    scaled: false,
    temperature: None,
    rotates: true,
    rates: None,
};

pub(super) static ARCHITECTURES: [Architecture; 10] = [
    DEEPSEEK2,
    Architecture { name: "deepseek32", yarn: YarnKeys::Mla, ..DEEPSEEK2 },
    Architecture {
        name: "glm-dsa",
        index_pairs: RopePairs::Interleaved,
        yarn: YarnKeys::Mla,
        sigmoid: true,
        ..DEEPSEEK2
    },
    // converters leave llama_4_scaling_beta out, which all models of this architecture have
    Architecture {
        name: "mistral4",
        yarn: YarnKeys::Mla,
        group_score: GroupScore::TopTwoSum,
        temperature: Some(0.1),
        ..DEEPSEEK2
    },
    // no converter writes it yet: the names of `latent make-model`
    Architecture {
        name: "axk1",
        circuit: "axk1",
        yarn: YarnKeys::Mla,
        sigmoid: true,
        group_score: GroupScore::TopTwoSum,
        ..DEEPSEEK2
    },
    Architecture {
        name: "axk2",
        circuit: "axk2",
        yarn: YarnKeys::Mla,
        sigmoid: true,
        group_score: GroupScore::TopTwoSum,
        group_mask: GroupMask::Zero,
        gated_norms: true,
        ..DEEPSEEK2
    },
    Architecture {
        name: "minicpm3",
        circuit: "minicpm3",
        pairs: RopePairs::NeoX,
        deepseek: false,
        yarn: YarnKeys::Frequencies,
        scaled: true,
        ..DEEPSEEK2
    },
    Architecture {
        name: "kimi-linear",
        circuit: "kimi_linear",
        sigmoid: true,
        rotates: false,
        rates: Some(StoredRates::Negative),
        ..DEEPSEEK2
    },
    Architecture {
        name: "bailingmoe3",
        circuit: "bailing_hybrid",
        sigmoid: true,
        group_score: GroupScore::TopTwoSum,
        rates: Some(StoredRates::Positive),
        ..DEEPSEEK2
    },
    Architecture {
        name: "plm",
        circuit: "plm",
        activation: FfnActivation::ReluSquared,
        deepseek: false,
        yarn: YarnKeys::Frequencies,
        ..DEEPSEEK2
    },
];

/// A GGUF file being read.
pub(super) struct GgufConfig<'a> {
    /// Keys of the architecture.
    pub(super) keys: Reader<'a>,
    /// All keys.
    pub(super) whole: Reader<'a>,
    pub(super) tensors: &'a dyn ConfigTensors,
    pub(super) architecture: &'static Architecture,
    /// The first layer with latent attention, whose tensors decide its sizes.
    pub(super) attention_layer: usize,
}

impl GgufConfig<'_> {
    /// The name of a tensor of the first layer with latent attention.
    pub(super) fn attention_tensor(&self, name: &str) -> String {
        format!("blk.{}.{name}", self.attention_layer)
    }

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
