//! Folds layers of equal structure into one run.

use latent_graph::ir::{Ir, Node};
use std::fmt::Write;

/// Layers that are drawn as one block.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DrawnLayers {
    /// The drawn part of the model.
    pub(crate) section: Section,
    /// Indices of the nodes, per layer.
    pub(crate) nodes: Vec<Vec<usize>>,
}

/// A part of the model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Section {
    Embed,
    /// Rows received from the rank with the previous layers.
    Arrival,
    Layers(Vec<usize>),
    Head,
    /// Rows sent to other ranks, or returned by them, after a rank's last layer.
    Departure,
}

/// Maximum runs of adjacent layers. With more, layers that are not adjacent fold too.
// A model whose kinds of layers alternate would otherwise be drawn layer by layer.
const MAX_ADJACENT_RUNS: usize = 8;

/// The runs of `ir`. `phases` is the phase of each node (all 0 for an IR).
pub(crate) fn runs(ir: &Ir, phases: &[usize]) -> Vec<DrawnLayers> {
    let mut groups: Vec<(Section, Vec<usize>)> = Vec::new();
    let mut seen_layer = false;
    for (n, node) in ir.nodes.iter().enumerate() {
        let section = match node.layer {
            Some(layer) => {
                seen_layer = true;
                Section::Layers(vec![layer])
            }
            None if crosses(node) => {
                if seen_layer {
                    Section::Departure
                } else {
                    Section::Arrival
                }
            }
            None if node_is_first(node) && !seen_layer => Section::Embed,
            None => Section::Head,
        };
        // Nodes of one part need not be adjacent: MTP spans have the head after the layers.
        match groups.iter_mut().find(|(other, _)| *other == section) {
            Some((_, nodes)) => nodes.push(n),
            None => groups.push((section, vec![n])),
        }
    }
    let shapes: Vec<String> = groups.iter().map(|(_, nodes)| structure(ir, nodes, phases)).collect();
    let mut runs = join(&groups, &shapes, true);
    // Adjacent runs are preferred, because they keep the order of the layers visible.
    if runs.len() > MAX_ADJACENT_RUNS {
        runs = join(&groups, &shapes, false);
    }
    runs
}

fn crosses(node: &Node) -> bool {
    matches!(node.op, latent_graph::ir::Op::SendRows | latent_graph::ir::Op::ReceiveRows)
}

fn node_is_first(node: &Node) -> bool {
    matches!(node.op, latent_graph::ir::Op::Embed { .. } | latent_graph::ir::Op::Scale { .. })
}

fn join(groups: &[(Section, Vec<usize>)], shapes: &[String], neighbours: bool) -> Vec<DrawnLayers> {
    let mut runs: Vec<(DrawnLayers, &String)> = Vec::new();
    for ((section, nodes), shape) in groups.iter().zip(shapes) {
        let twin = if neighbours {
            runs.last_mut().filter(|(_, other)| *other == shape)
        } else {
            runs.iter_mut().find(|(_, other)| *other == shape)
        };
        match (twin, section) {
            (
                Some((DrawnLayers { section: Section::Layers(layers), nodes: all }, _)),
                Section::Layers(layer),
            ) => {
                layers.extend(layer);
                all.push(nodes.clone());
            }
            _ => runs.push((DrawnLayers { section: section.clone(), nodes: vec![nodes.clone()] }, shape)),
        }
    }
    runs.into_iter().map(|(run, _)| run).collect()
}

/// A key for the structure of a layer, without formats and kernels, which may differ between layers
/// of a run.
fn structure(ir: &Ir, nodes: &[usize], phases: &[usize]) -> String {
    // Phases relative to the layer's first one, or no two layers would be equal.
    let first = nodes.iter().map(|n| phases[*n]).min().unwrap_or(0);
    let mut text = String::new();
    for &n in nodes {
        let node = &ir.nodes[n];
        let _ = write!(text, "{:?}{:?}@{}", node.op, node.path, phases[n] - first);
        for id in node.inputs.iter().chain(&node.outputs) {
            let value = ir.value(*id);
            let _ = write!(text, " {}{}x{}{:?}", value.name, value.heads, value.width, value.rows);
        }
        for (slot, id) in &node.weights {
            let _ = write!(text, " {slot}{:?}", ir.weight(*id).shape);
        }
        let norm = node.prologue.norm.map(|id| ir.weight(id).slot.as_str());
        let _ = writeln!(text, " {norm:?}{}{:?}", node.prologue.rope, node.epilogue);
    }
    text
}

/// `3–12, 15`.
pub(crate) fn list(numbers: &[usize]) -> String {
    let spans = spans(numbers);
    let word = |(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}–{b}") };
    spans.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// First and last of each run of consecutive numbers.
pub(crate) fn spans(numbers: &[usize]) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => spans.push((n, n)),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_listed_in_spans() {
        assert_eq!(list(&[3, 4, 5, 9, 11, 12]), "3–5, 9, 11–12");
        assert_eq!(list(&[]), "");
    }
}
