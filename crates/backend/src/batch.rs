//! Batches: the rows of one step and their sequences.

use crate::{AdapterScales, InputRow, InputRows};
use latent_graph::ir::AttentionPath;
use std::ops::Range;

/// New rows of one sequence in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeqSpan {
    /// The rows of the span in the batch.
    pub rows: Range<usize>,
    /// Position of the first row: the number of rows that the sequence has cached.
    pub first: usize,
    /// Block table of the sequence, including blocks for its new rows.
    pub block_table: Vec<u32>,
    /// MLA formulation.
    pub path: AttentionPath,
    /// Slots of recurrent state, in a model with recurrent layers.
    pub state: Option<SpanState>,
}

/// Slots of recurrent state that a span reads and writes, the same in every recurrent layer. They
/// differ, so that a failed step leaves the sequence unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanState {
    /// The state before the span's first row. `None` at the beginning of a sequence (all zeros). It
    /// is never written.
    pub from: Option<u32>,
    /// The slot for the state after the span's last row.
    pub to: u32,
    /// Snapshots inside the span, in ascending order: (number of rows, slot). The state after that
    /// many rows is written to the slot. The number is less than the rows of the span.
    pub kept: Vec<(usize, u32)>,
    /// Whether the rows after the first are drafts. Rows then run one at a time, so that each has
    /// the bits of a step of one row. Otherwise, they run in chunks.
    pub drafted: bool,
}

/// A chunk of a recurrent layer ends at each multiple of this number of positions. A step may end
/// there without changing the bits of later rows.
// A multiple of the chunks of every backend, so that no chunk crosses such a position.
pub const STATE_CHUNK: usize = 16;

/// The kind of a batch row.
#[derive(Clone, Copy, Debug)]
enum BatchInput {
    Token(u32),
    /// An embedding: its index among those of the batch.
    Embedding {
        start: usize,
        width: usize,
    },
}

/// The flat rows of a step and its spans, in row order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The kind of each row. Empty in a batch for a stage that does not read inputs.
    inputs: Vec<BatchInput>,
    /// The elements of the embedding rows.
    embeddings: Vec<f32>,
    /// Position of each row.
    pub positions: Vec<usize>,
    /// The spans, which cover all rows in order.
    pub spans: Vec<SeqSpan>,
    /// Rows whose logits are requested.
    pub wanted: Vec<u32>,
    /// The adapters' scales of each row. Empty in a model without adapters.
    adapters: Vec<AdapterScales>,
    /// Block tables of earlier steps, whose memory is reused.
    spare: Vec<Vec<u32>>,
}

impl Batch {
    /// The rows of `batch` whose logits are requested, for a stage that processes only those.
    pub fn wanted_of(batch: &Batch) -> Batch {
        let positions = batch.wanted.iter().map(|row| batch.positions[*row as usize]).collect();
        // A head's stage does not attend, so it needs no spans.
        let mut own = Batch { wanted: batch.wanted.clone(), positions, ..Batch::default() };
        own.take_adapters(batch, &batch.wanted);
        own
    }

    /// Copies the adapters' scales of these rows of another batch.
    pub fn take_adapters(&mut self, batch: &Batch, rows: &[u32]) {
        self.adapters.clear();
        if !batch.adapters.is_empty() {
            self.adapters.extend(rows.iter().map(|row| batch.adapters[*row as usize].clone()));
        }
    }

    /// Sets the adapters' scales of all rows added since the last call.
    pub fn set_adapters(&mut self, scales: &AdapterScales) {
        if !scales.as_slice().is_empty() {
            // `resize` fills only the new rows.
            self.adapters.resize(self.rows(), scales.clone());
        }
    }

    /// The scale of an adapter in a row.
    pub fn adapter_scale(&self, row: usize, adapter: usize) -> f32 {
        self.adapters.get(row).map_or(0.0, |scales| scales.get(adapter))
    }

    /// Rows of the step.
    pub fn rows(&self) -> usize {
        self.positions.len()
    }

    /// The kind of a row.
    ///
    /// # Panics
    /// If the batch has no such row, or is [for a stage that reads no inputs](Self::wanted_of).
    pub fn input(&self, row: usize) -> InputRow<'_> {
        match self.inputs[row] {
            BatchInput::Token(token) => InputRow::Token(token),
            BatchInput::Embedding { start, width } => {
                InputRow::Embedding(&self.embeddings[start..start + width])
            }
        }
    }

    /// Removes all rows and keeps the memory: steps must not allocate.
    pub fn clear(&mut self) {
        self.inputs.clear();
        self.embeddings.clear();
        self.positions.clear();
        self.spare.extend(self.spans.drain(..).map(|span| span.block_table));
        self.wanted.clear();
        self.adapters.clear();
    }

    /// Adds a span of `rows` that continues a sequence of `first` cached rows. Returns the span, so
    /// that a recurrent state can be set.
    pub fn push(
        &mut self,
        rows: InputRows<'_>,
        first: usize,
        block_table: &[u32],
        path: AttentionPath,
    ) -> &mut SeqSpan {
        let start = self.rows();
        for row in rows.iter() {
            self.inputs.push(match row {
                InputRow::Token(token) => BatchInput::Token(token),
                InputRow::Embedding(elements) => {
                    let place = BatchInput::Embedding { start: self.embeddings.len(), width: elements.len() };
                    self.embeddings.extend_from_slice(elements);
                    place
                }
            });
        }
        self.positions.extend(first..first + rows.len());
        // Reuses the allocation of an earlier span.
        let mut table = self.spare.pop().unwrap_or_default();
        table.clear();
        table.extend_from_slice(block_table);
        let span = SeqSpan { rows: start..self.rows(), first, block_table: table, path, state: None };
        self.spans.push_mut(span)
    }

    /// The spans that run on this attention path, or all.
    pub fn on_path(&self, path: AttentionPath) -> impl Iterator<Item = &SeqSpan> {
        self.spans.iter().filter(move |span| path == AttentionPath::All || span.path == path)
    }

    /// The rows on this attention path, or all, in as few ranges as possible: each weight is read
    /// once per range.
    pub fn ranges_in(&self, path: AttentionPath) -> impl Iterator<Item = Range<usize>> {
        let mut spans = self.on_path(path).map(|span| span.rows.clone()).peekable();
        std::iter::from_fn(move || {
            let mut rows = spans.next()?;
            while let Some(next) = spans.next_if(|next| next.start == rows.end) {
                rows.end = next.end;
            }
            Some(rows)
        })
    }
}
