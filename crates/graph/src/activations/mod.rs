//! Activations for comparisons: values with the same meaning in every plan of a model, however its
//! operations were lowered and fused.
//!
//! [`Activations::of`] lists them from the circuit with their inputs. [`Activations::probes`] finds
//! where a plan stores them. A plan does not store all of them: a norm that is folded into matmuls
//! leaves no value.

mod probes;
#[cfg(test)]
mod tests;

pub use probes::{ActivationSource, Probe};

use crate::circuit::{Circuit, TensorIndex};
use crate::config::ModelConfig;
use crate::error::GraphError;
use crate::ir::{Ir, ModelSpan, Node, Op, ValueId, ValueStorage};
use std::collections::HashMap;

/// A value that can be compared: a row of f32 per token.
#[derive(Clone, Debug, PartialEq)]
pub struct Activation {
    /// `layers.3.latent`, `logits`.
    pub name: String,
    /// The layer; `None` outside of layers.
    pub layer: Option<usize>,
    /// Its name in the circuit.
    pub value: String,
    /// Heads per row; 1 if the row is not split into heads.
    pub heads: usize,
    /// Elements per head.
    pub width: usize,
    /// The operation of the circuit that produces it.
    pub op: &'static str,
    /// The tensors that this operation uses, by their names in the file.
    pub tensors: Vec<String>,
    /// The activations that it is computed from: indices of earlier ones.
    pub inputs: Vec<usize>,
    /// Whether a row depends on earlier rows. Differences then spread over rows.
    pub mixes_rows: bool,
    /// How to recover it from a sum, if a plan may fold it away.
    pub term: Option<Term>,
    /// Whether it is stored in the residual stream.
    residual: bool,
}

/// A term of a sum: `(sum − base) ÷ factor`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// The activation that holds the sum.
    pub sum: usize,
    /// The activation that it was added to.
    pub base: usize,
    /// Factor of the term in the sum.
    pub factor: f64,
}

impl Activation {
    /// Elements per row, all heads.
    pub fn row_width(&self) -> usize {
        self.heads * self.width
    }
}

/// The activations of a model in the order of computation.
#[derive(Clone, Debug, Default)]
pub struct Activations {
    list: Vec<Activation>,
    index: HashMap<String, usize>,
    layers: usize,
    /// Widths of the latent and of the rope key.
    latent: usize,
    rope: usize,
    nope: usize,
}

impl Activations {
    /// The activations of a model.
    ///
    /// # Errors
    /// A missing tensor, a wrong shape, or a circuit that contradicts itself.
    pub fn of(
        circuit: &Circuit,
        config: &ModelConfig,
        tensors: &dyn TensorIndex,
    ) -> Result<Activations, GraphError> {
        let span = ModelSpan { embed: true, layers: 0..config.layers, head: true, mtp: false };
        // The unlowered IR, so that names depend neither on the formulation of attention nor on
        // fusion.
        let ir = Ir::build_with(circuit, config, &span, tensors)?;
        let attention = &config.attention;
        let mut activations = Activations {
            layers: config.layers,
            latent: attention.kv_lora_rank,
            rope: attention.rope,
            nope: attention.nope,
            ..Activations::default()
        };
        let mut known = HashMap::new();
        for (n, node) in ir.nodes.iter().enumerate() {
            activations.add_node(&ir, n, node, config, &mut known);
        }
        activations.index =
            activations.list.iter().enumerate().map(|(i, activation)| (activation.name.clone(), i)).collect();
        Ok(activations)
    }

