//! The number of recurrent states that are kept.

use latent_backend::KV_BLOCK;

/// The number of recurrent states that are kept, for models with recurrent layers. The cache has
/// `sequences × (2 + snapshots)` slots: per sequence the current state, the state that a step
/// writes, and snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateOptions {
    /// Number of sequences that fit with all their snapshots. More can run if some have fewer.
    pub sequences: usize,
    /// Maximum number of snapshots per sequence. The newest is always kept, and those of the others
    /// that are farthest apart.
    pub snapshots: usize,
    /// Number of tokens between two snapshots, rounded up to whole blocks, so that blocks with a
    /// state at their end can be shared. 0: requested snapshots only.
    pub every: usize,
}

impl Default for StateOptions {
    fn default() -> StateOptions {
        StateOptions { sequences: 4, snapshots: 4, every: 256 }
    }
}

impl StateOptions {
    /// Number of slots of recurrent state. `None` if the number exceeds `u32`.
    pub fn slots(&self) -> Option<u32> {
        let of_each = self.snapshots.checked_add(2)?;
        u32::try_from(self.sequences.checked_mul(of_each)?).ok()
    }

    /// The positions in `first + 1..=last` at which a snapshot is due.
    pub(super) fn due(&self, first: usize, last: usize) -> impl Iterator<Item = usize> + use<> {
        let every = self.every.checked_next_multiple_of(KV_BLOCK).filter(|every| *every > 0);
        let next = every.and_then(|every| (first + 1).checked_next_multiple_of(every));
        let steps = std::iter::successors(next, move |position| position.checked_add(every?));
        steps.take_while(move |position| *position <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_due_at_multiples_of_whole_blocks() {
        let due = |every, first, last| {
            StateOptions { every, ..StateOptions::default() }.due(first, last).collect::<Vec<_>>()
        };
        assert_eq!(due(100, 0, 400), [128, 256, 384]);
        assert_eq!(due(64, 63, 64), [64]);
        assert!(due(64, 64, 127).is_empty());
        assert!(due(0, 0, 1000).is_empty());
        assert!(due(usize::MAX, 0, 1000).is_empty());
    }

    #[test]
    fn slots_that_cannot_be_counted_are_none() {
        assert_eq!(StateOptions { sequences: 3, snapshots: 2, every: 0 }.slots(), Some(12));
        for (sequences, snapshots) in [(usize::MAX, 2), (1, usize::MAX), (1 << 20, 1 << 20)] {
            assert_eq!(StateOptions { sequences, snapshots, every: 0 }.slots(), None);
        }
    }
}
