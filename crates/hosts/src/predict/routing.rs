//! Load of routed experts on the busiest rank, for which the other ranks wait.

use latent_graph::config::{ModelConfig, RankShare};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

/// The routing of a step's rows to experts and ranks.
pub(super) struct StepRouting {
    own: RankShare,
    /// The experts of each rank that shares them.
    of_members: Vec<Range<usize>>,
    /// Experts per row.
    per_row: usize,
    groups: usize,
    groups_used: usize,
    /// Results by number of rows. They are the same for all layers, and each takes 1000 draws.
    found: RefCell<HashMap<usize, BusiestRank>>,
}

/// The expected load of the busiest rank.
#[derive(Clone, Copy)]
pub(super) struct BusiestRank {
    /// The number of its experts that any row is routed to.
    pub(super) experts: f64,
    /// Its share of all pairs of row and expert.
    pub(super) of_rows: f64,
}

/// Number of rows above which ranks differ so little that the expectation is used.
const MANY: usize = 64;

/// Number of random routings that are averaged.
const DRAWS: usize = 1000;

impl StepRouting {
    pub(super) fn of(config: &ModelConfig) -> StepRouting {
        let moe = config.moe.as_ref();
        let (groups, groups_used) =
            moe.map_or((1, 1), |moe| (moe.router.groups.max(1), moe.router.groups_used.max(1)));
        let per_row = moe.map_or(0, |moe| moe.num_experts_per_tok);
        let members = config.part.as_ref().map_or(1, |part| part.members.len());
        StepRouting::new(config.own_experts(), members, per_row, (groups, groups_used))
    }

    fn new(
        own: RankShare,
        members: usize,
        per_row: usize,
        (groups, groups_used): (usize, usize),
    ) -> StepRouting {
        let of = |member| RankShare::nth(member, members, own.of, 1).map_or(0..0, |share| share.range());
        let of_members = (0..members).map(of).collect();
        StepRouting { own, of_members, per_row, groups, groups_used, found: RefCell::default() }
    }

    /// Whether this rank has all experts.
    pub(super) fn is_whole(&self) -> bool {
        self.own.is_all() || self.own.len == 0
    }

    /// The expected load of the busiest rank of a step, with uniformly random routing.
    pub(super) fn busiest(&self, rows: usize) -> BusiestRank {
        *self.found.borrow_mut().entry(rows).or_insert_with(|| self.draw(rows))
    }

    fn draw(&self, rows: usize) -> BusiestRank {
        let (len, of) = (self.own.len as f64, self.own.of as f64);
        // Each expert is missed by a row with probability 1 − per_row / of.
        if rows > MANY {
            let missed = (1.0 - self.per_row as f64 / of).powf(rows as f64);
            return BusiestRank { experts: len * (1.0 - missed), of_rows: len / of };
        }
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let (mut experts, mut pairs) = (0, 0);
        for _ in 0..DRAWS {
            let mut reached = vec![false; self.own.of];
            let mut rows_of = vec![0usize; self.own.of];
            for _ in 0..rows {
                for expert in self.choose(&mut random) {
                    reached[expert] = true;
                    rows_of[expert] += 1;
                }
            }
            let members = || self.of_members.iter().cloned();
            let reached = |own: Range<usize>| reached[own].iter().filter(|reached| **reached).count();
            experts += members().map(reached).max().unwrap_or(0);
            pairs += members().map(|own| rows_of[own].iter().sum::<usize>()).max().unwrap_or(0);
        }
        let all = (DRAWS * rows * self.per_row).max(1);
        BusiestRank { experts: experts as f64 / DRAWS as f64, of_rows: pairs as f64 / all as f64 }
    }

    /// The experts of a row. As in DeepSeek's router, groups are chosen first, then experts of
    /// these groups.
    fn choose(&self, random: &mut Random) -> Vec<usize> {
        let size = (self.own.of / self.groups).max(1);
        let groups = random.some(&(0..self.groups).collect::<Vec<_>>(), self.groups_used);
        let open: Vec<usize> = groups.iter().flat_map(|group| group * size..(group + 1) * size).collect();
        random.some(&open, self.per_row)
    }
}

/// A linear congruential generator (Knuth's MMIX constants) with a fixed seed, so that equal
/// predictions have equal results.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The low bits of such a generator have short periods.
        ((self.0 >> 33) % end as u64) as usize
    }

    /// `count` different elements of `all`: the beginning of a Fisher-Yates shuffle.
    fn some(&mut self, all: &[usize], count: usize) -> Vec<usize> {
        let mut left = all.to_vec();
        let count = count.min(left.len());
        for at in 0..count {
            let other = at + self.below(left.len() - at);
            left.swap(at, other);
        }
        left.truncate(count);
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(len: usize, of: usize, per_row: usize) -> StepRouting {
        StepRouting::new(RankShare { from: 0, len, of }, of / len, per_row, (1, 1))
    }

    #[test]
    fn the_last_rank_has_the_remaining_experts() {
        // Five experts on four ranks are 1, 1, 1 and 2. Both experts of a row are on the last rank
        // in one of ten cases, and otherwise no rank has more than one.
        let uneven = StepRouting::new(RankShare { from: 3, len: 2, of: 5 }, 4, 2, (1, 1));
        assert_eq!(uneven.of_members, [0..1, 1..2, 2..3, 3..5]);
        let busiest = uneven.busiest(1);
        assert!((busiest.experts - 1.1).abs() < 0.03, "{}", busiest.experts);
        assert!((busiest.of_rows - busiest.experts / 2.0).abs() < 1e-9);
        // The second call returns the stored result and draws nothing.
        assert_eq!(uneven.busiest(1).experts.to_bits(), busiest.experts.to_bits());
        assert_eq!(uneven.found.borrow().len(), 1);
    }

    #[test]
    fn the_busier_of_two_ranks_has_more_than_half_of_the_experts() {
        // A row selects two of four experts, of which each rank has two. In 2 of 6 cases both are
        // on one rank.
        let busiest = routing(2, 4, 2).busiest(1);
        assert!((busiest.experts - (2.0 * 2.0 + 4.0) / 6.0).abs() < 0.05, "{}", busiest.experts);
        assert!((busiest.of_rows - busiest.experts / 2.0).abs() < 1e-9);
    }

    #[test]
    fn many_rows_reach_all_experts_and_share_them_evenly() {
        let busiest = routing(32, 64, 6).busiest(512);
        assert!((busiest.experts - 32.0).abs() < 1e-3 && (busiest.of_rows - 0.5).abs() < 1e-9);
        // A moderate number of rows comes close to that.
        let some = routing(32, 64, 6).busiest(64);
        assert!((some.experts - 32.0).abs() < 0.3 && some.of_rows < 0.6, "{} {}", some.experts, some.of_rows);
    }

    #[test]
    fn with_group_limited_routing_a_row_selects_experts_of_one_rank() {
        // Each rank has one group of two experts, and a row selects both experts of one group.
        let grouped = StepRouting::new(RankShare { from: 0, len: 2, of: 16 }, 8, 2, (8, 1));
        assert!((grouped.busiest(1).experts - 2.0).abs() < 1e-9);
    }
}