    /// The activations, in order.
    pub fn list(&self) -> &[Activation] {
        &self.list
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    /// The error for a name that no activation has.
    pub fn unknown(&self, name: &str) -> String {
        unknown(name, self.layers, self.list.iter().map(|activation| activation.name.as_str()))
    }

    /// Adds the activations of a node of the circuit. `known` maps values to the activations that
    /// represent them.
    fn add_node(
        &mut self,
        ir: &Ir,
        at: usize,
        node: &Node,
        config: &ModelConfig,
        known: &mut HashMap<ValueId, Vec<usize>>,
    ) {
        let mut inputs: Vec<usize> =
            node.inputs.iter().filter_map(|id| known.get(id)).flatten().copied().collect();
        // Several inputs may be represented by one activation (parts of a split).
        inputs.sort_unstable();
        inputs.dedup();
        match node.op {
            // Parts and copies of a value are represented by the value's activation.
            Op::Split | Op::GatherRows => {
                for id in &node.outputs {
                    known.insert(*id, inputs.clone());
                }
            }
            // Ids of tokens cannot be compared as numbers.
            Op::IndexSelect => {
                for id in &node.outputs {
                    known.insert(*id, inputs.clone());
                }
            }
            Op::Route => {
                let experts = config.moe.map_or(0, |moe| moe.experts);
                let activation = self.push(ir, node, node.outputs[0], "routing".into(), inputs);
                // Scattered over all experts: top-k lists of two runs may have another order.
                (self.list[activation].heads, self.list[activation].width) = (1, experts);
                for id in &node.outputs {
                    known.insert(*id, vec![activation]);
                }
            }
            Op::MlaAttention => {
                let latent_query = self.push_attention(ir, node, known);
                let mut inputs = inputs;
                inputs.push(latent_query);
                let attn = self.push(ir, node, node.outputs[0], "attn".into(), inputs);
                self.list[attn].mixes_rows = true;
                known.insert(node.outputs[0], vec![attn]);
            }
            _ => {
                for id in &node.outputs {
                    let last = !ir.nodes[at + 1..].iter().any(|later| {
                        later.layer == node.layer
                            && later.outputs.iter().any(|o| ir.value(*o).name == ir.value(*id).name)
                    });
                    let name = public_name(&ir.value(*id).name, node.op, node.layer, last);
                    let activation = self.push(ir, node, *id, name, inputs.clone());
                    let one = |id: &ValueId| {
                        known.get(id).filter(|activations| activations.len() == 1).map(|p| p[0])
                    };
                    if let (Op::Add { scale }, [base, term]) = (node.op, &node.inputs[..])
                        && let (Some(base), Some(term)) = (one(base), one(term))
                        // Only sums into the residual stream are folded by `fold_epilogues`.
                        && self.list[base].residual
                    {
                        self.list[term].term = Some(Term { sum: activation, base, factor: scale });
                    }
                    known.insert(*id, vec![activation]);
                }
            }
        }
    }

    /// Adds the two intermediate values of attention in latent space: the absorbed query and the
    /// attention result.
    fn push_attention(&mut self, ir: &Ir, node: &Node, known: &mut HashMap<ValueId, Vec<usize>>) -> usize {
        let of = |port| node.input_at(port).and_then(|id| known.get(&id)).cloned().unwrap_or_default();
        let (q_nope, rest) = (of("q_nope"), [of("latent"), of("k_rope"), of("q_rope")].concat());
        let query = self.push(ir, node, node.inputs[0], "q_latent".into(), q_nope);
        let mut inputs = vec![query];
        inputs.extend(rest);
        let mix = self.push(ir, node, node.inputs[0], "latent_mix".into(), inputs);
        for (activation, op) in [(query, "absorb_k"), (mix, "attend_latent")] {
            let activation = &mut self.list[activation];
            (activation.width, activation.op) = (self.latent, op);
            activation.value = activation.name.rsplit('.').next().unwrap_or_default().to_owned();
        }
        // `latent_mix` is a sum over all earlier rows of the sequence.
        self.list[mix].mixes_rows = true;
        // Attention itself uses no weights; those of the node belong to the projections.
        self.list[mix].tensors.clear();
        mix
    }

    fn push(&mut self, ir: &Ir, node: &Node, id: ValueId, name: String, inputs: Vec<usize>) -> usize {
        let value = ir.value(id);
        let tensors = node.weights.iter().flat_map(|(_, weight)| {
            let parts = &ir.weight(*weight).parts;
            // If every expert has its own tensor, the first one represents all.
            parts.first().map(|part| part.tensor.clone())
        });
        self.list.push(Activation {
            name: node.layer.map_or_else(|| name.clone(), |layer| format!("layers.{layer}.{name}")),
            layer: node.layer,
            value: value.name.clone(),
            heads: value.heads,
            width: value.width,
            op: node.op.word(),
            tensors: tensors.collect(),
            inputs,
            mixes_rows: false,
            term: None,
            residual: ir.value(ir.root(id)).storage == ValueStorage::Hidden,
        });
        self.list.len() - 1
    }
}

/// Public names of circuit values, as in other programs. Other values keep their names.
const NAMES: [(&str, &str); 11] = [
    ("x", "attn_norm"),
    ("q_low_raw", "q_a"),
    ("q_low", "q_a_norm"),
    ("kv", "kv_a"),
    ("attn_delta", "attn_out"),
    ("h_mid", "attn_residual"),
    ("y", "ffn_norm"),
    ("gate", "ffn_gate"),
    ("up", "ffn_up"),
    ("activated", "ffn_act"),
    ("shared_delta", "shared_out"),
];

/// The public name of a circuit's value. `last` is false if a later operation of the layer produces
/// one of the same name.
fn public_name(value: &str, op: Op, layer: Option<usize>, last: bool) -> String {
    let name = match (value, layer) {
        ("h", None) => "embed",
        ("h", Some(_)) => "residual",
        ("ffn_delta", _) if last => "ffn_out",
        ("ffn_delta", _) => "experts_out",
        ("final", _) if matches!(op, Op::Scale { .. }) => "final_scaled",
        ("final", _) => "final_norm",
        // A bias is added later, and the sum has the public name.
        _ if !last => return format!("{}_unbiased", public_name(value, op, layer, true)),
        _ => NAMES.iter().find(|(circuit, _)| *circuit == value).map_or(value, |(_, public)| public),
    };
    name.to_owned()
}

/// The error for an unknown name, with the names of its layer.
fn unknown<'n>(name: &str, layers: usize, names: impl Iterator<Item = &'n str>) -> String {
    let part = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
    let Some((layer, rest)) = part else {
        let outside: Vec<&str> = names.filter(|name| !name.starts_with("layers.")).collect();
        return format!(
            "unknown activation {name}; expected one of {}, or one of a layer, such as layers.0.latent",
            outside.join(", ")
        );
    };
    match layer.parse::<usize>() {
        Ok(number) if number < layers => {
            let prefix = format!("layers.{number}.");
            let names: Vec<&str> = names.filter_map(|name| name.strip_prefix(&prefix)).collect();
            format!("layer {number} has no activation {rest:?}; it has {}", names.join(", "))
        }
        _ => format!("layer {layer} does not exist; the model has layers 0 to {}", layers.saturating_sub(1)),
    }
}
