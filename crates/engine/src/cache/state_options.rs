//! How much recurrent state is kept.

use latent_backend::KV_BLOCK;

/// How much recurrent state is kept, of models that have any. Memory is taken for `sequences × (2 + snapshots)` states: of each sequence the
/// present one, the one that a step is writing, and its snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateOptions {
    /// Sequences that fit with all their snapshots. More can run if some have fewer.
    pub sequences: usize,
    /// Most snapshots of one sequence. Of more, the newest is kept, and of the others those that lie farthest apart.
    pub snapshots: usize,
    /// Tokens between two snapshots, rounded up to whole blocks, so that blocks with a state at their end can be shared; 0: only those that
    /// are asked for.
    pub every: usize,
}

impl Default for StateOptions {
    fn default() -> StateOptions {
        StateOptions { sequences: 4, snapshots: 4, every: 256 }
    }
}

impl StateOptions {
    /// Slots of recurrent state; none where they are too many to be counted.
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
