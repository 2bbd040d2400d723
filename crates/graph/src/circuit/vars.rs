//! Config variables: what a config says in the words of circuit files, as dimensions, flags and factors.

use super::block::{OpSpec, SlotSpec};
use super::expression;
use crate::config::{DecayRate, FfnActivation, KvForm, LayerKind, ModelConfig, QueryGate, RankShare};
use crate::error::{CircuitError, GraphError};
use std::collections::BTreeMap;
use std::fmt;

/// Most elements of a weight slot: more than any model has, few enough that their bytes can be counted.
const MAX_ELEMENTS: usize = 1 << (if usize::BITS == 64 { 48 } else { 29 });

/// Most matrices of a weight slot: experts or heads.
const MAX_MATRICES: usize = 1024;

/// Dimensions, flags and factors of one config, for the whole model or one layer.
#[derive(Clone, Debug, Default)]
pub struct ConfigVars {
    dimensions: BTreeMap<&'static str, usize>,
    flags: BTreeMap<&'static str, bool>,
    factors: BTreeMap<&'static str, f64>,
    /// Where several ranks share the model.
    shared: Option<Box<RankDimensions>>,
}

/// Dimensions of the whole model, and those that lie before this rank's: where a size that grows with one of them begins.
#[derive(Clone, Debug, Default)]
struct RankDimensions {
    whole: BTreeMap<&'static str, usize>,
    before: BTreeMap<&'static str, usize>,
}

/// The leading dimension of stacked experts.
const EXPERTS: &str = "experts";

impl ConfigVars {
    /// The variables of `config` for a layer (none: for the model as a whole).
    pub fn of(config: &ModelConfig, layer: Option<usize>) -> ConfigVars {
        let a = &config.attention;
        let kind = layer.and_then(|layer| config.layer_kinds.get(layer).copied());
        let mut flags = BTreeMap::from([
            ("q_lora", a.q_lora_rank.is_some()),
            ("output_gate", a.output_gate.is_some()),
            ("query_gate", config.query_gate == Some(QueryGate::Separate)),
            ("fused_query_gate", config.query_gate == Some(QueryGate::Fused)),
            ("rope", a.rope > 0),
            ("rotated", config.rope.dims > 0),
            ("split_kv", config.kv_form == KvForm::Separate),
            ("combined_kv", config.kv_form == KvForm::Combined),
            ("tied", config.tied_embeddings),
            ("attention_bias", config.attention_bias),
            ("sparse_attention", config.index_topk.is_some()),
            ("selected", a.indexer.is_some()),
            ("indexer", layer.map_or(a.indexer.is_some(), |layer| config.has_indexer(layer))),
            ("recurrent", layer.is_some_and(|layer| config.is_recurrent(layer))),
            ("low_rank_gates", config.kda.as_ref().is_some_and(|kda| kda.rank.is_some())),
            ("bounded_decay", config.kda.as_ref().is_some_and(|kda| kda.lower_bound.is_some())),
            ("log_rate", config.kda.as_ref().is_some_and(|kda| kda.rate == DecayRate::Log)),
            ("dense", kind == Some(LayerKind::Dense)),
            ("moe", kind == Some(LayerKind::Moe)),
            ("gated", config.activation == FfnActivation::SiluGated),
            ("logits_scale", config.logits_scale != 1.0),
        ]);
        let moe = config.moe;
        flags.insert("shared_experts", moe.is_some_and(|m| m.shared_intermediate > 0));
        flags.insert("router_bias", moe.is_some_and(|m| m.router.bias));
        flags.insert("fused_gate_up", moe.is_some_and(|m| m.fused_gate_up));
        let factors = BTreeMap::from([
            ("embedding_scale", config.embedding_scale),
            ("residual_scale", config.residual_scale),
            ("logits_scale", config.logits_scale),
            ("decay_bound", config.kda.as_ref().and_then(|kda| kda.lower_bound).unwrap_or(0.0)),
            ("kda_query_scale", config.kda.as_ref().map_or(1.0, |kda| 1.0 / (kda.width as f64).sqrt())),
        ]);
        let shared = config.part.is_some().then(|| {
            let mut before = config.clone();
            if let Some(part) = &config.part {
                before.attention.heads = part.heads.from;
                before.intermediate_size = part.intermediate.from;
                if let Some(moe) = &mut before.moe {
                    moe.intermediate = part.moe_intermediate.from;
                    moe.shared_intermediate = part.shared_intermediate.from;
                }
            }
            let own = |from| ("own_experts", from);
            let mut shared =
                RankDimensions { whole: dimensions(&config.whole()), before: dimensions(&before) };
            shared.before.extend([own(config.own_experts().from)]);
            Box::new(shared)
        });
        ConfigVars { dimensions: dimensions(config), flags, factors, shared }
    }

