//! The data of a step for shaders: tokens, slots, angles, block tables and the tasks of attention.
//! All words are in one buffer, which takes one upload per step and one binding per shader.

use crate::buffers::{Buffer, word_bytes};
use crate::commands::GRID_WIDTH;
use crate::device::Device;
use crate::state_runs::{DeltaRound, MAX_ROW_WORDS, WordList, add_rounds, add_spans};
use latent_backend::{BackendError, Batch, InputRow, KV_BLOCK, Rotation, SeqSpan, slot};
use latent_graph::config::AttentionShape;
use latent_graph::ir::AttentionPath;
use std::sync::Arc;

/// Queries per task of attention to latents. They read each cached row together.
pub(crate) const QUERIES: usize = 16;

/// Queries per task of attention to keys and values of one head. The queries are rows of a span.
pub(crate) const TILE_QUERIES: usize = 64;

/// Words of a task: first row of the span, first query in it, number of queries, block table, and
/// the sequence's rows before the step.
pub(crate) const TASK_WORDS: u32 = 5;

/// The token of a row that is an embedding.
// No table has this row, so `gather` leaves the result unchanged.
const NO_TOKEN: u32 = u32::MAX;

/// Maximum bytes of the data of a step of `rows` rows. Its sequences share the blocks of a context
/// of `context` tokens, plus one block each.
pub(crate) fn max_bytes(rows: usize, shape: &AttentionShape, context: usize) -> u64 {
    // Token, slot, scale, wanted, and two words per pair of rope elements.
    let of_rows = rows * (4 + shape.rope);
    let tables = context.div_ceil(KV_BLOCK) + rows;
    // Tasks of both kinds. A span may have one task that is not full, and has at least one row.
    let tasks = rows * (shape.heads.div_ceil(QUERIES) + 1);
    let states = rows * MAX_ROW_WORDS;
    4 * (of_rows + tables + TASK_WORDS as usize * tasks + states) as u64
}

/// A span and its tasks of attention.
pub(crate) struct SpanTasks {
    pub(crate) path: AttentionPath,
    /// Rows of the sequence after the step.
    pub(crate) kv_len: usize,
    /// Rows of the sequence before the step.
    pub(crate) past: usize,
    /// Index of the block table in the step's data.
    pub(crate) blocks: u32,
    /// Tasks of one head each, for attention to expanded keys and values.
    pub(crate) by_head: TaskRange,
}

/// Consecutive tasks in the step's data.
#[derive(Clone, Copy)]
pub(crate) struct TaskRange {
    /// Index of the first task's first word.
    pub(crate) at: u32,
    pub(crate) count: u32,
    /// Maximum cached rows that a task reads.
    pub(crate) kv_len: usize,
}

impl TaskRange {
    /// For a span's tasks of one head: omits tasks whose queries are all before `position`. `past`
    /// is the position of the span's first row.
    pub(crate) fn not_before(self, past: usize, position: usize) -> TaskRange {
        let before = (position.saturating_sub(past) / TILE_QUERIES).min(self.count as usize) as u32;
        TaskRange { at: self.at + before * TASK_WORDS, count: self.count - before, ..self }
    }

    /// Cuts the tasks into pieces that fit a portion of a step and a grid. A task takes `work`
    /// operations.
    pub(crate) fn pieces(self, portion: f64, work: f64) -> impl Iterator<Item = TaskRange> {
        // The cast saturates, so a tiny `work` gives the largest count.
        let at_once = ((portion / work) as u32).clamp(1, GRID_WIDTH as u32);
        (0..self.count).step_by(at_once as usize).map(move |first| TaskRange {
            at: self.at + first * TASK_WORDS,
            count: at_once.min(self.count - first),
            ..self
        })
    }
}

/// The words of a step, and the index at which each kind begins.
pub(crate) struct StepData {
    words: Vec<u32>,
    /// The token of each row, or [`NO_TOKEN`].
    pub(crate) tokens: u32,
    /// The slot of each row in the KV cache.
    pub(crate) slots: u32,
    /// The score scale of each row.
    pub(crate) scales: u32,
    /// Cosine and sine of each pair of each row.
    pub(crate) angles: u32,
    /// The rows whose logits are wanted.
    pub(crate) wanted: u32,
    /// The spans with a recurrent state.
    pub(crate) states: WordList,
    /// The rows of these spans in rounds of the delta rule.
    pub(crate) rounds: Vec<DeltaRound>,
    /// The block table of each span.
    pub(crate) tables: Vec<u32>,
    spans: Vec<SpanTasks>,
    /// Tasks of all heads of a row, for attention to latents, by path.
    shared: Vec<(AttentionPath, TaskRange)>,
    /// Tasks of one head, for attention to expanded keys and values, by path.
    by_head: Vec<(AttentionPath, TaskRange)>,
}

