//! Locations of activations in a plan.

use super::{Activation, Activations};
use crate::ir::{AttentionPath, Ir, KvLayerId, KvLayerKind, Node, Op, ValueId, ValueStorage};
use crate::plan::Plan;
use std::ops::Range;

/// The location of an activation in a plan. It is valid after its phase and before the next one,
/// because the arena is reused.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Index of the activation.
    pub activation: usize,
    /// Index of the node that produces it.
    pub node: usize,
    /// The phase of that node.
    pub phase: usize,
    /// The rows that the node works on.
    pub path: AttentionPath,
    /// Location of the elements.
    pub source: ActivationSource,
}

/// Location of an activation's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActivationSource {
    /// Columns of each head of a value.
    Value { value: ValueId, columns: Range<usize> },
    /// Columns of the rows of a KV layer, as stored.
    Cache { kv_layer: KvLayerId, columns: Range<usize> },
    /// The routing: ids and weights of the top-k experts, to be scattered over all experts.
    Routing {
        /// Ids of the experts, u32.
        topk_ids: ValueId,
        topk_weights: ValueId,
    },
}

impl Activations {
    /// The activations that `plan` stores, in the order of its nodes.
    pub fn probes(&self, plan: &Plan) -> Vec<Probe> {
        let mut probes = Vec::new();
        for (index, node) in plan.ir.nodes.iter().enumerate() {
            let mut add = |activation: Option<usize>, source: ActivationSource| {
                if let Some(activation) = activation {
                    probes.push(Probe {
                        activation,
                        node: index,
                        phase: plan.phases[index],
                        path: node.path,
                        source,
                    });
                }
            };
            let of = |name: &str| node.layer.and_then(|layer| self.find(&format!("layers.{layer}.{name}")));
            match node.op {
                // Views and copies are probed at their producers; ids are not compared.
                Op::Split | Op::GatherRows | Op::IndexSelect => {}
                Op::Route => {
                    add(
                        of("routing"),
                        ActivationSource::Routing {
                            topk_ids: node.outputs[0],
                            topk_weights: node.outputs[1],
                        },
                    );
                }
                Op::LatentStore | Op::ExpandedStore | Op::KeyValueStore => {
                    self.stored(&plan.ir, node, &mut |name, source| {
                        add(of(name), source);
                    })
                }
                Op::AbsorbK => {
                    let value = node.outputs[0];
                    // The absorbed query contains both parts: the projected content, then the
                    // rotated rope part.
                    let (latent, full) = (self.latent, plan.ir.value(value).width);
                    add(of("q_latent"), ActivationSource::Value { value, columns: 0..latent });
                    add(of("q_rope"), ActivationSource::Value { value, columns: latent..full });
                }
                _ => {
                    for &value in &node.outputs {
                        let columns = 0..plan.ir.value(value).width;
                        add(self.named(&plan.ir, node, value), ActivationSource::Value { value, columns });
                    }
                }
            }
        }
        probes
    }

    /// Latent and rope key as written by a store. An expanded row has the rope key in every head,
    /// and no latent.
    fn stored(&self, ir: &Ir, node: &Node, add: &mut dyn FnMut(&str, ActivationSource)) {
        let Some(kv_layer) = node.kv_layer else { return };
        let (latent, rope, nope) = (self.latent, self.rope, self.nope);
        if ir.kv_layers[kv_layer.0].kind == KvLayerKind::Latent {
            add("latent", ActivationSource::Cache { kv_layer, columns: 0..latent });
            add("k_rope", ActivationSource::Cache { kv_layer, columns: latent..latent + rope });
        } else {
            add("k_rope", ActivationSource::Cache { kv_layer, columns: nope..nope + rope });
        }
    }

    /// The activation that a value of a plan represents, if it has the same meaning as in the
    /// circuit. (After folding, a sum may have the name of the term.)
    fn named(&self, ir: &Ir, node: &Node, id: ValueId) -> Option<usize> {
        let value = ir.value(id);
        let residual = ir.value(ir.root(id)).storage == ValueStorage::Hidden;
        let same = |activation: &&Activation| {
            activation.layer == value.layer
                && activation.value == value.name
                && activation.row_width() == value.row_width()
                // Tells a folded sum, which is stored in the residual stream, from the term of the
                // same name.
                && activation.residual == residual
        };
        let mut found = self.list.iter().filter(same);
        // Two of one name differ by operation. A fused operation has another word; then the last
        // one counts.
        let activation =
            found.clone().find(|activation| activation.op == node.op.word()).or_else(|| found.next_back())?;
        self.find(&activation.name)
    }
}
