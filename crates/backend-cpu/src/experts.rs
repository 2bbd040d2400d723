//! The mixture of experts: rows sorted by expert, one flat list of work, no two threads writing the same numbers.

use crate::compile::{Product, Slot};
use crate::linear::UNIT;
use crate::run::Thread;
use crate::scratch::{InputFormats, WorkerScratch, grown_to, resize_scratch};
use latent_kernels::{RouteSpec, RowsMut};
use latent_threads::Chunk;
use std::ops::Range;

/// What reading and unpacking a tile costs, in rows that are multiplied with it.
const READ: usize = 4;

/// Rows of each expert. The results of (row, expert) pairs lie in the order of this list.
#[derive(Default)]
pub struct ExpertRows {
    /// Rows, sorted by expert; rows of one expert in ascending order.
    rows: Vec<u32>,
    /// Which of the row's chosen experts it is.
    ranks: Vec<u32>,
    /// Where each expert's rows begin; one more than there are experts.
    starts: Vec<usize>,
}

impl ExpertRows {
    /// Sorts the choices of all rows, `used` a row.
    fn sort<'c>(&mut self, experts: usize, rows: usize, chosen: impl Fn(usize) -> &'c [u32]) {
        self.starts.clear();
        self.starts.resize(experts + 2, 0);
        let mut pairs = 0;
        for row in 0..rows {
            for &expert in chosen(row) {
                self.starts[expert as usize + 2] += 1;
                pairs += 1;
            }
        }
        for expert in 2..self.starts.len() {
            self.starts[expert] += self.starts[expert - 1];
        }
        self.rows.resize(pairs, 0);
        self.ranks.resize(pairs, 0);
        for row in 0..rows {
            for (rank, &expert) in chosen(row).iter().enumerate() {
                let place = &mut self.starts[expert as usize + 1];
                self.rows[*place] = row as u32;
                self.ranks[*place] = rank as u32;
                *place += 1;
            }
        }
        self.starts.truncate(experts + 1);
    }

    /// The strips of one part of the work: of each active expert, some of the `tiles` that a node has of it. An expert's work is its tiles
    /// times what a tile costs, to read and to multiply with each row. Expert, places and tiles go to `work`.
    fn strips(&self, part: &Chunk, tiles: usize, mut work: impl FnMut(usize, Range<usize>, Range<usize>)) {
        let cost = |places: &Range<usize>| (READ + places.len()) as u64;
        let total: u64 = self.active().map(|(_, places)| tiles as u64 * cost(&places)).sum();
        let part = part.of(total);
        let mut start = 0;
        for (expert, places) in self.active() {
            let cost = cost(&places);
            // a tile belongs to the part in which it begins
            let tile = |at: u64| (at.saturating_sub(start).div_ceil(cost) as usize).min(tiles);
            let strip = tile(part.start)..tile(part.end);
            start += tiles as u64 * cost;
            if !strip.is_empty() {
                work(expert, places, strip);
            }
        }
    }

    /// Rows of the expert that a place belongs to.
    fn rows_beside(&self, place: usize) -> usize {
        let expert = self.starts.partition_point(|start| *start <= place);
        self.starts[expert] - self.starts[expert - 1]
    }

    /// Experts with rows: index and their places in the list.
    fn active(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let places = |expert: usize| self.starts[expert]..self.starts[expert + 1];
        (0..self.starts.len() - 1)
            .map(move |expert| (expert, places(expert)))
            .filter(|(_, places)| !places.is_empty())
    }
}

/// A row of the arena that holds expert ids rather than numbers.
#[allow(unsafe_code, reason = "f32 and u32 have one size and alignment, and every pattern is valid in both")]
fn as_ids_mut(numbers: &mut [f32]) -> &mut [u32] {
    // SAFETY: same size and alignment; both types admit every bit pattern.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), numbers.len()) }
}

#[allow(unsafe_code, reason = "as above")]
pub(crate) fn as_ids(numbers: &[f32]) -> &[u32] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), numbers.len()) }
}

