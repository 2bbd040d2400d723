//! Edges as polylines: through the bends of their ranks, or along channels at the sides of a rank.

use crate::layout::graph::{
    CACHE_CHANNEL, EdgeKind, Endpoint, LayoutEdge, LayoutGraph, RESIDUAL_X, VertexKind, WRITE_CHANNEL,
};

/// From the channel of the edges that read the residual stream down to their rank.
const READ_CHANNEL: f64 = 18.0;

/// The points of every edge, and the y coordinates of sums onto the residual stream without a
/// vertex (folded residual additions).
pub(crate) fn route(
    graph: &LayoutGraph,
    boxes: &[(f64, f64, f64, f64)],
    bends: Vec<Vec<(f64, f64)>>,
) -> (Vec<Vec<(f64, f64)>>, Vec<f64>) {
    let router = EdgeRouter { graph, boxes };
    let mut sums = Vec::new();
    let edges = bends.into_iter().enumerate().map(|(e, bends)| router.edge(e, bends, &mut sums)).collect();
    (edges, sums)
}

struct EdgeRouter<'a> {
    graph: &'a LayoutGraph,
    boxes: &'a [(f64, f64, f64, f64)],
}

impl EdgeRouter<'_> {
    fn edge(&self, w: usize, bends: Vec<(f64, f64)>, sums: &mut Vec<f64>) -> Vec<(f64, f64)> {
        let edge = &self.graph.edges[w];
        match (edge.from, edge.to) {
            (Endpoint::Vertex(a), Endpoint::Vertex(b)) if edge.kind == EdgeKind::Cache => self.across(a, b),
            (Endpoint::Vertex(a), Endpoint::Vertex(b)) => self.down(w, (a, b), bends),
            (Endpoint::Residual, Endpoint::Vertex(b)) => {
                let x = self.port(b, w, true);
                let top = self.boxes[b].1;
                // Horizontal above the whole rank, where no box is.
                let channel = self.rank_top(b) - READ_CHANNEL;
                vec![(RESIDUAL_X, channel), (x, channel), (x, top)]
            }
            (Endpoint::Vertex(a), Endpoint::Residual) => {
                let x = self.port(a, w, false);
                let bottom = self.boxes[a].1 + self.boxes[a].3;
                let channel = self.rank_bottom(a) + WRITE_CHANNEL;
                // Several writes in one rank share a sum.
                if !sums.contains(&channel) {
                    sums.push(channel);
                }
                vec![(x, bottom), (x, channel), (RESIDUAL_X, channel)]
            }
            (Endpoint::Residual, Endpoint::Residual) => Vec::new(),
        }
    }

    /// From the bottom of one vertex through the edge's bends to the top of the other, or to the
    /// side of a sum.
    fn down(&self, w: usize, (from, to): (usize, usize), bends: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
        let start = (self.port(from, w, false), self.boxes[from].1 + self.boxes[from].3);
        let mut points = vec![start];
        points.extend(bends);
        let last = points[points.len() - 1].0;
        let (left, top, width, height) = self.boxes[to];
        if self.graph.vertices[to].kind == VertexKind::Sum {
            points.extend([(last, top + height / 2.0), (left + width, top + height / 2.0)]);
            return points;
        }
        let alone = self.graph.edges.iter().filter(|edge| edge.to == Endpoint::Vertex(to)).count() == 1;
        // A single incoming edge stays vertical if the box is wide enough.
        let vertical = alone && last > left + 16.0 && last < left + width - 16.0;
        points.push((if vertical { last } else { self.port(to, w, true) }, top));
        points
    }

    /// Top of the tallest box in the rank of `vertex`.
    fn rank_top(&self, vertex: usize) -> f64 {
        self.same_rank(vertex).map(|b| b.1).fold(f64::INFINITY, f64::min)
    }

    fn rank_bottom(&self, vertex: usize) -> f64 {
        self.same_rank(vertex).map(|b| b.1 + b.3).fold(0.0, f64::max)
    }

    /// The boxes of a vertex's rank: those with the same vertical centre.
    fn same_rank(&self, vertex: usize) -> impl Iterator<Item = &(f64, f64, f64, f64)> {
        let middle = |b: &(f64, f64, f64, f64)| b.1 + b.3 / 2.0;
        let level = middle(&self.boxes[vertex]);
        let all = self.boxes.iter().enumerate();
        all.filter(move |(i, b)| self.graph.vertices[*i].takes_slot() && (middle(b) - level).abs() < 0.5)
            .map(|(_, b)| b)
    }

    /// The x coordinate where edge `w` meets `vertex`. Ports are spread evenly, in the order of the
    /// other ends.
    fn port(&self, vertex: usize, w: usize, incoming: bool) -> f64 {
        let (x, _, width, _) = self.boxes[vertex];
        if !incoming && self.graph.vertices[vertex].kind == VertexKind::Split {
            let ends = self.graph.vertices[vertex].part_ends();
            // A split has one segment per output, and each edge leaves its own segment.
            let part =
                self.graph.vertices[vertex].parts.iter().position(|part| *part == self.graph.edges[w].label);
            return part.map_or(x + width / 2.0, |p| x + f64::midpoint(ends[p].0, ends[p].1));
        }
        let other = |edge: &LayoutEdge| -> Option<f64> {
            let (here, there) = if incoming { (edge.to, edge.from) } else { (edge.from, edge.to) };
            if here != Endpoint::Vertex(vertex) || edge.kind == EdgeKind::Cache {
                return None;
            }
            Some(match there {
                Endpoint::Vertex(i) => self.boxes[i].0 + self.boxes[i].2 / 2.0,
                Endpoint::Residual => RESIDUAL_X,
            })
        };
        // One port per value, for any number of consumers.
        let key = |i: usize| if incoming { String::new() } else { self.graph.edges[i].label.clone() };
        let mut ports: Vec<(f64, usize)> = Vec::new();
        for (i, edge) in self.graph.edges.iter().enumerate() {
            if let Some(at) = other(edge) {
                let twin = ports.iter().position(|(_, j)| !incoming && key(*j) == key(i));
                if twin.is_none() {
                    ports.push((at, i));
                }
            }
        }
        ports.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mine = ports.iter().position(|(_, j)| *j == w || (!incoming && key(*j) == key(w))).unwrap_or(0);
        x + width * (mine + 1) as f64 / (ports.len() + 1) as f64
    }

    /// From a store into the KV layer, or from the KV layer to a reader.
    fn across(&self, from: usize, to: usize) -> Vec<(f64, f64)> {
        let (a, b) = (self.boxes[from], self.boxes[to]);
        if self.graph.vertices[to].kind == VertexKind::Cylinder {
            let y = a.1 + a.3 / 2.0;
            let x = b.0 + b.2 / 2.0;
            // The store is above the cylinder: enter through its lid. Otherwise enter from the
            // side.
            if y < b.1 - 4.0 {
                vec![(a.0 + a.2, y), (x, y), (x, b.1)]
            } else {
                vec![(a.0 + a.2, y), (b.0, y)]
            }
        } else {
            // Through the gap above the rank.
            let channel = self.rank_top(to) - CACHE_CHANNEL;
            // Near the right edge of the reader, away from the ports of its other inputs.
            let (x, end) = (a.0 + a.2 / 2.0, b.0 + b.2 - 22.0);
            vec![(x, a.1 + a.3), (x, channel), (end, channel), (end, b.1)]
        }
    }
}
