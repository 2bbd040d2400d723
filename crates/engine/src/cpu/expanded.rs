//! The naive formulation: keys and values expanded from cached latents, or read as they were stored.

use super::absorb::Half;
use super::batch::Segment;
use super::compile::{KvWeights, Slot};
use super::local::{Local, grown};
use super::run::Thread;
use super::weights::LoadedWeight;
use crate::cache::{PAGE_ROWS, StreamMemory};
use base::CacheRow;
use graph::contract::AttentionShape;
use graph::ir::Lane;
use kernels::{
    AttendExpandedFn, ExpandKeysFn, Expanded, KEYS, KeyBlocks, KeyOrder, Number, Rows, RowsMut, f16,
};
use std::ops::Range;

/// Numbers that keys and values expanded on the fly may take, unless one head alone takes more: 64 MB.
const BUDGET: usize = 16 << 20;

/// Query rows of a task: the more, the less often keys are read.
const QUERIES: usize = 64;

/// The same where there would be fewer than [`TASKS`] a thread.
const FEW_QUERIES: usize = 32;

/// Tasks for each thread, so that all end together.
const TASKS: usize = 8;

/// Blocks of keys that a thread expands with one decoded W_UK.
const KEY_BLOCKS: usize = 8;

/// Numbers of a cached row that are turned at a time.
const TURNED: usize = 64;

/// The kernels of the naive formulation, and of what numbers expanded keys and values are.
#[derive(Clone, Copy)]
pub enum ExpandedKernels {
    /// f32.
    Floats(Kernels<f32>),
    /// f16.
    Halves(Kernels<f16>),
}

/// The same for one kind of number.
#[derive(Clone, Copy)]
pub struct Kernels<N> {
    /// Keys from latents.
    pub keys: ExpandKeysFn<N>,
    /// Attention.
    pub attend: AttendExpandedFn<N>,
    /// The weight that holds W_UK.
    pub key_weight: usize,
}

/// Heads that are expanded together for `length` cached rows.
fn group_heads(length: usize, heads: usize, nope: usize, v: usize) -> usize {
    (BUDGET / (length * (nope + v)).max(1)).clamp(1, heads)
}

/// Numbers of shared memory that the naive formulation needs for a segment that sees `length` rows: see [`Layout`].
pub fn expanded_len(length: usize, a: &AttentionShape) -> usize {
    let length = length.next_multiple_of(KEYS);
    Layout::new(length, group_heads(length, a.heads, a.nope, a.v), a).end
}

/// The most numbers of shared memory that any segment of up to `length` rows needs; it never falls as `length` grows.
pub fn expanded_most(length: usize, a: &AttentionShape) -> usize {
    let length = length.next_multiple_of(KEYS);
    let head = length * (a.nope + a.v);
    length * a.latent_width() + (head * a.heads).min(BUDGET).max(head)
}

/// Where the shared memory holds what. All begins with the cached rows in blocks of [`KEYS`], number by number (`[latent | rope]` lines of a
/// block); then come keys in the same form, and values row by row, each head after head.
#[derive(Clone, Copy)]
struct Layout {
    /// Cached rows, filled up to whole blocks.
    length: usize,
    /// Lines of a block of cached rows.
    width: usize,
    keys: usize,
    values: usize,
    end: usize,
}

impl Layout {
    fn new(length: usize, heads: usize, a: &AttentionShape) -> Layout {
        let length = length.next_multiple_of(KEYS);
        let width = a.latent_width();
        let keys = length * width;
        let values = keys + length * heads * a.nope;
        Layout { length, width, keys, values, end: values + length * heads * a.v }
    }

    fn blocks(&self) -> usize {
        self.length / KEYS
    }
}

