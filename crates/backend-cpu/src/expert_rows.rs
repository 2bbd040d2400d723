//! Batch rows sorted by expert, and the division of their work into chunks.

use latent_threads::WorkChunk;
use std::ops::Range;

/// Cost of reading and unpacking a tile, relative to multiplying one row by it.
const TILE_READ_COST: usize = 4;

/// The (row, expert) pairs of a batch, sorted by expert. An index into this order is a *pair*;
/// inputs and results of experts are stored in it.
#[derive(Default)]
pub(crate) struct ExpertRows {
    /// The row of each pair; rows of one expert ascend.
    rows: Vec<u32>,
    /// The rank of the expert among the row's chosen experts.
    ranks: Vec<u32>,
    /// First pair of each expert, and the number of pairs at the end.
    starts: Vec<usize>,
}

impl ExpertRows {
    /// Sorts the chosen experts of all rows by counting. Only experts in `own` count, and they are
    /// numbered from `own.start`. Other ranks compute the others.
    pub(crate) fn sort<'c>(&mut self, own: Range<usize>, rows: usize, topk_ids: impl Fn(usize) -> &'c [u32]) {
        let own_experts = |row| {
            let ids = topk_ids(row).iter().enumerate();
            ids.filter_map(|(rank, expert)| {
                let expert = *expert as usize;
                own.contains(&expert).then(|| (rank, expert - own.start))
            })
        };
        // Counting sort with counts shifted by two: after the prefix sums, `starts[e + 1]` is the
        // first pair of expert e. The second loop advances it to the end, which is the first pair
        // of e + 1.
        self.starts.clear();
        self.starts.resize(own.len() + 2, 0);
        let mut pairs = 0;
        for row in 0..rows {
            for (_, expert) in own_experts(row) {
                self.starts[expert + 2] += 1;
                pairs += 1;
            }
        }
        for expert in 2..self.starts.len() {
            self.starts[expert] += self.starts[expert - 1];
        }
        self.rows.resize(pairs, 0);
        self.ranks.resize(pairs, 0);
        for row in 0..rows {
            for (rank, expert) in own_experts(row) {
                let pair = &mut self.starts[expert + 1];
                self.rows[*pair] = row as u32;
                self.ranks[*pair] = rank as u32;
                *pair += 1;
            }
        }
        self.starts.truncate(own.len() + 1);
    }

    /// Number of pairs.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn rows(&self, pairs: Range<usize>) -> &[u32] {
        &self.rows[pairs]
    }

    /// The row of a pair, and the rank of its expert among the row's.
    pub(crate) fn row_and_rank(&self, pair: usize) -> (usize, usize) {
        (self.rows[pair] as usize, self.ranks[pair] as usize)
    }

    /// Calls `work` with (expert, pairs, tiles) for each active expert that has some of its `tiles`
    /// in the chunk. `tiles` is the number of tiles of an expert on the chunk's memory node. The
    /// cost of a tile is that of reading it, and of multiplying each row of the expert by it.
    pub(crate) fn strips(
        &self,
        chunk: &WorkChunk,
        tiles: usize,
        mut work: impl FnMut(usize, Range<usize>, Range<usize>),
    ) {
        let cost = |pairs: &Range<usize>| (TILE_READ_COST + pairs.len()) as u64;
        let total: u64 = self.active().map(|(_, pairs)| tiles as u64 * cost(&pairs)).sum();
        let chunk = chunk.of(total);
        let mut start = 0;
        for (expert, pairs) in self.active() {
            let cost = cost(&pairs);
            // A tile belongs to the chunk in which it begins.
            let tile = |at: u64| (at.saturating_sub(start).div_ceil(cost) as usize).min(tiles);
            let strip = tile(chunk.start)..tile(chunk.end);
            start += tiles as u64 * cost;
            if !strip.is_empty() {
                work(expert, pairs, strip);
            }
        }
    }

    /// Number of rows of the expert that a pair belongs to.
    pub(crate) fn rows_of_expert(&self, pair: usize) -> usize {
        let expert = self.starts.partition_point(|start| *start <= pair);
        self.starts[expert] - self.starts[expert - 1]
    }

    /// The experts with rows, and their pairs.
    pub(crate) fn active(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let pairs = |expert: usize| self.starts[expert]..self.starts[expert + 1];
        (0..self.starts.len() - 1)
            .map(move |expert| (expert, pairs(expert)))
            .filter(|(_, pairs)| !pairs.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_expert_and_keep_their_rank() {
        let topk_ids: [[u32; 2]; 3] = [[3, 0], [0, 2], [3, 2]];
        let mut sorted = ExpertRows::default();
        for _ in 0..2 {
            sorted.sort(0..5, 3, |row| &topk_ids[row]);
            let active: Vec<_> = sorted.active().collect();
            assert_eq!(active, [(0, 0..2), (2, 2..4), (3, 4..6)]);
            assert_eq!(sorted.rows, [0, 1, 1, 2, 0, 2]);
            assert_eq!(sorted.ranks, [1, 0, 1, 1, 0, 0]);
            assert!((0..6).all(|pair| sorted.rows_of_expert(pair) == 2));
        }
        // Experts 2 and 3 are this rank's.
        sorted.sort(2..4, 3, |row| &topk_ids[row]);
        assert_eq!(sorted.active().collect::<Vec<_>>(), [(0, 0..2), (1, 2..4)]);
        assert_eq!((&sorted.rows[..], &sorted.ranks[..]), (&[1, 2, 0, 2][..], &[1, 1, 0, 0][..]));
        sorted.sort(4..5, 3, |row| &topk_ids[row]);
        assert_eq!((sorted.len(), sorted.active().count()), (0, 0));
    }

    #[test]
    fn chunks_are_tiles_of_equal_work_and_cover_every_expert_once() {
        // Expert 0 has 40 rows, expert 2 one, expert 3 seven.
        let topk_ids = |row: usize| -> &[u32] {
            match row {
                0..40 => &[0],
                40 => &[2],
                _ => &[3],
            }
        };
        let mut sorted = ExpertRows::default();
        sorted.sort(0..4, 48, topk_ids);
        assert_eq!([0, 39, 40, 41, 47].map(|pair| sorted.rows_of_expert(pair)), [40, 40, 1, 7, 7]);
        for (workers, tiles) in [(1, 0), (1, 5), (2, 44), (3, 1), (8, 88)] {
            let mut seen = vec![vec![0; tiles]; 4];
            let mut work = Vec::new();
            for chunk in WorkChunk::all(workers) {
                work.push(0);
                sorted.strips(&chunk, tiles, |expert, pairs, strip| {
                    *work.last_mut().unwrap() += strip.len() * (TILE_READ_COST + pairs.len());
                    strip.for_each(|tile| seen[expert][tile] += 1);
                });
            }
            let once = |expert: usize| seen[expert].iter().all(|&times| times == 1);
            assert!(once(0) && once(2) && once(3) && seen[1].iter().all(|&times| times == 0));
            if tiles == 88 {
                // The first chunks are a sixteenth each, give or take the most expensive tile.
                let total: usize = work.iter().sum();
                assert!(
                    work[..8].iter().all(|&part| part.abs_diff(total / 16) <= TILE_READ_COST + 40),
                    "{work:?}"
                );
            }
        }
    }
}
