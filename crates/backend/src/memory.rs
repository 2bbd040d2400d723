//! Memory estimates of a model.

use latent_formats::Checkpoint;
use latent_graph::circuit::TensorIndex;

/// Memory of a loaded model and its KV cache, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MemoryEstimate {
    /// Weights in allocated memory: repacked ones, and scales.
    pub weights: u64,
    /// Weights in the mapped file, whose pages the system can evict and read again.
    pub mapped: u64,
    /// KV cache of the whole context.
    pub cache: u64,
    /// Slots of recurrent state: those of running sequences and of snapshots.
    pub state: u64,
    /// Activations: arena, residual stream, logits, scratch.
    pub arena: u64,
    /// Keys and values that a prompt as long as the context expands.
    pub expanded: u64,
}

impl std::ops::Add for MemoryEstimate {
    type Output = MemoryEstimate;

    /// The sum for two models, or two parts of one.
    fn add(self, other: MemoryEstimate) -> MemoryEstimate {
        // Saturating: sizes come from files, and an impossible model must be refused, not wrap
        // around.
        MemoryEstimate {
            weights: self.weights.saturating_add(other.weights),
            mapped: self.mapped.saturating_add(other.mapped),
            cache: self.cache.saturating_add(other.cache),
            state: self.state.saturating_add(other.state),
            arena: self.arena.saturating_add(other.arena),
            expanded: self.expanded.saturating_add(other.expanded),
        }
    }
}

impl MemoryEstimate {
    pub fn total(&self) -> u64 {
        self.resident().saturating_add(self.mapped)
    }

    /// The part that the system cannot evict.
    pub fn resident(&self) -> u64 {
        [self.cache, self.state, self.arena, self.expanded]
            .iter()
            .fold(self.weights, |sum, n| sum.saturating_add(*n))
    }

    /// The parts with their names, without empty ones.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let parts = [
            ("weights", self.weights),
            ("mapped", self.mapped),
            ("cache", self.cache),
            ("state", self.state),
            ("arena", self.arena),
            ("expanded", self.expanded),
        ];
        parts.into_iter().filter(|(_, bytes)| *bytes > 0)
    }
}

/// Size of a model's weights, in bytes. A tied embedding counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightBytes {
    /// In allocated memory.
    pub owned: u64,
    /// Read from the mapped file.
    pub mapped: u64,
}

/// The source of the types and shapes of weights.
#[derive(Clone, Copy)]
pub enum WeightSource<'a> {
    /// A file with its data.
    File(&'a Checkpoint),
    /// A header without data, or the values that a config implies.
    Declared(&'a dyn TensorIndex),
}