impl StepData {
    /// Collects the data of a batch.
    pub(crate) fn of(batch: &Batch, shape: &AttentionShape, rotation: &Rotation) -> StepData {
        let mut data = StepData {
            words: Vec::new(),
            tokens: 0,
            slots: 0,
            scales: 0,
            angles: 0,
            wanted: 0,
            states: (0, 0),
            rounds: Vec::new(),
            tables: Vec::new(),
            spans: Vec::new(),
            shared: Vec::new(),
            by_head: Vec::new(),
        };
        data.words.extend((0..batch.rows()).map(|row| match batch.input(row) {
            InputRow::Token(token) => token,
            InputRow::Embedding(_) => NO_TOKEN,
        }));
        data.slots = data.at();
        for span in &batch.spans {
            let slots = span.rows.clone().map(|row| slot(&span.block_table, batch.positions[row]) as u32);
            data.words.extend(slots);
        }
        data.scales = data.at();
        data.words.extend(batch.positions.iter().map(|position| {
            let factor = shape.temperature.map_or(1.0, |temperature| temperature.factor(*position));
            ((shape.softmax_scale * factor) as f32).to_bits()
        }));
        data.angles = data.at();
        for position in &batch.positions {
            // Pairs without a frequency (partial RoPE) are not rotated.
            let angles = rotation.angles(*position).chain(std::iter::repeat((1.0, 0.0)));
            let words = angles.take(shape.rope / 2).flat_map(|(cos, sin)| [cos, sin]);
            data.words.extend(words.map(|word| (word as f32).to_bits()));
        }
        data.wanted = data.at();
        data.words.extend(&batch.wanted);
        data.states = add_spans(&mut data.words, batch.spans.iter());
        data.rounds = add_rounds(&mut data.words, batch.spans.iter());
        let tables: Vec<u32> = batch.spans.iter().map(|span| data.extend(&span.block_table)).collect();
        for path in [AttentionPath::Absorbed, AttentionPath::Naive] {
            let spans = || batch.spans.iter().zip(&tables).filter(|(span, _)| span.path == path);
            let start = data.at();
            // With sparse attention, each row attends to other tokens, so a task has heads of one
            // row.
            let topk = shape.indexer.map(|indexer| indexer.topk);
            let shared: Vec<TaskRange> = spans()
                .map(|(span, blocks)| match topk {
                    Some(topk) => data.tasks_of_rows(span, *blocks, shape.heads, topk),
                    None => data.tasks(span, *blocks, (shape.heads, QUERIES)),
                })
                .collect();
            data.shared.extend(together(start, &shared).map(|tasks| (path, tasks)));
            let start = data.at();
            let by_head: Vec<TaskRange> =
                spans().map(|(span, blocks)| data.tasks(span, *blocks, (1, TILE_QUERIES))).collect();
            data.by_head.extend(together(start, &by_head).map(|tasks| (path, tasks)));
            for ((span, blocks), by_head) in spans().zip(by_head) {
                let (kv_len, past) = (by_head.kv_len, span.first);
                data.spans.push(SpanTasks { path, kv_len, past, blocks: *blocks, by_head });
            }
        }
        data.tables = tables;
        data
    }

    fn at(&self) -> u32 {
        // Cannot exceed u32: a step has at most MAX_STEP_ROWS rows.
        self.words.len() as u32
    }

    fn extend(&mut self, words: &[u32]) -> u32 {
        let at = self.at();
        self.words.extend(words);
        at
    }

    /// Adds the tasks of a span with sparse attention, whose rows attend to at most `topk` tokens
    /// each. A task has heads of one row.
    fn tasks_of_rows(&mut self, span: &SeqSpan, blocks: u32, heads: usize, topk: usize) -> TaskRange {
        let (at, rows) = (self.at(), span.rows.len());
        for row in 0..rows {
            for first in (0..heads).step_by(QUERIES) {
                let queries = QUERIES.min(heads - first);
                let task = [span.rows.start, row * heads + first, queries, blocks as usize, span.first];
                self.words.extend(task.map(|word| word as u32));
            }
        }
        let count = (rows * heads.div_ceil(QUERIES)) as u32;
        TaskRange { at, count, kv_len: (span.first + rows).min(topk) }
    }

    /// Adds the tasks of a span. A row has `sharing` queries (heads), and a task has at most
    /// `max_queries` queries of consecutive rows.
    fn tasks(&mut self, span: &SeqSpan, blocks: u32, (sharing, max_queries): (usize, usize)) -> TaskRange {
        let (at, queries) = (self.at(), span.rows.len() * sharing);
        for first in (0..queries).step_by(max_queries) {
            let count = max_queries.min(queries - first);
            let task = [span.rows.start, first, count, blocks as usize, span.first];
            self.words.extend(task.map(|word| word as u32));
        }
        TaskRange { at, count: queries.div_ceil(max_queries) as u32, kv_len: span.first + span.rows.len() }
    }

    /// The spans on this path.
    pub(crate) fn spans(&self, path: AttentionPath) -> impl Iterator<Item = &SpanTasks> {
        self.spans.iter().filter(move |span| path.meets(span.path))
    }

    /// Tasks of all heads of a row, of the spans on this path.
    pub(crate) fn shared(&self, path: AttentionPath) -> impl Iterator<Item = TaskRange> {
        of_path(&self.shared, path)
    }

    /// Tasks of one head, of the spans on this path.
    pub(crate) fn by_head(&self, path: AttentionPath) -> impl Iterator<Item = TaskRange> {
        of_path(&self.by_head, path)
    }

    /// Uploads the words to `buffer`, which grows if needed.
    pub(crate) fn send(&self, device: &Arc<Device>, buffer: &mut Buffer) -> Result<(), BackendError> {
        let bytes = word_bytes(&self.words);
        if buffer.bytes() < bytes.len() as u64 {
            // Powers of two, so that few steps allocate.
            *buffer = Buffer::new(device, "the rows of a step", (bytes.len() as u64).next_power_of_two())?;
        }
        Ok(buffer.write("the rows of a step", 0, &bytes)?)
    }
}

fn of_path(tasks: &[(AttentionPath, TaskRange)], path: AttentionPath) -> impl Iterator<Item = TaskRange> {
    tasks.iter().filter(move |(of, _)| path.meets(*of)).map(|(_, tasks)| *tasks)
}

/// Joins adjacent lists of tasks. None if `lists` is empty.
fn together(at: u32, lists: &[TaskRange]) -> Option<TaskRange> {
    let count = lists.iter().map(|tasks| tasks.count).sum();
    let kv_len = lists.iter().map(|tasks| tasks.kv_len).max()?;
    Some(TaskRange { at, count, kv_len })
}
