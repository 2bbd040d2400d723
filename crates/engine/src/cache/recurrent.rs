//! The recurrent states of one sequence: the current state, snapshots, and the states that a
//! running step writes.
//!
//! A step reads one slot and writes others. A step that fails or is cancelled has therefore changed
//! nothing, and snapshots and forks share slots without copying them.

use super::full::StatesFull;
use super::state_pool::{StatePool, StateSlot};
use latent_backend::SpanState;
use std::sync::Arc;

/// The states of a sequence. A state cannot be truncated, so a sequence can only return to a
/// snapshot.
#[derive(Debug)]
pub(super) struct RecurrentState {
    pool: Arc<StatePool>,
    /// The state after all cached rows. `None` without cached rows.
    present: Option<Arc<StateSlot>>,
    /// In ascending order.
    snapshots: Vec<Snapshot>,
    /// Later positions at which snapshots were requested.
    asked: Vec<usize>,
    /// The states that the running step writes.
    pending: Option<PendingStates>,
    /// The states after each row of the last step, if that had drafts. One of them becomes the
    /// current state once the drafts are verified.
    drafted: Vec<Snapshot>,
}

/// The state after the first `position` rows.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub position: usize,
    pub slot: Arc<StateSlot>,
}

/// States that a step writes. They become part of the sequence when the step has succeeded. If they
/// are dropped, their slots are free again.
#[derive(Debug)]
struct PendingStates {
    /// The state after the last row.
    last: Snapshot,
    /// The snapshots of the step.
    kept: Vec<Snapshot>,
    /// Whether the step has drafts. `kept` then has the states after all rows.
    drafted: bool,
}

impl RecurrentState {
    /// The states of an empty sequence.
    pub(super) fn new(pool: &Arc<StatePool>) -> RecurrentState {
        RecurrentState {
            pool: Arc::clone(pool),
            present: None,
            snapshots: Vec::new(),
            asked: Vec::new(),
            pending: None,
            drafted: Vec::new(),
        }
    }

    /// The states of a sequence whose `states` were read from a file or are cached, in ascending
    /// order. The last is the current one.
    pub(super) fn restored(pool: &Arc<StatePool>, mut states: Vec<Snapshot>) -> RecurrentState {
        // Before `thin`, which drops even the newest snapshot if the options keep none.
        let present = states.last().map(|last| Arc::clone(&last.slot));
        thin(&mut states, pool.options().snapshots);
        RecurrentState { present, snapshots: states, ..RecurrentState::new(pool) }
    }

    /// Takes the slots of a step that adds `rows` rows to `len` cached ones: one for the state
    /// after the last row, and one for each snapshot within the step. If no slot is free, snapshots
    /// within the step are omitted. For the state after the last row, the sequence drops earlier
    /// snapshots.
    pub(super) fn prepare(&mut self, len: usize, rows: usize) -> Result<(), StatesFull> {
        self.begin(len);
        let end = len + rows;
        // First: without this slot the step cannot run, and `take` may drop snapshots for it.
        let last = Snapshot { position: end, slot: self.take()? };
        let due = self.pool.options().due(len, end);
        let asked = self.asked.iter().copied().filter(|position| *position <= end);
        let mut positions: Vec<usize> = self.positions().chain(due).chain(asked).collect();
        positions.sort_unstable();
        positions.dedup();
        // Snapshots that `commit` would drop at once are not written.
        thin(&mut positions, self.pool.options().snapshots);
        let mut kept = Vec::new();
        // The newest first, while slots are free: most conversations go back a little only.
        for position in positions.into_iter().rev().take_while(|position| *position > len) {
            // A snapshot at the end shares the slot of the current state.
            let slot = if position == end { Some(Arc::clone(&last.slot)) } else { self.pool.take() };
            let Some(slot) = slot else { break };
            kept.push(Snapshot { position, slot });
        }
        kept.reverse();
        self.pending = Some(PendingStates { last, kept, drafted: false });
        Ok(())
    }

