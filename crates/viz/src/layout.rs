//! From ranks to coordinates: rows of boxes under one another, the residual stream to their left, cache streams to their right.

use crate::ranks::{Ranks, Slot};
use crate::sketch::{End, Form, Item, Kind, Sketch, Wire};

/// Where the residual stream runs.
pub(crate) const SPINE: f64 = 44.0;
/// Left end of the boxes, with a residual stream and without.
const LEFT: f64 = 96.0;
const LEFT_ALONE: f64 = 28.0;
/// Height of the header over a block.
pub(crate) const HEADER: f64 = 58.0;
/// Between boxes of a rank, and between ranks.
const BETWEEN: f64 = 30.0;
const GAP: f64 = 50.0;
const TIGHT: f64 = 32.0;
const WIDE: f64 = 66.0;
/// From a rank to the lane of what is added to the residual stream, and from the lane of what reads it to the rank.
const WRITE_LANE: f64 = 20.0;
const READ_LANE: f64 = 18.0;
/// From the lane of what the cache is read by to the rank.
const CACHE_LANE: f64 = 15.0;

/// Coordinates of a sketch.
pub(crate) struct Layout {
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// Left, top, width and height of each item.
    pub(crate) boxes: Vec<(f64, f64, f64, f64)>,
    /// The points of each wire.
    pub(crate) wires: Vec<Vec<(f64, f64)>>,
    /// Top and bottom of each phase.
    pub(crate) bands: Vec<(f64, f64)>,
    /// Where sums onto the residual stream lie that have no item of their own.
    pub(crate) sums: Vec<f64>,
}

impl Layout {
    pub(crate) fn new(sketch: &Sketch) -> Layout {
        let ranks = Ranks::new(sketch);
        let sizes: Vec<(f64, f64)> = sketch.items.iter().map(Item::size).collect();
        let centres = columns(sketch, &ranks, &sizes);
        let left = if sketch.spine { LEFT } else { LEFT_ALONE };
        let (tops, heights, bottom) = rows(sketch, &ranks, &sizes);
        let mut boxes = vec![(0.0, 0.0, 0.0, 0.0); sketch.items.len()];
        let mut bends = vec![Vec::new(); sketch.wires.len()];
        let mut right: f64 = left + 160.0;
        for (rank, row) in ranks.rows.iter().enumerate() {
            for (at, slot) in row.iter().enumerate() {
                let x = left + centres[rank][at];
                let middle = tops[rank] + heights[rank] / 2.0;
                match *slot {
                    Slot::Item(i) => {
                        let (w, h) = sizes[i];
                        boxes[i] = (x - w / 2.0, middle - h / 2.0, w, h);
                        right = right.max(x + w / 2.0);
                    }
                    Slot::Bend(wire) => {
                        bends[wire].push((x, tops[rank]));
                        bends[wire].push((x, tops[rank] + heights[rank]));
                    }
                }
            }
        }
        for (i, item) in sketch.items.iter().enumerate().filter(|(_, item)| item.form == Form::Sum) {
            let rank = ranks.of[i];
            let (w, h) = item.size();
            boxes[i] = (SPINE - w / 2.0, tops[rank] + (heights[rank] - h) / 2.0, w, h);
        }
        right = cylinders(sketch, &ranks, &tops, &mut boxes, right);
        let mut layout = Layout {
            width: right + 78.0,
            height: bottom + 26.0,
            bands: bands(sketch, &ranks, &tops, &heights, bottom),
            boxes,
            wires: Vec::new(),
            sums: Vec::new(),
        };
        layout.route(sketch, bends);
        layout
    }