    /// Whether two layers have the same variables.
    pub(super) fn agree(config: &ModelConfig, one: usize, other: usize) -> bool {
        config.layer_kinds.get(one) == config.layer_kinds.get(other)
            && config.has_indexer(one) == config.has_indexer(other)
            && config.is_recurrent(one) == config.is_recurrent(other)
    }

    #[cfg(test)]
    pub(crate) fn of_dimensions(dimensions: &[(&'static str, usize)]) -> ConfigVars {
        ConfigVars { dimensions: dimensions.iter().copied().collect(), ..ConfigVars::default() }
    }

    /// The flag of this name; false if it is not set.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.flags.get(name).copied().unwrap_or(false)
    }

    pub fn dimension(&self, name: &str) -> Option<usize> {
        self.dimensions.get(name).copied()
    }

    /// Whether all of `conditions` hold; an unknown word is an error of the circuit file.
    pub fn hold(&self, conditions: &[String], circuit: &str) -> Result<bool, GraphError> {
        for condition in conditions {
            let (word, wanted) =
                condition.strip_prefix('!').map_or((condition.as_str(), true), |w| (w, false));
            let flag = self.flags.get(word).ok_or_else(|| GraphError::Circuit {
                circuit: circuit.to_owned(),
                problem: Box::new(CircuitError::Condition { word: word.to_owned() }),
            })?;
            if *flag != wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The factor that `op` multiplies by: 1 where it names none.
    pub(crate) fn factor(&self, op: &OpSpec, circuit: &str) -> Result<f64, GraphError> {
        let Some(name) = &op.by else { return Ok(1.0) };
        self.factors.get(name.as_str()).copied().ok_or_else(|| GraphError::Circuit {
            circuit: circuit.to_owned(),
            problem: Box::new(CircuitError::Factor { name: name.clone() }),
        })
    }

    /// The value of a size expression that stands at `place`.
    pub(crate) fn size(
        &self,
        text: &str,
        place: fmt::Arguments<'_>,
        circuit: &str,
    ) -> Result<usize, GraphError> {
        expression::evaluate(text, &|name| self.dimension(name)).map_err(|problem| {
            let (place, text) = (place.to_string(), text.to_owned());
            GraphError::Circuit {
                circuit: circuit.to_owned(),
                problem: Box::new(CircuitError::Expression { place, text, problem }),
            }
        })
    }

    /// The shape that a slot has here: one to three dimensions, none of them 0, the outer of three at most [`MAX_MATRICES`].
    pub(crate) fn shape(&self, name: &str, slot: &SlotSpec, circuit: &str) -> Result<Vec<usize>, GraphError> {
        Ok(self.shares(name, slot, circuit)?.into_iter().map(|share| share.len).collect())
    }

    /// The shape that files have for a slot: that of the slot, but for dimensions of size 1.
    pub(super) fn stored_shape(
        &self,
        name: &str,
        slot: &SlotSpec,
        circuit: &str,
    ) -> Result<Vec<usize>, GraphError> {
        let shape = self.shape(name, slot, circuit)?;
        let place = format_args!("weight slot {name}, stored");
        let stored = slot.stored.iter().map(|text| self.size(text, place, circuit));
        let stored = stored.collect::<Result<Vec<usize>, _>>()?;
        let elements = |shape: &[usize]| shape.iter().fold(1usize, |all, n| all.saturating_mul(*n));
        if stored.is_empty() || elements(&stored) != elements(&shape) {
            return Ok(shape);
        }
        Ok(stored)
    }

    /// The same, each dimension as a part of what the file has.
    pub(super) fn shares(
        &self,
        name: &str,
        slot: &SlotSpec,
        circuit: &str,
    ) -> Result<Vec<RankShare>, GraphError> {
        let shape = self.checked_shape(name, slot, circuit)?;
        let Some(shared) = &self.shared else { return Ok(shape.into_iter().map(RankShare::all).collect()) };
        let whole = ConfigVars { dimensions: shared.whole.clone(), ..ConfigVars::default() };
        let before = ConfigVars { dimensions: shared.before.clone(), ..ConfigVars::default() };
        let whole = whole.checked_shape(name, slot, circuit)?;
        let before = before.sizes(name, slot, circuit)?;
        let share =
            |((len, of), from)| if len == of { RankShare::all(of) } else { RankShare { from, len, of } };
        Ok(shape.into_iter().zip(whole).zip(before).map(share).collect())
    }

    /// The dimensions of a slot as its expressions give them. Matrices of experts are stacked for the rank's own.
    fn sizes(&self, name: &str, slot: &SlotSpec, circuit: &str) -> Result<Vec<usize>, GraphError> {
        let own = |(i, text): (usize, &String)| {
            let text = if i == 0 && slot.shape.len() == 3 && text == EXPERTS { "own_experts" } else { text };
            self.size(text, format_args!("weight slot {name}"), circuit)
        };
        slot.shape.iter().enumerate().map(own).collect()
    }

    fn checked_shape(&self, name: &str, slot: &SlotSpec, circuit: &str) -> Result<Vec<usize>, GraphError> {
        let shape = self.sizes(name, slot, circuit)?;
        let elements = shape.iter().try_fold(1usize, |elements, n| elements.checked_mul(*n));
        let whole = elements.is_some_and(|n| (1..=MAX_ELEMENTS).contains(&n));
        let matrices = if shape.len() == 3 { shape[0] } else { 1 };
        if whole && (1..=3).contains(&shape.len()) && matrices <= MAX_MATRICES {
            return Ok(shape);
        }
        let problem = format!(
            "weight slot {name} of shape {:?}, which is {shape:?}: expected one to three dimensions of at least 1, at most \
             {MAX_MATRICES} matrices and 2^{} elements",
            slot.shape,
            MAX_ELEMENTS.ilog2()
        );
        Err(GraphError::Circuit {
            circuit: circuit.to_owned(),
            problem: Box::new(CircuitError::Contradiction(problem)),
        })
    }
}

fn dimensions(config: &ModelConfig) -> BTreeMap<&'static str, usize> {
    let a = &config.attention;
    let mut dimensions = BTreeMap::from([
        ("vocab", config.vocab_size),
        ("hidden", config.hidden_size),
        ("heads", a.heads),
        ("kv_lora", a.kv_lora_rank),
        ("nope", a.nope),
        ("rope", a.rope),
        ("v", a.v),
        ("intermediate", config.intermediate_size),
    ]);
    if let Some(width) = a.gate_width() {
        dimensions.insert("output_gate", width);
    }
    if let Some(rank) = config.norm_rank {
        dimensions.insert("norm_rank", rank);
    }
    if let Some(rank) = a.q_lora_rank {
        dimensions.insert("q_lora", rank);
    }
    if let Some(indexer) = a.indexer {
        dimensions.insert("index_heads", indexer.heads);
        dimensions.insert("index_width", indexer.width);
        dimensions.insert("index_topk", indexer.topk);
    }
    if let Some(kda) = &config.kda {
        dimensions.insert("kda_heads", kda.heads);
        dimensions.insert("kda_width", kda.width);
        dimensions.insert("taps", kda.taps);
        dimensions.insert("past_taps", kda.past());
        if let Some(rank) = kda.rank {
            dimensions.insert("gate_rank", rank);
        }
    }
    if let Some(moe) = config.moe {
        dimensions.insert(EXPERTS, moe.experts);
        dimensions.insert("own_experts", config.own_experts().len);
        dimensions.insert("num_experts_per_tok", moe.num_experts_per_tok);
        dimensions.insert("moe_ffn", moe.intermediate);
        dimensions.insert("shared_ffn", moe.shared_intermediate);
    }
    dimensions
}
