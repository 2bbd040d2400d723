//! Ranks and order: which row an item stands in, and its place among its neighbours.

use crate::sketch::{End, Form, Item, Kind, Sketch};

/// A place in a rank: an item, or the bend of a long wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    Item(usize),
    /// The wire of this index passes through.
    Bend(usize),
}

/// Items in rows, from the top.
pub(crate) struct Ranks {
    /// The rank of each item.
    pub(crate) of: Vec<usize>,
    /// The slots of each rank, from left to right; sums and cylinders have places of their own and are not here.
    pub(crate) rows: Vec<Vec<Slot>>,
}

impl Ranks {
    /// Ranks by the way of the data; a later phase is below every earlier one. Order by barycentres.
    pub(crate) fn new(sketch: &Sketch) -> Ranks {
        let of = assign(sketch);
        let count = of.iter().max().map_or(0, |last| last + 1);
        let mut rows = vec![Vec::new(); count];
        for (i, item) in sketch.items.iter().enumerate() {
            if item.stands() {
                rows[of[i]].push(Slot::Item(i));
            }
        }
        for (w, wire) in sketch.wires.iter().enumerate() {
            if let (End::Item(a), End::Item(b), Kind::Value) = (wire.from, wire.to, wire.kind) {
                for row in rows.iter_mut().take(of[b]).skip(of[a] + 1) {
                    row.push(Slot::Bend(w));
                }
            }
        }
        let mut ranks = Ranks { of, rows };
        ranks.sort(sketch);
        ranks
    }

    /// The slots that `slot` of rank `rank` is joined to in the rank above (or below), each with where on it, from 0 to 1.
    pub(crate) fn neighbours(
        &self,
        sketch: &Sketch,
        slot: Slot,
        rank: usize,
        above: bool,
    ) -> Vec<(Slot, f64)> {
        let mut found = Vec::new();
        for (w, wire) in sketch.wires.iter().enumerate() {
            let (End::Item(a), End::Item(b), Kind::Value) = (wire.from, wire.to, wire.kind) else { continue };
            let touches = match slot {
                Slot::Item(i) => i == if above { b } else { a },
                Slot::Bend(bend) => bend == w,
            };
            if !touches {
                continue;
            }
            let (end, next) = if above { (a, rank.wrapping_sub(1)) } else { (b, rank + 1) };
            let other = if self.of[end] == next { Slot::Item(end) } else { Slot::Bend(w) };
            if self.rows.get(next).is_some_and(|row| row.contains(&other)) {
                found.push((
                    other,
                    if other == Slot::Item(a) { part(&sketch.items[a], &wire.label) } else { 0.5 },
                ));
            }
        }
        found
    }

    fn sort(&mut self, sketch: &Sketch) {
        for sweep in 0..8 {
            let down = sweep % 2 == 0;
            let mut order: Vec<usize> = (0..self.rows.len()).collect();
            if !down {
                order.reverse();
            }
            for rank in order {
                let row = &self.rows[rank];
                let place = |slot: &Slot, at: usize| -> f64 {
                    let joined = self.neighbours(sketch, *slot, rank, down);
                    let next = if down { rank.wrapping_sub(1) } else { rank + 1 };
                    let places: Vec<f64> = joined
                        .iter()
                        .filter_map(|(other, on)| {
                            let row = self.rows.get(next)?;
                            let at = row.iter().position(|s| s == other)?;
                            Some((at as f64 + on) / row.len() as f64)
                        })
                        .collect();
                    let own = (at as f64 + 0.5) / row.len() as f64;
                    // what touches the cache stands right, beside it
                    let aside = if touches_cache(sketch, *slot) { 10.0 } else { 0.0 };
                    let mean = places.iter().sum::<f64>() / places.len().max(1) as f64;
                    aside + if places.is_empty() { own } else { mean }
                };
                let mut keyed: Vec<(f64, Slot)> =
                    row.iter().enumerate().map(|(at, slot)| (place(slot, at), *slot)).collect();
                keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
                self.rows[rank] = keyed.into_iter().map(|(_, slot)| slot).collect();
            }
        }
    }
}

/// Where on an item the value of this label leaves: a split's parts stand side by side.
fn part(item: &Item, label: &str) -> f64 {
    let at = item.parts.iter().position(|part| part == label);
    at.map_or(0.5, |at| (at as f64 + 0.5) / item.parts.len() as f64)
}

fn touches_cache(sketch: &Sketch, slot: Slot) -> bool {
    let Slot::Item(i) = slot else { return false };
    sketch.wires.iter().any(|w| w.kind == Kind::Cache && (w.from == End::Item(i) || w.to == End::Item(i)))
}

/// The rank of each item: below all that it reads, and below all earlier phases.
fn assign(sketch: &Sketch) -> Vec<usize> {
    let mut ranks: Vec<usize> = vec![0; sketch.items.len()];
    // items come in an order in which everything is made before it is read; phases in theirs
    let mut order: Vec<usize> =
        (0..sketch.items.len()).filter(|&i| sketch.items[i].form != Form::Cylinder).collect();
    // what the drawing adds before an operation comes first
    let feeds = |i: usize| sketch.wires.iter().any(|wire| wire.from == End::Item(i));
    order.sort_by_key(|&i| (sketch.items[i].phase, sketch.items[i].operation.is_some() || !feeds(i)));
    let mut done: Vec<usize> = Vec::new();
    for &i in &order {
        let phase = sketch.items[i].phase;
        let base = done.iter().filter(|&&j| sketch.items[j].phase < phase).map(|&j| ranks[j] + 1);
        let read = sketch.wires.iter().filter_map(|wire| match (wire.from, wire.to, wire.kind) {
            (End::Item(a), End::Item(b), Kind::Value) if b == i && done.contains(&a) => Some(ranks[a] + 1),
            _ => None,
        });
        let mut rank = base.chain(read).max().unwrap_or(0);
        // a sum on the residual stream divides what is above from what is below
        let sums =
            done.iter().filter(|&&j| sketch.items[j].form == Form::Sum && j < i).map(|&j| ranks[j] + 1);
        rank = rank.max(sums.max().unwrap_or(0));
        if sketch.items[i].form == Form::Sum {
            let all = done.iter().filter(|&&j| j < i).map(|&j| ranks[j] + 1);
            rank = rank.max(all.max().unwrap_or(0));
        }
        ranks[i] = rank;
        done.push(i);
    }
    ranks
}
