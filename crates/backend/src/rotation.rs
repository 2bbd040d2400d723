//! Rotation by position.

use latent_graph::ModelConfig;
use latent_graph::config::RopePairs;
use std::sync::Arc;

/// Rotation by position: RoPE with the scaling of the model.
#[derive(Clone)]
pub struct Rotation {
    /// Radians per position of each pair.
    frequencies: Arc<Vec<f64>>,
    /// Factor on cosine and sine, of YaRN and LongRoPE.
    magnitude: f64,
    pairs: RopePairs,
    /// How elements pair up in an indexer.
    index_pairs: RopePairs,
    /// Elements of a head's key without position.
    pub nope: usize,
    /// Elements of the rope part.
    pub rope: usize,
    /// Elements of a head's value.
    pub v: usize,
}

impl Rotation {
    /// The rotation of a model that runs with this many tokens of context.
    pub fn new(config: &ModelConfig, context: usize) -> Rotation {
        let (frequencies, a) = (Arc::new(config.rope.inverse_frequencies(context)), &config.attention);
        let (magnitude, pairs) = (config.rope.magnitude(), config.rope.pairs);
        let index_pairs = a.indexer.map_or(pairs, |indexer| indexer.pairs);
        Rotation { frequencies, magnitude, pairs, index_pairs, nope: a.nope, rope: a.rope, v: a.v }
    }

    /// Rotates the key or query of one head to a position.
    pub fn rotate(&self, x: &mut [f32], position: usize) {
        self.turn(x, self.pairs, self.angles(position));
    }

    /// Rotates the first elements of an indexer's key or query of one head, which may have more than are rotated.
    pub fn rotate_index(&self, x: &mut [f32], position: usize) {
        self.turn(&mut x[..self.rope], self.index_pairs, self.angles(position));
    }

    /// The same with what is rotated already, by a further distance.
    pub fn shift_index(&self, x: &mut [f32], distance: i64) {
        self.turn(&mut x[..self.rope], self.index_pairs, self.shift_angles(distance));
    }

    /// Rotates what is rotated already by a further distance.
    pub fn shift(&self, x: &mut [f32], distance: i64) {
        self.turn(x, self.pairs, self.shift_angles(distance));
    }

    /// Which elements pair up.
    pub fn pairs(&self) -> RopePairs {
        self.pairs
    }

    /// The same of an indexer.
    pub fn index_pairs(&self) -> RopePairs {
        self.index_pairs
    }

    /// Cosine and sine of each pair at a position, times the model's magnitude: what rotates a key or a query.
    pub fn angles(&self, position: usize) -> impl Iterator<Item = (f64, f64)> {
        self.turns(position as f64, self.magnitude)
    }

    /// Cosine and sine of each pair for what is rotated already, to be moved by a distance.
    pub fn shift_angles(&self, distance: i64) -> impl Iterator<Item = (f64, f64)> {
        self.turns(distance as f64, 1.0)
    }

    /// Pairs beyond those that have a frequency do not turn.
    fn turns(&self, by: f64, magnitude: f64) -> impl Iterator<Item = (f64, f64)> {
        self.frequencies.iter().take(self.rope / 2).map(move |frequency| {
            let (sin, cos) = (by * frequency).sin_cos();
            (cos * magnitude, sin * magnitude)
        })
    }

    fn turn(&self, x: &mut [f32], pairs: RopePairs, turns: impl Iterator<Item = (f64, f64)>) {
        let half = x.len() / 2;
        for (i, (cos, sin)) in turns.take(half).enumerate() {
            let (a, b) = match pairs {
                RopePairs::Interleaved => (2 * i, 2 * i + 1),
                RopePairs::NeoX => (i, i + half),
            };
            let (first, second) = (f64::from(x[a]), f64::from(x[b]));
            (x[a], x[b]) = ((first * cos - second * sin) as f32, (first * sin + second * cos) as f32);
        }
    }
}
