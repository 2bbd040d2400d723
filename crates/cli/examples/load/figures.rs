//! Counts and times of the clients.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

#[derive(Default)]
pub struct LoadFigures {
    pub answered: usize,
    pub left: usize,
    pub refused: usize,
    pub errors: BTreeMap<String, usize>,
    pub tokens_in: usize,
    pub tokens_out: usize,
    /// Time from a request to its first token.
    pub first: Vec<Duration>,
    /// Time between two tokens.
    pub gaps: Vec<Duration>,
    /// Time from a request to its last token.
    pub whole: Vec<Duration>,
}

impl LoadFigures {
    pub fn add(&mut self, other: LoadFigures) {
        self.answered += other.answered;
        self.left += other.left;
        self.refused += other.refused;
        for (error, count) in other.errors {
            *self.errors.entry(error).or_default() += count;
        }
        self.tokens_in += other.tokens_in;
        self.tokens_out += other.tokens_out;
        self.first.extend(other.first);
        self.gaps.extend(other.gaps);
        self.whole.extend(other.whole);
    }

    /// The report: several lines without a final line end.
    pub fn report(&self, seconds: f64) -> String {
        let mut text = format!(
            "{} answered, {} given up by the client, {} refused, {} failed in {seconds:.1} s\n\
             tokens/s: {:.1} in prompts, {:.1} in answers, {:.1} in all",
            self.answered,
            self.left,
            self.refused,
            self.errors.values().sum::<usize>(),
            self.tokens_in as f64 / seconds,
            self.tokens_out as f64 / seconds,
            (self.tokens_in + self.tokens_out) as f64 / seconds,
        );
        for (name, times) in
            [("first token", &self.first), ("between tokens", &self.gaps), ("whole answer", &self.whole)]
        {
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let at = |share: f64| match sorted.len() {
                0 => f64::NAN,
                count => sorted[((count - 1) as f64 * share).round() as usize].as_secs_f64() * 1e3,
            };
            let mean = times.iter().map(Duration::as_secs_f64).sum::<f64>() * 1e3 / times.len() as f64;
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "\n{name:>15}, ms: mean {mean:.1}, median {:.1}, p90 {:.1}, p99 {:.1}, longest {:.1}",
                at(0.5),
                at(0.9),
                at(0.99),
                at(1.0)
            );
        }
        for (error, count) in self.errors.iter().take(5) {
            let _ = write!(text, "\nfailed {count} times: {error}");
        }
        text
    }
}
