//! What a sequence keeps for its MTP layer: how many of its rows the layer has, and the residual rows that it still has to read.
//!
//! Row i of the MTP layer reads the residual stream of row i and token i + 1. So it is one behind: the last row waits until the token after it
//! is chosen, and rows of a draft that may be wrong wait until that is known.

/// The MTP layer's share of a sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct DraftRows {
    /// Rows of the MTP layer in the KV cache, from the sequence's first on.
    done: usize,
    /// The tokens of the rows after them, as many as wait.
    tokens: Vec<u32>,
    /// Their rows of the residual stream.
    hidden: Vec<f32>,
    /// Waiting rows that the present step has run, and that count as done when it succeeds.
    ran: usize,
    /// Keeps nothing: drafts are disabled for this sequence.
    off: bool,
}

/// Rows that may wait before they are run: the last one, and a draft that was accepted.
const WAITING: usize = 2;

impl DraftRows {
    /// Of a sequence whose first `done` rows the MTP layer has.
    pub(crate) fn of_shared(done: usize) -> DraftRows {
        DraftRows { done, ..DraftRows::default() }
    }

    /// Rows of the MTP layer that are in the cache.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Whether nothing is missing in a sequence of `len` rows, so that a token can be drafted once the next one is known.
    pub(crate) fn is_complete(&self, len: usize) -> bool {
        !self.off && self.done + self.tokens.len() == len
    }

    /// Disables drafts and discards the rows, or enables them again if none are missing.
    pub(crate) fn turn(&mut self, on: bool) {
        if !on {
            *self = DraftRows::default();
        }
        self.off = !on;
    }

    /// Takes rows that a step has run after `len` others, a residual row of `width` elements each. A sequence that lacks earlier ones stays as
    /// it is.
    pub(crate) fn push(&mut self, len: usize, tokens: &[u32], hidden: &[f32]) {
        if self.is_complete(len) {
            self.tokens.extend_from_slice(tokens);
            self.hidden.extend_from_slice(hidden);
        }
    }

    /// Decides how many of the waiting rows this step runs, at most `most`: none as long as so few wait that they might be taken back, else all
    /// whose next tokens wait with them.
    pub(crate) fn run_overdue(&mut self, most: usize) -> usize {
        let overdue = if self.tokens.len() > WAITING { self.tokens.len() - 1 } else { 0 };
        self.ran = overdue.min(most);
        self.ran
    }

    /// Those rows: the tokens after them, and residual rows of `width` elements.
    pub(crate) fn running(&self, width: usize) -> (&[u32], &[f32]) {
        (self.tokens.get(1..=self.ran).unwrap_or_default(), &self.hidden[..self.ran * width])
    }

    /// All waiting rows, which can be run when the token after the last is known: the tokens after all but that one, and residual rows.
    pub(crate) fn waiting(&self) -> (&[u32], &[f32]) {
        (self.tokens.get(1..).unwrap_or_default(), &self.hidden)
    }

    /// Notes that a step has run the first `rows` waiting rows.
    pub(crate) fn ran(&mut self, rows: usize) {
        self.ran = rows;
    }

    /// Counts what the present step has run as done.
    pub(crate) fn commit(&mut self) {
        let ran = std::mem::take(&mut self.ran);
        let width = self.width();
        self.tokens.drain(..ran);
        self.hidden.drain(..ran * width);
        self.done += ran;
    }

    /// Forgets what a step has done that failed, in a sequence of `len` rows.
    pub(crate) fn abandon(&mut self, len: usize) {
        self.ran = 0;
        self.truncate(len);
    }

    /// Forgets rows from `len` on. The last row that stays in the cache may have read a token that does not stay: a draft may be worse for it.
    pub(crate) fn truncate(&mut self, len: usize) {
        let width = self.width();
        let waiting = len.saturating_sub(self.done).min(self.tokens.len());
        self.tokens.truncate(waiting);
        self.hidden.truncate(waiting * width);
        self.done = self.done.min(len);
    }

    /// Forgets `forgotten` rows, behind which the others move down.
    pub(crate) fn shift(&mut self, forgotten: &std::ops::Range<usize>) {
        if forgotten.end <= self.done {
            self.done -= forgotten.len();
        } else {
            // rows that wait for their token are gone: nothing can be drafted after this
            *self = DraftRows { done: self.done.min(forgotten.start), ..DraftRows::default() };
        }
    }

    /// Discards all rows, including those in the cache.
    pub(crate) fn clear(&mut self) {
        *self = DraftRows::default();
    }

    /// Elements of a residual row.
    fn width(&self) -> usize {
        if self.tokens.is_empty() { 0 } else { self.hidden.len() / self.tokens.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(tokens: std::ops::Range<u32>) -> (Vec<u32>, Vec<f32>) {
        (tokens.clone().collect(), tokens.flat_map(|t| [t as f32, -1.0]).collect())
    }

    fn pushed(state: &mut DraftRows, len: usize, tokens: std::ops::Range<u32>) {
        let (tokens, hidden) = rows(tokens);
        state.push(len, &tokens, &hidden);
    }

    #[test]
    fn a_prompt_is_run_but_for_its_last_row_and_a_draft_waits() {
        let mut state = DraftRows::default();
        pushed(&mut state, 0, 0..5);
        assert_eq!(state.run_overdue(3), 3);
        assert_eq!(state.running(2), (&[1, 2, 3][..], &[0.0, -1.0, 1.0, -1.0, 2.0, -1.0][..]));
        assert_eq!(state.run_overdue(9), 4);
        state.commit();
        assert_eq!((state.done(), state.waiting()), (4, (&[][..], &[4.0, -1.0][..])));
        // drafted: the last row is run with the token after it
        state.ran(1);
        state.commit();
        // a token and its draft
        pushed(&mut state, 5, 5..7);
        assert!(state.run_overdue(9) == 0 && state.is_complete(7));
        // not accepted
        state.truncate(6);
        assert_eq!(state.waiting(), (&[][..], &[5.0, -1.0][..]));
        assert!(state.is_complete(6) && !state.is_complete(7));
    }

    #[test]
    fn a_failed_step_changes_nothing() {
        let mut state = DraftRows::default();
        pushed(&mut state, 0, 0..2);
        pushed(&mut state, 2, 2..6);
        state.ran(5);
        state.abandon(2);
        assert_eq!((state.done(), state.waiting().0), (0, &[1][..]));
        assert!(state.is_complete(2));
    }

    #[test]
    fn a_shift_moves_rows_and_a_hole_is_seen() {
        let mut state = DraftRows::default();
        pushed(&mut state, 0, 0..10);
        state.ran(9);
        state.commit();
        state.shift(&(2..6));
        assert!(state.done() == 5 && state.is_complete(6));
        state.shift(&(4..6));
        assert!(state.done() == 4 && !state.is_complete(4 + 1));
        // what a sequence without its first rows runs is not taken
        let mut restored = DraftRows::default();
        pushed(&mut restored, 8, 8..9);
        assert!(!restored.is_complete(9));
    }
}