impl Thread<'_> {
    fn sort_experts<'c>(&self, experts: &mut ExpertRows, chosen: impl Fn(usize) -> &'c [u32]) {
        let count = self.model.config.moe.map_or(0, |moe| moe.experts);
        experts.sort(count, self.rows, chosen);
    }

    /// The choice of experts. Where `each` says so, every thread chooses for all rows and sorts them for what follows in this phase; what
    /// other phases read, it writes of its own rows.
    pub(crate) fn route(
        &self,
        logits: &Slot,
        bias: Option<usize>,
        (chosen, mix): (&Slot, &Slot),
        each: bool,
        local: &mut WorkerScratch,
    ) {
        let Some(spec) = self.model.route else { return };
        let spec = RouteSpec { bias: bias.map(|w| self.model.weights[w].vector()), ..spec };
        let own = self.my_rows(chosen);
        if !each {
            for row in own {
                let ids = as_ids_mut(self.row_mut(chosen, row));
                latent_kernels::route(
                    self.row(logits, row),
                    &spec,
                    ids,
                    self.row_mut(mix, row),
                    &mut local.route,
                );
            }
            return;
        }
        let used = chosen.width;
        let WorkerScratch { route, chosen: ids, mix: weights, experts, .. } = local;
        let (ids, weights) = (grown_to(ids, self.rows * used, 0), resize_scratch(weights, self.rows * used));
        for row in 0..self.rows {
            let (ids, weights) = (&mut ids[row * used..][..used], &mut weights[row * used..][..used]);
            latent_kernels::route(self.row(logits, row), &spec, ids, weights, route);
            if own.contains(&row) {
                as_ids_mut(self.row_mut(chosen, row)).copy_from_slice(ids);
                self.row_mut(mix, row).copy_from_slice(weights);
            }
        }
        self.sort_experts(experts, |row| &ids[row * used..][..used]);
    }

    /// silu(gate)·up of every (row, expert). Experts have very different numbers of rows, so that the outputs of all active experts are
    /// taken as parts of equal work by whoever is free: each node's own rows of every expert first.
    pub(crate) fn expert_gate_up(
        &self,
        input: &Slot,
        norm: Option<usize>,
        chosen: Option<&Slot>,
        products: &[Product],
        out: &Slot,
        local: &mut WorkerScratch,
    ) {
        let WorkerScratch { acts, scratch, results, experts, .. } = local;
        if let Some(chosen) = chosen {
            self.sort_experts(experts, |row| as_ids(self.row(chosen, row)));
        }
        let x = self.read(input, 0..self.rows, 0, input.width);
        let x = self.prepare(x, norm, InputFormats::of_products(products), acts);
        // one tensor that holds the gate's outputs and then those of up, or two tensors
        let (gate, up, up_from) = match products {
            [both] => (*both, *both, out.width),
            _ => (products[0], products[1], 0),
        };
        self.worker.for_each_chunk(|part| {
            let own = self.worker.node_share(part.node, out.width, UNIT);
            experts.strips(&part, own.len().div_ceil(UNIT), |expert, places, tiles| {
                let from = own.start + tiles.start * UNIT;
                let to = (own.start + tiles.end * UNIT).min(own.end);
                let (rows, cols) = (places.len(), to - from);
                let index = Some(&experts.rows[places.clone()]);
                let gated = resize_scratch(results, rows * cols);
                let mut y = RowsMut::new(gated, rows, cols, cols);
                self.multiply(gate, expert, &x, index, from..to, &mut y, scratch);
                let mut y = self.write(out, places, from, cols);
                self.multiply(up, expert, &x, index, up_from + from..up_from + to, &mut y, scratch);
                for row in 0..rows {
                    latent_kernels::silu_mul(&gated[row * cols..(row + 1) * cols], y.row_mut(row));
                }
            });
        });
    }

    /// Σ mix · down: each thread owns a strip of outputs and adds the experts of a row in ascending order. The strips are all the same
    /// work, and are the very strips of the dense sum that may be made in the same phase: they are not for anybody else to take.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(crate) fn expert_down(
        &self,
        input: &Slot,
        chosen: &Slot,
        mix: &Slot,
        product: &Product,
        (scale, add): (f32, bool),
        out: &Slot,
        local: &mut WorkerScratch,
    ) {
        let WorkerScratch { acts, scratch, results, experts, .. } = local;
        let outputs = self.worker.share(out.width, UNIT);
        self.sort_experts(experts, |row| as_ids(self.row(chosen, row)));
        let needs = InputFormats::of_products([product]);
        let all = self.read(input, 0..experts.rows.len(), 0, input.width);
        // a place belongs to one expert, whose number of rows says which kernel multiplies it
        let of_place = |place| InputFormats::of(std::iter::once(product.of(experts.rows_beside(place)).1));
        let x = self.prepare_some(all, None, needs, of_place, acts);
        if outputs.is_empty() {
            return;
        }
        let mut sums = self.write(out, 0..self.rows, outputs.start, outputs.len());
        if !add {
            (0..self.rows).for_each(|row| sums.row_mut(row).fill(0.0));
        }
        for (expert, places) in experts.active() {
            let rows = places.len();
            let x = x.part(places.clone());
            let terms = resize_scratch(results, rows * outputs.len());
            let mut y = RowsMut::new(terms, rows, outputs.len(), outputs.len());
            self.multiply(*product, expert, &x, None, outputs.clone(), &mut y, scratch);
            for (place, term) in places.zip(terms.chunks_exact(outputs.len())) {
                let row = experts.rows[place] as usize;
                let weight = self.row(mix, row)[experts.ranks[place] as usize];
                latent_kernels::axpy(sums.row_mut(row), weight * scale, term);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_expert_and_keep_their_rank() {
        let chosen: [[u32; 2]; 3] = [[3, 0], [0, 2], [3, 2]];
        let mut sorted = ExpertRows::default();
        for _ in 0..2 {
            sorted.sort(5, 3, |row| &chosen[row]);
            let active: Vec<_> = sorted.active().collect();
            assert_eq!(active, [(0, 0..2), (2, 2..4), (3, 4..6)]);
            assert_eq!(sorted.rows, [0, 1, 1, 2, 0, 2]);
            assert_eq!(sorted.ranks, [1, 0, 1, 1, 0, 0]);
            assert!((0..6).all(|place| sorted.rows_beside(place) == 2));
        }
    }

    #[test]
    fn parts_are_tiles_of_equal_work_and_cover_every_expert_once() {
        // expert 0 has 40 rows, expert 2 one, expert 3 seven
        let chosen = |row: usize| -> &[u32] {
            match row {
                0..40 => &[0],
                40 => &[2],
                _ => &[3],
            }
        };
        let mut sorted = ExpertRows::default();
        sorted.sort(4, 48, chosen);
        assert_eq!([0, 39, 40, 41, 47].map(|place| sorted.rows_beside(place)), [40, 40, 1, 7, 7]);
        for (workers, tiles) in [(1, 0), (1, 5), (2, 44), (3, 1), (8, 88)] {
            let mut seen = vec![vec![0; tiles]; 4];
            let mut work = Vec::new();
            for part in Chunk::all(workers) {
                work.push(0);
                sorted.strips(&part, tiles, |expert, places, strip| {
                    *work.last_mut().unwrap() += strip.len() * (READ + places.len());
                    strip.for_each(|tile| seen[expert][tile] += 1);
                });
            }
            let once = |expert: usize| seen[expert].iter().all(|&times| times == 1);
            assert!(once(0) && once(2) && once(3) && seen[1].iter().all(|&times| times == 0));
            if tiles == 88 {
                // the first parts are a sixteenth each, give or take the dearest tile
                let total: usize = work.iter().sum();
                assert!(work[..8].iter().all(|&part| part.abs_diff(total / 16) <= READ + 40), "{work:?}");
            }
        }
    }
}
