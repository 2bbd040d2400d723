//! Vertices as boxes with text.

use crate::layout::{LINE, STRIP, SUM_RADIUS, Vertex, VertexKind};
use crate::scene::{Primitive, round};

pub(crate) fn plus(x: f64, y: f64, class: &str, primitives: &mut Vec<Primitive>) {
    let r = SUM_RADIUS;
    primitives.push(Primitive::rect((x - r, y - r, 2.0 * r, 2.0 * r), r, class));
    let (left, right, up, down) = (round(x - 5.0), round(x + 5.0), round(y - 5.0), round(y + 5.0));
    primitives
        .push(Primitive::path(format!("M{left} {} H{right} M{} {up} V{down}", round(y), round(x)), "plus"));
}

pub(crate) fn render_vertex(
    vertex: &Vertex,
    (x, y, w, h): (f64, f64, f64, f64),
    primitives: &mut Vec<Primitive>,
) {
    match vertex.kind {
        VertexKind::Sum => plus(x + w / 2.0, y + h / 2.0, "sum shape", primitives),
        VertexKind::Split => {
            primitives.push(Primitive::rect((x, y, w, h), h / 2.0, "pill shape"));
            for (part, (left, right)) in vertex.parts.iter().zip(vertex.part_ends()) {
                primitives.push(Primitive::text(
                    x + f64::midpoint(left, right),
                    y + 16.0,
                    part,
                    "pill-text middle",
                ));
                if left > 0.0 {
                    let d = format!("M{} {} v{h}", round(x + left), round(y));
                    primitives.push(Primitive::path(d, "rule"));
                }
            }
        }
        VertexKind::Pill => {
            primitives.push(Primitive::rect((x, y, w, h), h / 2.0, "pill shape"));
            primitives.push(Primitive::text(x + w / 2.0, y + 16.0, &vertex.title, "pill-text middle"));
        }
        VertexKind::Cylinder => cylinder(vertex, (x, y, w, h), primitives),
        VertexKind::Card => card(vertex, (x, y, w, h), primitives),
    }
}

fn card(vertex: &Vertex, (x, y, w, h): (f64, f64, f64, f64), primitives: &mut Vec<Primitive>) {
    primitives.push(Primitive::rect((x, y, w, h), 9.0, "card shape"));
    // A coloured strip at the left edge, rounded like the card.
    let accent =
        format!("M{} {} a9 9 0 0 0 -9 9 v{} a9 9 0 0 0 9 9 z", round(x + 9.0), round(y), round(h - 18.0));
    primitives.push(Primitive::path(accent, "accent"));
    let mut at = y;
    for line in &vertex.prologue {
        primitives.push(Primitive::text(x + 20.0, at + 14.0, line, "strip"));
        at += STRIP;
        primitives
            .push(Primitive::path(format!("M{} {} H{}", round(x + 9.0), round(at), round(x + w)), "rule"));
    }
    primitives.push(Primitive::text(x + 20.0, at + 21.0, &vertex.title, "title"));
    if let Some(path) = vertex.path {
        primitives.push(Primitive::text(x + w - 10.0, at + 20.0, path, "path end"));
    }
    at += 21.0;
    for line in &vertex.lines {
        at += LINE;
        primitives.push(Primitive::text(x + 20.0, at, line, "line"));
    }
    for line in &vertex.kernels {
        at += LINE;
        primitives.push(Primitive::text(x + 20.0, at, line, "line kernel"));
    }
    let mut bottom = y + h - STRIP * vertex.epilogue.len() as f64;
    for line in &vertex.epilogue {
        primitives.push(Primitive::path(
            format!("M{} {} H{}", round(x + 9.0), round(bottom), round(x + w)),
            "rule",
        ));
        primitives.push(Primitive::text(x + 20.0, bottom + 13.0, line, "strip"));
        bottom += STRIP;
    }
}

fn cylinder(vertex: &Vertex, (x, y, w, h): (f64, f64, f64, f64), primitives: &mut Vec<Primitive>) {
    let (rx, ry) = (w / 2.0, 11.0);
    let body = format!(
        "M{} {} v{} a{rx} {ry} 0 0 0 {w} 0 v{} a{rx} {ry} 0 0 0 -{w} 0 z",
        round(x),
        round(y + ry),
        round(h - 2.0 * ry),
        round(-(h - 2.0 * ry))
    );
    primitives.push(Primitive::path(body, "cylinder"));
    let lid = format!("M{} {} a{rx} {ry} 0 0 0 {w} 0", round(x), round(y + ry));
    primitives.push(Primitive::path(lid, "cylinder-lid"));
    primitives.push(Primitive::text(x + w / 2.0, y + 42.0, &vertex.title, "title middle"));
    for (i, line) in vertex.lines.iter().enumerate() {
        primitives.push(Primitive::text(x + w / 2.0, y + 58.0 + LINE * i as f64, line, "line middle"));
    }
}
