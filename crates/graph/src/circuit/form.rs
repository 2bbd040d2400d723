//! The form of a circuit file: blocks, which of them a layer has, and the stages that run them. Data only.

use super::block::{Block, SlotSpec};
use super::shared;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the circuit file of one architecture says.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Circuit {
    /// Name, as [`ModelConfig::circuit`](crate::config::ModelConfig::circuit) has it.
    pub name: String,
    /// What it computes and for which models, in a sentence.
    pub about: String,
    /// Values of `general.architecture` that it runs.
    pub gguf_architectures: Vec<String>,
    /// Values of `model_type` in config.json that it runs.
    pub hf_model_types: Vec<String>,
    /// How safetensors of these models are named, where not as blocks say: a scheme of `naming.rs`. Resolved when the file is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hf_names: Option<String>,
    /// The blocks by name. A file may give the name of a shared block in the place of one.
    #[serde(deserialize_with = "shared::blocks")]
    pub blocks: BTreeMap<String, Block>,
    /// Which blocks a layer has.
    pub layers: LayerRules,
    /// What is run, in order.
    pub stages: Vec<StageSpec>,
    /// Further weight slots of a multi-token-prediction layer.
    pub mtp_weights: BTreeMap<String, SlotSpec>,
    /// Tensors that files of this architecture may hold and that no operation reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused: Vec<UnusedSpec>,
    /// Of a draft: what is certain and what is open.
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
    /// What was found, or what is left to do.
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

/// Which blocks a layer has, by its config variables: under each part, exactly one rule holds for every layer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRules {
    /// The first half of a layer.
    pub attention: Vec<LayerRule>,
    /// The second half.
    pub feed_forward: Vec<LayerRule>,
}

/// A block, and the layers that have it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRule {
    pub block: String,
    /// Config variables that must all hold; `!` negates. None: every layer has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
}

/// A part of a model that runs as one: what goes in, the blocks, what comes out.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StageSpec {
    pub name: String,
    /// What goes in, under the names that its blocks read.
    #[serde(rename = "in")]
    pub inputs: BTreeMap<String, StageValue>,
    /// Its parts, in order.
    pub blocks: Vec<StagePart>,
    /// What comes out, under the names that its blocks make.
    #[serde(rename = "out")]
    pub outputs: BTreeMap<String, StageValue>,
}

/// What a value is that enters or leaves a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StageValue {
    /// Token ids, in whose place a step may give embeddings.
    Tokens,
    /// Embeddings alone, such as an image encoder makes.
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
    /// `mtp_layers`: the multi-token-prediction layers behind them, by the same rules.
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

/// Tensors that are declared unused, by a name pattern: `{layer}` and `{expert}` match numbers, `*` matches anything. With both names, a
/// conversion from one kind of file to the other keeps the tensor: the patterns then differ in nothing but words around `{layer}`.
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
