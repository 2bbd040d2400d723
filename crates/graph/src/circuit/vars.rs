//! Config variables: a config in the vocabulary of circuit files, as dimensions, flags and factors.

use super::block::{OpSpec, SlotSpec};
use super::expression;
use crate::config::{DecayRate, FfnActivation, KvForm, LayerKind, ModelConfig, QueryGate, RankShare};
use crate::error::{CircuitError, GraphError};
use std::collections::BTreeMap;
use std::fmt;

/// Maximum elements of a weight slot.
// More than any model has, and few enough that their bytes fit in `usize`.
const MAX_ELEMENTS: usize = 1 << (if usize::BITS == 64 { 48 } else { 29 });

/// Maximum matrices of a weight slot (experts or heads).
// The largest published model has 384 experts.
const MAX_MATRICES: usize = 1024;

/// Dimensions, flags and factors of one config, for the whole model or one layer.
#[derive(Clone, Debug, Default)]
pub struct ConfigVars {
    dimensions: BTreeMap<&'static str, usize>,
    flags: BTreeMap<&'static str, bool>,
    factors: BTreeMap<&'static str, f64>,
    /// Dimensions for computing shares, if several ranks share the model.
    shared: Option<Box<RankDimensions>>,
}

/// Dimensions of the whole model, and of the part before this rank's. A size that grows with one of
/// them starts at the latter's value.
#[derive(Clone, Debug, Default)]
struct RankDimensions {
    whole: BTreeMap<&'static str, usize>,
    before: BTreeMap<&'static str, usize>,
}

/// The leading dimension of stacked experts.
const EXPERTS: &str = "experts";

impl ConfigVars {
    /// The variables of `config` for a layer, or for the model as a whole.
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
            // `sparse_attention` is about the file (it has an indexer's tensors), `selected` about
            // the run (attention reads selected tokens), `indexer` about one layer.
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
        // An expression such as `heads*(nope+rope)` is evaluated three times: with the rank's heads
        // (length), with all heads (whole), and with the heads before the rank's (start). No
        // expression needs to know about ranks.
        let shared = config.part.is_some().then(|| {
            let mut before = config.clone();
            if let Some(part) = &config.part {
                // Only dimensions that ranks share differ from the whole model.
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

    /// Whether two layers have the same variables. Must compare everything that depends on the
    /// layer in [`of`](Self::of).
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

    /// Whether all of `conditions` hold. An unknown word is an error of the circuit.
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

    /// The factor of `op`; 1 if it names none.
    pub(crate) fn factor(&self, op: &OpSpec, circuit: &str) -> Result<f64, GraphError> {
        let Some(name) = &op.by else { return Ok(1.0) };
        self.factors.get(name.as_str()).copied().ok_or_else(|| GraphError::Circuit {
            circuit: circuit.to_owned(),
            problem: Box::new(CircuitError::Factor { name: name.clone() }),
        })
    }

    /// Evaluates a size expression. `place` is its location, for errors.
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

    /// The shape of a slot: one to three dimensions of at least 1, the outermost of three at most
    /// [`MAX_MATRICES`].
    pub(crate) fn shape(&self, name: &str, slot: &SlotSpec, circuit: &str) -> Result<Vec<usize>, GraphError> {
        Ok(self.shares(name, slot, circuit)?.into_iter().map(|share| share.len).collect())
    }

    /// The shape of a slot in files, which may have additional dimensions of size 1.
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
        // A rank's shape has fewer elements than `stored` states; then the slot's own shape is
        // used.
        if stored.is_empty() || elements(&stored) != elements(&shape) {
            return Ok(shape);
        }
        Ok(stored)
    }

    /// Like [`shape`](Self::shape), with each dimension as a share of the file's.
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
        // Not `checked_shape`: the first rank's sizes before it are 0.
        let before = before.sizes(name, slot, circuit)?;
        // For a dimension that ranks do not share, `before` is its full size and not a start.
        let share =
            |((len, of), from)| if len == of { RankShare::all(of) } else { RankShare { from, len, of } };
        Ok(shape.into_iter().zip(whole).zip(before).map(share).collect())
    }

    /// The dimensions of a slot by its expressions. The leading `experts` of stacked matrices means
    /// this rank's experts.
    fn sizes(&self, name: &str, slot: &SlotSpec, circuit: &str) -> Result<Vec<usize>, GraphError> {
        let own = |(i, text): (usize, &String)| {
            // Elsewhere `experts` is the model's count: a router's outputs and biases are whole on
            // every rank.
            let text = if i == 0 && slot.shape.len() == 3 && text == EXPERTS { "own_experts" } else { text };
            self.size(text, format_args!("weight slot {name}"), circuit)
        };
        slot.shape.iter().enumerate().map(own).collect()
    }

    fn checked_shape(&self, name: &str, slot: &SlotSpec, circuit: &str) -> Result<Vec<usize>, GraphError> {
        let shape = self.sizes(name, slot, circuit)?;
        let elements = shape.iter().try_fold(1usize, |elements, n| elements.checked_mul(*n));
        // Bounded before any size in bytes is computed from it.
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
    // A dimension that the model lacks is not defined, so that its use is an error instead of a 0.
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
