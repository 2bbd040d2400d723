//! The MTP layer's state of a sequence: the number of rows that the layer has run, and the residual
//! rows that it has yet to run.
//!
//! Row i of the MTP layer reads the residual stream of row i and token i + 1, so the layer is one
//! row behind the model. The last row waits until the token after it is chosen. Rows of drafts wait
//! until the drafts are verified.

/// The MTP layer's state of a sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct DraftRows {
    /// Number of rows of the MTP layer in the KV cache.
    done: usize,
    /// The tokens of the waiting rows, which follow the first `done` rows.
    tokens: Vec<u32>,
    /// The residual stream of the waiting rows.
    hidden: Vec<f32>,
    /// Waiting rows that the current step runs. They count as done when it succeeds.
    ran: usize,
    /// Drafts are disabled for this sequence, and no rows are kept.
    off: bool,
}

/// Maximum number of waiting rows: the last row, and an accepted draft.
const WAITING: usize = 2;

impl DraftRows {
    /// The state of a sequence whose first `done` rows the MTP layer has run.
    pub(crate) fn of_shared(done: usize) -> DraftRows {
        DraftRows { done, ..DraftRows::default() }
    }

    /// Number of rows of the MTP layer in the KV cache.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Whether every row of a sequence of `len` rows was run or waits, so that a token can be
    /// drafted once the next one is known.
    pub(crate) fn is_complete(&self, len: usize) -> bool {
        !self.off && self.done + self.tokens.len() == len
    }

    /// Enables drafts, or disables them and discards the rows.
    pub(crate) fn turn(&mut self, on: bool) {
        if !on {
            *self = DraftRows::default();
        }
        self.off = !on;
    }

    /// Adds rows that a step has run after the first `len` rows of the sequence. Ignored if earlier
    /// rows are missing, since attention of the MTP layer needs all of them.
    pub(crate) fn push(&mut self, len: usize, tokens: &[u32], hidden: &[f32]) {
        if self.is_complete(len) {
            self.tokens.extend_from_slice(tokens);
            self.hidden.extend_from_slice(hidden);
        }
    }

    /// Decides how many of the waiting rows the current step runs, at most `most`. Returns their
    /// number.
    pub(crate) fn run_overdue(&mut self, most: usize) -> usize {
        // Up to WAITING rows may include a draft that is truncated again. They run with the next
        // draft. Of more, all run but the last, whose next token is not known.
        let overdue = if self.tokens.len() > WAITING { self.tokens.len() - 1 } else { 0 };
        self.ran = overdue.min(most);
        self.ran
    }

    /// The rows that the current step runs: the tokens after them, and residual rows of `width`
    /// elements.
    pub(crate) fn running(&self, width: usize) -> (&[u32], &[f32]) {
        (self.tokens.get(1..=self.ran).unwrap_or_default(), &self.hidden[..self.ran * width])
    }

    /// All waiting rows: the tokens after all but the last of them, and their residual rows.
    pub(crate) fn waiting(&self) -> (&[u32], &[f32]) {
        (self.tokens.get(1..).unwrap_or_default(), &self.hidden)
    }

    /// Notes that the current step runs the first `rows` waiting rows.
    pub(crate) fn ran(&mut self, rows: usize) {
        self.ran = rows;
    }

    /// Counts the rows of the current step as done.
    pub(crate) fn commit(&mut self) {
        let ran = std::mem::take(&mut self.ran);
        let width = self.width();
        self.tokens.drain(..ran);
        self.hidden.drain(..ran * width);
        self.done += ran;
    }

    /// Discards the rows of a failed step, in a sequence of `len` rows.
    pub(crate) fn abandon(&mut self, len: usize) {
        self.ran = 0;
        self.truncate(len);
    }

    /// Discards rows from `len` on. The last remaining MTP row may have read a discarded token.
    /// Drafts may be worse for that, but the text is not: the model verifies every draft.
    pub(crate) fn truncate(&mut self, len: usize) {
        let width = self.width();
        let waiting = len.saturating_sub(self.done).min(self.tokens.len());
        self.tokens.truncate(waiting);
        self.hidden.truncate(waiting * width);
        self.done = self.done.min(len);
    }

    /// Discards a range of rows. Later rows move down.
    pub(crate) fn shift(&mut self, forgotten: &std::ops::Range<usize>) {
        if forgotten.end <= self.done {
            self.done -= forgotten.len();
        } else {
            // A discarded row was waiting, so the MTP rows would have a gap. Nothing is drafted for
            // this sequence any more.
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
    fn all_rows_of_a_prompt_run_but_the_last() {
        let mut state = DraftRows::default();
        pushed(&mut state, 0, 0..5);
        assert_eq!(state.run_overdue(3), 3);
        assert_eq!(state.running(2), (&[1, 2, 3][..], &[0.0, -1.0, 1.0, -1.0, 2.0, -1.0][..]));
        assert_eq!(state.run_overdue(9), 4);
        state.commit();
        assert_eq!((state.done(), state.waiting()), (4, (&[][..], &[4.0, -1.0][..])));
        // To draft, the last row runs with the token after it.
        state.ran(1);
        state.commit();
        // A token and its draft.
        pushed(&mut state, 5, 5..7);
        assert!(state.run_overdue(9) == 0 && state.is_complete(7));
        // The draft is refused.
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
    fn a_shift_moves_rows_and_a_gap_stops_drafts() {
        let mut state = DraftRows::default();
        pushed(&mut state, 0, 0..10);
        state.ran(9);
        state.commit();
        state.shift(&(2..6));
        assert!(state.done() == 5 && state.is_complete(6));
        state.shift(&(4..6));
        assert!(state.done() == 4 && !state.is_complete(4 + 1));
        // Rows after a gap are ignored.
        let mut restored = DraftRows::default();
        pushed(&mut restored, 8, 8..9);
        assert!(!restored.is_complete(9));
    }
}
