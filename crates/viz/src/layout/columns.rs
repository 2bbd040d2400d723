//! Horizontal coordinates: the centre of every slot of a rank.

use crate::layout::graph::{Endpoint, LayoutGraph};
use crate::layout::ranks::{RankSlot, Ranks};

/// The gap between the boxes of a rank.
const BETWEEN: f64 = 30.0;

/// The centres of the slots of each rank. The leftmost edge of all boxes is at 0.
pub(crate) fn columns(graph: &LayoutGraph, ranks: &Ranks, sizes: &[(f64, f64)]) -> Vec<Vec<f64>> {
    let width = |slot: &RankSlot| match slot {
        RankSlot::Vertex(i) => sizes[*i].0,
        // Narrow, so that long edges do not push boxes apart.
        RankSlot::Bend(_) => 12.0,
    };
    let mut centres: Vec<Vec<f64>> = ranks
        .rows
        .iter()
        .map(|row| {
            // Start: every rank packed and centred on 0.
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
    // Each sweep moves every slot towards the mean of its neighbours, alternating down and up.
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
                        for (other, _) in ranks.neighbours(graph, *slot, rank, above) {
                            if let Some(p) = ranks.rows[next].iter().position(|s| *s == other) {
                                places.push(centres[next][p]);
                            }
                        }
                    }
                    let mean = places.iter().sum::<f64>() / places.len().max(1) as f64;
                    // A slot without neighbours stays where it is.
                    if places.is_empty() { centres[rank][at] } else { mean }
                })
                .collect();
            let widths: Vec<f64> = row.iter().map(width).collect();
            // Keeps the order that `ranks` chose, and the minimum gaps.
            centres[rank] = spread(&wanted, &widths);
        }
    }
    // Last, because a later sweep would pull bends away again.
    straighten(graph, ranks, &mut centres, &width);
    let leftmost = centres
        .iter()
        .zip(&ranks.rows)
        .flat_map(|(row, slots)| row.iter().zip(slots).map(|(x, slot)| x - width(slot) / 2.0))
        .fold(f64::INFINITY, f64::min);
    // A graph without vertices has no leftmost box.
    let leftmost = if leftmost.is_finite() { leftmost } else { 0.0 };
    centres.iter_mut().flatten().for_each(|x| *x -= leftmost);
    centres
}

/// Aligns the bends of a long edge vertically: below its start or above its end, if there is room.
fn straighten(
    graph: &LayoutGraph,
    ranks: &Ranks,
    centres: &mut [Vec<f64>],
    width: &dyn Fn(&RankSlot) -> f64,
) {
    for (w, edge) in graph.edges.iter().enumerate() {
        let (Endpoint::Vertex(a), Endpoint::Vertex(b)) = (edge.from, edge.to) else { continue };
        let at = |rank: usize, slot: RankSlot| ranks.rows[rank].iter().position(|s| *s == slot);
        let bends: Vec<(usize, usize)> = (ranks.of[a] + 1..ranks.of[b])
            .filter_map(|rank| Some((rank, at(rank, RankSlot::Bend(w))?)))
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
        // No common column is free in all ranks; the bends stay.
        if low > high {
            continue;
        }
        let end = |vertex: usize| {
            at(ranks.of[vertex], RankSlot::Vertex(vertex)).map(|p| centres[ranks.of[vertex]][p])
        };
        let near = |x: f64| (x - x.clamp(low, high)).abs();
        let ends: Vec<f64> = [end(b), end(a)].into_iter().flatten().collect();
        let Some(best) = ends.into_iter().min_by(|x, y| near(*x).total_cmp(&near(*y))) else { continue };
        for (rank, place) in bends {
            centres[rank][place] = best.clamp(low, high);
        }
    }
}

/// The positions closest to `wanted` (least squares) that keep order and distances: isotonic
/// regression by pooling adjacent violators.
fn spread(wanted: &[f64], widths: &[f64]) -> Vec<f64> {
    let mut offsets = Vec::with_capacity(wanted.len());
    let mut offset = 0.0;
    for i in 0..wanted.len() {
        if i > 0 {
            offset += (widths[i - 1] + widths[i]) / 2.0 + BETWEEN;
        }
        offsets.push(offset);
    }
    // With the minimum offsets subtracted, "keep order and distances" becomes "non-decreasing".
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
