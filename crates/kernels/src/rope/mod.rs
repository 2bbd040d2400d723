//! Rotary position embedding (RoPE).

/// Which two elements of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// (0, 1), (2, 3), …
    Interleaved,
    /// (0, d/2), (1, d/2 + 1), …: rotate half.
    NeoX,
}

/// Inverse frequencies, and the factor on cosine and sine (YaRN's attention factor). Angles are
/// computed in f64: an f32 near 100 000 is off by up to 0.004 radians.
#[derive(Clone, Debug)]
pub struct RopeTable {
    inverse_frequencies: Vec<f64>,
    magnitude: f64,
}

impl RopeTable {
    /// A table of one frequency per pair, in radians per position.
    pub fn new(inverse_frequencies: Vec<f64>, magnitude: f64) -> RopeTable {
        RopeTable { inverse_frequencies, magnitude }
    }

    /// Elements of a rotation: cosine and sine per pair.
    pub fn rotation_len(&self) -> usize {
        2 * self.inverse_frequencies.len()
    }

    /// Writes the rotation to `position`: per pair cosine and sine, times the magnitude.
    pub fn rotation(&self, position: i64, out: &mut [f32]) {
        self.fill(position, self.magnitude, out);
    }

    /// Moves one head, already rotated, by `distance` positions, which may be negative. The
    /// magnitude is not applied again.
    pub fn shift(&self, x: &mut [f32], distance: i64, pairs: RopePairing) {
        let mut rotation = vec![0.0; self.rotation_len()];
        self.fill(distance, 1.0, &mut rotation);
        rotate(x, &rotation, pairs);
    }

    fn fill(&self, position: i64, magnitude: f64, out: &mut [f32]) {
        for (frequency, out) in self.inverse_frequencies.iter().zip(out.chunks_exact_mut(2)) {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            out[0] = (cos * magnitude) as f32;
            out[1] = (sin * magnitude) as f32;
        }
    }
}

/// Rotates one head in place by a [rotation](RopeTable::rotation). Elements beyond the pairs of the
/// rotation stay unchanged (partial RoPE).
pub fn rotate(x: &mut [f32], rotation: &[f32], pairs: RopePairing) {
    let half = x.len() / 2;
    for (i, pair) in rotation.chunks_exact(2).take(half).enumerate() {
        let (a, b) = match pairs {
            RopePairing::Interleaved => (2 * i, 2 * i + 1),
            RopePairing::NeoX => (i, i + half),
        };
        (x[a], x[b]) = (x[a] * pair[0] - x[b] * pair[1], x[a] * pair[1] + x[b] * pair[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(table: &RopeTable, x: &mut [f32], position: i64, pairs: RopePairing) {
        let mut rotation = vec![0.0; table.rotation_len()];
        table.rotation(position, &mut rotation);
        rotate(x, &rotation, pairs);
    }

    #[test]
    fn rotations_add_up_and_keep_the_length() {
        let table = RopeTable::new(vec![1.0, 0.1, 0.01], 1.0);
        for pairs in [RopePairing::Interleaved, RopePairing::NeoX] {
            let start = [1.0f32, 2.0, -3.0, 0.5, 0.25, -1.0];
            let (mut once, mut twice) = (start, start);
            to(&table, &mut once, 7, pairs);
            to(&table, &mut twice, 12, pairs);
            table.shift(&mut twice, -5, pairs);
            assert!(once.iter().zip(&twice).all(|(a, b)| (a - b).abs() < 1e-5));
            let length = |x: &[f32]| x.iter().map(|v| v * v).sum::<f32>();
            assert!((length(&once) - length(&start)).abs() < 1e-4);
        }
        let mut x = [1.0f32, 0.0];
        let table = RopeTable::new(vec![std::f64::consts::FRAC_PI_2], 2.0);
        to(&table, &mut x, 1, RopePairing::Interleaved);
        assert!(x[0].abs() < 1e-6 && (x[1] - 2.0).abs() < 1e-6);
    }
}
