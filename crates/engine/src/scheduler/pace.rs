//! Limits the prompt tokens of a step, from measured step times, so that jobs that decode in the
//! same step do not wait long.

use std::time::Duration;

/// Weight of the newest measurement.
const NEWEST: f64 = 0.3;

/// Number of mixed steps after which one runs without prompts. The time of such a step grows with
/// the contexts of the decoding jobs, so it must be measured again.
const PROBE: usize = 64;

/// Maximum growth of prompt tokens from step to step, since the cost per token changes with their
/// number.
const GROWTH: usize = 2;

/// Measured speeds.
#[derive(Clone, Debug, Default)]
pub(super) struct SchedulerPace {
    /// Seconds of a step without prompts. Each element is for numbers of sequences within one power
    /// of two.
    decode: [Option<f64>; 16],
    /// Seconds that a prompt token adds to a step.
    per_token: Option<f64>,
    /// Prompt tokens of the last mixed step.
    last: usize,
    /// Mixed steps since the last step without prompts.
    mixed: usize,
    /// Tokens per second, prompts and answers together.
    rate: Option<f64>,
}

/// Maximum of a measurement as a multiple of the mean, since other programs interrupt some steps.
const OUTLIER: f64 = 3.0;

/// The same for steps without prompts. A pause of the machine that raises their mean would enlarge
/// the budget of prompts: with [`OUTLIER`], measured steps exceeded the target.
const OUTLIER_ALONE: f64 = 1.5;

/// The exponential moving average after a new measurement.
fn mean(before: Option<f64>, new: f64, outlier: f64) -> f64 {
    let limited = |before: f64| if before > 0.0 { new.min(outlier * before) } else { new };
    before.map_or(new, |before| before + NEWEST * (limited(before) - before))
}

impl SchedulerPace {
    /// The element of `decode` for this number of sequences.
    fn size(decoding: usize) -> usize {
        (usize::BITS - decoding.leading_zeros()).min(15) as usize
    }

    /// The number of prompt tokens for a step in which `decoding` sequences decode, so that the
    /// step takes at most about `slowdown` times as long as without them. The result is between
    /// `least` and `most`, or 0 if a step without prompts must be measured first.
    pub(super) fn budget(&self, decoding: usize, slowdown: f64, least: usize, most: usize) -> usize {
        let Some(step) = self.decode[SchedulerPace::size(decoding)].filter(|_| self.mixed < PROBE) else {
            return 0;
        };
        let tokens = match self.per_token {
            None => least,
            // A per-token time of 0 (the clock did not advance) gives infinity or NaN. The cast
            // turns these into `usize::MAX` and 0, and the clamp below bounds both.
            Some(per_token) => ((slowdown - 1.0) * step / per_token) as usize,
        };
        // The time per token was measured with `last` tokens and may not hold for many more.
        let growth = self.last.max(least).saturating_mul(GROWTH);
        tokens.min(growth).clamp(least.min(most), most)
    }

    /// Updates the measured speeds from a step.
    pub(super) fn observe(&mut self, decoding: usize, prompt_tokens: usize, took: Duration) {
        let (seconds, size) = (took.as_secs_f64(), SchedulerPace::size(decoding));
        // If the clock did not advance, no rate can be computed.
        if seconds > 0.0 {
            self.rate = Some(mean(self.rate, (decoding + prompt_tokens) as f64 / seconds, OUTLIER));
        }
        if prompt_tokens == 0 {
            self.decode[size] = Some(mean(self.decode[size], seconds, OUTLIER_ALONE));
            self.mixed = 0;
            return;
        }
        let alone = if decoding == 0 { 0.0 } else { self.decode[size].unwrap_or_default() };
        // A mixed step can be faster than the mean of steps without prompts.
        let per_token = (seconds - alone).max(0.0) / prompt_tokens as f64;
        // Prompts that run alone have large chunks, which are cheaper per token. They are only a
        // first guess for mixed steps, and the first mixed step replaces it.
        if decoding > 0 {
            self.per_token = Some(mean(self.per_token.filter(|_| self.last > 0), per_token, OUTLIER));
            (self.last, self.mixed) = (prompt_tokens, self.mixed + 1);
        } else {
            self.per_token.get_or_insert(per_token);
        }
    }

    /// Estimated seconds for `tokens` tokens.
    pub(super) fn seconds(&self, tokens: usize) -> f64 {
        self.rate.map_or(1.0, |rate| tokens as f64 / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of a step on a machine where the cost of a prompt token grows with the context, and
    /// each prompt chunk has a fixed cost.
    fn cost(decoding: usize, prompt: usize, context: usize) -> f64 {
        let decode = if decoding == 0 { 0.0 } else { 0.010 + 0.001 * decoding as f64 };
        decode + prompt as f64 * (0.0005 + context as f64 * 2e-8) + if prompt > 0 { 0.002 } else { 0.0 }
    }

    #[test]
    fn steps_stay_within_the_bound_under_a_long_prompt() {
        for decoding in [1, 4, 31] {
            let mut pace = SchedulerPace::default();
            let (mut done, mut steps, mut probes) = (0, 0, 0);
            while done < 16_384 {
                let prompt = pace.budget(decoding, 2.5, 8, 4096).min(16_384 - done);
                let seconds = cost(decoding, prompt, done);
                pace.observe(decoding, prompt, Duration::from_secs_f64(seconds));
                assert!(seconds <= 3.0 * cost(decoding, 0, done), "{decoding}: {prompt} tokens at {done}");
                probes += usize::from(prompt == 0);
                (done, steps) = (done + prompt, steps + 1);
            }
            assert!(probes <= 1 + steps / 40, "{probes} of {steps} steps without prompts");
            // Most of the time is spent on the prompt.
            assert!(steps < 16_384 / 12, "{decoding}: {steps} steps");
        }
    }

    #[test]
    fn the_budget_stays_between_the_minimum_chunk_and_the_step() {
        let mut pace = SchedulerPace::default();
        assert_eq!(pace.budget(3, 2.5, 8, 512), 0);
        pace.observe(3, 0, Duration::from_millis(1));
        assert_eq!(pace.budget(3, 2.5, 8, 512), 8);
        // Prompt tokens are extremely slow: the minimum still runs.
        pace.observe(3, 8, Duration::from_secs(1));
        assert_eq!(pace.budget(3, 2.5, 8, 512), 8);
        assert_eq!(pace.budget(3, 2.5, 8, 4), 4);
        // The clock does not advance, as can happen in a virtual machine.
        let mut still = SchedulerPace::default();
        for _ in 0..20 {
            let prompt = still.budget(1, 2.5, 8, 512);
            still.observe(1, prompt, Duration::ZERO);
        }
        assert_eq!(still.budget(1, 2.5, 8, 512), 8);
    }
}
