//! The named slots of operations: what each input and output of a node is called and carries.

use super::{Epilogue, Ir, Node, Op};

/// What an edge carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Carries {
    /// f32 numbers.
    Numbers,
    /// Token ids of the batch.
    Tokens,
    /// Ids of chosen experts, 32 bits each.
    Experts,
}

/// A named input or output of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: &'static str,
    /// What it carries.
    pub carries: Carries,
}

/// One edge of an IR: who makes a value, who reads it, and into which slot.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Edge {
    /// Index of the node that makes it; none for what enters the span.
    pub producer: Option<usize>,
    /// Index of the node that reads it.
    pub consumer: usize,
    /// The slot of the consumer.
    pub slot: &'static str,
    /// Index of the value.
    pub value: usize,
}

const fn elements(name: &'static str) -> Port {
    Port { name, carries: Carries::Numbers }
}

const fn experts(name: &'static str) -> Port {
    Port { name, carries: Carries::Experts }
}

/// The slot of the residual that an operation adds its result to.
const RESIDUAL: Port = elements("residual");

impl Op {
    /// Inputs in order, without the residual of [`Epilogue::AddTo`].
    pub fn inputs(&self) -> &'static [Port] {
        const X: &[Port] = &[elements("x")];
        const TOKENS: &[Port] = &[Port { name: "tokens", carries: Carries::Tokens }];
        const MLA: &[Port] =
            &[elements("q_nope"), elements("q_rope"), elements("latent"), elements("k_rope")];
        const QUERY: &[Port] = &[elements("q_nope"), elements("q_rope")];
        const STORE: &[Port] = &[elements("latent"), elements("k_rope")];
        const EXPERTS: &[Port] = &[elements("x"), experts("topk_ids"), elements("topk_weights")];
        match self {
            Op::Embed { .. } => TOKENS,
            Op::RmsNorm
            | Op::Linear
            | Op::Split
            | Op::Rope
            | Op::Relu2
            | Op::Scale { .. }
            | Op::GatherRows => X,
            Op::MlaAttention => MLA,
            Op::Route => const { &[elements("logits")] },
            Op::ExpertMlp | Op::ExpertDown => EXPERTS,
            Op::SiluMul => const { &[elements("gate"), elements("up")] },
            Op::Add { .. } => const { &[elements("base"), elements("term")] },
            Op::LatentStore | Op::ExpandedStore => STORE,
            Op::AbsorbK | Op::AttendExpanded => QUERY,
            Op::AttendLatent | Op::AttendSeparate => const { &[elements("query")] },
            Op::AbsorbV => const { &[elements("latent_mix")] },
            Op::ExpertGateUp => const { &[elements("x"), experts("topk_ids")] },
        }
    }

    /// Outputs in order; none where their number depends on the node: a product has one for each weight, a split one for each part.
    pub fn outputs(&self) -> Option<&'static [Port]> {
        const Y: &[Port] = &[elements("y")];
        match self {
            Op::Linear | Op::Split => None,
            Op::LatentStore | Op::ExpandedStore => Some(&[]),
            Op::Route => Some(const { &[experts("topk_ids"), elements("topk_weights")] }),
            _ => Some(Y),
        }
    }
}

impl Node {
    /// The slot of input `i`; none where the operation has no such input.
    pub fn input_port(&self, i: usize) -> Option<Port> {
        let ports = self.op.inputs();
        let residual = matches!(self.epilogue, Epilogue::AddTo(_)) && i == ports.len();
        ports.get(i).copied().or(residual.then_some(RESIDUAL))
    }

    /// The slot of output `i`; none where the node should not have it.
    pub fn output_port(&self, i: usize) -> Option<Port> {
        match self.op.outputs() {
            Some(ports) => ports.get(i).copied(),
            None if i < self.output_count() => {
                Some(elements(if self.op == Op::Split { "part" } else { "y" }))
            }
            None => None,
        }
    }

    /// Inputs that the node must have.
    pub fn input_count(&self) -> usize {
        self.op.inputs().len() + usize::from(matches!(self.epilogue, Epilogue::AddTo(_)))
    }

    /// Outputs that the node must have; of a split as many as it has.
    pub fn output_count(&self) -> usize {
        match (self.op, self.epilogue) {
            (Op::Linear, Epilogue::SiluMul) => 1,
            (Op::Linear, _) => self.weights.len(),
            (Op::Split, _) => self.outputs.len(),
            (op, _) => op.outputs().map_or(0, <[Port]>::len),
        }
    }
}

impl Ir {
    /// Every edge, in the order of the nodes that read. A value that two formulations make has an edge from each.
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
