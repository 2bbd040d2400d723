//! Labels of edges, placed where they overlap no edge, box or other label.

use crate::layout::{EdgeKind, Endpoint, LayoutCoordinates, LayoutEdge, LayoutGraph, VertexKind};
use crate::render::edges::straight;
use crate::scene::Primitive;

/// Character width of a label, and its extent above and below the baseline.
const CHARACTER: f64 = 6.35;
const ABOVE: f64 = 9.0;
const BELOW: f64 = 3.0;
/// From the start of an edge down to the first baseline, and the line height.
const FIRST: f64 = 14.0;
const LINE: f64 = 12.0;
/// The smallest distance between a label and its edge.
const NEAR: f64 = 6.0;
/// Samples per piece of an edge.
const SAMPLES: usize = 40;

/// A rectangle: left, top, right, bottom.
#[derive(Clone, Copy)]
struct Area(f64, f64, f64, f64);

impl Area {
    fn contains(&self, (x, y): (f64, f64)) -> bool {
        self.0 < x && x < self.2 && self.1 < y && y < self.3
    }

    fn union(self, other: Area) -> Area {
        Area(self.0.min(other.0), self.1.min(other.1), self.2.max(other.2), self.3.max(other.3))
    }

    fn overlaps(&self, other: &Area) -> bool {
        self.0 < other.2 && other.0 < self.2 && self.1 < other.3 && other.1 < self.3
    }
}

/// A candidate position: anchor, alignment, and penalty against the preferred position.
struct LabelCandidate {
    x: f64,
    y: f64,
    ends: bool,
    /// The x coordinate of its edge.
    edge_x: f64,
    penalty: f64,
}

/// Places the name and shape of each value next to the start of its edge. The first of several
/// outputs of a vertex goes left of its edge and the others right, one per line, unless another
/// candidate position overlaps less. A split labels its outputs itself.
pub(crate) fn place(
    graph: &LayoutGraph,
    layout: &LayoutCoordinates,
    width: f64,
    primitives: &mut Vec<Primitive>,
) {
    let edges: Vec<Vec<(f64, f64)>> =
        graph.edges.iter().zip(&layout.edges).map(|(edge, points)| samples(edge, points)).collect();
    // Placed labels are added, so that later ones avoid them.
    let mut taken: Vec<Area> = layout.boxes.iter().map(|b| Area(b.0, b.1, b.0 + b.2, b.1 + b.3)).collect();
    for (i, _) in graph.vertices.iter().enumerate().filter(|(_, vertex)| vertex.kind != VertexKind::Split) {
        let ports = ports(graph, layout, i);
        for (at, &(points, edge)) in ports.iter().enumerate() {
            let (x, y) = points[0];
            let ends = at == 0 && ports.len() > 1;
            let line = if ports.len() > 1 { at.saturating_sub(1) } else { 0 };
            let long = edge.label.chars().count() as f64 * CHARACTER;
            let candidates = candidates(points, ends, line);
            // Only samples near the candidates are compared: a block can have a hundred edges of
            // many samples each.
            let reach =
                candidates.iter().map(|candidate| area(candidate, long)).fold(Area(x, y, x, y), Area::union);
            // The nearby samples of each edge, and whether it carries the same value.
            let near = |(other, points): (&LayoutEdge, &Vec<(f64, f64)>)| -> (bool, Vec<(f64, f64)>) {
                let same = other.from == edge.from && other.label == edge.label;
                (same, points.iter().copied().filter(|point| reach.contains(*point)).collect())
            };
            let edges: Vec<_> = graph.edges.iter().zip(&edges).map(near).collect();
            let cost = |candidate: &LabelCandidate| {
                let area = area(candidate, long);
                // An edge between a label and its own edge would seem to have that label.
                let between =
                    Area(area.0.min(candidate.edge_x), area.1, area.2.max(candidate.edge_x), area.3);
                let crosses = |(same, points): &&(bool, Vec<(f64, f64)>)| {
                    let area = if *same { &area } else { &between };
                    points.iter().any(|point| area.contains(*point))
                };
                let crossed = edges.iter().filter(crosses).count();
                let covered = taken.iter().filter(|other| area.overlaps(other)).count();
                // A label outside of the block would be cut off.
                let outside = usize::from(area.0 < 4.0 || area.2 > width - 4.0);
                // Covering a box or another label is worse than crossing an edge, and both outweigh
                // any preference.
                candidate.penalty + 4.0 * crossed as f64 + 20.0 * (covered + outside) as f64
            };
            let costs = candidates.iter().map(|candidate| (cost(candidate), candidate));
            let Some((_, best)) = costs.min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
            taken.push(area(best, long));
            let end = if best.ends { " end" } else { "" };
            let pale = if edge.pale { " pale" } else { "" };
            primitives.push(Primitive::text(best.x, best.y, &edge.label, &format!("value{end}{pale}")));
        }
    }
}

