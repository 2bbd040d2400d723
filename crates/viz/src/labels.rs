//! Names of values beside their wires, where no wire, box or other name is in the way.

use crate::layout::Layout;
use crate::paint::straight;
use crate::scene::Mark;
use crate::sketch::{End, Form, Kind, Sketch, Wire};

/// Width of a character of these names, and how far one reaches above and below its baseline.
const CHARACTER: f64 = 6.35;
const ABOVE: f64 = 9.0;
const BELOW: f64 = 3.0;
/// From the beginning of a wire down to the baseline, and from line to line.
const FIRST: f64 = 14.0;
const LINE: f64 = 12.0;
/// The nearest that a name stands to its wire.
const NEAR: f64 = 6.0;
/// Points between the bends of a wire at which it is looked at.
const SAMPLES: usize = 40;

/// A rectangle: left, top, right, bottom.
#[derive(Clone, Copy)]
struct Area(f64, f64, f64, f64);

impl Area {
    fn has(&self, (x, y): (f64, f64)) -> bool {
        self.0 < x && x < self.2 && self.1 < y && y < self.3
    }

    fn around(self, other: Area) -> Area {
        Area(self.0.min(other.0), self.1.min(other.1), self.2.max(other.2), self.3.max(other.3))
    }

    fn meets(&self, other: &Area) -> bool {
        self.0 < other.2 && other.0 < self.2 && self.1 < other.3 && other.1 < self.3
    }
}

/// Where a name may stand: its anchor, whether it ends there, and how much worse that is than the usual place.
struct Place {
    x: f64,
    y: f64,
    ends: bool,
    /// Where its wire is.
    beside: f64,
    worse: f64,
}

/// Each value's name and shape beside the beginning of its wire. Of several values that an item makes, the first stands left of
/// its wire and the others right, on lines of their own; where something is in the way there, elsewhere nearby. A split says its
/// values itself.
pub(crate) fn place(sketch: &Sketch, layout: &Layout, width: f64, marks: &mut Vec<Mark>) {
    let wires: Vec<Vec<(f64, f64)>> =
        sketch.wires.iter().zip(&layout.wires).map(|(wire, points)| samples(wire, points)).collect();
    let mut taken: Vec<Area> = layout.boxes.iter().map(|b| Area(b.0, b.1, b.0 + b.2, b.1 + b.3)).collect();
    for (i, _) in sketch.items.iter().enumerate().filter(|(_, item)| item.form != Form::Split) {
        let ports = ports(sketch, layout, i);
        for (at, &(points, wire)) in ports.iter().enumerate() {
            let (x, y) = points[0];
            let ends = at == 0 && ports.len() > 1;
            let line = if ports.len() > 1 { at.saturating_sub(1) } else { 0 };
            let long = wire.label.chars().count() as f64 * CHARACTER;
            let places = places(points, ends, line);
            let reach = places.iter().map(|place| area(place, long)).fold(Area(x, y, x, y), Area::around);
            // points nearby of each wire, and whether it carries the same value
            let near = |(other, points): (&Wire, &Vec<(f64, f64)>)| -> (bool, Vec<(f64, f64)>) {
                let same = other.from == wire.from && other.label == wire.label;
                (same, points.iter().copied().filter(|point| reach.has(*point)).collect())
            };
            let wires: Vec<_> = sketch.wires.iter().zip(&wires).map(near).collect();
            let cost = |place: &Place| {
                let area = area(place, long);
                // what runs between a name and its wire would seem to be called so
                let between = Area(area.0.min(place.beside), area.1, area.2.max(place.beside), area.3);
                let crosses = |(same, points): &&(bool, Vec<(f64, f64)>)| {
                    let area = if *same { &area } else { &between };
                    points.iter().any(|point| area.has(*point))
                };
                let crossed = wires.iter().filter(crosses).count();
                let covered = taken.iter().filter(|other| area.meets(other)).count();
                let outside = usize::from(area.0 < 4.0 || area.2 > width - 4.0);
                place.worse + 4.0 * crossed as f64 + 20.0 * (covered + outside) as f64
            };
            let Some(best) = places.iter().min_by(|a, b| cost(a).total_cmp(&cost(b))) else { continue };
            taken.push(area(best, long));
            let end = if best.ends { " end" } else { "" };
            let pale = if wire.pale { " pale" } else { "" };
            marks.push(Mark::text(best.x, best.y, &wire.label, &format!("value{end}{pale}")));
        }
    }
}

/// Where the named values of an item leave it, from left to right.
fn ports<'a>(sketch: &'a Sketch, layout: &'a Layout, item: usize) -> Vec<(&'a [(f64, f64)], &'a Wire)> {
    let mut ports: Vec<(&[(f64, f64)], &Wire)> = Vec::new();
    for (wire, points) in sketch.wires.iter().zip(&layout.wires) {
        let known = ports.iter().any(|(_, other)| other.label == wire.label);
        if wire.from == End::Item(item) && wire.kind == Kind::Value && !wire.label.is_empty() && !known {
            ports.push((points, wire));
        }
    }
    ports.sort_by(|a, b| a.0[0].0.total_cmp(&b.0[0].0));
    ports
}

/// The usual place first, then others: the other side, further away, a line up or down, and where the wire runs down behind a bend.
fn places(points: &[(f64, f64)], ends: bool, line: usize) -> Vec<Place> {
    let (x, y) = points[0];
    let mut places = Vec::new();
    for (other, side) in [ends, !ends].into_iter().enumerate() {
        for (step, away) in [NEAR, 16.0, 28.0, 42.0].into_iter().enumerate() {
            for (rank, at) in [line, 1 - line.min(1), 2].into_iter().enumerate() {
                let beside = x;
                let x = if side { x - away } else { x + away };
                let worse = other as f64 * 0.5 + step as f64 * 0.4 + rank as f64 * 0.6;
                places.push(Place { x, y: y + FIRST + LINE * at as f64, ends: side, beside, worse });
            }
        }
    }
    for pair in points.windows(2).skip(1).filter(|pair| pair[0].0 == pair[1].0) {
        for (other, side) in [ends, !ends].into_iter().enumerate() {
            let x = if side { pair[0].0 - NEAR } else { pair[0].0 + NEAR };
            for (rank, down) in [FIRST, FIRST + LINE].into_iter().enumerate() {
                let worse = 1.0 + other as f64 * 0.5 + rank as f64 * 0.6;
                places.push(Place { x, y: pair[0].1 + down, ends: side, beside: pair[0].0, worse });
            }
        }
    }
    places
}

fn area(place: &Place, long: f64) -> Area {
    let left = if place.ends { place.x - long } else { place.x };
    Area(left - 1.0, place.y - ABOVE, left + long + 1.0, place.y + BELOW)
}

/// Points along a wire as it is painted.
fn samples(wire: &Wire, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let level = straight(wire, points);
    let mut found = Vec::new();
    for pair in points.windows(2) {
        let ((ax, ay), (bx, by)) = (pair[0], pair[1]);
        for step in 0..=SAMPLES {
            let t = step as f64 / SAMPLES as f64;
            // a curve that leaves and arrives downwards bends between both ends' columns
            let side = if level { t } else { t * t * (3.0 - 2.0 * t) };
            let down = if level { t } else { 1.5 * t * (1.0 - t) + t * t * t };
            found.push((ax + (bx - ax) * side, ay + (by - ay) * down));
        }
    }
    found
}
