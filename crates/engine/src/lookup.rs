//! Drafts by n-gram lookup in the text itself (prompt lookup): tokens that followed the same n-gram
//! earlier in the context.
//!
//! Edited code, summaries and answers that quote their prompt repeat long pieces of the context.
//! The model verifies several tokens in one step at little more than the cost of one, so repeated
//! text is generated several times as fast. For other text, a budget bounds the time that refused
//! drafts may take.

use std::collections::HashMap;

/// Maximum number of drafts per step and answer.
pub(crate) const MAX_DRAFTS: usize = 8;

/// Length of the n-grams, in tokens.
const MATCH: usize = 3;

/// The initial budget for refused drafts, in steps without drafts.
const CREDIT: f64 = 2.0;

/// Maximum of the budget. Drafts that were accepted in one part of a text must not pay for many
/// refused ones in the next.
const MAX_CREDIT: f64 = 3.0;

/// Budget that a step without drafts adds: the fraction of the time that refused drafts may take.
const SHARE: f64 = 0.015;

/// Factors by which the weight of older verifications decays: per verification, and per step
/// without drafts.
const FADING: f64 = 0.9;
const IDLE_FADING: f64 = 0.97;

/// The n-gram index of one answer, and how well its drafts did.
#[derive(Clone, Debug, Default)]
pub(crate) struct LookupDrafts {
    /// The end of the last occurrence of each n-gram.
    ends: HashMap<[u32; MATCH], u32>,
    /// Number of n-grams of the context that are in `ends`. The last n-gram is never among them,
    /// since it would match itself.
    indexed: usize,
    /// Accepted and verified drafts. Older ones have less weight.
    accepted: f64,
    verified: f64,
    /// The remaining budget minus [`CREDIT`], so that the default of 0 is the initial budget.
    saved: f64,
}

impl LookupDrafts {
    /// The tokens that followed the last earlier occurrence of the final n-gram of `context`, at
    /// most `most`.
    pub(crate) fn propose<'c>(&mut self, context: &'c [u32], most: usize) -> &'c [u32] {
        let last = context.len().checked_sub(MATCH);
        // A context shift has discarded tokens, so all positions in `ends` are wrong.
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

    /// How many of `proposed` drafts are worth verifying: the number with the most expected tokens
    /// per time, within the budget. A step of `1 + n` rows takes `cost(n)` times as long as one
    /// without drafts.
    pub(crate) fn worth(&self, proposed: usize, cost: impl Fn(usize) -> f64) -> usize {
        // The estimated acceptance rate, with a prior of 1/2 (Laplace's rule of succession).
        let right = (self.accepted + 1.0) / (self.verified + 2.0);
        let (mut best, mut gain, mut tokens, mut all_right) = (0, 1.0, 1.0, 1.0);
        for count in 1..=proposed.min(MAX_DRAFTS) {
            // Draft `count` is used only if all drafts before it are right too.
            all_right *= right;
            tokens += all_right;
            let cost = cost(count);
            if tokens / cost > gain && cost - 1.0 <= CREDIT + self.saved {
                (best, gain) = (count, tokens / cost);
            }
        }
        best
    }

    /// Counts a step in which `accepted` of `drafted` drafts were accepted. The step took `cost`
    /// times as long as one without drafts.
    pub(crate) fn count(&mut self, drafted: usize, accepted: usize, cost: f64) {
        if drafted == 0 {
            self.saved = (self.saved + SHARE).min(MAX_CREDIT - CREDIT);
            self.accepted *= IDLE_FADING;
            self.verified *= IDLE_FADING;
            return;
        }
        // Drafts after the first wrong one were not compared.
        let verified = accepted + usize::from(accepted < drafted);
        let fading = FADING.powi(verified as i32);
        self.accepted = self.accepted * fading + accepted as f64;
        self.verified = self.verified * fading + verified as f64;
        self.saved = (self.saved + accepted as f64 - (cost - 1.0)).min(MAX_CREDIT - CREDIT);
    }
}

/// The measured time of steps by their number of rows: moving averages over this engine's steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepCosts {
    /// Seconds of a step, by its number of rows. 0 if no such step has run.
    seconds: [f64; StepCosts::ROWS + 1],
    /// A fixed cost per row, in place of measured ones.
    given: Option<f64>,
}

