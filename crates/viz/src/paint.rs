//! From a sketch with coordinates to marks.

use crate::labels;
use crate::layout::{Layout, SPINE};
use crate::scene::{Mark, round};
use crate::sketch::{End, Form, Item, Kind, LINE, STRIP, SUM_RADIUS, Sketch, Wire};
use std::fmt::Write;

/// A block's marks with its width and height.
pub(crate) struct Painted {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) marks: Vec<Mark>,
}

/// Lays out and paints `sketch` under a header.
pub(crate) fn block(sketch: &Sketch, title: &str, subtitle: &str, count: usize) -> Painted {
    let layout = Layout::new(sketch);
    let badge = if count > 1 { format!("{count} ×") } else { String::new() };
    let header = title.chars().count() as f64 * 10.5 + badge.chars().count() as f64 * 11.0 + 130.0;
    let width = layout.width.max(header).max(subtitle.chars().count() as f64 * 6.9 + 100.0);
    let mut marks = Vec::new();
    if count > 1 {
        for shift in [12.0, 6.0] {
            marks.push(Mark::rect((shift, shift, width, layout.height), 16.0, "block stack"));
        }
    }
    marks.push(Mark::rect((0.0, 0.0, width, layout.height), 16.0, "block"));
    bands(&layout, width, &mut marks);
    let left = if sketch.spine { SPINE + 26.0 } else { 22.0 };
    marks.push(Mark::text(left, 30.0, title, "block-title"));
    marks.push(Mark::text(left, 48.0, subtitle, "block-about"));
    if !badge.is_empty() {
        let wide = badge.chars().count() as f64 * 10.0 + 20.0;
        marks.push(Mark::rect((width - wide - 16.0, 12.0, wide, 28.0), 14.0, "badge"));
        marks.push(Mark::text(width - 16.0 - wide / 2.0, 31.0, badge, "badge-text middle"));
    }
    if sketch.spine {
        spine(sketch, &layout, &mut marks);
    }
    for (wire, points) in sketch.wires.iter().zip(&layout.wires) {
        paint_wire(wire, points, &mut marks);
    }
    labels::place(sketch, &layout, width, &mut marks);
    let starts = !sketch.wires.iter().any(|wire| wire.from == End::Spine);
    for (at, y) in layout.sums.iter().enumerate() {
        if starts && at == 0 {
            // nothing is there to be added to
            marks.push(Mark::rect((SPINE - 6.0, y - 6.0, 12.0, 12.0), 6.0, "source"));
        } else {
            plus(SPINE, *y, "sum", &mut marks);
        }
    }
    for (item, at) in sketch.items.iter().zip(&layout.boxes) {
        let mut own = Vec::new();
        paint_item(item, *at, &mut own);
        match item.operation {
            Some(operation) => {
                let pale = if item.pale { " pale" } else { "" };
                let class = format!("op {}{pale}", item.family);
                marks.push(Mark::Operation { operation, class, label: item.label.clone(), marks: own });
            }
            None => marks.extend(own),
        }
    }
    let stack = if count > 1 { 12.0 } else { 0.0 };
    Painted { width: round(width + stack), height: round(layout.height + stack), marks }
}

fn bands(layout: &Layout, width: f64, marks: &mut Vec<Mark>) {
    for (i, (top, bottom)) in layout.bands.iter().enumerate() {
        let class = if i % 2 == 0 { "band" } else { "band odd" };
        marks.push(Mark::rect((1.0, *top, width - 2.0, bottom - top), 0.0, class));
        marks.push(Mark::text(width - 14.0, top + 17.0, format!("phase {i}"), "band-name end"));
        if i > 0 {
            marks.push(Mark::path(format!("M1 {} H{}", round(*top), round(width - 1.0)), "barrier"));
        }
    }
}

/// The residual stream: from where it is first written or the top, to where it is last read or the bottom.
fn spine(sketch: &Sketch, layout: &Layout, marks: &mut Vec<Mark>) {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for (wire, points) in sketch.wires.iter().zip(&layout.wires) {
        match (wire.from, wire.to) {
            (End::Spine, _) => reads.push(points[0].1),
            (_, End::Spine) => writes.push(points[points.len() - 1].1),
            _ => {}
        }
    }
    let sums = sketch.items.iter().zip(&layout.boxes).filter(|(item, _)| item.form == Form::Sum);
    writes.extend(sums.map(|(_, b)| b.1 + b.3 / 2.0));
    let top = if reads.is_empty() { writes.iter().copied().fold(f64::INFINITY, f64::min) } else { 0.0 };
    let last = reads.iter().copied().fold(0.0, f64::max);
    let bottom = if writes.is_empty() { last } else { layout.height };
    if top.is_finite() && bottom > top {
        marks.push(Mark::path(format!("M{SPINE} {} V{}", round(top), round(bottom)), "spine"));
    }
}

fn plus(x: f64, y: f64, class: &str, marks: &mut Vec<Mark>) {
    let r = SUM_RADIUS;
    marks.push(Mark::rect((x - r, y - r, 2.0 * r, 2.0 * r), r, class));
    let (left, right, up, down) = (round(x - 5.0), round(x + 5.0), round(y - 5.0), round(y + 5.0));
    marks.push(Mark::path(format!("M{left} {} H{right} M{} {up} V{down}", round(y), round(x)), "plus"));
}

