//! Rotation by position.

use latent_graph::ModelConfig;
use latent_graph::config::RopePairs;
use std::sync::Arc;

/// Rotation by position: RoPE with the scaling of the model.
#[derive(Clone)]
pub(super) struct Rotation {
    /// Radians per position of each pair.
    frequencies: Arc<Vec<f64>>,
    /// Factor on cosine and sine, of YaRN and LongRoPE.
    magnitude: f64,
    pairs: RopePairs,
    pub nope: usize,
    pub rope: usize,
    pub v: usize,
}

impl Rotation {
    pub fn new(config: &ModelConfig, context: usize) -> Rotation {
        let (frequencies, a) = (Arc::new(config.rope.inverse_frequencies(context)), &config.attention);
        let (magnitude, pairs) = (config.rope.magnitude(), config.rope.pairs);
        Rotation { frequencies, magnitude, pairs, nope: a.nope, rope: a.rope, v: a.v }
    }

    /// Rotates the key or query of one head to a position.
    pub fn rotate(&self, x: &mut [f32], position: usize) {
        self.turn(x, position as f64, self.magnitude);
    }

    /// Rotates what is rotated already by a further distance.
    pub fn shift(&self, x: &mut [f32], distance: i64) {
        self.turn(x, distance as f64, 1.0);
    }

    fn turn(&self, x: &mut [f32], by: f64, magnitude: f64) {
        let half = x.len() / 2;
        for (i, frequency) in self.frequencies.iter().enumerate().take(half) {
            let (sin, cos) = (by * frequency).sin_cos();
            let (sin, cos) = (sin * magnitude, cos * magnitude);
            let (a, b) = match self.pairs {
                RopePairs::Interleaved => (2 * i, 2 * i + 1),
                RopePairs::NeoX => (i, i + half),
            };
            let (first, second) = (f64::from(x[a]), f64::from(x[b]));
            (x[a], x[b]) = ((first * cos - second * sin) as f32, (first * sin + second * cos) as f32);
        }
    }
}
