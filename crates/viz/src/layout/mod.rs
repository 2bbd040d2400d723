//! Layered graph drawing (Sugiyama): ranks by dataflow, order by barycentres, coordinates, routes
//! of edges.

mod columns;
mod graph;
mod ranks;
mod routing;
mod rows;

pub(crate) use graph::{
    EdgeKind, Endpoint, LINE, LayoutEdge, LayoutGraph, RESIDUAL_X, STRIP, SUM_RADIUS, Vertex, VertexKind,
};

use columns::columns;
use ranks::{RankSlot, Ranks};
use rows::{bands, kv_layers, rows};

/// Left margin, with a residual stream and without.
const LEFT: f64 = 96.0;
const LEFT_ALONE: f64 = 28.0;

/// The coordinates of a layout graph.
pub(crate) struct LayoutCoordinates {
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// Left, top, width and height per vertex.
    pub(crate) boxes: Vec<(f64, f64, f64, f64)>,
    /// The polyline of each edge.
    pub(crate) edges: Vec<Vec<(f64, f64)>>,
    /// Top and bottom per phase.
    pub(crate) bands: Vec<(f64, f64)>,
    /// The y coordinates of fused additions to the residual stream, which have no vertex.
    pub(crate) sums: Vec<f64>,
}

impl LayoutCoordinates {
    pub(crate) fn new(graph: &LayoutGraph) -> LayoutCoordinates {
        let ranks = Ranks::new(graph);
        let sizes: Vec<(f64, f64)> = graph.vertices.iter().map(Vertex::size).collect();
        let centres = columns(graph, &ranks, &sizes);
        let left = if graph.has_residual { LEFT } else { LEFT_ALONE };
        // Rows need no columns, so both coordinates are independent until edges are routed.
        let (tops, heights, bottom) = rows(graph, &ranks, &sizes);
        let mut boxes = vec![(0.0, 0.0, 0.0, 0.0); graph.vertices.len()];
        let mut bends = vec![Vec::new(); graph.edges.len()];
        let mut right: f64 = left + 160.0;
        for (rank, row) in ranks.rows.iter().enumerate() {
            for (at, slot) in row.iter().enumerate() {
                let x = left + centres[rank][at];
                let middle = tops[rank] + heights[rank] / 2.0;
                match *slot {
                    RankSlot::Vertex(i) => {
                        let (w, h) = sizes[i];
                        boxes[i] = (x - w / 2.0, middle - h / 2.0, w, h);
                        right = right.max(x + w / 2.0);
                    }
                    RankSlot::Bend(edge) => {
                        // Two points per bend: the edge passes the rank vertically.
                        bends[edge].push((x, tops[rank]));
                        bends[edge].push((x, tops[rank] + heights[rank]));
                    }
                }
            }
        }
        for (i, vertex) in
            graph.vertices.iter().enumerate().filter(|(_, vertex)| vertex.kind == VertexKind::Sum)
        {
            let rank = ranks.of[i];
            let (w, h) = vertex.size();
            // Additions stand on the residual stream, outside of the columns.
            boxes[i] = (RESIDUAL_X - w / 2.0, tops[rank] + (heights[rank] - h) / 2.0, w, h);
        }
        // After all boxes, because cylinders are placed to their right.
        right = kv_layers(graph, &ranks, &tops, &mut boxes, right);
        let bands = bands(graph, &ranks, &tops, &heights, bottom);
        let (edges, sums) = routing::route(graph, &boxes, bends);
        LayoutCoordinates { width: right + 78.0, height: bottom + 26.0, boxes, edges, bands, sums }
    }
}
