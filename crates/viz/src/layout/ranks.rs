//! Ranks (the row of each vertex) and the order within a rank.

use crate::layout::graph::{EdgeKind, Endpoint, LayoutGraph, Vertex, VertexKind};

/// A slot of a rank: a vertex, or the bend of an edge that passes through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RankSlot {
    Vertex(usize),
    /// Index of the edge.
    Bend(usize),
}

/// Vertices in rows, from the top.
pub(crate) struct Ranks {
    /// The rank of each vertex.
    pub(crate) of: Vec<usize>,
    /// The slots of each rank from left to right, without sums and KV layers, whose columns are
    /// fixed.
    pub(crate) rows: Vec<Vec<RankSlot>>,
}

impl Ranks {
    /// Ranks follow the dataflow, and every phase is below the earlier ones. Barycentres order each
    /// rank, to reduce crossings.
    pub(crate) fn new(graph: &LayoutGraph) -> Ranks {
        let of = assign(graph);
        let count = of.iter().max().map_or(0, |last| last + 1);
        let mut rows = vec![Vec::new(); count];
        for (i, vertex) in graph.vertices.iter().enumerate() {
            // Sums and cylinders have fixed columns.
            if vertex.takes_slot() {
                rows[of[i]].push(RankSlot::Vertex(i));
            }
        }
        for (w, edge) in graph.edges.iter().enumerate() {
            if let (Endpoint::Vertex(a), Endpoint::Vertex(b), EdgeKind::Value) =
                (edge.from, edge.to, edge.kind)
            {
                // A long edge takes a slot in every rank that it passes, so that no box is placed
                // on it.
                for row in rows.iter_mut().take(of[b]).skip(of[a] + 1) {
                    row.push(RankSlot::Bend(w));
                }
            }
        }
        let mut ranks = Ranks { of, rows };
        ranks.sort(graph);
        ranks
    }

    /// The slots in the rank above (or below) that are connected to `slot`, each with the relative
    /// position (0 to 1) of the edge on it.
    pub(crate) fn neighbours(
        &self,
        graph: &LayoutGraph,
        slot: RankSlot,
        rank: usize,
        above: bool,
    ) -> Vec<(RankSlot, f64)> {
        let mut found = Vec::new();
        for (w, edge) in graph.edges.iter().enumerate() {
            let (Endpoint::Vertex(a), Endpoint::Vertex(b), EdgeKind::Value) = (edge.from, edge.to, edge.kind)
            else {
                continue;
            };
            let touches = match slot {
                RankSlot::Vertex(i) => i == if above { b } else { a },
                RankSlot::Bend(bend) => bend == w,
            };
            if !touches {
                continue;
            }
            let (end, next) = if above { (a, rank.wrapping_sub(1)) } else { (b, rank + 1) };
            let other = if self.of[end] == next { RankSlot::Vertex(end) } else { RankSlot::Bend(w) };
            if self.rows.get(next).is_some_and(|row| row.contains(&other)) {
                found.push((
                    other,
                    if other == RankSlot::Vertex(a) { part(&graph.vertices[a], &edge.label) } else { 0.5 },
                ));
            }
        }
        found
    }

    fn sort(&mut self, graph: &LayoutGraph) {
        // Alternating sweeps down and up. A fixed number, because the order need not converge.
        for sweep in 0..8 {
            let down = sweep % 2 == 0;
            let mut order: Vec<usize> = (0..self.rows.len()).collect();
            if !down {
                order.reverse();
            }
            for rank in order {
                let row = &self.rows[rank];
                let place = |slot: &RankSlot, at: usize| -> f64 {
                    let joined = self.neighbours(graph, *slot, rank, down);
                    let next = if down { rank.wrapping_sub(1) } else { rank + 1 };
                    let places: Vec<f64> = joined
                        .iter()
                        .filter_map(|(other, on)| {
                            let row = self.rows.get(next)?;
                            let at = row.iter().position(|s| s == other)?;
                            // Relative positions, because ranks have different numbers of slots.
                            Some((at as f64 + on) / row.len() as f64)
                        })
                        .collect();
                    let own = (at as f64 + 0.5) / row.len() as f64;
                    // Readers and writers of the KV cache go to the right, next to the cylinders.
                    let aside = if touches_cache(graph, *slot) { 10.0 } else { 0.0 };
                    let mean = places.iter().sum::<f64>() / places.len().max(1) as f64;
                    aside + if places.is_empty() { own } else { mean }
                };
                let mut keyed: Vec<(f64, RankSlot)> =
                    row.iter().enumerate().map(|(at, slot)| (place(slot, at), *slot)).collect();
                // Stable, so equal barycentres keep their order and the drawing is reproducible.
                keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
                self.rows[rank] = keyed.into_iter().map(|(_, slot)| slot).collect();
            }
        }
    }
}

/// The relative position on a vertex where the value of this label leaves.
fn part(vertex: &Vertex, label: &str) -> f64 {
    let at = vertex.parts.iter().position(|part| part == label);
    at.map_or(0.5, |at| (at as f64 + 0.5) / vertex.parts.len() as f64)
}

fn touches_cache(graph: &LayoutGraph, slot: RankSlot) -> bool {
    let RankSlot::Vertex(i) = slot else { return false };
    graph
        .edges
        .iter()
        .any(|w| w.kind == EdgeKind::Cache && (w.from == Endpoint::Vertex(i) || w.to == Endpoint::Vertex(i)))
}

/// The rank of each vertex: below its producers and below all earlier phases.
fn assign(graph: &LayoutGraph) -> Vec<usize> {
    let mut ranks: Vec<usize> = vec![0; graph.vertices.len()];
    // Vertices are in topological order within a phase.
    let mut order: Vec<usize> =
        (0..graph.vertices.len()).filter(|&i| graph.vertices[i].kind != VertexKind::Cylinder).collect();
    // Inputs of the model come before the operations that read them.
    let feeds = |i: usize| graph.edges.iter().any(|edge| edge.from == Endpoint::Vertex(i));
    order.sort_by_key(|&i| (graph.vertices[i].phase, graph.vertices[i].operation.is_some() || !feeds(i)));
    let mut done: Vec<usize> = Vec::new();
    for &i in &order {
        let phase = graph.vertices[i].phase;
        // A phase is drawn as a band, so its vertices must be below all of the earlier bands.
        let base = done.iter().filter(|&&j| graph.vertices[j].phase < phase).map(|&j| ranks[j] + 1);
        let read = graph.edges.iter().filter_map(|edge| match (edge.from, edge.to, edge.kind) {
            (Endpoint::Vertex(a), Endpoint::Vertex(b), EdgeKind::Value) if b == i && done.contains(&a) => {
                Some(ranks[a] + 1)
            }
            _ => None,
        });
        let mut rank = base.chain(read).max().unwrap_or(0);
        // An addition to the residual stream separates the ranks above from those below.
        let sums = done
            .iter()
            .filter(|&&j| graph.vertices[j].kind == VertexKind::Sum && j < i)
            .map(|&j| ranks[j] + 1);
        rank = rank.max(sums.max().unwrap_or(0));
        // A sum is below everything before it, so that the edge to the residual stream crosses
        // nothing.
        if graph.vertices[i].kind == VertexKind::Sum {
            let all = done.iter().filter(|&&j| j < i).map(|&j| ranks[j] + 1);
            rank = rank.max(all.max().unwrap_or(0));
        }
        ranks[i] = rank;
        done.push(i);
    }
    ranks
}
