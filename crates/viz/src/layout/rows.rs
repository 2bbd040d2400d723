//! Vertical coordinates: ranks, phases, and the KV layers at their side.

use crate::layout::graph::{
    CACHE_CHANNEL, EdgeKind, Endpoint, HEADER, LayoutGraph, VertexKind, WRITE_CHANNEL,
};
use crate::layout::ranks::{RankSlot, Ranks};

/// The gap between two ranks. It is narrower above a rank of small boxes, and wider if the residual
/// stream is written and read in it.
const GAP: f64 = 50.0;
const TIGHT: f64 = 32.0;
const WIDE: f64 = 66.0;

/// Top and height of each rank, and the bottom of the last.
pub(crate) fn rows(graph: &LayoutGraph, ranks: &Ranks, sizes: &[(f64, f64)]) -> (Vec<f64>, Vec<f64>, f64) {
    let count = ranks.rows.len();
    let mut heights: Vec<f64> = vec![0.0; count];
    for (i, vertex) in graph.vertices.iter().enumerate() {
        if vertex.kind != VertexKind::Cylinder {
            heights[ranks.of[i]] = heights[ranks.of[i]].max(sizes[i].1);
        }
    }
    let touching = |rank: usize, reads: bool| {
        graph.edges.iter().any(|edge| match (edge.from, edge.to) {
            (Endpoint::Residual, Endpoint::Vertex(b)) => reads && ranks.of[b] == rank,
            (Endpoint::Vertex(a), Endpoint::Residual) => !reads && ranks.of[a] == rank,
            _ => false,
        })
    };
    let tiny = |rank: usize| {
        ranks.rows[rank].iter().all(|s| match s {
            RankSlot::Vertex(i) => graph.vertices[*i].kind != VertexKind::Card,
            RankSlot::Bend(_) => true,
        })
    };
    let mut tops = Vec::with_capacity(count);
    // A read channel needs room below the header.
    let mut y = HEADER + if count > 0 && touching(0, true) { GAP } else { 22.0 };
    for rank in 0..count {
        tops.push(y);
        y += heights[rank];
        if rank + 1 < count {
            // Both channels are in this gap: the write of the upper rank and the read of the lower
            // one.
            let crowded = touching(rank, false) && touching(rank + 1, true);
            y += if crowded {
                WIDE
            } else if tiny(rank + 1) && !touching(rank + 1, true) {
                TIGHT
            } else {
                GAP
            };
        } else if touching(rank, false) {
            y += WRITE_CHANNEL + 14.0;
        }
    }
    (tops, heights, y)
}

/// Places KV layers to the right of all boxes, halfway between writer and reader but above the
/// reader.
pub(crate) fn kv_layers(
    graph: &LayoutGraph,
    ranks: &Ranks,
    tops: &[f64],
    boxes: &mut [(f64, f64, f64, f64)],
    right: f64,
) -> f64 {
    let mut rightmost = right;
    for (i, vertex) in
        graph.vertices.iter().enumerate().filter(|(_, vertex)| vertex.kind == VertexKind::Cylinder)
    {
        let (w, h) = vertex.size();
        let ends = graph.edges.iter().filter(|edge| edge.kind == EdgeKind::Cache).filter_map(|edge| {
            match (edge.from, edge.to) {
                (Endpoint::Vertex(a), Endpoint::Vertex(b)) if b == i => Some(boxes[a]),
                (Endpoint::Vertex(a), Endpoint::Vertex(b)) if a == i => Some(boxes[b]),
                _ => None,
            }
        });
        let middles: Vec<f64> = ends.map(|b| b.1 + b.3 / 2.0).collect();
        let low = middles.iter().copied().fold(f64::INFINITY, f64::min);
        let high = middles.iter().copied().fold(0.0, f64::max);
        let readers = graph.edges.iter().filter_map(|edge| match (edge.from, edge.to) {
            (Endpoint::Vertex(a), Endpoint::Vertex(b)) if a == i => {
                Some(tops[ranks.of[b]] - CACHE_CHANNEL - 14.0 - h)
            }
            _ => None,
        });
        let lowest = readers.fold(f64::INFINITY, f64::min);
        // Above the reader's channel, so that the edge to it runs downwards.
        boxes[i] = (right + 40.0, (f64::midpoint(low, high) - h / 2.0).min(lowest), w, h);
        rightmost = right + 40.0 + w;
    }
    rightmost
}

pub(crate) fn bands(
    graph: &LayoutGraph,
    ranks: &Ranks,
    tops: &[f64],
    heights: &[f64],
    bottom: f64,
) -> Vec<(f64, f64)> {
    let mut bands = vec![(f64::INFINITY, 0.0f64); graph.phases];
    for (i, vertex) in graph.vertices.iter().enumerate() {
        if vertex.kind == VertexKind::Cylinder {
            continue;
        }
        // Circuits and IRs have no phases, and so no bands.
        if let Some(band) = bands.get_mut(vertex.phase) {
            let rank = ranks.of[i];
            band.0 = band.0.min(tops[rank]);
            band.1 = band.1.max(tops[rank] + heights[rank]);
        }
    }
    // A barrier is in the middle of the gap.
    for i in 1..bands.len() {
        let middle = f64::midpoint(bands[i - 1].1, bands[i].0);
        bands[i - 1].1 = middle;
        bands[i].0 = middle;
    }
    if let Some(first) = bands.first_mut() {
        first.0 = HEADER;
    }
    if let Some(last) = bands.last_mut() {
        last.1 = bottom + 8.0;
    }
    bands
}