    /// Takes the slots of a step of a token and its drafts, `rows` rows in total: one for the state
    /// after each row, so that refused drafts can be truncated without running a row again.
    pub(super) fn prepare_drafted(&mut self, len: usize, rows: usize) -> Result<(), StatesFull> {
        // Without drafts, snapshots at due positions are enough.
        if rows == 1 {
            return self.prepare(len, rows);
        }
        self.begin(len);
        let kept = (len + 1..=len + rows).map(|position| Ok(Snapshot { position, slot: self.take()? }));
        let kept: Vec<Snapshot> = kept.collect::<Result<_, StatesFull>>()?;
        let Some(last) = kept.last().cloned() else { return Err(self.pool.full()) };
        self.pending = Some(PendingStates { last, kept, drafted: true });
        Ok(())
    }

    /// Discards the states of an earlier step, before a step that begins after `len` rows.
    fn begin(&mut self, len: usize) {
        self.pending = None;
        self.drafted.clear();
        self.asked.retain(|position| *position > len);
    }

    /// Releases the states of drafts after the drafts were verified.
    pub(super) fn settle(&mut self) {
        self.drafted.clear();
    }

    /// Takes a free slot, or drops a snapshot for it. Running the sequence takes precedence over
    /// its snapshots.
    fn take(&mut self) -> Result<Arc<StateSlot>, StatesFull> {
        loop {
            if let Some(slot) = self.pool.take() {
                return Ok(slot);
            }
            // Dropping a snapshot whose slot is shared would free no slot.
            let own: Vec<usize> = self
                .snapshots
                .iter()
                .filter(|s| Arc::strong_count(&s.slot) == 1)
                .map(|s| s.position)
                .collect();
            let Some(given_up) = least_useful(&own) else { return Err(self.pool.full()) };
            self.snapshots.retain(|snapshot| snapshot.position != own[given_up]);
        }
    }

    /// The slots of the step that was prepared, for a span that begins after `len` rows.
    pub(super) fn span(&self, len: usize) -> Option<SpanState> {
        let PendingStates { last, kept, drafted } = self.pending.as_ref()?;
        let on_the_way = kept.iter().filter(|snapshot| snapshot.position < last.position);
        Some(SpanState {
            from: self.present.as_ref().map(|slot| slot.index()),
            to: last.slot.index(),
            drafted: *drafted,
            kept: on_the_way.map(|snapshot| (snapshot.position - len, snapshot.slot.index())).collect(),
        })
    }

    /// Makes the states of a successful step part of the sequence.
    pub(super) fn commit(&mut self) {
        let Some(PendingStates { last, kept, drafted }) = self.pending.take() else { return };
        self.present = Some(last.slot);
        if drafted {
            // The step has a state after every row. Those at due and requested positions are
            // snapshots too; `restore` drops them again if their drafts are refused.
            let first = kept.first().map_or(last.position, |first| first.position);
            let due: Vec<usize> = self.pool.options().due(first - 1, last.position).collect();
            let wanted = |snapshot: &&Snapshot| {
                due.contains(&snapshot.position) || self.asked.contains(&snapshot.position)
            };
            self.snapshots.extend(kept.iter().filter(wanted).cloned());
            self.drafted = kept;
        } else {
            self.asked.retain(|position| *position > last.position);
            self.snapshots.extend(kept);
        }
        thin(&mut self.snapshots, self.pool.options().snapshots);
    }

    /// Discards the states of a failed step.
    pub(super) fn abandon(&mut self) {
        self.pending = None;
    }

    /// Requests a snapshot at `position` of a sequence with `len` rows. It is taken now, or by the
    /// step that passes the position. A position that has passed is ignored.
    pub(super) fn ask(&mut self, position: usize, len: usize) {
        if position > len && !self.asked.contains(&position) {
            self.asked.push(position);
        }
        let Some(present) = &self.present else { return };
        // Only the handle is cloned: the slot is never written again.
        if position == len && self.positions().all(|taken| taken != len) {
            self.snapshots.push(Snapshot { position, slot: Arc::clone(present) });
            thin(&mut self.snapshots, self.pool.options().snapshots);
        }
    }