/// Assumed cost of one more row, relative to a step of one row, before any such step has run.
const ROW_COST: f64 = 0.2;

/// Weight of the newest step if it is shorter or longer than the mean. A long step may have been
/// interrupted by another process, and says little about later steps.
const SHORTER: f64 = 0.4;
const LONGER: f64 = 0.1;

/// Maximum of a longer step, as a multiple of the mean.
const OUTLIER: f64 = 2.0;

/// How fast measured costs approach the assumed ones, per step. A cost that is too high prevents
/// drafts, and so its own correction.
const FORGETTING: f64 = 0.02;

impl StepCosts {
    /// Maximum number of rows of a counted step: those of a small batch.
    pub(crate) const ROWS: usize = latent_graph::passes::BatchBucket::SMALL_BATCH;

    /// Costs that are measured, or `given` per row.
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
        let seconds = if expected > 0.0 { seconds.min(OUTLIER * expected) } else { seconds };
        *mean = match *mean > 0.0 {
            true => *mean + if seconds < *mean { SHORTER } else { LONGER } * (seconds - *mean),
            false => seconds,
        };
        let mean = *mean;
        // Larger steps that were slow once are not chosen again, so their costs would never be
        // corrected. Let them decay to what this step suggests.
        for (more, other) in self.seconds[rows + 1..].iter_mut().enumerate() {
            let assumed = mean * (1.0 + ROW_COST * (more + 1) as f64);
            if *other > assumed {
                *other += FORGETTING * (assumed - *other);
            }
        }
    }

    /// The time of a step of `rows + more` rows relative to one of `rows` rows, at least 1.
    pub(crate) fn ratio(&self, rows: usize, more: usize) -> f64 {
        if let Some(given) = self.given {
            return 1.0 + given * more as f64;
        }
        let (one, all) = (self.estimate(rows), self.estimate(rows + more));
        if one > 0.0 && all > 0.0 { (all / one).max(1.0) } else { 1.0 + ROW_COST * more as f64 }
    }

    /// The mean time of steps of `rows` rows. Interpolated or extrapolated from the nearest known
    /// numbers of rows if none has run, and 0 if no step has run.
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
    fn the_tokens_after_the_last_match_are_proposed() {
        let mut drafts = LookupDrafts::default();
        let mut context = vec![1, 2, 3, 4, 5, 9, 1, 2, 3, 7, 8];
        assert_eq!(drafts.propose(&context, 8), &[] as &[u32]);
        context.extend([1, 2, 3]);
        assert_eq!(drafts.propose(&context, 8), &[7, 8, 1, 2, 3]);
        assert_eq!(drafts.propose(&context, 2), &[7, 8]);
        // The last n-gram must not match itself.
        context.extend([30, 31, 32]);
        assert_eq!(drafts.propose(&context, 8), &[] as &[u32]);
        // Repeated tokens match with an overlap.
        let mut same = LookupDrafts::default();
        assert_eq!(same.propose(&[6, 6, 6, 6], 8), &[6]);
        // A context that was cut.
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
        // Once the text repeats again, drafts are tried again, and their number grows.
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
    fn costs_are_averaged_and_interpolated() {
        let mut costs = StepCosts::default();
        assert_eq!(costs.ratio(1, 2), 1.4);
        costs.count(1, 1.0);
        assert_eq!(costs.ratio(1, 2), 1.4);
        costs.count(5, 1.4);
        assert_eq!(costs.ratio(1, 2), 1.2);
        assert_eq!(costs.ratio(1, 4), 1.4);
        costs.count(40, 9.0);
        // Interrupted steps.
        costs.count(1, 100.0);
        costs.count(9, 100.0);
        assert!(costs.ratio(1, 4) > 1.2 && costs.ratio(1, 8) < 5.0, "{costs:?}");
        // The cost of a slow step decays.
        for _ in 0..300 {
            costs.count(1, 1.0);
        }
        assert!(costs.ratio(1, 8) < 2.7, "{costs:?}");
    }
}
