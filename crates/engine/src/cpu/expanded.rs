//! The naive formulation: keys and values expanded from cached latents, or read as they were stored.

use super::batch::SeqSpan;
use super::compile::{KvWeights, Slot};
use super::mla_projection::KvProjection;
use super::run::Thread;
use super::scratch::{WorkerScratch, resize_scratch};
use super::weights::LoadedWeight;
use crate::cache::{KvLayerMemory, PAGE_ROWS};
use latent_graph::config::AttentionShape;
use latent_graph::ir::AttentionPath;
use latent_kernels::half::{bf16, f16};
use latent_kernels::{
    AttendExpandedArgs, AttendExpandedFn, ExpandArgs, ExpandKeysFn, Expanded, HeadWidths, KeyBlocks,
    KeyOrder, KvElement, Rows, RowsMut,
};
use latent_types::CacheRow;
use std::ops::Range;

/// Numbers that keys and values expanded on the fly may take, unless one head alone takes more: 64 MB.
const BUDGET: usize = 16 << 20;

/// Fewest query rows of a task.
const FEW_QUERIES: usize = 32;

/// Tasks for each thread, so that all end together.
const TASKS: usize = 8;

/// Cached rows whose keys a thread expands with one decoded W_UK.
const KEY_ROWS: usize = 512;

/// The kernels of the naive formulation, and of what numbers expanded keys and values are.
#[derive(Clone, Copy)]
pub enum ExpandedKernels {
    /// f32.
    F32(Kernels<f32>),
    /// f16.
    F16(Kernels<f16>),
    /// bf16.
    Bf16(Kernels<bf16>),
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

/// Numbers of f32 of shared memory that the naive formulation needs for a span that sees `length` rows, whatever its keys are made of.
pub fn expanded_len(length: usize, a: &AttentionShape) -> usize {
    Layout::new::<f32>(length, a).floats().max(Layout::new::<bf16>(length, a).floats())
}

/// The most numbers of f32 of shared memory that any span of up to `length` rows needs; it never falls as `length` grows.
pub fn expanded_most(length: usize, a: &AttentionShape) -> usize {
    Layout::new::<f32>(length, a).most().max(Layout::new::<bf16>(length, a).most())
}

/// Where the shared memory holds what, in numbers of one kind. All begins with the cached rows in blocks, `[latent | rope]`, laid as keys are;
/// then come blocks of keys, and of values, each head after head.
#[derive(Clone, Copy)]
struct Layout {
    /// Bytes of a number.
    bytes: usize,
    /// Cached rows of a block.
    block: usize,
    /// Cached rows, filled up to whole blocks.
    length: usize,
    /// Numbers that a cached row takes without and with its rope part, and that a key and a value take.
    latent: usize,
    width: usize,
    nope: usize,
    v: usize,
    /// Heads of the model, and those that are expanded together.
    heads: usize,
    group: usize,
}

impl Layout {
    fn new<N: KvElement>(length: usize, a: &AttentionShape) -> Layout {
        let (length, latent) = (length.next_multiple_of(N::KV_BLOCK), N::padded(a.kv_lora_rank));
        let (nope, v) = (N::padded(a.nope), N::padded(a.v));
        let width = latent + N::padded(a.rope);
        let group = (BUDGET / (length * (nope + v)).max(1)).clamp(1, a.heads);
        let (bytes, block, heads) = (size_of::<N>(), N::KV_BLOCK, a.heads);
        Layout { bytes, block, length, latent, width, nope, v, heads, group }
    }

    fn blocks(&self) -> usize {
        self.length / self.block
    }

    /// Where the keys of a head of the group begin, from a block on.
    fn keys(&self, head: usize, block: usize) -> usize {
        self.length * (self.width + head * self.nope) + block * self.block * self.nope
    }

    /// The same of values.
    fn values(&self, head: usize, block: usize) -> usize {
        self.keys(self.group, 0) + (head * self.length + block * self.block) * self.v
    }

    /// Numbers of f32 that take as many bytes as all of it.
    fn floats(&self) -> usize {
        (self.values(self.group, 0) * self.bytes).div_ceil(size_of::<f32>())
    }

