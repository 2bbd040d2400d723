//! Signatures of nodes: the ports of their inputs and outputs, and the edges between nodes.

use super::{Epilogue, Ir, Node, ValueId};
use crate::ops::{Outputs, PARTIALS, Port};

/// One edge of an IR: the producer of a value, its reader, and the reader's port.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Edge {
    /// Index of the node that produces it; `None` for values that enter the span.
    pub producer: Option<usize>,
    /// Index of the node that reads it.
    pub consumer: usize,
    /// The port of the consumer.
    pub slot: &'static str,
    /// Index of the value.
    pub value: usize,
}

/// The additional input of a node that adds its result to the residual.
const RESIDUAL: Port = Port::f32("residual", "rows × outputs");

impl Node {
    /// The ports of the node's inputs, followed by the port that a prologue or an epilogue adds.
    pub fn input_ports(&self) -> impl Iterator<Item = Port> + use<> {
        // At most one port is added. Folding passes append it, so it is always the last input.
        let more = match self.prologue.kv_splits {
            true => Some(PARTIALS),
            false => matches!(self.epilogue, Epilogue::AddTo(_)).then_some(RESIDUAL),
        };
        self.op.inputs_of(self.inputs.len().saturating_sub(usize::from(more.is_some()))).chain(more)
    }

    /// The port of input `i`; `None` if the operation has no such input.
    pub fn input_port(&self, i: usize) -> Option<Port> {
        self.input_ports().nth(i)
    }

    /// The value at the input port of this name; `None` if the node omits it or the operation has
    /// no such port.
    pub fn input_at(&self, name: &str) -> Option<ValueId> {
        let at = self.input_ports().position(|port| port.name == name)?;
        self.inputs.get(at).copied()
    }

    /// The port of output `i`; `None` if the node should not have it.
    pub fn output_port(&self, i: usize) -> Option<Port> {
        match self.op.spec().outputs {
            Outputs::Ports(ports) => {
                let partials = self.epilogue == Epilogue::KvSplits && i == ports.len();
                ports.get(i).copied().or(partials.then_some(PARTIALS))
            }
            Outputs::PerWeight(port) | Outputs::PerPart(port) => (i < self.output_count()).then_some(port),
        }
    }

    /// Number of inputs that the node must have.
    pub fn input_count(&self) -> usize {
        self.input_ports().count()
    }

    /// Number of outputs that the node must have. A split may have any number.
    pub fn output_count(&self) -> usize {
        match self.op.spec().outputs {
            Outputs::Ports(ports) => ports.len() + usize::from(self.epilogue == Epilogue::KvSplits),
            // Gate and up are two weights, but the epilogue joins their results.
            Outputs::PerWeight(_) if self.epilogue == Epilogue::SiluMul => 1,
            Outputs::PerWeight(_) => self.weights.len(),
            Outputs::PerPart(_) => self.outputs.len(),
        }
    }
}

impl Ir {
    /// Every edge, ordered by consumer. A value that two attention paths produce has one edge from
    /// each.
    pub fn named_edges(&self) -> Vec<Edge> {
        let mut makers: Vec<Vec<usize>> = vec![Vec::new(); self.values.len()];
        for (n, node) in self.nodes.iter().enumerate() {
            for id in &node.outputs {
                makers[id.0].push(n);
            }
        }
        let mut edges = Vec::new();
        for (consumer, node) in self.nodes.iter().enumerate() {
            for (i, id) in node.inputs.iter().enumerate() {
                // The audit prints edges of broken plans too, so a missing port is not a panic.
                let slot = node.input_port(i).map_or("?", |port| port.name);
                let edge = |producer| Edge { producer, consumer, slot, value: id.0 };
                let meeting = makers[id.0].iter().filter(|m| self.nodes[**m].path.meets(node.path));
                let before = edges.len();
                edges.extend(meeting.map(|m| edge(Some(*m))));
                if edges.len() == before {
                    edges.push(edge(None));
                }
            }
        }
        edges
    }
}