impl Thread<'_> {
    /// Expands group after group of heads, and attends to each.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(super) fn attend_expanded(
        &self,
        q_nope: &Slot,
        q_rope: &Slot,
        kv: Option<&KvWeights>,
        out: &Slot,
        stream: usize,
        kernels: ExpandedKernels,
        lane: Lane,
        local: &mut Local,
    ) {
        match kernels {
            ExpandedKernels::Floats(kernels) => {
                self.attend_numbers(q_nope, q_rope, kv, out, stream, kernels, lane, local);
            }
            ExpandedKernels::Halves(kernels) => {
                self.attend_numbers(q_nope, q_rope, kv, out, stream, kernels, lane, local);
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    fn attend_numbers<N: Number>(
        &self,
        q_nope: &Slot,
        q_rope: &Slot,
        kv: Option<&KvWeights>,
        out: &Slot,
        stream: usize,
        kernels: Kernels<N>,
        lane: Lane,
        local: &mut Local,
    ) {
        let a = &self.model.contract.attention;
        for segment in self.batch.in_lane(lane) {
            let length = segment.first + segment.rows.len();
            let group = group_heads(length.next_multiple_of(KEYS), a.heads, a.nope, a.v);
            let layout = Layout::new(length, group, a);
            for first in (0..a.heads).step_by(group) {
                let heads = first..(first + group).min(a.heads);
                match kv {
                    Some(kv) => {
                        self.expand_values::<N>(segment, stream, kv, &heads, &layout, local);
                        self.member.barrier();
                        self.expand_keys(kv, &heads, &layout, kernels, local);
                    }
                    None => self.unpack::<N>(segment, stream, &heads, &layout),
                }
                self.member.barrier();
                self.attend_group(segment, q_nope, q_rope, &heads, &layout, out, kernels.attend, local);
                self.member.barrier();
            }
        }
    }

    /// This thread's cached rows, block by block: turned, so that a number of 64 rows is a line, and through W_UV of each head of the group.
    fn expand_values<N: Number>(
        &self,
        segment: &Segment,
        stream: usize,
        kv: &KvWeights,
        heads: &Range<usize>,
        layout: &Layout,
        local: &mut Local,
    ) {
        let a = &self.model.contract.attention;
        let length = segment.first + segment.rows.len();
        let (needs, stored) = (Self::kv_needs(kv), self.stored(stream));
        let Local { acts, scratch, results, more, .. } = local;
        for start in self.member.share(layout.length, KEYS).step_by(KEYS) {
            let rows = start..(start + KEYS).min(length);
            let width = layout.width;
            // the same rows serve all groups of heads
            if heads.start == 0 {
                let out: &mut [N] = self.expanded_memory(start * width, width * KEYS);
                self.turn_cached(segment, stream, &rows, 0, out);
            }
            let lines = grown(results, rows.len() * width);
            for (row, line) in rows.clone().zip(lines.chunks_exact_mut(width)) {
                kernels::load_row(stored, self.cached(segment, stream, row), line);
            }
            let values = grown(more, rows.len() * a.v);
            let latent = Rows::new(lines, rows.len(), a.kv_lora_rank, width);
            let x = acts.prepare(latent, None, needs);
            for (h, head) in heads.clone().enumerate() {
                let at = layout.values + (h * layout.length + start) * a.v;
                let mut y = RowsMut::new(values, rows.len(), a.v, a.v);
                self.head_out_of_latent(kv, &Half::Value, head, &x, 0..a.v, &mut y, scratch);
                N::round(values, self.expanded_memory(at, rows.len() * a.v));
            }
        }
    }

    /// Cached rows as columns: line n of `out`, [`KEYS`] numbers, gets number `first` + n of each row; zeros where there are fewer rows.
    fn turn_cached<N: Number>(
        &self,
        segment: &Segment,
        stream: usize,
        rows: &Range<usize>,
        first: usize,
        out: &mut [N],
    ) {
        let (stored, width) = (self.stored(stream), out.len() / KEYS);
        let mut piece = [[N::ZERO; TURNED]; KEYS];
        for from in (0..width).step_by(TURNED) {
            let count = TURNED.min(width - from);
            for (row, line) in rows.clone().zip(&mut piece) {
                N::load(stored, self.cached(segment, stream, row), first + from, &mut line[..count]);
            }
            for (n, line) in out[from * KEYS..(from + count) * KEYS].chunks_exact_mut(KEYS).enumerate() {
                for (number, row) in line.iter_mut().zip(&piece) {
                    *number = row[n];
                }
            }
        }
    }

    /// Keys of the group: tasks of a head and some blocks of cached rows.
    fn expand_keys<N: Number>(
        &self,
        kv: &KvWeights,
        heads: &Range<usize>,
        layout: &Layout,
        kernels: Kernels<N>,
        local: &mut Local,
    ) {
        let a = &self.model.contract.attention;
        let runs = layout.blocks().div_ceil(KEY_BLOCKS);
        let weights = grown(&mut local.more, a.nope * a.kv_lora_rank);
        let tasks = heads.len() * runs;
        let mut decoded = None;
        // neighbours go to one thread, which decodes the head's weights once for them
        for task in self.member.share(tasks, 1) {
            let (h, run) = (task / runs, task % runs);
            let weight = &self.model.weights[kernels.key_weight];
            // rows of k_b are latent numbers, rows of kv_b are numbers of keys
            let (matrix, from, order) = match kv {
                KvWeights::Split(..) => (heads.start + h, 0..a.kv_lora_rank, KeyOrder::Latents),
                KvWeights::Combined(_) => {
                    let from = (heads.start + h) * (a.nope + a.v);
                    (0, from..from + a.nope, KeyOrder::Keys)
                }
            };
            if decoded.replace(h) != Some(h) {
                decode_rows(weight, matrix, from, weights, &mut local.bytes);
            }
            let run = run * KEY_BLOCKS..((run + 1) * KEY_BLOCKS).min(layout.blocks());
            let stride = layout.width * KEYS;
            let blocks = KeyBlocks {
                latents: self.expanded_numbers(run.start * stride, run.len() * stride),
                stride,
                latent: a.kv_lora_rank,
                nope: a.nope,
            };
            let at = layout.keys + (h * layout.blocks() + run.start) * a.nope * KEYS;
            let keys = self.expanded_memory(at, run.len() * a.nope * KEYS);
            (kernels.keys)(weights, order, &blocks, keys, &mut local.attention);
        }
    }

    /// This thread's blocks of rows of an expanded stream.
    fn unpack<N: Number>(&self, segment: &Segment, stream: usize, heads: &Range<usize>, layout: &Layout) {
        let a = &self.model.contract.attention;
        let length = segment.first + segment.rows.len();
        let head_width = a.nope + a.rope + a.v;
        for start in self.member.share(layout.length, KEYS).step_by(KEYS) {
            let rows = start..(start + KEYS).min(length);
            let turned = |from: usize, cols: usize, at: usize| {
                let out: &mut [N] = self.expanded_memory(at, cols * KEYS);
                self.turn_cached(segment, stream, &rows, from, out);
            };
            for (h, head) in heads.clone().enumerate() {
                let from = head * head_width;
                turned(from, a.nope, layout.keys + (h * layout.length + start) * a.nope);
                if head == 0 && a.rope > 0 {
                    turned(from + a.nope, a.rope, start * layout.width + a.kv_lora_rank * KEYS);
                }
            }
            let stored = self.stored(stream);
            for (h, head) in heads.clone().enumerate() {
                let from = head * head_width + a.nope + a.rope;
                for row in rows.clone() {
                    let at = layout.values + (h * layout.length + row) * a.v;
                    let bytes = self.cached(segment, stream, row);
                    N::load(stored, bytes, from, self.expanded_memory(at, a.v));
                }
            }
        }
    }

    /// How a stream's rows are stored.
    fn stored(&self, stream: usize) -> CacheRow {
        self.pool.streams()[stream].0.row(self.pool.cache_type())
    }

    /// A cached row of a segment.
    fn cached(&self, segment: &Segment, stream: usize, row: usize) -> &[u8] {
        let place = segment.pages[row / PAGE_ROWS] as usize * PAGE_ROWS + row % PAGE_ROWS;
        self.pool.streams()[stream].1.row(place)
    }

    /// Attention of the segment's rows with one group of heads: tasks of a head and some query rows.
    #[allow(clippy::too_many_arguments, reason = "one group of one instruction")]
    fn attend_group<N: Number>(
        &self,
        segment: &Segment,
        q_nope: &Slot,
        q_rope: &Slot,
        heads: &Range<usize>,
        layout: &Layout,
        out: &Slot,
        kernel: AttendExpandedFn<N>,
        local: &mut Local,
    ) {
        let a = &self.model.contract.attention;
        let length = segment.first + segment.rows.len();
        let width = a.nope + a.rope;
        let tasks = |size| segment.rows.len().div_ceil(size);
        let enough = heads.len() * tasks(QUERIES) >= TASKS * self.member.count;
        let size = if enough { QUERIES } else { FEW_QUERIES };
        let tasks = tasks(size);
        for task in 0..heads.len() * tasks {
            if task % self.member.count != self.member.index {
                continue;
            }
            // the longest first, so that threads end together
            let (h, task) = (task % heads.len(), tasks - 1 - task / heads.len());
            let head = heads.start + h;
            let first = segment.rows.start + task * size;
            let rows = first..segment.rows.end.min(first + size);
            let expanded = Expanded {
                keys: self.expanded_numbers(layout.keys + h * layout.length * a.nope, layout.length * a.nope),
                rope_keys: self.expanded_numbers(
                    a.kv_lora_rank * KEYS,
                    layout.length * layout.width - a.kv_lora_rank * KEYS,
                ),
                rope_stride: layout.width * KEYS,
                values: self.expanded_numbers(layout.values + h * layout.length * a.v, length * a.v),
                value_width: a.v,
                nope: a.nope,
                rope: a.rope,
            };
            let queries = grown(&mut local.more, rows.len() * width);
            let mut scales = [0.0; QUERIES];
            for ((row, query), scale) in rows.clone().zip(queries.chunks_exact_mut(width)).zip(&mut scales) {
                query[..a.nope].copy_from_slice(self.head(q_nope, row, head));
                query[a.nope..].copy_from_slice(self.head(q_rope, row, head));
                *scale = self.score_scale(self.batch.positions[row]);
            }
            let position = self.batch.positions[rows.start];
            let mut y = self.write(out, rows.clone(), head * out.head_stride, out.width);
            let queries = Rows::new(queries, rows.len(), width, width);
            kernel(queries, &expanded, position, &scales[..rows.len()], &mut y, &mut local.attention);
        }
    }

    /// Rows of the expanded cache: each thread expands the heads of its own rows.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(super) fn expanded_store(
        &self,
        latent: &Slot,
        key: &Slot,
        rotate: bool,
        kv: &KvWeights,
        stream: usize,
        local: &mut Local,
    ) {
        let a = &self.model.contract.attention;
        let (needs, stored) = (Self::kv_needs(kv), self.stored(stream));
        let memory: &StreamMemory = &self.pool.streams()[stream].1;
        let Local { acts, scratch, results, more, .. } = local;
        let head_width = a.nope + a.rope + a.v;
        let line = grown(results, a.expanded_width());
        let rope = grown(more, a.rope);
        for segment in &self.batch.segments {
            for row in self.stored_rows(segment, stream) {
                let position = segment.first + row;
                let row = segment.rows.start + row;
                let x = acts.prepare(self.read(latent, row..row + 1, 0, a.kv_lora_rank), None, needs);
                rope.copy_from_slice(self.row(key, row));
                if rotate {
                    self.rotate(rope, row);
                }
                for (head, numbers) in line.chunks_exact_mut(head_width).enumerate() {
                    let (k, rest) = numbers.split_at_mut(a.nope);
                    let (r, v) = rest.split_at_mut(a.rope);
                    r.copy_from_slice(rope);
                    for (half, numbers) in [(Half::Key, k), (Half::Value, v)] {
                        let width = numbers.len();
                        let mut y = RowsMut::new(numbers, 1, width, width);
                        self.head_out_of_latent(kv, &half, head, &x, 0..width, &mut y, scratch);
                    }
                }
                let place = segment.pages[position / PAGE_ROWS] as usize * PAGE_ROWS + position % PAGE_ROWS;
                kernels::store_row(stored, line, self.cache_row(memory, place));
            }
        }
    }
}

/// Some rows of a weight as numbers, its factor included.
fn decode_rows(
    weight: &LoadedWeight,
    matrix: usize,
    rows: Range<usize>,
    out: &mut [f32],
    bytes: &mut Vec<u8>,
) {
    let rows = weight.matrix(matrix).slice_rows(rows);
    for (row, line) in out.chunks_exact_mut(rows.cols).enumerate() {
        kernels::decode_row(&rows, row, line, bytes);
    }
    let scale = weight.scale(matrix);
    if scale != 1.0 {
        kernels::scale(out, scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_segment_needs_more_than_the_most_of_its_context() {
        let mut a = AttentionShape {
            heads: 16,
            q_lora_rank: None,
            kv_lora_rank: 512,
            nope: 128,
            rope: 64,
            v: 128,
            softmax_scale: 1.0,
            temperature: None,
        };
        for heads in [1, 16, 128] {
            a.heads = heads;
            let mut before = 0;
            for length in (0..40_000).step_by(37) {
                let most = expanded_most(length, &a);
                assert!(expanded_len(length, &a) <= most && before <= most, "{length} rows");
                before = most;
            }
        }
    }
}
