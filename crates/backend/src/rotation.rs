//! Rotary position embedding (RoPE), computed in f64.

use latent_graph::ModelConfig;
use latent_graph::config::RopePairs;
use std::sync::Arc;

/// Rotation by position: RoPE with the scaling of the model.
#[derive(Clone)]
pub struct Rotation {
    /// Radians per position, for each pair.
    // In f64: at large positions, an f32 angle is too coarse.
    frequencies: Arc<Vec<f64>>,
    /// Factor on cosine and sine, of YaRN and LongRoPE.
    magnitude: f64,
    pairs: RopePairs,
    /// The pairing of elements in an indexer.
    index_pairs: RopePairs,
    /// Elements of a head's key without position.
    pub nope: usize,
    /// Elements of the rope part.
    pub rope: usize,
    /// Elements of a head's value.
    pub v: usize,
}

impl Rotation {
    /// The rotation of a model with a context of `context` tokens, which LongRoPE depends on.
    pub fn new(config: &ModelConfig, context: usize) -> Rotation {
        let (frequencies, a) = (Arc::new(config.rope.inverse_frequencies(context)), &config.attention);
        let (magnitude, pairs) = (config.rope.magnitude(), config.rope.pairs);
        let index_pairs = a.indexer.map_or(pairs, |indexer| indexer.pairs);
        Rotation { frequencies, magnitude, pairs, index_pairs, nope: a.nope, rope: a.rope, v: a.v }
    }

    /// Rotates the key or query of one head to a position.
    pub fn rotate(&self, x: &mut [f32], position: usize) {
        self.rotate_pairs(x, self.pairs, self.angles(position));
    }

    /// Rotates the key or query of one head of an indexer to a position. Only the first `rope`
    /// elements are rotated.
    pub fn rotate_index(&self, x: &mut [f32], position: usize) {
        self.rotate_pairs(&mut x[..self.rope], self.index_pairs, self.angles(position));
    }

    /// Rotates a rotated key of an indexer by a further distance.
    pub fn shift_index(&self, x: &mut [f32], distance: i64) {
        self.rotate_pairs(&mut x[..self.rope], self.index_pairs, self.shift_angles(distance));
    }

    /// Rotates a rotated key by a further distance.
    pub fn shift(&self, x: &mut [f32], distance: i64) {
        self.rotate_pairs(x, self.pairs, self.shift_angles(distance));
    }

    /// The pairing of elements.
    pub fn pairs(&self) -> RopePairs {
        self.pairs
    }

    /// The pairing of elements in an indexer.
    pub fn index_pairs(&self) -> RopePairs {
        self.index_pairs
    }

    /// Cosine and sine of each pair at a position, times the model's magnitude.
    pub fn angles(&self, position: usize) -> impl Iterator<Item = (f64, f64)> {
        self.cos_sin(position as f64, self.magnitude)
    }

    /// Cosine and sine of each pair for a shift of rotated elements.
    pub fn shift_angles(&self, distance: i64) -> impl Iterator<Item = (f64, f64)> {
        // Rotated elements have the magnitude already.
        self.cos_sin(distance as f64, 1.0)
    }

    /// Cosine and sine of each pair with a frequency. Other pairs are not rotated.
    fn cos_sin(&self, by: f64, magnitude: f64) -> impl Iterator<Item = (f64, f64)> {
        self.frequencies.iter().take(self.rope / 2).map(move |frequency| {
            let (sin, cos) = (by * frequency).sin_cos();
            (cos * magnitude, sin * magnitude)
        })
    }

    fn rotate_pairs(&self, x: &mut [f32], pairs: RopePairs, angles: impl Iterator<Item = (f64, f64)>) {
        let half = x.len() / 2;
        for (i, (cos, sin)) in angles.take(half).enumerate() {
            // Models differ in which elements form a pair: neighbours (original RoPE), or the two
            // halves.
            let (a, b) = match pairs {
                RopePairs::Interleaved => (2 * i, 2 * i + 1),
                RopePairs::NeoX => (i, i + half),
            };
            let (first, second) = (f64::from(x[a]), f64::from(x[b]));
            (x[a], x[b]) = ((first * cos - second * sin) as f32, (first * sin + second * cos) as f32);
        }
    }
}