    /// The ways of all wires.
    fn route(&mut self, sketch: &Sketch, bends: Vec<Vec<(f64, f64)>>) {
        for (w, (wire, bends)) in sketch.wires.iter().zip(bends).enumerate() {
            let points = match (wire.from, wire.to) {
                (End::Item(a), End::Item(b)) if wire.kind == Kind::Cache => self.across(sketch, a, b),
                (End::Item(a), End::Item(b)) if sketch.items[b].form == Form::Sum => {
                    let (sx, sy, sw, sh) = self.boxes[b];
                    let start = (self.port(sketch, a, w, false), self.boxes[a].1 + self.boxes[a].3);
                    let mut points = vec![start];
                    points.extend(bends);
                    let x = points[points.len() - 1].0;
                    points.extend([(x, sy + sh / 2.0), (sx + sw, sy + sh / 2.0)]);
                    points
                }
                (End::Item(a), End::Item(b)) => {
                    let start = (self.port(sketch, a, w, false), self.boxes[a].1 + self.boxes[a].3);
                    let mut points = vec![start];
                    points.extend(bends);
                    let (left, top, width, _) = self.boxes[b];
                    let alone = sketch.wires.iter().filter(|wire| wire.to == End::Item(b)).count() == 1;
                    let last = points[points.len() - 1].0;
                    // what comes alone comes straight, where the box is wide enough
                    let x = if alone && last > left + 16.0 && last < left + width - 16.0 {
                        last
                    } else {
                        self.port(sketch, b, w, true)
                    };
                    points.push((x, top));
                    points
                }
                (End::Spine, End::Item(b)) => {
                    let x = self.port(sketch, b, w, true);
                    let top = self.boxes[b].1;
                    let lane = self.rank_top(sketch, b) - READ_LANE;
                    vec![(SPINE, lane), (x, lane), (x, top)]
                }
                (End::Item(a), End::Spine) => {
                    let x = self.port(sketch, a, w, false);
                    let bottom = self.boxes[a].1 + self.boxes[a].3;
                    let lane = self.rank_bottom(sketch, a) + WRITE_LANE;
                    if !self.sums.contains(&lane) {
                        self.sums.push(lane);
                    }
                    vec![(x, bottom), (x, lane), (SPINE, lane)]
                }
                (End::Spine, End::Spine) => Vec::new(),
            };
            self.wires.push(points);
        }
    }

    /// Top of the tallest box beside `item`.
    fn rank_top(&self, sketch: &Sketch, item: usize) -> f64 {
        self.beside(sketch, item).map(|b| b.1).fold(f64::INFINITY, f64::min)
    }

    fn rank_bottom(&self, sketch: &Sketch, item: usize) -> f64 {
        self.beside(sketch, item).map(|b| b.1 + b.3).fold(0.0, f64::max)
    }