    /// The most that this is for any shorter span too.
    fn most(&self) -> usize {
        let head = self.length * (self.nope + self.v);
        let all = self.length * self.width + (head * self.heads).min(BUDGET).max(head);
        (all * self.bytes).div_ceil(size_of::<f32>())
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
        kv_layer: usize,
        kernels: ExpandedKernels,
        path: AttentionPath,
        local: &mut WorkerScratch,
    ) {
        match kernels {
            ExpandedKernels::F32(kernels) => {
                self.attend_numbers(q_nope, q_rope, kv, out, kv_layer, kernels, path, local);
            }
            ExpandedKernels::F16(kernels) => {
                self.attend_numbers(q_nope, q_rope, kv, out, kv_layer, kernels, path, local);
            }
            ExpandedKernels::Bf16(kernels) => {
                self.attend_numbers(q_nope, q_rope, kv, out, kv_layer, kernels, path, local);
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    fn attend_numbers<N: KvElement>(
        &self,
        q_nope: &Slot,
        q_rope: &Slot,
        kv: Option<&KvWeights>,
        out: &Slot,
        kv_layer: usize,
        kernels: Kernels<N>,
        path: AttentionPath,
        local: &mut WorkerScratch,
    ) {
        let a = &self.model.config.attention;
        for span in self.batch.in_lane(path) {
            let layout = Layout::new::<N>(span.first + span.rows.len(), a);
            for first in (0..a.heads).step_by(layout.group) {
                let heads = first..(first + layout.group).min(a.heads);
                match kv {
                    Some(kv) => {
                        self.expand_values::<N>(span, kv_layer, kv, &heads, &layout, local);
                        self.worker.barrier();
                        self.expand_keys(kv, &heads, &layout, kernels, local);
                    }
                    None => self.unpack::<N>(span, kv_layer, &heads, &layout, local),
                }
                self.worker.barrier();
                self.attend_group(span, q_nope, q_rope, &heads, &layout, out, kernels.attend, local);
                self.worker.barrier();
            }
        }
    }

    /// This thread's cached rows, block by block: laid as keys are, and through W_UV of each head of the group.
    fn expand_values<N: KvElement>(
        &self,
        span: &SeqSpan,
        kv_layer: usize,
        kv: &KvWeights,
        heads: &Range<usize>,
        layout: &Layout,
        local: &mut WorkerScratch,
    ) {
        let a = &self.model.config.attention;
        let length = span.first + span.rows.len();
        let (needs, width, stored) = (Self::kv_needs(kv), a.latent_width(), self.stored(kv_layer));
        let WorkerScratch { acts, scratch, results, more, .. } = local;
        for start in self.worker.share(layout.length, N::KV_BLOCK).step_by(N::KV_BLOCK) {
            let rows = start..(start + N::KV_BLOCK).min(length);
            // the same rows serve all groups of heads
            if heads.start == 0 {
                let (latent, all) = (layout.latent * N::KV_BLOCK, layout.width * N::KV_BLOCK);
                let out: &mut [N] = self.expanded_memory(start * layout.width, all);
                self.lay_cached(span, kv_layer, &rows, 0..a.kv_lora_rank, &mut out[..latent]);
                self.lay_cached(span, kv_layer, &rows, a.kv_lora_rank..width, &mut out[latent..]);
            }
            let lines = resize_scratch(results, rows.len() * width);
            for (row, line) in rows.clone().zip(lines.chunks_exact_mut(width)) {
                latent_kernels::load_row(stored, self.cached(span, kv_layer, row), line);
            }
            let values = resize_scratch(more, rows.len() * a.v);
            let latent = Rows::new(lines, rows.len(), a.kv_lora_rank, width);
            let x = acts.prepare(latent, None, needs);
            for (h, head) in heads.clone().enumerate() {
                let mut y = RowsMut::new(values, rows.len(), a.v, a.v);
                self.project_value(kv, &KvProjection::Uv, head, &x, 0..a.v, &mut y, scratch);
                let out: &mut [N] =
                    self.expanded_memory(layout.values(h, start / N::KV_BLOCK), layout.v * N::KV_BLOCK);
                N::pack_values(values, a.v, out);
            }
        }
    }

    /// Some numbers of cached rows as a block of keys.
    fn lay_cached<N: KvElement>(
        &self,
        span: &SeqSpan,
        kv_layer: usize,
        rows: &Range<usize>,
        numbers: Range<usize>,
        out: &mut [N],
    ) {
        let rows = rows.clone().map(|row| self.cached(span, kv_layer, row));
        N::pack_keys(self.stored(kv_layer), rows, numbers, out);
    }

    /// Keys of the group: tasks of a head and some blocks of cached rows.
    fn expand_keys<N: KvElement>(
        &self,
        kv: &KvWeights,
        heads: &Range<usize>,
        layout: &Layout,
        kernels: Kernels<N>,
        local: &mut WorkerScratch,
    ) {
        let a = &self.model.config.attention;
        let run_blocks = KEY_ROWS / N::KV_BLOCK;
        let runs = layout.blocks().div_ceil(run_blocks);
        let weights = resize_scratch(&mut local.more, a.nope * a.kv_lora_rank);
        let tasks = heads.len() * runs;
        let mut decoded = None;
        // neighbours go to one thread, which decodes the head's weights once for them
        for task in self.worker.share(tasks, 1) {
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
            let run = run * run_blocks..((run + 1) * run_blocks).min(layout.blocks());
            let stride = layout.width * N::KV_BLOCK;
            let latents = self.expanded_numbers(run.start * stride, run.len() * stride);
            let blocks = KeyBlocks::new(latents, stride, a.kv_lora_rank, a.nope).expect("blocks of latents");
            let keys = self.expanded_memory(layout.keys(h, run.start), run.len() * layout.nope * N::KV_BLOCK);
            let args = ExpandArgs { weights, order, blocks: &blocks };
            (kernels.keys)(&args, keys, &mut local.attention);
        }
    }

    /// This thread's blocks of rows of an expanded stream.
    fn unpack<N: KvElement>(
        &self,
        span: &SeqSpan,
        kv_layer: usize,
        heads: &Range<usize>,
        layout: &Layout,
        local: &mut WorkerScratch,
    ) {
        let a = &self.model.config.attention;
        let length = span.first + span.rows.len();
        let head_width = a.nope + a.rope + a.v;
        for start in self.worker.share(layout.length, N::KV_BLOCK).step_by(N::KV_BLOCK) {
            let rows = start..(start + N::KV_BLOCK).min(length);
            let block = start / N::KV_BLOCK;
            for (h, head) in heads.clone().enumerate() {
                let from = head * head_width;
                let keys: &mut [N] = self.expanded_memory(layout.keys(h, block), layout.nope * N::KV_BLOCK);
                self.lay_cached(span, kv_layer, &rows, from..from + a.nope, keys);
                let rotated = from + a.nope..from + a.nope + a.rope;
                if head == 0 {
                    let (at, len) = (start * layout.width, layout.width * N::KV_BLOCK);
                    let out: &mut [N] = self.expanded_memory(at, len);
                    self.lay_cached(
                        span,
                        kv_layer,
                        &rows,
                        rotated.clone(),
                        &mut out[layout.latent * N::KV_BLOCK..],
                    );
                }
                let lines = resize_scratch(&mut local.more, rows.len() * a.v);
                let stored = self.stored(kv_layer);
                for (row, line) in rows.clone().zip(lines.chunks_exact_mut(a.v)) {
                    latent_kernels::load_part(stored, self.cached(span, kv_layer, row), rotated.end, line);
                }
                let out: &mut [N] = self.expanded_memory(layout.values(h, block), layout.v * N::KV_BLOCK);
                N::pack_values(lines, a.v, out);
            }
        }
    }

    /// How a stream's rows are stored.
    fn stored(&self, kv_layer: usize) -> CacheRow {
        self.pool.kv_layers()[kv_layer].0.row(self.pool.cache_type())
    }

    /// A cached row of a span.
    fn cached(&self, span: &SeqSpan, kv_layer: usize, row: usize) -> &[u8] {
        let place = span.pages[row / PAGE_ROWS] as usize * PAGE_ROWS + row % PAGE_ROWS;
        self.pool.kv_layers()[kv_layer].1.row(place)
    }

    /// Attention of the span's rows with one group of heads: tasks of a head and some query rows.
    #[allow(clippy::too_many_arguments, reason = "one group of one instruction")]
    fn attend_group<N: KvElement>(
        &self,
        span: &SeqSpan,
        q_nope: &Slot,
        q_rope: &Slot,
        heads: &Range<usize>,
        layout: &Layout,
        out: &Slot,
        kernel: AttendExpandedFn<N>,
        local: &mut WorkerScratch,
    ) {
        let a = &self.model.config.attention;
        let width = a.nope + a.rope;
        let tasks = |size| span.rows.len().div_ceil(size);
        // the more query rows a task has, the less often keys are read
        let mut size = N::Q_TILE;
        while size > FEW_QUERIES && heads.len() * tasks(size) < TASKS * self.worker.count {
            size /= 2;
        }
        let tasks = tasks(size);
        for task in 0..heads.len() * tasks {
            if task % self.worker.count != self.worker.index {
                continue;
            }
            // the longest first, so that threads end together
            let (h, task) = (task % heads.len(), tasks - 1 - task / heads.len());
            let head = heads.start + h;
            let first = span.rows.start + task * size;
            let rows = first..span.rows.end.min(first + size);
            let latents = layout.latent * N::KV_BLOCK;
            let keys = self.expanded_numbers(layout.keys(h, 0), layout.length * layout.nope);
            let rope_keys = self.expanded_numbers(latents, layout.length * layout.width - latents);
            let values = self.expanded_numbers(layout.values(h, 0), layout.length * layout.v);
            let widths = HeadWidths { nope: a.nope, rope: a.rope, value: a.v };
            let expanded = Expanded::new(keys, (rope_keys, layout.width * N::KV_BLOCK), values, widths)
                .expect("blocks of the segment");
            let queries = resize_scratch(&mut local.more, rows.len() * width);
            let scales = resize_scratch(&mut local.results, rows.len());
            for ((row, query), scale) in rows.clone().zip(queries.chunks_exact_mut(width)).zip(&mut *scales) {
                query[..a.nope].copy_from_slice(self.head(q_nope, row, head));
                query[a.nope..].copy_from_slice(self.head(q_rope, row, head));
                *scale = self.score_scale(self.batch.positions[row]);
            }
            let position = self.batch.positions[rows.start];
            let mut y = self.write(out, rows.clone(), head * out.head_stride, out.width);
            let queries = Rows::new(queries, rows.len(), width, width);
            let args = AttendExpandedArgs { q: queries, expanded: &expanded, position, scales };
            kernel(&args, &mut y, &mut local.attention);
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
        kv_layer: usize,
        local: &mut WorkerScratch,
    ) {
        let a = &self.model.config.attention;
        let (needs, stored) = (Self::kv_needs(kv), self.stored(kv_layer));
        let memory: &KvLayerMemory = &self.pool.kv_layers()[kv_layer].1;
        let WorkerScratch { acts, scratch, results, more, .. } = local;
        let head_width = a.nope + a.rope + a.v;
        let line = resize_scratch(results, a.expanded_width());
        let rope = resize_scratch(more, a.rope);
        for span in &self.batch.spans {
            for row in self.stored_rows(span, kv_layer) {
                let position = span.first + row;
                let row = span.rows.start + row;
                let x = acts.prepare(self.read(latent, row..row + 1, 0, a.kv_lora_rank), None, needs);
                rope.copy_from_slice(self.row(key, row));
                if rotate {
                    self.rotate(rope, row);
                }
                for (head, numbers) in line.chunks_exact_mut(head_width).enumerate() {
                    let (k, rest) = numbers.split_at_mut(a.nope);
                    let (r, v) = rest.split_at_mut(a.rope);
                    r.copy_from_slice(rope);
                    for (half, numbers) in [(KvProjection::Uk, k), (KvProjection::Uv, v)] {
                        let width = numbers.len();
                        let mut y = RowsMut::new(numbers, 1, width, width);
                        self.project_value(kv, &half, head, &x, 0..width, &mut y, scratch);
                    }
                }
                let place = span.pages[position / PAGE_ROWS] as usize * PAGE_ROWS + position % PAGE_ROWS;
                latent_kernels::store_row(stored, line, self.cache_row(memory, place));
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
    for (row, line) in out.chunks_exact_mut(rows.cols()).enumerate() {
        latent_kernels::decode_row(&rows, row, line, bytes);
    }
    let scale = weight.scale(matrix);
    if scale != 1.0 {
        latent_kernels::scale(out, scale);
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
