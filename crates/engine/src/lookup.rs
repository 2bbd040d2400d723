//! Drafts from the text itself: tokens that followed the same words before (prompt lookup).
//!
//! Code that is edited, summaries and answers that quote their prompt repeat long pieces of the context. The model verifies several
//! tokens in one step at little more than the cost of one, so a repeated piece is several times as fast. Where nothing repeats, a
//! budget bounds what refused drafts may cost.

use std::collections::HashMap;

/// Most tokens that are drafted at once.
pub(crate) const MAX_DRAFTS: usize = 8;

/// Tokens that must match before a piece counts as repeated.
const MATCH: usize = 3;

/// What refused drafts may cost at first, in steps without drafts.
const CREDIT: f64 = 2.0;

/// Limits of the budget: a good run must not pay for a long bad one, and a bad one must end.
const MAX_CREDIT: f64 = 3.0;

/// What a step without drafts adds to the budget: the share of the time that refused drafts may take.
const SHARE: f64 = 0.015;

/// How fast older verifications lose their weight: per verification, and per step without any.
const FADING: f64 = 0.9;
const IDLE_FADING: f64 = 0.97;

/// The drafts of one answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct LookupDrafts {
    /// Behind each run of [`MATCH`] tokens, where it last ended.
    ends: HashMap<[u32; MATCH], u32>,
    /// Tokens of the context whose runs are in `ends`; the last run is not, since it would match itself.
    indexed: usize,
    /// Drafts that were accepted and verified, older ones faded.
    accepted: f64,
    verified: f64,
    /// Steps that refused drafts may still cost, less [`CREDIT`].
    saved: f64,
}

impl LookupDrafts {
    /// The tokens that followed the last place in `context` that ends as `context` does, at most `most`.
    pub(crate) fn propose<'c>(&mut self, context: &'c [u32], most: usize) -> &'c [u32] {
        let last = context.len().checked_sub(MATCH);
        // a context that was cut is read anew
        if last.is_none_or(|last| self.indexed > last) {
            self.ends.clear();
            self.indexed = 0;
        }
        let Some(last) = last else { return &[] };
        for start in self.indexed..last {
            if let Some(run) = context[start..].first_chunk() {
                self.ends.insert(*run, (start + MATCH) as u32);
            }
        }
        self.indexed = last;
        let Some(end) = context[last..].first_chunk().and_then(|run| self.ends.get(run)) else { return &[] };
        let end = *end as usize;
        &context[end..context.len().min(end + most)]
    }

    /// How many of `proposed` drafts are worth verifying, where a step of `1 + n` rows takes `cost(n)` times as long as one without drafts.
    pub(crate) fn worth(&self, proposed: usize, cost: impl Fn(usize) -> f64) -> usize {
        // half of the first drafts are expected to be right
        let right = (self.accepted + 1.0) / (self.verified + 2.0);
        let (mut best, mut gain, mut tokens, mut all_right) = (0, 1.0, 1.0, 1.0);
        for count in 1..=proposed.min(MAX_DRAFTS) {
            all_right *= right;
            tokens += all_right;
            let cost = cost(count);
            if tokens / cost > gain && cost - 1.0 <= CREDIT + self.saved {
                (best, gain) = (count, tokens / cost);
            }
        }
        best
    }

    /// Counts a step: `accepted` of `drafted` drafts, in `cost` times the time of a step without drafts.
    pub(crate) fn count(&mut self, drafted: usize, accepted: usize, cost: f64) {
        if drafted == 0 {
            self.saved = (self.saved + SHARE).min(MAX_CREDIT - CREDIT);
            self.accepted *= IDLE_FADING;
            self.verified *= IDLE_FADING;
            return;
        }
        let verified = accepted + usize::from(accepted < drafted);
        let fading = FADING.powi(verified as i32);
        self.accepted = self.accepted * fading + accepted as f64;
        self.verified = self.verified * fading + verified as f64;
        self.saved = (self.saved + accepted as f64 - (cost - 1.0)).min(MAX_CREDIT - CREDIT);
    }
}

/// How long steps take by their number of rows: means of this engine's own steps, newer ones weighing more. A step that another
/// process has interrupted says nothing about those to come, so that short steps weigh more than long ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepCosts {
    /// Seconds of a step of as many rows as the index says; 0 where none has run.
    seconds: [f64; StepCosts::ROWS + 1],
    /// What a row adds, if that is given.
    given: Option<f64>,
}

/// What a step of one more row is taken to add before any has run.
const ROW_COST: f64 = 0.2;

/// Weight of the newest step, if it is shorter than the mean, and if it is longer.
const SHORTER: f64 = 0.4;
const LONGER: f64 = 0.1;

/// Times the mean that a longer step counts at most.
const LONGEST: f64 = 2.0;

/// How fast costs that keep drafts from being made approach the assumed ones, per step: what was slow once is tried again.
const FORGETTING: f64 = 0.02;

impl StepCosts {
    /// Most rows of a step that are counted, those of a small batch.
    pub(crate) const ROWS: usize = latent_graph::passes::BatchBucket::SMALL_BATCH;

    /// Costs that are measured, unless it is given what a row adds.
    pub(crate) fn new(given: Option<f64>) -> StepCosts {
        StepCosts { given, ..StepCosts::default() }
    }

