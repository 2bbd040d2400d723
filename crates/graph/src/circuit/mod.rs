//! Circuits: one JSON file per architecture. It names operations, conditions and weight slots, and
//! never kernels.
//!
//! A circuit has named [`Block`]s, rules that give each layer two of them ([`LayerSpec`]), and
//! [stages](StageSpec) that run blocks and layers. An attention block declares what it stores in
//! the cache ([`StreamSpec`]; [`CacheStream`] for one layer).

mod adapters;
mod block;
mod check;
mod declared;
pub(crate) mod expression;
mod form;
mod layers;
mod lookup;
mod pattern;
mod shared;
mod stages;
mod streams;
mod transfer;
mod vars;
mod weights;

pub(crate) use crate::naming::HF_PREFIXES;
pub use crate::naming::TensorNaming;
pub(crate) use adapters::{AdapterMatrices, LORA_A, LORA_B, check_all_used};
pub use block::{
    Block, BlockKind, CacheKind, OP_WORDS, OpSpec, ReadRange, RowPartSpec, SlotSpec, StreamSpec,
};
pub use declared::DeclaredTensors;
pub use form::{
    Circuit, DraftNote, DraftState, LayerRule, LayerRules, StagePart, StageSpec, StageValue, UnusedSpec,
};
pub(crate) use layers::LayerGroup;
pub use layers::{LayerRun, LayerSpec};
pub(crate) use pattern::fits;
pub use stages::{DecoderStages, StagePair};
pub use streams::{CacheStream, RowPart, StateShape};
pub use transfer::{TensorOrigin, Transfer, Transfers};
pub use vars::ConfigVars;
pub use weights::{AdapterWeight, DerivedWeight, KvHalf, TensorIndex, Weight, WeightPart};

use crate::error::{CircuitError, GraphError};
use crate::naming::NamingScheme;
use std::sync::OnceLock;

/// The files of `crates/graph/circuits`. A new architecture adds a line.
const FILES: [(&str, &str); 7] = [
    ("bailing_hybrid", include_str!("../../circuits/bailing_hybrid.json")),
    ("axk1", include_str!("../../circuits/axk1.json")),
    ("axk2", include_str!("../../circuits/axk2.json")),
    ("deepseek2", include_str!("../../circuits/deepseek2.json")),
    ("kimi_linear", include_str!("../../circuits/kimi_linear.json")),
    ("minicpm3", include_str!("../../circuits/minicpm3.json")),
    ("plm", include_str!("../../circuits/plm.json")),
];

impl Circuit {
    /// Every circuit that is built in.
    pub fn all() -> &'static [Circuit] {
        static ALL: OnceLock<Vec<Circuit>> = OnceLock::new();
        // Errors are dropped: the files are compiled in, and the unit tests parse and check each of
        // them.
        let read = |(_, text): &(&str, &str)| serde_json::from_str::<Circuit>(text).ok()?.with_names().ok();
        ALL.get_or_init(|| FILES.iter().filter_map(read).collect())
    }

    pub fn named(name: &str) -> Result<&'static Circuit, GraphError> {
        Self::all().iter().find(|circuit| circuit.name == name).ok_or_else(|| GraphError::NoCircuit {
            name: name.to_owned(),
            known: Self::all().iter().map(|circuit| circuit.name.clone()).collect(),
        })
    }

    /// Parses a circuit from JSON text, for trying out a new architecture.
    ///
    /// # Errors
    /// [`GraphError::Circuit`] with the JSON error, or the first problem that
    /// [`check`](Self::check) finds.
    pub fn parse(text: &str) -> Result<Circuit, GraphError> {
        let wrong = |problem| GraphError::Circuit { circuit: "(text)".into(), problem: Box::new(problem) };
        let circuit: Circuit = serde_json::from_str(text).map_err(|error| match old_key(text) {
            Some(key) => wrong(CircuitError::OldForm { key }),
            None => wrong(CircuitError::Json(error.to_string())),
        })?;
        let circuit = circuit.with_names()?;
        circuit.check()?;
        Ok(circuit)
    }

    /// Replaces names in slots by those of the circuit's naming scheme. Shared blocks have
    /// DeepSeek's names.
    fn with_names(mut self) -> Result<Circuit, GraphError> {
        // `take`: applied once, so that a circuit that is written and parsed again is not renamed
        // twice.
        let Some(name) = self.hf_names.take() else { return Ok(self) };
        let Some(scheme) = NamingScheme::named(&name) else {
            let problem = format!("unknown naming scheme {name:?} in hf_names");
            return Err(self.error(CircuitError::Contradiction(problem)));
        };
        let blocks = self.blocks.values_mut().flat_map(|block| block.weights.values_mut());
        let slots = blocks.chain(self.mtp_weights.values_mut()).map(|slot| &mut slot.hf);
        for hf in slots.chain(self.unused.iter_mut().map(|unused| &mut unused.hf)).flatten() {
            *hf = scheme.stored(hf);
        }
        Ok(self)
    }
}

/// A key of the form that circuits had before blocks, in a text without blocks. Serde's own error
/// would only name an unknown field.
fn old_key(text: &str) -> Option<&'static str> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let keys = value.as_object().filter(|keys| !keys.contains_key("blocks"))?;
    ["layer", "layer_weights", "model_weights", "embed", "head"]
        .into_iter()
        .find(|key| keys.contains_key(*key))
}

#[cfg(test)]
mod tests;