    /// Boxes of the same rank: those whose middles are level.
    fn beside<'a>(
        &'a self,
        sketch: &'a Sketch,
        item: usize,
    ) -> impl Iterator<Item = &'a (f64, f64, f64, f64)> {
        let middle = |b: &(f64, f64, f64, f64)| b.1 + b.3 / 2.0;
        let level = middle(&self.boxes[item]);
        let all = self.boxes.iter().enumerate();
        all.filter(move |(i, b)| sketch.items[*i].stands() && (middle(b) - level).abs() < 0.5).map(|(_, b)| b)
    }

    /// Where wire `w` meets `item`: wires of one side are spread over it in the order of their other ends.
    fn port(&self, sketch: &Sketch, item: usize, w: usize, incoming: bool) -> f64 {
        let (x, _, width, _) = self.boxes[item];
        if !incoming && sketch.items[item].form == Form::Split {
            let ends = sketch.items[item].part_ends();
            let part = sketch.items[item].parts.iter().position(|part| *part == sketch.wires[w].label);
            return part.map_or(x + width / 2.0, |p| x + f64::midpoint(ends[p].0, ends[p].1));
        }
        let other = |wire: &Wire| -> Option<f64> {
            let (here, there) = if incoming { (wire.to, wire.from) } else { (wire.from, wire.to) };
            if here != End::Item(item) || wire.kind == Kind::Cache {
                return None;
            }
            Some(match there {
                End::Item(i) => self.boxes[i].0 + self.boxes[i].2 / 2.0,
                End::Spine => SPINE,
            })
        };
        // a value that several read leaves through one port
        let key = |i: usize| if incoming { String::new() } else { sketch.wires[i].label.clone() };
        let mut ports: Vec<(f64, usize)> = Vec::new();
        for (i, wire) in sketch.wires.iter().enumerate() {
            if let Some(at) = other(wire) {
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

    /// From the side of a store into the cylinder, or from the cylinder to the side of what reads it.
    fn across(&self, sketch: &Sketch, from: usize, to: usize) -> Vec<(f64, f64)> {
        let (a, b) = (self.boxes[from], self.boxes[to]);
        if sketch.items[to].form == Form::Cylinder {
            let y = a.1 + a.3 / 2.0;
            let x = b.0 + b.2 / 2.0;
            if y < b.1 - 4.0 {
                vec![(a.0 + a.2, y), (x, y), (x, b.1)]
            } else {
                vec![(a.0 + a.2, y), (b.0, y)]
            }
        } else {
            // in the gap over the rank, where no box stands
            let lane = self.rank_top(sketch, to) - CACHE_LANE;
            let (x, end) = (a.0 + a.2 / 2.0, b.0 + b.2 - 22.0);
            vec![(x, a.1 + a.3), (x, lane), (end, lane), (end, b.1)]
        }
    }
}

/// The centres of the slots of each rank, the leftmost edge of all at 0.
fn columns(sketch: &Sketch, ranks: &Ranks, sizes: &[(f64, f64)]) -> Vec<Vec<f64>> {
    let width = |slot: &Slot| match slot {
        Slot::Item(i) => sizes[*i].0,
        Slot::Bend(_) => 12.0,
    };
    let mut centres: Vec<Vec<f64>> = ranks
        .rows
        .iter()
        .map(|row| {
            let total: f64 = row.iter().map(|s| width(s) + BETWEEN).sum();
            let mut at = -total / 2.0;
            row.iter()
                .map(|slot| {
                    let centre = at + (width(slot) + BETWEEN) / 2.0;
                    at += width(slot) + BETWEEN;
                    centre
                })
                .collect()
        })
        .collect();
    for sweep in 0..12 {
        let down = sweep % 2 == 0;
        let order: Vec<usize> =
            if down { (0..centres.len()).collect() } else { (0..centres.len()).rev().collect() };
        for rank in order {
            let row = &ranks.rows[rank];
            let wanted: Vec<f64> = row
                .iter()
                .enumerate()
                .map(|(at, slot)| {
                    let mut places = Vec::new();
                    for above in [true, false] {
                        let next = if above { rank.wrapping_sub(1) } else { rank + 1 };
                        for (other, _) in ranks.neighbours(sketch, *slot, rank, above) {
                            if let Some(p) = ranks.rows[next].iter().position(|s| *s == other) {
                                places.push(centres[next][p]);
                            }
                        }
                    }
                    let mean = places.iter().sum::<f64>() / places.len().max(1) as f64;
                    if places.is_empty() { centres[rank][at] } else { mean }
                })
                .collect();
            let widths: Vec<f64> = row.iter().map(width).collect();
            centres[rank] = apart(&wanted, &widths);
        }
    }
    straighten(sketch, ranks, &mut centres, &width);
    let edge = centres
        .iter()
        .zip(&ranks.rows)
        .flat_map(|(row, slots)| row.iter().zip(slots).map(|(x, slot)| x - width(slot) / 2.0))
        .fold(f64::INFINITY, f64::min);
    let edge = if edge.is_finite() { edge } else { 0.0 };
    centres.iter_mut().flatten().for_each(|x| *x -= edge);
    centres
}

/// Puts the bends of a long wire under one another: below its beginning or above its end, where there is room.
fn straighten(sketch: &Sketch, ranks: &Ranks, centres: &mut [Vec<f64>], width: &dyn Fn(&Slot) -> f64) {
    for (w, wire) in sketch.wires.iter().enumerate() {
        let (End::Item(a), End::Item(b)) = (wire.from, wire.to) else { continue };
        let at = |rank: usize, slot: Slot| ranks.rows[rank].iter().position(|s| *s == slot);
        let bends: Vec<(usize, usize)> = (ranks.of[a] + 1..ranks.of[b])
            .filter_map(|rank| Some((rank, at(rank, Slot::Bend(w))?)))
            .collect();
        if bends.is_empty() {
            continue;
        }
        let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
        for &(rank, place) in &bends {
            let row = &ranks.rows[rank];
            let room = |other: usize| (width(&row[other]) + width(&row[place])) / 2.0 + 8.0;
            if place > 0 {
                low = low.max(centres[rank][place - 1] + room(place - 1));
            }
            if place + 1 < row.len() {
                high = high.min(centres[rank][place + 1] - room(place + 1));
            }
        }
        if low > high {
            continue;
        }
        let end = |item: usize| at(ranks.of[item], Slot::Item(item)).map(|p| centres[ranks.of[item]][p]);
        let near = |x: f64| (x - x.clamp(low, high)).abs();
        let ends: Vec<f64> = [end(b), end(a)].into_iter().flatten().collect();
        let Some(best) = ends.into_iter().min_by(|x, y| near(*x).total_cmp(&near(*y))) else { continue };
        for (rank, place) in bends {
            centres[rank][place] = best.clamp(low, high);
        }
    }
}

/// The places nearest to the wanted ones (in squares) that keep order and distance: isotonic regression by pooling.
fn apart(wanted: &[f64], widths: &[f64]) -> Vec<f64> {
    let mut offsets = Vec::with_capacity(wanted.len());
    let mut offset = 0.0;
    for i in 0..wanted.len() {
        if i > 0 {
            offset += (widths[i - 1] + widths[i]) / 2.0 + BETWEEN;
        }
        offsets.push(offset);
    }
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for (w, o) in wanted.iter().zip(&offsets) {
        pools.push((w - o, 1));
        while let [.., (a, n), (b, m)] = pools[..]
            && a > b
        {
            pools.truncate(pools.len() - 2);
            pools.push(((a * n as f64 + b * m as f64) / (n + m) as f64, n + m));
        }
    }
    let flat = pools.into_iter().flat_map(|(mean, n)| std::iter::repeat_n(mean, n));
    flat.zip(&offsets).map(|(mean, o)| mean + o).collect()
}

/// Top and height of each rank, and the bottom of the last.
fn rows(sketch: &Sketch, ranks: &Ranks, sizes: &[(f64, f64)]) -> (Vec<f64>, Vec<f64>, f64) {
    let count = ranks.rows.len();
    let mut heights: Vec<f64> = vec![0.0; count];
    for (i, item) in sketch.items.iter().enumerate() {
        if item.form != Form::Cylinder {
            heights[ranks.of[i]] = heights[ranks.of[i]].max(sizes[i].1);
        }
    }
    let touching = |rank: usize, reads: bool| {
        sketch.wires.iter().any(|wire| match (wire.from, wire.to) {
            (End::Spine, End::Item(b)) => reads && ranks.of[b] == rank,
            (End::Item(a), End::Spine) => !reads && ranks.of[a] == rank,
            _ => false,
        })
    };
    let tiny = |rank: usize| {
        ranks.rows[rank].iter().all(|s| match s {
            Slot::Item(i) => sketch.items[*i].form != Form::Card,
            Slot::Bend(_) => true,
        })
    };
    let mut tops = Vec::with_capacity(count);
    let mut y = HEADER + if count > 0 && touching(0, true) { GAP } else { 22.0 };
    for rank in 0..count {
        tops.push(y);
        y += heights[rank];
        if rank + 1 < count {
            let crowded = touching(rank, false) && touching(rank + 1, true);
            y += if crowded {
                WIDE
            } else if tiny(rank + 1) && !touching(rank + 1, true) {
                TIGHT
            } else {
                GAP
            };
        } else if touching(rank, false) {
            y += WRITE_LANE + 14.0;
        }
    }
    (tops, heights, y)
}

/// Places cylinders right of all boxes, level with the middle between what writes and what reads them, and above the latter.
fn cylinders(
    sketch: &Sketch,
    ranks: &Ranks,
    tops: &[f64],
    boxes: &mut [(f64, f64, f64, f64)],
    right: f64,
) -> f64 {
    let mut edge = right;
    for (i, item) in sketch.items.iter().enumerate().filter(|(_, item)| item.form == Form::Cylinder) {
        let (w, h) = item.size();
        let ends = sketch.wires.iter().filter(|wire| wire.kind == Kind::Cache).filter_map(|wire| {
            match (wire.from, wire.to) {
                (End::Item(a), End::Item(b)) if b == i => Some(boxes[a]),
                (End::Item(a), End::Item(b)) if a == i => Some(boxes[b]),
                _ => None,
            }
        });
        let middles: Vec<f64> = ends.map(|b| b.1 + b.3 / 2.0).collect();
        let low = middles.iter().copied().fold(f64::INFINITY, f64::min);
        let high = middles.iter().copied().fold(0.0, f64::max);
        let readers = sketch.wires.iter().filter_map(|wire| match (wire.from, wire.to) {
            (End::Item(a), End::Item(b)) if a == i => Some(tops[ranks.of[b]] - CACHE_LANE - 14.0 - h),
            _ => None,
        });
        let lowest = readers.fold(f64::INFINITY, f64::min);
        boxes[i] = (right + 40.0, (f64::midpoint(low, high) - h / 2.0).min(lowest), w, h);
        edge = right + 40.0 + w;
    }
    edge
}

fn bands(sketch: &Sketch, ranks: &Ranks, tops: &[f64], heights: &[f64], bottom: f64) -> Vec<(f64, f64)> {
    let mut bands = vec![(f64::INFINITY, 0.0f64); sketch.phases];
    for (i, item) in sketch.items.iter().enumerate() {
        if item.form == Form::Cylinder {
            continue;
        }
        if let Some(band) = bands.get_mut(item.phase) {
            let rank = ranks.of[i];
            band.0 = band.0.min(tops[rank]);
            band.1 = band.1.max(tops[rank] + heights[rank]);
        }
    }
    // a border lies in the middle of the gap
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
