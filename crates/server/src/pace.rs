//! Minimum transfer rates of clients.

use std::time::Duration;

/// The time budget of a client that sends or receives. Waiting uses it up, and transferred bytes
/// refill it at `rate` bytes per second, up to its initial value.
///
/// A plain timeout between bytes is not enough: a client with one byte per second would hold a
/// connection forever. A minimum average rate is not enough either: after a fast start the client
/// could pause for long.
pub(crate) struct ClientPace {
    patience: Duration,
    /// Bytes that refill one second; 0: any byte refills the whole budget.
    rate: usize,
    /// The used part of the budget.
    waited: Duration,
}

impl ClientPace {
    pub(crate) fn new(seconds: u64, rate: usize) -> ClientPace {
        ClientPace { patience: Duration::from_secs(seconds), rate, waited: Duration::ZERO }
    }

    /// The remaining budget.
    pub(crate) fn left(&self) -> Duration {
        self.patience.saturating_sub(self.waited)
    }

    /// Accounts for `bytes` that were transferred after waiting for `after`.
    pub(crate) fn progressed(&mut self, bytes: usize, after: Duration) {
        let bought = match (bytes, self.rate) {
            (0, _) => Duration::ZERO,
            (_, 0) => Duration::MAX,
            (bytes, rate) => Duration::from_secs_f64(bytes as f64 / rate as f64),
        };
        self.waited = self.waited.saturating_add(after).saturating_sub(bought);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_refill_the_budget_up_to_its_maximum() {
        let second = Duration::from_secs(1);
        let mut pace = ClientPace::new(10, 100);
        // A burst of bytes cannot be saved up beyond the maximum.
        pace.progressed(1_000_000, 5 * second);
        assert_eq!(pace.left(), 10 * second);
        for passed in 1..=10 {
            pace.progressed(50, second);
            assert_eq!(pace.left(), 10 * second - passed * second / 2);
        }
        pace.progressed(0, 9 * second);
        assert_eq!(pace.left(), Duration::ZERO);
        // Without a rate, any byte restores the whole budget.
        let mut any = ClientPace::new(10, 0);
        any.progressed(1, 9 * second);
        assert_eq!(any.left(), 10 * second);
        any.progressed(0, 9 * second);
        assert_eq!(any.left(), second);
    }
}
