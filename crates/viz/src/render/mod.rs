//! Renders a layout graph as primitives.

mod edge_labels;
mod edges;
mod vertices;

use crate::layout::{Endpoint, LayoutCoordinates, LayoutGraph, RESIDUAL_X, VertexKind};
use crate::scene::{Primitive, round};
use edges::render_edge;
use vertices::{plus, render_vertex};

pub(crate) struct RenderedBlock {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) primitives: Vec<Primitive>,
}

/// Lays out `graph` and renders it under a header.
pub(crate) fn block(graph: &LayoutGraph, title: &str, subtitle: &str, count: usize) -> RenderedBlock {
    let layout = LayoutCoordinates::new(graph);
    let badge = if count > 1 { format!("{count} ×") } else { String::new() };
    // Estimated text widths: titles and badges must fit even if the graph is narrow.
    let header = title.chars().count() as f64 * 10.5 + badge.chars().count() as f64 * 11.0 + 130.0;
    let width = layout.width.max(header).max(subtitle.chars().count() as f64 * 6.9 + 100.0);
    let mut primitives = Vec::new();
    if count > 1 {
        // Two more cards behind the block show that it repeats.
        for shift in [12.0, 6.0] {
            primitives.push(Primitive::rect((shift, shift, width, layout.height), 16.0, "block stack"));
        }
    }
    primitives.push(Primitive::rect((0.0, 0.0, width, layout.height), 16.0, "block"));
    bands(&layout, width, &mut primitives);
    let left = if graph.has_residual { RESIDUAL_X + 26.0 } else { 22.0 };
    primitives.push(Primitive::text(left, 30.0, title, "block-title"));
    primitives.push(Primitive::text(left, 48.0, subtitle, "block-about"));
    if !badge.is_empty() {
        let wide = badge.chars().count() as f64 * 10.0 + 20.0;
        primitives.push(Primitive::rect((width - wide - 16.0, 12.0, wide, 28.0), 14.0, "badge"));
        primitives.push(Primitive::text(width - 16.0 - wide / 2.0, 31.0, badge, "badge-text middle"));
    }
    if graph.has_residual {
        residual_stream(graph, &layout, &mut primitives);
    }
    for (edge, points) in graph.edges.iter().zip(&layout.edges) {
        render_edge(edge, points, &mut primitives);
    }
    // After edges and before boxes: labels cover edges, and boxes cover nothing of them.
    edge_labels::place(graph, &layout, width, &mut primitives);
    // The embedding's block: no node reads the residual stream before the first write.
    let starts = !graph.edges.iter().any(|edge| edge.from == Endpoint::Residual);
    for (at, y) in layout.sums.iter().enumerate() {
        if starts && at == 0 {
            // The first write starts the residual stream.
            primitives.push(Primitive::rect((RESIDUAL_X - 6.0, y - 6.0, 12.0, 12.0), 6.0, "source"));
        } else {
            plus(RESIDUAL_X, *y, "sum", &mut primitives);
        }
    }
    for (vertex, at) in graph.vertices.iter().zip(&layout.boxes) {
        let mut own = Vec::new();
        render_vertex(vertex, *at, &mut own);
        match vertex.operation {
            Some(operation) => {
                let pale = if vertex.pale { " pale" } else { "" };
                let class = format!("op {}{pale}", vertex.family);
                primitives.push(Primitive::Operation {
                    operation,
                    class,
                    label: vertex.label.clone(),
                    children: own,
                });
            }
            None => primitives.extend(own),
        }
    }
    // Room for the cards behind.
    let stack = if count > 1 { 12.0 } else { 0.0 };
    RenderedBlock { width: round(width + stack), height: round(layout.height + stack), primitives }
}

fn bands(layout: &LayoutCoordinates, width: f64, primitives: &mut Vec<Primitive>) {
    for (i, (top, bottom)) in layout.bands.iter().enumerate() {
        let class = if i % 2 == 0 { "band" } else { "band odd" };
        primitives.push(Primitive::rect((1.0, *top, width - 2.0, bottom - top), 0.0, class));
        primitives.push(Primitive::text(width - 14.0, top + 17.0, format!("phase {i}"), "band-name end"));
        if i > 0 {
            primitives
                .push(Primitive::path(format!("M1 {} H{}", round(*top), round(width - 1.0)), "barrier"));
        }
    }
}

/// The residual stream, from its first write (or the top) to its last read (or the bottom).
fn residual_stream(graph: &LayoutGraph, layout: &LayoutCoordinates, primitives: &mut Vec<Primitive>) {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for (edge, points) in graph.edges.iter().zip(&layout.edges) {
        match (edge.from, edge.to) {
            (Endpoint::Residual, _) => reads.push(points[0].1),
            (_, Endpoint::Residual) => writes.push(points[points.len() - 1].1),
            _ => {}
        }
    }
    let sums = graph.vertices.iter().zip(&layout.boxes).filter(|(vertex, _)| vertex.kind == VertexKind::Sum);
    writes.extend(sums.map(|(_, b)| b.1 + b.3 / 2.0));
    let top = if reads.is_empty() { writes.iter().copied().fold(f64::INFINITY, f64::min) } else { 0.0 };
    let last = reads.iter().copied().fold(0.0, f64::max);
    let bottom = if writes.is_empty() { last } else { layout.height };
    if top.is_finite() && bottom > top {
        primitives.push(Primitive::path(
            format!("M{RESIDUAL_X} {} V{}", round(top), round(bottom)),
            "residual-stream",
        ));
    }
}