/// The labelled values that leave a vertex, from left to right.
fn ports<'a>(
    graph: &'a LayoutGraph,
    layout: &'a LayoutCoordinates,
    vertex: usize,
) -> Vec<(&'a [(f64, f64)], &'a LayoutEdge)> {
    let mut ports: Vec<(&[(f64, f64)], &LayoutEdge)> = Vec::new();
    for (edge, points) in graph.edges.iter().zip(&layout.edges) {
        let known = ports.iter().any(|(_, other)| other.label == edge.label);
        if edge.from == Endpoint::Vertex(vertex)
            && edge.kind == EdgeKind::Value
            && !edge.label.is_empty()
            && !known
        {
            ports.push((points, edge));
        }
    }
    ports.sort_by(|a, b| a.0[0].0.total_cmp(&b.0[0].0));
    ports
}

/// Candidates by preference: the preferred side, the other side, farther away, a line up or down,
/// and next to vertical pieces after a bend.
fn candidates(points: &[(f64, f64)], ends: bool, line: usize) -> Vec<LabelCandidate> {
    let (x, y) = points[0];
    let mut candidates = Vec::new();
    for (other, side) in [ends, !ends].into_iter().enumerate() {
        for (step, away) in [NEAR, 16.0, 28.0, 42.0].into_iter().enumerate() {
            for (rank, at) in [line, 1 - line.min(1), 2].into_iter().enumerate() {
                let edge_x = x;
                let x = if side { x - away } else { x + away };
                let penalty = other as f64 * 0.5 + step as f64 * 0.4 + rank as f64 * 0.6;
                candidates.push(LabelCandidate {
                    x,
                    y: y + FIRST + LINE * at as f64,
                    ends: side,
                    edge_x,
                    penalty,
                });
            }
        }
    }
    // After the first bend, where a long edge may have more room.
    for pair in points.windows(2).skip(1).filter(|pair| pair[0].0 == pair[1].0) {
        for (other, side) in [ends, !ends].into_iter().enumerate() {
            let x = if side { pair[0].0 - NEAR } else { pair[0].0 + NEAR };
            for (rank, down) in [FIRST, FIRST + LINE].into_iter().enumerate() {
                let penalty = 1.0 + other as f64 * 0.5 + rank as f64 * 0.6;
                candidates.push(LabelCandidate {
                    x,
                    y: pair[0].1 + down,
                    ends: side,
                    edge_x: pair[0].0,
                    penalty,
                });
            }
        }
    }
    candidates
}

fn area(candidate: &LabelCandidate, long: f64) -> Area {
    let left = if candidate.ends { candidate.x - long } else { candidate.x };
    Area(left - 1.0, candidate.y - ABOVE, left + long + 1.0, candidate.y + BELOW)
}

/// Samples along an edge as it is rendered.
fn samples(edge: &LayoutEdge, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let level = straight(edge, points);
    let mut found = Vec::new();
    for pair in points.windows(2) {
        let ((ax, ay), (bx, by)) = (pair[0], pair[1]);
        for step in 0..=SAMPLES {
            let t = step as f64 / SAMPLES as f64;
            // The cubic leaves and arrives vertically.
            let side = if level { t } else { t * t * (3.0 - 2.0 * t) };
            let down = if level { t } else { 1.5 * t * (1.0 - t) + t * t * t };
            found.push((ax + (bx - ax) * side, ay + (by - ay) * down));
        }
    }
    found
}
