//! Where a plan keeps activations.

use super::{Activation, Activations};
use crate::ir::{AttentionPath, Ir, KvLayerId, KvLayerKind, Node, Op, ValueId, ValueStorage};
use crate::plan::Plan;
use std::ops::Range;

/// Where a plan keeps an activation. It can be read after its phase and before the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Index of the activation.
    pub activation: usize,
    /// Index of the node that makes it.
    pub node: usize,
    /// The phase of that node.
    pub phase: usize,
    /// The rows that the node works on.
    pub path: AttentionPath,
    /// Where the elements are.
    pub source: ActivationSource,
}

/// Where the elements of an activation are.
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
    /// The activations that `plan` keeps, in the order of its nodes.
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

    /// Latent and rope key as a store has written them. An expanded row holds the rope key in every head, and no latent.
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

    /// The activation that a value of a plan is, if it still means what it means in the circuit. (A folded sum may leave its name to the
    /// rows that it was added to.)
    fn named(&self, ir: &Ir, node: &Node, id: ValueId) -> Option<usize> {
        let value = ir.value(id);
        let residual = ir.value(ir.root(id)).storage == ValueStorage::Hidden;
        let same = |activation: &&Activation| {
            activation.layer == value.layer
                && activation.value == value.name
                && activation.row_width() == value.row_width()
                && activation.residual == residual
        };
        let mut found = self.list.iter().filter(same);
        // two of one name: told apart by the operation, unless it was fused
        let activation =
            found.clone().find(|activation| activation.op == node.op.word()).or_else(|| found.next_back())?;
        self.find(&activation.name)
    }
}
