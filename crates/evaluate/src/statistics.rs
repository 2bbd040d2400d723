//! Means with their standard errors, and quantiles.

use serde::{Deserialize, Serialize};

/// A measured value and its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    /// One standard error; 0 with too few samples for an estimate.
    pub error: f64,
}

impl Estimate {
    /// A share of `total` trials, with the standard error of a binomial distribution.
    pub fn share(hits: usize, total: usize) -> Estimate {
        if total == 0 {
            return Estimate::default();
        }
        let value = hits as f64 / total as f64;
        let error = if total > 1 { (value * (1.0 - value) / (total as f64 - 1.0)).sqrt() } else { 0.0 };
        Estimate { value, error }
    }

    /// e to this power.
    pub(crate) fn exp(self) -> Estimate {
        let value = self.value.exp();
        // Linear propagation, because the error is small.
        Estimate { value, error: value * self.error }
    }
}

/// Sums for mean and variance.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moments {
    pub(crate) count: usize,
    sum: f64,
    squares: f64,
}

impl Moments {
    // Sum and sum of squares in f64 as in llama.cpp, so that both print the same error. −ln p is of
    // order 1, so no digits cancel.
    pub(crate) fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    pub(crate) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }

    /// The mean and its standard error, `√((E[x²] − E[x]²) ÷ (n − 1))`.
    pub(crate) fn estimate(&self) -> Estimate {
        let value = self.mean();
        let variance = self.squares / self.count.max(1) as f64 - value * value;
        let error = if self.count > 1 && variance > 0.0 {
            (variance / (self.count as f64 - 1.0)).sqrt()
        } else {
            0.0
        };
        Estimate { value, error }
    }
}

/// A quantile of sorted values, linearly interpolated; 0 without values.
pub(crate) fn quantile(sorted: &[f32], fraction: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = fraction.clamp(0.0, 1.0) * last as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    let high = (low + 1).min(last);
    (1.0 - part) * f64::from(sorted[low]) + part * f64::from(sorted[high])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_errors_match_a_textbook_example() {
        let mut moments = Moments::default();
        [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter().for_each(|x| moments.add(x));
        // The textbook's eight values: mean 5, sum of squared deviations 32.
        let Estimate { value, error } = moments.estimate();
        assert!((value - 5.0).abs() < 1e-12 && (error - (32.0f64 / 8.0 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(Moments::default().estimate(), Estimate::default());
        let share = Estimate::share(3, 4);
        assert!((share.value - 0.75).abs() < 1e-12 && (share.error - 0.25).abs() < 1e-12);
    }

    #[test]
    fn quantiles_are_interpolated() {
        let sorted = [1.0, 2.0, 3.0, 4.0];
        assert_eq!((quantile(&sorted, 0.0), quantile(&sorted, 0.5), quantile(&sorted, 1.0)), (1.0, 2.5, 4.0));
        assert!((quantile(&sorted, 0.9) - 3.7).abs() < 1e-12);
        assert_eq!((quantile(&[], 0.5), quantile(&[7.0], 0.3)), (0.0, 7.0));
    }
}
