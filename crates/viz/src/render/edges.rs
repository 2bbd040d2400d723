//! Edges as paths: straight with round corners, or curves.

use crate::layout::{EdgeKind, Endpoint, LayoutEdge};
use crate::scene::{Primitive, round};
use std::fmt::Write;

pub(crate) fn render_edge(edge: &LayoutEdge, points: &[(f64, f64)], primitives: &mut Vec<Primitive>) {
    if points.len() < 2 {
        return;
    }
    let straight = straight(edge, points);
    let mut class = match edge.kind {
        EdgeKind::Cache => "edge cache-edge".to_owned(),
        EdgeKind::Value if matches!((edge.from, edge.to), (Endpoint::Vertex(_), Endpoint::Vertex(_))) => {
            "edge".to_owned()
        }
        EdgeKind::Value => "edge residual".to_owned(),
    };
    if edge.pale {
        class.push_str(" pale");
    }
    primitives.push(Primitive::path(if straight { corners(points) } else { curves(points) }, &class));
    let (before, end) = (points[points.len() - 2], points[points.len() - 1]);
    // Direction of the last piece: vertical or horizontal.
    let (dx, dy) = if before.1 == end.1 {
        ((end.0 - before.0).signum(), 0.0)
    } else {
        (0.0, (end.1 - before.1).signum())
    };
    // Ends in a sum symbol, which needs no arrow head.
    if edge.to == Endpoint::Residual {
        return;
    }
    let (x, y) = end;
    let side = |s: f64| (round(x - dx * 8.0 + dy * 4.0 * s), round(y - dy * 8.0 + dx * 4.0 * s));
    let (a, b) = (side(1.0), side(-1.0));
    let head = format!("M{} {} L{} {} L{} {} z", round(x), round(y), a.0, a.1, b.0, b.1);
    primitives.push(Primitive::path(head, &class.replace("edge", "arrow")));
}

/// Whether an edge is drawn as straight pieces instead of curves.
pub(crate) fn straight(edge: &LayoutEdge, points: &[(f64, f64)]) -> bool {
    edge.kind == EdgeKind::Cache
        || matches!((edge.from, edge.to), (Endpoint::Residual, _) | (_, Endpoint::Residual))
        || points.windows(2).any(|p| p[0].1 == p[1].1)
}

/// Straight pieces with rounded corners.
fn corners(points: &[(f64, f64)]) -> String {
    let mut d = format!("M{} {}", round(points[0].0), round(points[0].1));
    for i in 1..points.len() {
        let (px, py) = points[i - 1];
        let (x, y) = points[i];
        if let Some(&(nx, ny)) = points.get(i + 1) {
            // Pieces are horizontal or vertical, so the sum is the length. Not 0, because it
            // divides.
            let length = |ax: f64, ay: f64| (ax.abs() + ay.abs()).max(0.001);
            // At most half of each piece, so that two corners do not overlap.
            let r = 10f64.min(length(x - px, y - py) / 2.0).min(length(nx - x, ny - y) / 2.0);
            let (ux, uy) = ((px - x) / length(px - x, py - y), (py - y) / length(px - x, py - y));
            let (vx, vy) = ((nx - x) / length(nx - x, ny - y), (ny - y) / length(nx - x, ny - y));
            let _ = write!(
                d,
                " L{} {} Q{} {} {} {}",
                round(x + ux * r),
                round(y + uy * r),
                round(x),
                round(y),
                round(x + vx * r),
                round(y + vy * r)
            );
        } else {
            let _ = write!(d, " L{} {}", round(x), round(y));
        }
    }
    d
}

/// Cubic curves that leave and arrive vertically.
fn curves(points: &[(f64, f64)]) -> String {
    let mut d = format!("M{} {}", round(points[0].0), round(points[0].1));
    for pair in points.windows(2) {
        let ((ax, ay), (bx, by)) = (pair[0], pair[1]);
        if (ax - bx).abs() < 0.5 {
            let _ = write!(d, " L{} {}", round(bx), round(by));
        } else {
            let middle = round(f64::midpoint(ay, by));
            let _ = write!(d, " C{} {middle} {} {middle} {} {}", round(ax), round(bx), round(bx), round(by));
        }
    }
    d
}
