//! Runs of rows of spans with a recurrent state. The delta rule computes a run row by row, or in
//! chunks.
//!
//! Whether a row is in a chunk follows from its position and from the snapshots before it. So a
//! sequence that continues from a snapshot has the same bits as one that ran as a whole.

use latent_backend::{STATE_CHUNK, SeqSpan, SpanState};
use std::ops::Range;

/// Maximum number of rows of a chunk. Chunks begin at multiples of it.
pub(crate) const DELTA_CHUNK: usize = 16;

/// Minimum number of rows of a chunk. Fewer rows run as single rows.
// On lavapipe, a chunk of 4 rows is 1.1 times as fast as single rows, one of 8 rows 1.9 times.
const MIN_CHUNK: usize = 4;

/// Words of a span or of a run of single rows: first row, number of rows, slots of the state before
/// and after, number of snapshots and index of their words.
pub(crate) const SPAN_WORDS: usize = 6;

/// Words of a run of chunks: index of the first chunk's words, number of chunks, slots of the state
/// before and after.
pub(crate) const RUN_WORDS: usize = 4;

/// Words of a chunk: first row, number of rows, slot of the snapshot after it.
pub(crate) const CHUNK_WORDS: usize = 3;

/// The slot of a span without a state before it, and of a chunk without a snapshot after it.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// Maximum words per row in both lists (spans and runs): each row may have its own span or run, and
/// a snapshot of two words.
pub(crate) const MAX_ROW_WORDS: usize = 2 * (SPAN_WORDS + 2);

const _: () = assert!(STATE_CHUNK.is_multiple_of(DELTA_CHUNK), "steps end where chunks end");

/// Consecutive rows of a span that are all single rows or all in chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StateRun {
    /// Rows of the batch.
    rows: Range<usize>,
    /// The slot of the state before the rows. None: the state is zero.
    from: Option<u32>,
    /// The slot of the state after the rows, which the next run of the span reads.
    to: u32,
    /// Snapshots as (number of rows of the run, slot).
    kept: Vec<(usize, u32)>,
    /// The rows of each chunk. Empty for single rows.
    chunks: Vec<Range<usize>>,
}

impl StateRun {
    /// All rows of a span as single rows.
    fn whole(span: &SeqSpan, state: &SpanState) -> StateRun {
        let kept = state.kept.clone();
        StateRun { rows: span.rows.clone(), from: state.from, to: state.to, kept, chunks: Vec::new() }
    }

    /// The slot of the snapshot after a row of the batch, if it has one.
    fn kept_after(&self, end: usize) -> Option<u32> {
        let rows = end - self.rows.start;
        self.kept.iter().find(|(after, _)| *after == rows).map(|(_, slot)| *slot)
    }
}

/// Index of the first word of a list, and the number of spans, runs or chunks in it.
pub(crate) type WordList = (u32, u32);

/// Runs that the device computes in one call: at most one of each span, since the next one depends
/// on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeltaRound {
    /// Runs of single rows.
    pub(crate) rows: WordList,
    /// Runs of chunks.
    pub(crate) runs: WordList,
    /// The chunks of all of them.
    pub(crate) chunks: WordList,
}

/// Adds the words of spans with a recurrent state, for operations that do not divide spans into
/// runs.
pub(crate) fn add_spans<'s>(words: &mut Vec<u32>, spans: impl Iterator<Item = &'s SeqSpan>) -> WordList {
    let spans = spans.filter_map(|span| Some(StateRun::whole(span, span.state.as_ref()?)));
    add_rows(words, &spans.collect::<Vec<_>>())
}

/// Adds the words of the runs of spans.
pub(crate) fn add_rounds<'s>(
    words: &mut Vec<u32>,
    spans: impl Iterator<Item = &'s SeqSpan>,
) -> Vec<DeltaRound> {
    let mut of_spans: Vec<_> = spans.map(|span| state_runs(span).into_iter()).collect();
    let mut rounds = Vec::new();
    loop {
        // The next run of every span: spans do not depend on each other.
        let runs = of_spans.iter_mut().filter_map(Iterator::next);
        let (rows, chunked): (Vec<_>, Vec<_>) = runs.partition(|run| run.chunks.is_empty());
        if rows.is_empty() && chunked.is_empty() {
            return rounds;
        }
        let rows = add_rows(words, &rows);
        let chunks = (words.len() as u32, chunked.iter().map(|run| run.chunks.len() as u32).sum());
        for (run, chunk) in chunked.iter().flat_map(|run| run.chunks.iter().map(move |chunk| (run, chunk))) {
            let kept = run.kept_after(chunk.end).unwrap_or(NO_SLOT);
            words.extend([chunk.start as u32, chunk.len() as u32, kept]);
        }
        let runs = (words.len() as u32, chunked.len() as u32);
        let mut first = chunks.0;
        for run in &chunked {
            let count = run.chunks.len() as u32;
            words.extend([first, count, run.from.unwrap_or(NO_SLOT), run.to]);
            first += count * CHUNK_WORDS as u32;
        }
        rounds.push(DeltaRound { rows, runs, chunks });
    }
}

