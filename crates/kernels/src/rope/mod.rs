//! Rotary embedding.

/// Which two numbers of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// (0, 1), (2, 3), …
    Interleaved,
    /// (0, d/2), (1, d/2 + 1), …
    Split,
}

/// Frequencies of the pairs and the factor on cos and sin. Angles are computed in f64, so that far positions stay exact.
#[derive(Clone, Debug)]
pub struct RopeTable {
    inverse_frequencies: Vec<f64>,
    magnitude: f64,
}

impl RopeTable {
    /// A table of one frequency a pair, in radians a position.
    pub fn new(inverse_frequencies: Vec<f64>, magnitude: f64) -> RopeTable {
        RopeTable { inverse_frequencies, magnitude }
    }

    /// Rotates one head in place to `position`, which may be negative (a shift back; then the magnitude is not applied again).
    pub fn apply(&self, x: &mut [f32], position: i64, pairs: RopePairs) {
        self.rotate(x, position, pairs, self.magnitude);
    }

    /// Rotates one head, already rotated once, by a further `distance`.
    pub fn shift(&self, x: &mut [f32], distance: i64, pairs: RopePairs) {
        self.rotate(x, distance, pairs, 1.0);
    }

    fn rotate(&self, x: &mut [f32], position: i64, pairs: RopePairs, magnitude: f64) {
        let half = x.len() / 2;
        for (i, frequency) in self.inverse_frequencies.iter().take(half).enumerate() {
            let (a, b) = match pairs {
                RopePairs::Interleaved => (2 * i, 2 * i + 1),
                RopePairs::Split => (i, i + half),
            };
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (sin, cos) = ((sin * magnitude) as f32, (cos * magnitude) as f32);
            (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_add_up_and_keep_the_length() {
        let table = RopeTable::new(vec![1.0, 0.1, 0.01], 1.0);
        for pairs in [RopePairs::Interleaved, RopePairs::Split] {
            let start = [1.0f32, 2.0, -3.0, 0.5, 0.25, -1.0];
            let (mut once, mut twice) = (start, start);
            table.apply(&mut once, 7, pairs);
            table.apply(&mut twice, 12, pairs);
            table.shift(&mut twice, -5, pairs);
            assert!(once.iter().zip(&twice).all(|(a, b)| (a - b).abs() < 1e-5));
            let length = |x: &[f32]| x.iter().map(|v| v * v).sum::<f32>();
            assert!((length(&once) - length(&start)).abs() < 1e-4);
        }
        let mut x = [1.0f32, 0.0];
        RopeTable::new(vec![std::f64::consts::FRAC_PI_2], 2.0).apply(&mut x, 1, RopePairs::Interleaved);
        assert!(x[0].abs() < 1e-6 && (x[1] - 2.0).abs() < 1e-6);
    }
}
