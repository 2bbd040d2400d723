//! The recurrent state of one sequence: the present one, its snapshots, and what a running step is writing.

use super::full::StatesFull;
use super::state_pool::{StatePool, StateSlot};
use latent_backend::SpanState;
use std::sync::Arc;

/// The states of a sequence. A state cannot forget tokens, so that going back means going back to a snapshot.
#[derive(Debug)]
pub(super) struct RecurrentState {
    pool: Arc<StatePool>,
    /// After all cached rows; none where nothing is cached.
    present: Option<Arc<StateSlot>>,
    /// In ascending order.
    snapshots: Vec<Snapshot>,
    /// Later positions at which snapshots are asked for.
    asked: Vec<usize>,
    /// What the present step writes.
    pending: Option<PendingStates>,
    /// States after each row of the last step, if its rows after the first were drafts: one of them is the present state once it is known how
    /// many drafts are right.
    drafted: Vec<Snapshot>,
}

/// The state after the first `position` rows.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub position: usize,
    pub slot: Arc<StateSlot>,
}

/// States that count once the step has ended well; dropped, their slots are free again.
#[derive(Debug)]
struct PendingStates {
    last: Snapshot,
    kept: Vec<Snapshot>,
    /// Whether `kept` are the states after all rows, since those after the first are drafts.
    drafted: bool,
}

impl RecurrentState {
    /// The state of a sequence of which nothing is cached.
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

    /// A state that was read from a file: `states` in ascending order, the last of them the present one.
    pub(super) fn restored(pool: &Arc<StatePool>, mut states: Vec<Snapshot>) -> RecurrentState {
        let present = states.last().map(|last| Arc::clone(&last.slot));
        thin(&mut states, pool.options().snapshots);
        RecurrentState { present, snapshots: states, ..RecurrentState::new(pool) }
    }

    /// Takes the slots of a step that adds `rows` rows to `len` cached ones: one for the state after the last row, and one for each snapshot on
    /// the way that is due and would be kept. Where no slot is free, a snapshot on the way is left out, and for the state after the last row the
    /// sequence gives up snapshots of its own.
    pub(super) fn prepare(&mut self, len: usize, rows: usize) -> Result<(), StatesFull> {
        self.begin(len);
        let end = len + rows;
        let last = Snapshot { position: end, slot: self.take()? };
        let due = self.pool.options().due(len, end);
        let asked = self.asked.iter().copied().filter(|position| *position <= end);
        let mut positions: Vec<usize> = self.positions().chain(due).chain(asked).collect();
        positions.sort_unstable();
        positions.dedup();
        thin(&mut positions, self.pool.options().snapshots);
        let mut kept = Vec::new();
        // the newest first: most conversations go back a little only
        for position in positions.into_iter().rev().take_while(|position| *position > len) {
            let slot = if position == end { Some(Arc::clone(&last.slot)) } else { self.pool.take() };
            let Some(slot) = slot else { break };
            kept.push(Snapshot { position, slot });
        }
        kept.reverse();
        self.pending = Some(PendingStates { last, kept, drafted: false });
        Ok(())
    }

    /// Takes the slots of a step whose `rows` rows are a token and drafts behind it: one for the state after each row, so that drafts can be
    /// taken back without running a row again.
    pub(super) fn prepare_drafted(&mut self, len: usize, rows: usize) -> Result<(), StatesFull> {
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

    /// Forgets what an earlier step has left, before one that begins after `len` rows.
    fn begin(&mut self, len: usize) {
        self.pending = None;
        self.drafted.clear();
        self.asked.retain(|position| *position > len);
    }

    /// Releases the states of drafts: those that are right are known.
    pub(super) fn settle(&mut self) {
        self.drafted.clear();
    }

    /// A free slot, or that of a snapshot without other users: running a sequence takes precedence
    /// over its snapshots.
    fn take(&mut self) -> Result<Arc<StateSlot>, StatesFull> {
        loop {
            if let Some(slot) = self.pool.take() {
                return Ok(slot);
            }
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

    /// The step has ended well: its states count.
    pub(super) fn commit(&mut self) {
        let Some(PendingStates { last, kept, drafted }) = self.pending.take() else { return };
        self.present = Some(last.slot);
        if drafted {
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

    /// The step has failed: the state is what it was.
    pub(super) fn abandon(&mut self) {
        self.pending = None;
    }

    /// Asks for a snapshot at `position`, of a sequence with `len` rows: at once, or by the step that passes it. A position that has passed
    /// has none.
    pub(super) fn ask(&mut self, position: usize, len: usize) {
        if position > len && !self.asked.contains(&position) {
            self.asked.push(position);
        }
        let Some(present) = &self.present else { return };
        if position == len && self.positions().all(|taken| taken != len) {
            self.snapshots.push(Snapshot { position, slot: Arc::clone(present) });
            thin(&mut self.snapshots, self.pool.options().snapshots);
        }
    }

    /// Restores the newest snapshot at or before `position`, or the state of that row of a step of drafts. Returns its position, or 0 without
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
        // they were places in a text that is forgotten
        self.asked.clear();
        restored
    }

    /// The state of a sequence that begins with the first `position` rows of this one, or with as many of them as a state is kept for; how many
    /// these are. `len` are the rows of this one.
    pub(super) fn share(&self, position: usize, len: usize) -> (RecurrentState, usize) {
        let mut shared = RecurrentState {
            present: self.present.clone(),
            snapshots: self.snapshots.clone(),
            ..RecurrentState::new(&self.pool)
        };
        let rows = if position < len { shared.restore(position) } else { len };
        (shared, rows)
    }

    /// The positions of its snapshots, in ascending order.
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        self.snapshots.iter().map(|snapshot| snapshot.position)
    }

    /// Its snapshots and the present state, after `len` rows, in ascending order: each position once.
    pub(super) fn states(&self, len: usize) -> Vec<Snapshot> {
        let earlier = self.snapshots.iter().filter(|snapshot| snapshot.position < len).cloned();
        let present = self.present.iter().map(|slot| Snapshot { position: len, slot: Arc::clone(slot) });
        earlier.chain(present).collect()
    }
}

/// What lies at a position of a sequence.
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

/// Leaves at most `limit` of some snapshots in ascending order: the newest, and of the others those that lie farthest apart.
fn thin<T: Positioned>(snapshots: &mut Vec<T>, limit: usize) {
    while snapshots.len() > limit
        && let Some(index) = least_useful(snapshots)
    {
        snapshots.remove(index);
    }
}

/// The one whose neighbours are nearest to each other, the older of equals, so that what would have to run again grows least; the newest only
/// where it is the last. Position 0 is a neighbour too, since the state there is known.
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
    fn what_would_run_again_stays_in_proportion_to_the_length() {
        for limit in [2, 4, 8] {
            let mut kept: Vec<usize> = Vec::new();
            for position in (256..100_000).step_by(256) {
                kept.push(position);
                thin(&mut kept, limit);
                let starts = std::iter::once(0).chain(kept.iter().copied());
                let widest = starts.zip(&kept).map(|(start, end)| end - start).max().unwrap();
                assert!(kept.len() <= limit && kept.last() == Some(&position));
                // even spacing is position ÷ limit
                assert!(widest <= 2 * position.div_ceil(limit) + 256, "{limit}: {kept:?}");
            }
        }
    }
}