    /// Restores the state after `position` rows if the last step had drafts, otherwise the newest
    /// snapshot at or before `position`. Returns the position of the restored state, or 0 without
    /// one.
    pub(super) fn restore(&mut self, position: usize) -> usize {
        self.pending = None;
        self.snapshots.retain(|snapshot| snapshot.position <= position);
        let drafted = std::mem::take(&mut self.drafted);
        if let Some(row) = drafted.into_iter().find(|row| row.position == position) {
            self.present = Some(row.slot);
            return position;
        }
        let newest = self.snapshots.last();
        self.present = newest.map(|snapshot| Arc::clone(&snapshot.slot));
        let restored = newest.map_or(0, |snapshot| snapshot.position);
        // The requested positions belong to the discarded text.
        self.asked.clear();
        restored
    }

    /// The states of a fork that shares the first `position` of `len` rows, or fewer if no state is
    /// kept there. Also returns the number of rows.
    pub(super) fn share(&self, position: usize, len: usize) -> (RecurrentState, usize) {
        let mut shared = RecurrentState {
            present: self.present.clone(),
            snapshots: self.snapshots.clone(),
            // Requested positions stay with the original: they belong to its prompt.
            ..RecurrentState::new(&self.pool)
        };
        let rows = if position < len { shared.restore(position) } else { len };
        (shared, rows)
    }

    /// The positions of the snapshots, in ascending order.
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        self.snapshots.iter().map(|snapshot| snapshot.position)
    }

    /// The snapshots and the current state, after `len` rows, in ascending order without
    /// duplicates.
    pub(super) fn states(&self, len: usize) -> Vec<Snapshot> {
        let earlier = self.snapshots.iter().filter(|snapshot| snapshot.position < len).cloned();
        let present = self.present.iter().map(|slot| Snapshot { position: len, slot: Arc::clone(slot) });
        earlier.chain(present).collect()
    }
}

trait Positioned {
    fn position(&self) -> usize;
}

impl Positioned for usize {
    fn position(&self) -> usize {
        *self
    }
}

impl Positioned for Snapshot {
    fn position(&self) -> usize {
        self.position
    }
}

/// Reduces snapshots, in ascending order, to at most `limit`: the newest, and those of the others
/// that are farthest apart.
fn thin<T: Positioned>(snapshots: &mut Vec<T>, limit: usize) {
    while snapshots.len() > limit
        && let Some(index) = least_useful(snapshots)
    {
        snapshots.remove(index);
    }
}

/// The index of the snapshot whose neighbours are closest to each other, the older of equal ones.
/// Without it, the number of rows that may have to run again grows least. The newest is returned
/// only if it is the last one left. Position 0 counts as a neighbour, since the state there is
/// known.
fn least_useful<T: Positioned>(snapshots: &[T]) -> Option<usize> {
    let gap = |index: &usize| {
        let before = index.checked_sub(1).map_or(0, |before| snapshots[before].position());
        snapshots[index + 1].position() - before
    };
    let others = 0..snapshots.len().checked_sub(1)?;
    Some(others.min_by_key(gap).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thinned(positions: &[usize], limit: usize) -> Vec<usize> {
        let mut positions = positions.to_vec();
        thin(&mut positions, limit);
        positions
    }

    #[test]
    fn the_newest_snapshot_stays_and_the_others_lie_apart() {
        assert_eq!(thinned(&[256, 512, 700, 768], 4), [256, 512, 700, 768]);
        assert_eq!(thinned(&[256, 512, 700, 768], 3), [256, 512, 768]);
        assert_eq!(thinned(&[256, 512, 700, 768], 2), [512, 768]);
        assert_eq!(thinned(&[256, 512, 700, 768], 1), [768]);
        assert!(thinned(&[256], 0).is_empty());
    }

    #[test]
    fn thinned_snapshots_stay_evenly_spaced() {
        for limit in [2, 4, 8] {
            let mut kept: Vec<usize> = Vec::new();
            for position in (256..100_000).step_by(256) {
                kept.push(position);
                thin(&mut kept, limit);
                let starts = std::iter::once(0).chain(kept.iter().copied());
                let widest = starts.zip(&kept).map(|(start, end)| end - start).max().unwrap();
                assert!(kept.len() <= limit && kept.last() == Some(&position));
                // Even spacing would be position ÷ limit.
                assert!(widest <= 2 * position.div_ceil(limit) + 256, "{limit}: {kept:?}");
            }
        }
    }
}
