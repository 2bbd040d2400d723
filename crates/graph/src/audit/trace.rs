//! Storage, producers and readers of each value, collected once for all rules.

use super::findings::Findings;
use super::rules::Code;
use crate::ir::{AttentionPath, Ir, ValueId, ValueStorage};

/// An IR with valid indices and without cyclic views.
pub(super) struct ResolvedIr<'a> {
    pub(super) ir: &'a Ir,
    /// Where each value is stored.
    pub(super) places: Vec<ValuePlace>,
    /// Nodes that produce each value.
    pub(super) makers: Vec<Vec<usize>>,
    /// Number of inputs that read each value.
    pub(super) readers: Vec<usize>,
}

/// The storage of a value: a range within each head of its root value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValuePlace {
    /// The value that owns the memory.
    pub(super) root: usize,
    /// First element within a head.
    pub(super) from: usize,
    /// One past the last element.
    pub(super) to: usize,
}

impl ValuePlace {
    /// Whether two places share elements.
    pub(super) fn overlaps(&self, other: &ValuePlace) -> bool {
        self.root == other.root && self.from < other.to && other.from < self.to
    }
}

/// The rows of an attention path as a bit set: bit 0 for absorbed rows, bit 1 for naive ones.
pub(super) fn rows(path: AttentionPath) -> u8 {
    match path {
        AttentionPath::All => 3,
        AttentionPath::Absorbed => 1,
        AttentionPath::Naive => 2,
    }
}

impl<'a> ResolvedIr<'a> {
    /// Resolves every edge; `None` if an index does not exist or a view is cyclic.
    pub(super) fn new(ir: &'a Ir, found: &mut Findings<'_>) -> Option<ResolvedIr<'a>> {
        if !indices(ir, found) {
            return None;
        }
        let places = places(ir, found)?;
        let mut makers = vec![Vec::new(); ir.values.len()];
        let mut readers = vec![0; ir.values.len()];
        for (n, node) in ir.nodes.iter().enumerate() {
            node.outputs.iter().for_each(|id| makers[id.0].push(n));
            node.inputs.iter().for_each(|id| readers[id.0] += 1);
        }
        Some(ResolvedIr { ir, places, makers, readers })
    }

    /// A node that produces `id` for rows of `path`.
    pub(super) fn maker(&self, id: ValueId, path: AttentionPath) -> Option<usize> {
        // A value may have one maker per attention path. The path of the reader selects between
        // them.
        self.makers[id.0].iter().copied().find(|n| self.ir.nodes[*n].path.meets(path))
    }

    /// `name` of a value, as findings show it.
    pub(super) fn name(&self, id: ValueId) -> String {
        format!("value {}", self.ir.value(id).name)
    }
}

/// A10: every referenced value, weight and KV layer exists.
fn indices(ir: &Ir, found: &mut Findings<'_>) -> bool {
    let before = found.list.len();
    for (n, node) in ir.nodes.iter().enumerate() {
        let wrong = node.inputs.iter().chain(&node.outputs).find(|id| id.0 >= ir.values.len());
        if let Some(id) = wrong {
            found.at(
                Code::A10,
                ir,
                n,
                None,
                format!("value {} does not exist; the IR has {}", id.0, ir.values.len()),
            );
        }
        let weights = node.weights.iter().map(|(_, id)| id).chain(&node.prologue.norm);
        if let Some(id) = weights.into_iter().find(|id| id.0 >= ir.weights.len()) {
            found.at(
                Code::A10,
                ir,
                n,
                None,
                format!("weight {} does not exist; the IR has {}", id.0, ir.weights.len()),
            );
        }
        if let Some(id) = node.kv_layer.filter(|id| id.0 >= ir.kv_layers.len()) {
            found.at(
                Code::A10,
                ir,
                n,
                None,
                format!("KV layer {} does not exist; the IR has {}", id.0, ir.kv_layers.len()),
            );
        }
    }
    for (name, id) in &ir.outputs {
        if id.0 >= ir.values.len() {
            found.add(Code::A10, None, Some(name.clone()), format!("value {} does not exist", id.0));
        }
    }
    for value in &ir.values {
        if let ValueStorage::View { of, .. } = value.storage
            && of.0 >= ir.values.len()
        {
            let problem = format!("it is a view of value {}, which does not exist", of.0);
            found.add(Code::A10, value.layer, Some(format!("value {}", value.name)), problem);
        }
    }
    found.list.len() == before
}

/// The storage of every value; A24 if a view is, through others, a view of itself.
fn places(ir: &Ir, found: &mut Findings<'_>) -> Option<Vec<ValuePlace>> {
    let mut places: Vec<Option<ValuePlace>> = vec![None; ir.values.len()];
    let mut chain = Vec::new();
    for start in 0..ir.values.len() {
        chain.clear();
        let mut at = start;
        // Iterative instead of recursive: a broken IR may have chains of any length.
        while places[at].is_none() {
            match ir.values[at].storage {
                ValueStorage::View { of, .. } => {
                    // More views than values: the chain repeats.
                    if chain.len() > ir.values.len() {
                        let value = &ir.values[start];
                        let problem = "it is a view of itself through other views".into();
                        found.add(Code::A24, value.layer, Some(format!("value {}", value.name)), problem);
                        return None;
                    }
                    chain.push(at);
                    at = of.0;
                }
                _ => places[at] = Some(ValuePlace { root: at, from: 0, to: ir.values[at].width }),
            }
        }
        while let Some(view) = chain.pop() {
            places[view] = Some(view_place(ir, view, places[at]?));
            at = view;
        }
    }
    places.into_iter().collect()
}

/// The storage of a view whose parent is resolved. A view with other heads than its root covers the
/// whole root.
fn view_place(ir: &Ir, view: usize, parent: ValuePlace) -> ValuePlace {
    let value = &ir.values[view];
    let root = &ir.values[parent.root];
    match value.storage {
        ValueStorage::View { offset, .. } if value.heads == root.heads => {
            let from = parent.from.saturating_add(offset);
            ValuePlace { root: parent.root, from, to: from.saturating_add(value.width) }
        }
        // The heads of such a view do not begin where the root's do, so no smaller range is exact.
        _ => ValuePlace { root: parent.root, from: 0, to: usize::MAX },
    }
}