fn paint_item(item: &Item, (x, y, w, h): (f64, f64, f64, f64), marks: &mut Vec<Mark>) {
    match item.form {
        Form::Sum => plus(x + w / 2.0, y + h / 2.0, "sum shape", marks),
        Form::Split => {
            marks.push(Mark::rect((x, y, w, h), h / 2.0, "pill shape"));
            for (part, (left, right)) in item.parts.iter().zip(item.part_ends()) {
                marks.push(Mark::text(x + f64::midpoint(left, right), y + 16.0, part, "pill-text middle"));
                if left > 0.0 {
                    let d = format!("M{} {} v{h}", round(x + left), round(y));
                    marks.push(Mark::path(d, "rule"));
                }
            }
        }
        Form::Pill => {
            marks.push(Mark::rect((x, y, w, h), h / 2.0, "pill shape"));
            marks.push(Mark::text(x + w / 2.0, y + 16.0, &item.title, "pill-text middle"));
        }
        Form::Cylinder => cylinder(item, (x, y, w, h), marks),
        Form::Card => card(item, (x, y, w, h), marks),
    }
}

fn card(item: &Item, (x, y, w, h): (f64, f64, f64, f64), marks: &mut Vec<Mark>) {
    marks.push(Mark::rect((x, y, w, h), 9.0, "card shape"));
    let accent =
        format!("M{} {} a9 9 0 0 0 -9 9 v{} a9 9 0 0 0 9 9 z", round(x + 9.0), round(y), round(h - 18.0));
    marks.push(Mark::path(accent, "accent"));
    let mut at = y;
    for line in &item.before {
        marks.push(Mark::text(x + 20.0, at + 14.0, line, "strip"));
        at += STRIP;
        marks.push(Mark::path(format!("M{} {} H{}", round(x + 9.0), round(at), round(x + w)), "rule"));
    }
    marks.push(Mark::text(x + 20.0, at + 21.0, &item.title, "title"));
    if let Some(lane) = item.lane {
        marks.push(Mark::text(x + w - 10.0, at + 20.0, lane, "lane end"));
    }
    at += 21.0;
    for line in &item.lines {
        at += LINE;
        marks.push(Mark::text(x + 20.0, at, line, "line"));
    }
    for line in &item.fine {
        at += LINE;
        marks.push(Mark::text(x + 20.0, at, line, "line fine"));
    }
    let mut bottom = y + h - STRIP * item.after.len() as f64;
    for line in &item.after {
        marks.push(Mark::path(format!("M{} {} H{}", round(x + 9.0), round(bottom), round(x + w)), "rule"));
        marks.push(Mark::text(x + 20.0, bottom + 13.0, line, "strip"));
        bottom += STRIP;
    }
}

fn cylinder(item: &Item, (x, y, w, h): (f64, f64, f64, f64), marks: &mut Vec<Mark>) {
    let (rx, ry) = (w / 2.0, 11.0);
    let body = format!(
        "M{} {} v{} a{rx} {ry} 0 0 0 {w} 0 v{} a{rx} {ry} 0 0 0 -{w} 0 z",
        round(x),
        round(y + ry),
        round(h - 2.0 * ry),
        round(-(h - 2.0 * ry))
    );
    marks.push(Mark::path(body, "cylinder"));
    let lid = format!("M{} {} a{rx} {ry} 0 0 0 {w} 0", round(x), round(y + ry));
    marks.push(Mark::path(lid, "cylinder-lid"));
    marks.push(Mark::text(x + w / 2.0, y + 42.0, &item.title, "title middle"));
    for (i, line) in item.lines.iter().enumerate() {
        marks.push(Mark::text(x + w / 2.0, y + 58.0 + LINE * i as f64, line, "line middle"));
    }
}

fn paint_wire(wire: &Wire, points: &[(f64, f64)], marks: &mut Vec<Mark>) {
    if points.len() < 2 {
        return;
    }
    let straight = straight(wire, points);
    let mut class = match wire.kind {
        Kind::Cache => "wire cache-wire".to_owned(),
        Kind::Value if matches!((wire.from, wire.to), (End::Item(_), End::Item(_))) => "wire".to_owned(),
        Kind::Value => "wire residual".to_owned(),
    };
    if wire.pale {
        class.push_str(" pale");
    }
    marks.push(Mark::path(if straight { corners(points) } else { curves(points) }, &class));
    let (before, end) = (points[points.len() - 2], points[points.len() - 1]);
    // the way of the last piece: downwards, or level
    let (dx, dy) = if before.1 == end.1 {
        ((end.0 - before.0).signum(), 0.0)
    } else {
        (0.0, (end.1 - before.1).signum())
    };
    if wire.to == End::Spine {
        return;
    }
    let (x, y) = end;
    let side = |s: f64| (round(x - dx * 8.0 + dy * 4.0 * s), round(y - dy * 8.0 + dx * 4.0 * s));
    let (a, b) = (side(1.0), side(-1.0));
    let head = format!("M{} {} L{} {} L{} {} z", round(x), round(y), a.0, a.1, b.0, b.1);
    marks.push(Mark::path(head, &class.replace("wire", "head")));
}

/// Whether a wire is drawn in straight pieces; others are curves.
pub(crate) fn straight(wire: &Wire, points: &[(f64, f64)]) -> bool {
    wire.kind == Kind::Cache
        || matches!((wire.from, wire.to), (End::Spine, _) | (_, End::Spine))
        || points.windows(2).any(|p| p[0].1 == p[1].1)
}

/// Straight pieces with round corners.
fn corners(points: &[(f64, f64)]) -> String {
    let mut d = format!("M{} {}", round(points[0].0), round(points[0].1));
    for i in 1..points.len() {
        let (px, py) = points[i - 1];
        let (x, y) = points[i];
        if let Some(&(nx, ny)) = points.get(i + 1) {
            let length = |ax: f64, ay: f64| (ax.abs() + ay.abs()).max(0.001);
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

/// Curves that leave and arrive downwards.
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