    /// Counts a step.
    pub(crate) fn count(&mut self, rows: usize, seconds: f64) {
        if rows > StepCosts::ROWS {
            return;
        }
        let expected = self.estimate(rows);
        let mean = &mut self.seconds[rows];
        let seconds = if expected > 0.0 { seconds.min(LONGEST * expected) } else { seconds };
        *mean = match *mean > 0.0 {
            true => *mean + if seconds < *mean { SHORTER } else { LONGER } * (seconds - *mean),
            false => seconds,
        };
        let mean = *mean;
        for (more, other) in self.seconds[rows + 1..].iter_mut().enumerate() {
            let assumed = mean * (1.0 + ROW_COST * (more + 1) as f64);
            if *other > assumed {
                *other += FORGETTING * (assumed - *other);
            }
        }
    }

    /// The time of a step of `more` rows in addition to `rows`, in times of one without them; never less than 1.
    pub(crate) fn ratio(&self, rows: usize, more: usize) -> f64 {
        if let Some(given) = self.given {
            return 1.0 + given * more as f64;
        }
        let (one, all) = (self.estimate(rows), self.estimate(rows + more));
        if one > 0.0 && all > 0.0 { (all / one).max(1.0) } else { 1.0 + ROW_COST * more as f64 }
    }

    /// The mean of steps of as many rows, or what the nearest ones suggest.
    fn estimate(&self, rows: usize) -> f64 {
        let known = |at: &usize| self.seconds[*at] > 0.0;
        let below = (1..=rows.min(StepCosts::ROWS)).rev().find(known);
        let above = (rows..=StepCosts::ROWS).find(known);
        match (below, above) {
            (Some(below), Some(above)) if below < above => {
                let part = (rows - below) as f64 / (above - below) as f64;
                self.seconds[below] + part * (self.seconds[above] - self.seconds[below])
            }
            (Some(below), _) => self.seconds[below] * (1.0 + ROW_COST * (rows - below) as f64),
            (None, Some(above)) => self.seconds[above] / (1.0 + ROW_COST * (above - rows) as f64),
            (None, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_behind_the_last_repetition_are_proposed() {
        let mut drafts = LookupDrafts::default();
        let mut context = vec![1, 2, 3, 4, 5, 9, 1, 2, 3, 7, 8];
        assert_eq!(drafts.propose(&context, 8), &[] as &[u32]);
        context.extend([1, 2, 3]);
        assert_eq!(drafts.propose(&context, 8), &[7, 8, 1, 2, 3]);
        assert_eq!(drafts.propose(&context, 2), &[7, 8]);
        // the end of the context does not repeat itself
        context.extend([30, 31, 32]);
        assert_eq!(drafts.propose(&context, 8), &[] as &[u32]);
        // a run repeats itself
        let mut same = LookupDrafts::default();
        assert_eq!(same.propose(&[6, 6, 6, 6], 8), &[6]);
        // a context that was cut
        assert_eq!(same.propose(&[1, 2], 8), &[] as &[u32]);
        assert_eq!(same.propose(&[5, 6, 7, 8, 5, 6, 7], 8), &[8, 5, 6, 7]);
    }

    #[test]
    fn refused_drafts_cost_a_bounded_share() {
        let mut drafts = LookupDrafts::default();
        let cost = |count: usize| 1.0 + 0.3 * count as f64;
        let (mut time, steps) = (0.0, 2000);
        for _ in 0..steps {
            let count = drafts.worth(8, cost);
            let cost = if count > 0 { cost(count) } else { 1.0 };
            drafts.count(count, 0, cost);
            time += cost;
        }
        assert!(time < 1.02 * f64::from(steps), "{time}");
        // what repeats again is found again, with more and more drafts
        let mut most = 0;
        for _ in 0..200 {
            let count = drafts.worth(8, cost);
            drafts.count(count, count, if count > 0 { cost(count) } else { 1.0 });
            most = most.max(count);
        }
        assert!(most >= 5, "{most}");
    }

    #[test]
    fn drafts_that_cost_as_much_as_steps_are_not_verified() {
        let mut drafts = LookupDrafts::default();
        for _ in 0..100 {
            drafts.count(1, 1, 1.0);
        }
        assert_eq!(drafts.worth(8, |count| 1.0 + count as f64), 0);
        assert_eq!(drafts.worth(8, |_| 1.0), 8);
        assert_eq!(drafts.worth(0, |_| 1.0), 0);
    }

    #[test]
    fn costs_are_means_and_unknown_ones_lie_between() {
        let mut costs = StepCosts::default();
        assert_eq!(costs.ratio(1, 2), 1.4);
        costs.count(1, 1.0);
        assert_eq!(costs.ratio(1, 2), 1.4);
        costs.count(5, 1.4);
        assert_eq!(costs.ratio(1, 2), 1.2);
        assert_eq!(costs.ratio(1, 4), 1.4);
        costs.count(40, 9.0);
        // interrupted steps
        costs.count(1, 100.0);
        costs.count(9, 100.0);
        assert!(costs.ratio(1, 4) > 1.2 && costs.ratio(1, 8) < 5.0, "{costs:?}");
        // and what was slow is tried again
        for _ in 0..300 {
            costs.count(1, 1.0);
        }
        assert!(costs.ratio(1, 8) < 2.7, "{costs:?}");
    }
}
