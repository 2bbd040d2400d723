//! The form of a circuit file: blocks, layer rules, and the stages that run them. Data only.

use super::block::{Block, SlotSpec};
use super::shared;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The circuit file of one architecture.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Circuit {
    /// Name, as in [`ModelConfig::circuit`](crate::config::ModelConfig::circuit).
    pub name: String,
    /// What it computes and for which models, in a sentence.
    pub about: String,
    /// Values of `general.architecture` that it runs.
    pub gguf_architectures: Vec<String>,
    /// Values of `model_type` in config.json that it runs.
    pub hf_model_types: Vec<String>,
    /// Naming scheme of `naming.rs` for these models' safetensors, if it differs from the blocks'
    /// names. Applied when the file is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hf_names: Option<String>,
    /// The blocks by name. A file may give the name of a shared block instead of a block.
    #[serde(deserialize_with = "shared::blocks")]
    pub blocks: BTreeMap<String, Block>,
    /// Rules that give each layer its blocks.
    pub layers: LayerRules,
    /// The stages in order.
    pub stages: Vec<StageSpec>,
    /// Additional weight slots of an MTP layer.
    pub mtp_weights: BTreeMap<String, SlotSpec>,
    /// Tensors that files of this architecture may contain and no operation reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused: Vec<UnusedSpec>,
    /// Notes on a drafted circuit: what is certain and what is open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub draft: Vec<DraftNote>,
}

/// A note on one place of a draft.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DraftNote {
    /// The place: `blocks.mla.weights.q_a`, or what it is about in general.
    pub at: String,
    pub state: DraftState,
    /// Evidence, or open work.
    pub why: String,
}

/// Whether a place of a draft is known to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DraftState {
    Certain,
    Open,
}

impl DraftNote {
    pub(crate) fn certain(at: &str, why: String) -> DraftNote {
        DraftNote { at: at.to_owned(), state: DraftState::Certain, why }
    }

    pub(crate) fn open(at: &str, why: String) -> DraftNote {
        DraftNote { at: at.to_owned(), state: DraftState::Open, why }
    }
}

/// The blocks of a layer, by its config variables. Exactly one rule of each part must hold for
/// every layer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRules {
    /// The first half of a layer.
    pub attention: Vec<LayerRule>,
    /// The second half.
    pub feed_forward: Vec<LayerRule>,
}

/// A block and the condition for layers that have it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRule {
    pub block: String,
    /// Config variables that must all hold; `!` negates. None: every layer has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
}

/// A part of a model that runs as a unit: inputs, blocks, outputs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StageSpec {
    pub name: String,
    /// Inputs, by the names that its blocks read.
    #[serde(rename = "in")]
    pub inputs: BTreeMap<String, StageValue>,
    /// Its parts, in order.
    pub blocks: Vec<StagePart>,
    /// Outputs, by the names that its blocks give them.
    #[serde(rename = "out")]
    pub outputs: BTreeMap<String, StageValue>,
}

/// The kind of a value that enters or leaves a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StageValue {
    /// Token ids; a step may give embeddings instead.
    Tokens,
    /// Embeddings only, such as those of an image encoder.
    Embeddings,
    /// Rows of the residual stream.
    Hidden,
    /// A score for every token of the vocabulary.
    Logits,
}

impl StageValue {
    /// Its word in circuit files.
    pub fn name(self) -> &'static str {
        match self {
            StageValue::Tokens => "tokens",
            StageValue::Embeddings => "embeddings",
            StageValue::Hidden => "hidden",
            StageValue::Logits => "logits",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "String", into = "String")]
pub enum StagePart {
    /// `layers`: every layer of the decoder, by its rules.
    Layers,
    /// `mtp_layers`: the MTP layers after them, by the same rules.
    MtpLayers,
    /// The block of this name.
    Block(String),
}

impl From<String> for StagePart {
    fn from(word: String) -> StagePart {
        match word.as_str() {
            "layers" => StagePart::Layers,
            "mtp_layers" => StagePart::MtpLayers,
            _ => StagePart::Block(word),
        }
    }
}

impl From<StagePart> for String {
    fn from(part: StagePart) -> String {
        match part {
            StagePart::Layers => "layers".into(),
            StagePart::MtpLayers => "mtp_layers".into(),
            StagePart::Block(name) => name,
        }
    }
}

/// Tensors declared unused, by name pattern: `{layer}` and `{expert}` match numbers, `*` matches
/// anything. With both names, a conversion between GGUF and safetensors copies the tensor; the
/// patterns then differ only in words around `{layer}`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UnusedSpec {
    /// Their names in GGUF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gguf: Option<String>,
    /// Their names in safetensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hf: Option<String>,
    /// Config variables that must all hold; `!` negates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
    /// Why nothing reads them.
    pub why: String,
}
