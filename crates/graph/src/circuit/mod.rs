//! Circuits: one JSON file for each architecture, naming operations, conditions and weight slots, and never kernels.

mod declared;
pub(crate) mod expression;
mod vars;
mod weights;

pub use crate::naming::Naming;
pub use declared::DeclaredTensors;
pub use vars::ConfigVars;
pub(crate) use weights::HF_PREFIXES;
pub use weights::{Part, TensorIndex, Weight};

use crate::error::GraphError;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The files of `crates/graph/circuits`: a new architecture adds a line.
const FILES: [(&str, &str); 3] = [
    ("deepseek2", include_str!("../../circuits/deepseek2.json")),
    ("minicpm3", include_str!("../../circuits/minicpm3.json")),
    ("plm", include_str!("../../circuits/plm.json")),
];

/// What the circuit file of one architecture says.
#[derive(Clone, Debug, Deserialize, serde::Serialize)]
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
    /// Weight slots of the model as a whole.
    pub model_weights: BTreeMap<String, SlotSpec>,
    /// Weight slots of every layer, whose names hold `{layer}`.
    pub layer_weights: BTreeMap<String, SlotSpec>,
    /// Further weight slots of a multi-token-prediction layer.
    pub mtp_weights: BTreeMap<String, SlotSpec>,
    /// Tensors that files of this architecture may hold and that no operation reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused: Vec<UnusedSpec>,
    /// From token ids to the residual stream `h`.
    pub embed: Vec<OpSpec>,
    /// One layer: from `h` to `h`.
    pub layer: Vec<OpSpec>,
    /// From `h` to `logits`.
    pub head: Vec<OpSpec>,
}

/// A weight slot: what it is called in each kind of file, its shape, and when it exists.
#[derive(Clone, Debug, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct SlotSpec {
    /// Name in GGUF; none where GGUF files never hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gguf: Option<String>,
    /// Name in safetensors; `{expert}` in it means one tensor for each expert.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hf: Option<String>,
    /// Shape, outermost dimension first, each an expression such as `heads*(nope+rope)`.
    pub shape: Vec<String>,
    /// Config variables that must all hold; `!` negates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
    /// Whether a file may leave it out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// Tensors that are declared unused, by a name pattern: `{layer}` and `{expert}` match numbers, `*` matches anything.
#[derive(Clone, Debug, Deserialize, serde::Serialize)]
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

/// One operation of a circuit. Names of values are bound in order: a later `out` hides an earlier one.
#[derive(Clone, Debug, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct OpSpec {
    /// The operation, a word of [`OP_WORDS`].
    pub op: String,
    /// Values read.
    #[serde(rename = "in")]
    pub inputs: Vec<String>,
    /// Weight slots used; slots whose `when` does not hold are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<String>,
    /// Values made.
    #[serde(rename = "out")]
    pub outputs: Vec<String>,
    /// For `embed`, `add` and `scale`: the name of the factor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// For `split`: how many heads the value has, an expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<String>,
    /// For `split`: widths of the parts of each head, expressions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<String>,
    /// Config variables that must all hold; `!` negates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
}

/// The operations that a circuit may name.
pub const OP_WORDS: [&str; 12] = [
    "embed",
    "rms_norm",
    "linear",
    "split",
    "rope",
    "mla_attention",
    "route",
    "expert_mlp",
    "mlp",
    "add",
    "scale",
    "gather_rows",
];

impl Circuit {
    /// Every circuit that is built in.
    pub fn all() -> &'static [Circuit] {
        static ALL: OnceLock<Vec<Circuit>> = OnceLock::new();
        ALL.get_or_init(|| FILES.iter().filter_map(|(_, text)| serde_json::from_str(text).ok()).collect())
    }

    /// The circuit of this name.
    ///
    /// # Errors
    /// [`GraphError::NoCircuit`] with the names that exist.
    pub fn named(name: &str) -> Result<&'static Circuit, GraphError> {
        Self::all().iter().find(|circuit| circuit.name == name).ok_or_else(|| GraphError::NoCircuit {
            name: name.to_owned(),
            known: Self::all().iter().map(|circuit| circuit.name.clone()).collect(),
        })
    }

    /// A circuit from JSON text, for trying out a new architecture.
    ///
    /// # Errors
    /// [`GraphError::Circuit`] with what does not parse, or an operation or slot that does not exist.
    pub fn parse(text: &str) -> Result<Circuit, GraphError> {
        let circuit: Circuit = serde_json::from_str(text)
            .map_err(|e| GraphError::Circuit { circuit: "(text)".into(), problem: e.to_string() })?;
        circuit.check_words()?;
        Ok(circuit)
    }

    fn check_words(&self) -> Result<(), GraphError> {
        let problem = |problem: String| Err(GraphError::Circuit { circuit: self.name.clone(), problem });
        for spec in self.embed.iter().chain(&self.layer).chain(&self.head) {
            if !OP_WORDS.contains(&spec.op.as_str()) {
                return problem(format!("operation {:?} is not one of {}", spec.op, OP_WORDS.join(", ")));
            }
            for slot in &spec.weights {
                if self.slot(slot).is_none() {
                    return problem(format!(
                        "operation {:?} uses weight slot {slot:?}, which is not declared",
                        spec.op
                    ));
                }
            }
        }
        Ok(())
    }

    /// The slot of this name, and whether it belongs to a layer.
    pub fn slot(&self, name: &str) -> Option<(&SlotSpec, bool)> {
        let in_layer = self.layer_weights.get(name).or_else(|| self.mtp_weights.get(name));
        self.model_weights.get(name).map(|spec| (spec, false)).or(in_layer.map(|spec| (spec, true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_parses_under_its_name() {
        assert_eq!(Circuit::all().len(), FILES.len());
        for (name, text) in FILES {
            assert_eq!(Circuit::parse(text).map(|c| c.name).ok().as_deref(), Some(name));
        }
    }

    #[test]
    fn unknown_words_are_named() {
        let text = FILES[2].1.replace("\"rms_norm\"", "\"layer_norm\"");
        assert!(Circuit::parse(&text).unwrap_err().to_string().contains("layer_norm"));
        let text = FILES[2].1.replace("\"weights\": [\"attn_out\"]", "\"weights\": [\"nothing\"]");
        assert!(Circuit::parse(&text).unwrap_err().to_string().contains("nothing"));
    }
}
