//! How long a client may let the server wait.

use std::time::Duration;

/// Time that a client has left. What comes buys time, but never more than there was at first, so that a fast start pays for nothing.
pub(crate) struct ClientPace {
    patience: Duration,
    /// Bytes that buy a second; 0: any byte buys all the time.
    rate: usize,
    /// How long was waited, less what was bought since.
    waited: Duration,
}

impl ClientPace {
    pub(crate) fn new(seconds: u64, rate: usize) -> ClientPace {
        ClientPace { patience: Duration::from_secs(seconds), rate, waited: Duration::ZERO }
    }

    /// How long may be waited now.
    pub(crate) fn left(&self) -> Duration {
        self.patience.saturating_sub(self.waited)
    }

    /// `bytes` bytes came after `elapsed`.
    pub(crate) fn came(&mut self, bytes: usize, after: Duration) {
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
    fn bytes_buy_time_but_no_more_than_there_was() {
        let second = Duration::from_secs(1);
        let mut pace = ClientPace::new(10, 100);
        pace.came(1_000_000, 5 * second);
        assert_eq!(pace.left(), 10 * second);
        for passed in 1..=10 {
            pace.came(50, second);
            assert_eq!(pace.left(), 10 * second - passed * second / 2);
        }
        pace.came(0, 9 * second);
        assert_eq!(pace.left(), Duration::ZERO);
        let mut any = ClientPace::new(10, 0);
        any.came(1, 9 * second);
        assert_eq!(any.left(), 10 * second);
        any.came(0, 9 * second);
        assert_eq!(any.left(), second);
    }
}
