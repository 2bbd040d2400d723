//! The signature of nodes: which ports their inputs and outputs are, and edges between them.

use super::{Epilogue, Ir, Node, ValueId};
use crate::ops::{Outputs, PARTIALS, Port};

/// One edge of an IR: producer of a value, reader, and the reader's port.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Edge {
    /// Index of the node that makes it; none for what enters the span.
    pub producer: Option<usize>,
    /// Index of the node that reads it.
    pub consumer: usize,
    /// The port of the consumer.
    pub slot: &'static str,
    /// Index of the value.
    pub value: usize,
}

/// The residual that an operation adds its result to.
const RESIDUAL: Port = Port::f32("residual", "rows × outputs");

impl Node {
    /// The ports of the operation at which the node has an input, and the one that a prologue or epilogue adds.
    pub fn input_ports(&self) -> impl Iterator<Item = Port> + use<> {
        let more = match self.prologue.kv_splits {
            true => Some(PARTIALS),
            false => matches!(self.epilogue, Epilogue::AddTo(_)).then_some(RESIDUAL),
        };
        self.op.inputs_of(self.inputs.len().saturating_sub(usize::from(more.is_some()))).chain(more)
    }

    /// The port of input `i`; none where the operation has no such input.
    pub fn input_port(&self, i: usize) -> Option<Port> {
        self.input_ports().nth(i)
    }

    /// The value at the input port of this name; none where it is left out, or the operation has no such port.
    pub fn input_at(&self, name: &str) -> Option<ValueId> {
        let at = self.input_ports().position(|port| port.name == name)?;
        self.inputs.get(at).copied()
    }

    /// The port of output `i`; none where the node should not have it.
    pub fn output_port(&self, i: usize) -> Option<Port> {
        match self.op.spec().outputs {
            Outputs::Ports(ports) => {
                let partials = self.epilogue == Epilogue::KvSplits && i == ports.len();
                ports.get(i).copied().or(partials.then_some(PARTIALS))
            }
            Outputs::PerWeight(port) | Outputs::PerPart(port) => (i < self.output_count()).then_some(port),
        }
    }

    /// Inputs that the node must have.
    pub fn input_count(&self) -> usize {
        self.input_ports().count()
    }

    /// Outputs that the node must have; of a split as many as it has.
    pub fn output_count(&self) -> usize {
        match self.op.spec().outputs {
            Outputs::Ports(ports) => ports.len() + usize::from(self.epilogue == Epilogue::KvSplits),
            Outputs::PerWeight(_) if self.epilogue == Epilogue::SiluMul => 1,
            Outputs::PerWeight(_) => self.weights.len(),
            Outputs::PerPart(_) => self.outputs.len(),
        }
    }
}

impl Ir {
    /// Every edge, in the order of the nodes that read. A value that two attention paths make has an edge from each.
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
