//! Properties of GGUF architectures, and the GGUF file whose config is being read.

use super::error::ConfigError;
use super::reader::Reader;
use super::source::ConfigTensors;
use super::{FfnActivation, GroupMask, GroupScore, LayerKind, RopePairs};

/// Properties of a GGUF architecture that its files do not state.
pub(super) struct Architecture {
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// The circuit that runs it.
    pub(super) circuit: &'static str,
    pub(super) pairs: RopePairs,
    /// Pairing in the indexer of sparse attention.
    pub(super) index_pairs: RopePairs,
    pub(super) activation: FfnActivation,
    /// Whether it may have experts, MTP layers, `*_mla` keys and YaRN's log multiplier.
    pub(super) deepseek: bool,
    /// Meaning of YaRN's keys.
    pub(super) yarn: YarnKeys,
    /// Whether routers of files without `expert_gating_func` have sigmoid scores. Otherwise only
    /// those with a bias do.
    pub(super) sigmoid: bool,
    /// Score of a group of experts if the router has no bias.
    pub(super) group_score: GroupScore,
    /// Scores of experts in other groups.
    pub(super) group_mask: GroupMask,
    /// Whether its norms have gates, and the output gate is computed from the query's latent.
    pub(super) gated_norms: bool,
    /// Whether it has MiniCPM3's scales, which its files do not state.
    pub(super) scaled: bool,
    /// β of the attention temperature, if the model has one that its files do not state.
    pub(super) temperature: Option<f64>,
    /// Whether the shared key is rotated by position.
    pub(super) rotates: bool,
    /// How it stores the decay rates of recurrent layers; `None` without such layers.
    pub(super) rates: Option<StoredRates>,
}

/// The meaning of YaRN's keys in files of an architecture ([`super::gguf_rope`]).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum YarnKeys {
    /// `mscale` equals `mscale_all_dim`. With an attention temperature neither exists (Mistral
    /// Large 3).
    Deepseek2,
    /// `mscale` is 1.
    Mla,
    /// `mscale` is 1, `mscale_all_dim` is none, and scores are not scaled.
    Frequencies,
}

/// The sign with which `ssm_a` stores the decay rates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredRates {
    /// exp(A_log).
    Positive,
    /// −exp(A_log).
    Negative,
}

// DeepSeek-V2, V3, R1, Kimi-K2, GLM-4.7-Flash, GigaChat3, Mistral Large 3 and others: llama.cpp's
// converter writes one architecture for all of them, and keys tell them apart.
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
    // DeepSeek-V3.2.
    Architecture { name: "deepseek32", yarn: YarnKeys::Mla, ..DEEPSEEK2 },
    Architecture {
        // GLM-5. Its indexer rotates neighbouring elements, unlike DeepSeek-V3.2's.
        name: "glm-dsa",
        index_pairs: RopePairs::Interleaved,
        yarn: YarnKeys::Mla,
        sigmoid: true,
        ..DEEPSEEK2
    },
    // Mistral Small 4. Converters omit `llama_4_scaling_beta`, which all models of the architecture
    // have as 0.1. Its published code scores a group by two experts, although the router has no
    // bias.
    Architecture {
        name: "mistral4",
        yarn: YarnKeys::Mla,
        group_score: GroupScore::TopTwoSum,
        temperature: Some(0.1),
        ..DEEPSEEK2
    },
    // A.X-K1 and A.X-K2. llama.cpp has no converter for them: the names are those of `latent
    // convert` and `latent make-model`.
    Architecture {
        name: "axk1",
        circuit: "axk1",
        yarn: YarnKeys::Mla,
        sigmoid: true,
        group_score: GroupScore::TopTwoSum,
        ..DEEPSEEK2
    },
    Architecture {
        // A.X-K2 masks experts of other groups with 0, as its code says is intended (ADR 10).
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
        // Kimi-Linear: no rotation, and `ssm_a` is −exp(A_log).
        name: "kimi-linear",
        circuit: "kimi_linear",
        sigmoid: true,
        rotates: false,
        rates: Some(StoredRates::Negative),
        ..DEEPSEEK2
    },
    Architecture {
        // Ling-3.0: `ssm_a` is exp(A_log).
        name: "bailingmoe3",
        circuit: "bailing_hybrid",
        sigmoid: true,
        group_score: GroupScore::TopTwoSum,
        rates: Some(StoredRates::Positive),
        ..DEEPSEEK2
    },
    Architecture {
        // PLM: no experts, and a squared ReLU.
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