/// Adds the words of runs of single rows, and of their snapshots before them.
fn add_rows(words: &mut Vec<u32>, runs: &[StateRun]) -> WordList {
    let mut kept = Vec::new();
    for run in runs {
        // The cast cannot truncate: a step has at most MAX_STEP_ROWS rows.
        kept.push(words.len() as u32);
        words.extend(run.kept.iter().flat_map(|(rows, slot)| [*rows as u32, *slot]));
    }
    let at = words.len() as u32;
    for (run, kept) in runs.iter().zip(kept) {
        let (rows, snapshots) = (&run.rows, run.kept.len() as u32);
        let before = run.from.unwrap_or(NO_SLOT);
        words.extend([rows.start as u32, rows.len() as u32, before, run.to, snapshots, kept]);
    }
    (at, runs.len() as u32)
}

/// The runs of a span, in order. Empty for a span without a state.
fn state_runs(span: &SeqSpan) -> Vec<StateRun> {
    let Some(state) = &span.state else { return Vec::new() };
    let run = |rows: Range<usize>, from| StateRun {
        rows,
        from,
        to: state.to,
        kept: Vec::new(),
        chunks: Vec::new(),
    };
    let mut runs: Vec<StateRun> = Vec::new();
    for (piece, chunked) in pieces(span, state) {
        let rows = span.rows.start + piece.start..span.rows.start + piece.end;
        let alike = |run: &&mut StateRun| run.chunks.is_empty() != chunked;
        if runs.last_mut().filter(alike).is_none() {
            // Later runs continue from the slot that the previous run has written. The slot `from`
            // is never written: other sequences may continue from it.
            let from = if runs.is_empty() { state.from } else { Some(state.to) };
            runs.push(run(rows.start..rows.start, from));
        }
        let Some(last) = runs.last_mut() else { continue };
        last.rows.end = rows.end;
        let snapshot = state.kept.iter().find(|(after, _)| *after == piece.end);
        last.kept.extend(snapshot.map(|(_, slot)| (last.rows.len(), *slot)));
        if chunked {
            last.chunks.push(rows);
        }
    }
    if runs.is_empty() {
        // Without rows, the state is only copied to its new slot.
        runs.push(StateRun::whole(span, state));
    }
    runs
}

/// Cuts the rows of a span at chunk boundaries and snapshots. Each piece has a flag whether it is
/// computed as a chunk.
fn pieces(span: &SeqSpan, state: &SpanState) -> Vec<(Range<usize>, bool)> {
    let (mut pieces, mut row) = (Vec::new(), 0);
    for end in state.kept.iter().map(|(after, _)| *after).chain([span.rows.len()]) {
        while row < end {
            let within = (span.first + row) % DELTA_CHUNK;
            let rows = (DELTA_CHUNK - within).min(end - row);
            // Drafts run row by row, so that an accepted draft has the bits of a step of one row.
            pieces.push((row..row + rows, !state.drafted && rows >= MIN_CHUNK));
            row += rows;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_graph::ir::AttentionPath;

    fn span(rows: Range<usize>, first: usize, from: Option<u32>, kept: &[(usize, u32)]) -> SeqSpan {
        let state = Some(SpanState { from, to: 7, kept: kept.to_vec(), drafted: false });
        SeqSpan { rows, first, block_table: Vec::new(), path: AttentionPath::All, state }
    }

    #[test]
    fn rows_run_in_chunks_between_boundaries_and_snapshots() {
        let run = |rows, from, kept: &[(usize, u32)], chunks: &[Range<usize>]| StateRun {
            rows,
            from,
            to: 7,
            kept: kept.to_vec(),
            chunks: chunks.to_vec(),
        };
        // From position 14 on: two rows, a chunk, one to a snapshot, three rows.
        let found = state_runs(&span(100..125, 14, Some(2), &[(18, 3), (22, 4)]));
        let expected = [
            run(100..102, Some(2), &[], &[]),
            run(102..122, Some(7), &[(16, 3), (20, 4)], &[102..118, 118..122]),
            run(122..125, Some(7), &[], &[]),
        ];
        assert_eq!(found, expected);
        assert_eq!((found[1].kept_after(118), found[1].kept_after(119)), (Some(3), None));
        assert_eq!(state_runs(&span(0..1, 33, None, &[])), [run(0..1, None, &[], &[])]);
        assert_eq!(state_runs(&span(5..5, 33, Some(1), &[])), [run(5..5, Some(1), &[], &[])]);
        let mut drafted = span(3..43, 16, None, &[(9, 5)]);
        drafted.state.as_mut().unwrap().drafted = true;
        assert_eq!(state_runs(&drafted), [run(3..43, None, &[(9, 5)], &[])]);
        drafted.state = None;
        assert_eq!(state_runs(&drafted), []);
    }

    #[test]
    fn a_sequence_continued_from_a_snapshot_is_cut_like_the_whole() {
        for rows in 1..70 {
            for snapshot in 1..rows {
                let whole = span(0..rows, 0, None, &[(snapshot, 1)]);
                let rest = span(0..rows - snapshot, snapshot, Some(1), &[]);
                let moved = pieces(&rest, rest.state.as_ref().unwrap()).into_iter();
                let moved = moved.map(|(piece, form)| (piece.start + snapshot..piece.end + snapshot, form));
                let after = |piece: &(Range<usize>, bool)| piece.0.start >= snapshot;
                let all = pieces(&whole, whole.state.as_ref().unwrap()).into_iter().filter(after);
                assert!(moved.eq(all), "{rows} {snapshot}");
            }
        }
    }
}
