//! What one worker sees of a step: the model, the batch, the KV cache, and the buffers that the workers share.
#![allow(unsafe_code, reason = "workers write disjoint parts of shared buffers between barriers")]

use crate::kv_store::CpuKvStore;
use crate::program::{Buffer, Operand};
use crate::weights::LoadedWeight;
use latent_backend::{Batch, KV_BLOCK, SeqSpan, slot};
use latent_graph::ModelConfig;
use latent_kernels::{
    Bf16x32, CacheView, KvElement, Q8Block, RopePairs, RopeTable, RouteSpec, Rows, RowsMut,
};
use latent_threads::Worker;
use latent_types::CacheRow;
use std::ops::Range;
use std::sync::Arc;

/// What every operation of a model needs.
pub(crate) struct ModelData {
    /// Hyper-parameters.
    pub config: ModelConfig,
    /// All weights.
    pub weights: Vec<LoadedWeight>,
    /// Rotation angles.
    pub rope: Arc<RopeTable>,
    /// Which elements of a rope part form pairs.
    pub pairs: RopePairs,
    /// The router's rules, without the bias, which is a weight.
    pub route: Option<RouteSpec<'static>>,
}

/// A buffer of f32 that the workers of a step share.
#[derive(Clone, Copy)]
pub(crate) struct SharedF32 {
    start: *mut f32,
    len: usize,
}

impl SharedF32 {
    /// The elements of a vector that nobody else uses during the step.
    pub(crate) fn of(elements: &mut [f32]) -> SharedF32 {
        SharedF32 { start: elements.as_mut_ptr(), len: elements.len() }
    }
}

/// The buffers that the workers of a step share.
#[derive(Clone, Copy)]
pub(crate) struct SharedMemory {
    /// The arena of the plan.
    pub arena: SharedF32,
    /// The residual stream.
    pub hidden: SharedF32,
    /// The logits.
    pub logits: SharedF32,
    /// Keys and values expanded on the fly, and rope keys.
    pub expanded: SharedF32,
    /// Partial results of attention, per KV split.
    pub partials: SharedF32,
    /// Inputs of a product as 8-bit blocks, where the workers convert them together.
    pub blocks: *mut Q8Block,
    /// How many.
    pub blocks_len: usize,
    /// The same as bf16.
    pub lines: *mut Bf16x32,
    /// How many.
    pub lines_len: usize,
}

// SAFETY: plain addresses; every use states which part a worker may touch.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

/// What one worker sees of a step.
pub(crate) struct Context<'a> {
    /// This worker.
    pub worker: &'a Worker<'a>,
    /// The model.
    pub model: &'a ModelData,
    /// The rows of the step.
    pub batch: &'a Batch,
    /// Rows that the program works on: those of the batch, or the wanted ones in an `lm_head` program.
    pub rows: usize,
    /// The KV cache.
    pub kv: &'a CpuKvStore,
    /// Cosines and sines of each row's position.
    pub rotations: &'a [f32],
    /// Whether a trace is taken: then every value must be in its operand at the end of its phase.
    pub traced: bool,
    /// The shared buffers.
    pub memory: SharedMemory,
}

impl<'a> Context<'a> {
    /// Waits until every worker is here.
    pub(crate) fn barrier(&self) {
        self.worker.barrier();
    }

    /// Rotates one head of a row to the row's position.
    pub(crate) fn rotate(&self, elements: &mut [f32], row: usize) {
        let len = self.model.rope.rotation_len();
        latent_kernels::rotate(elements, &self.rotations[row * len..(row + 1) * len], self.model.pairs);
    }

    /// Weight and epsilon of a norm.
    pub(crate) fn norm(&self, weight: Option<usize>) -> Option<(&'a [f32], f32)> {
        weight.map(|w| (self.model.weights[w].vector(), self.model.config.rms_eps as f32))
    }

    /// Factor on the attention scores of a query at `position`.
    pub(crate) fn score_scale(&self, position: usize) -> f32 {
        let a = &self.model.config.attention;
        (a.softmax_scale * a.temperature.map_or(1.0, |t| t.factor(position))) as f32
    }

    /// This worker's rows of a value.
    pub(crate) fn own_rows(&self, operand: &Operand) -> Range<usize> {
        self.worker.share(operand.rows.of(self.rows), 1)
    }
}

/// Values of the plan.
impl<'a> Context<'a> {
    /// Address of `len` elements of a value, from a column of a row on.
    ///
    /// # Panics
    /// When they are outside of the value's buffer: a plan with wrong offsets, or a step of more rows than it was made for. The plan alone
    /// says that they belong to this value.
    fn at(&self, operand: &Operand, row: usize, column: usize, len: usize) -> *mut f32 {
        let buffer = match operand.buffer {
            Buffer::Arena => self.memory.arena,
            Buffer::Hidden => self.memory.hidden,
            Buffer::Logits => self.memory.logits,
        };
        let start = operand.offset + row * operand.stride + column;
        assert!(
            start <= buffer.len && len <= buffer.len - start,
            "elements {start} to {start} + {len} of {}",
            buffer.len
        );
        // SAFETY: in bounds as just asserted.
        unsafe { buffer.start.add(start) }
    }

    /// Rows of a value, `cols` elements from `column` on, to be read.
    pub(crate) fn read(&self, operand: &Operand, rows: Range<usize>, column: usize, cols: usize) -> Rows<'a> {
        if rows.is_empty() {
            return Rows::new(&[], 0, cols, operand.stride);
        }
        let len = (rows.len() - 1) * operand.stride + cols;
        // SAFETY: in bounds as above; no worker writes what another reads between two barriers (`schedule`).
        let data = unsafe { std::slice::from_raw_parts(self.at(operand, rows.start, column, len), len) };
        Rows::new(data, rows.len(), cols, operand.stride)
    }

    /// Rows of a value, `cols` elements from `column` on, to be written by this worker alone.
    pub(crate) fn write(
        &self,
        operand: &Operand,
        rows: Range<usize>,
        column: usize,
        cols: usize,
    ) -> RowsMut<'a> {
        if rows.is_empty() {
            return RowsMut::new(&mut [], 0, cols, operand.stride);
        }
        let start = self.at(operand, rows.start, column, (rows.len() - 1) * operand.stride + cols);
        // SAFETY: in bounds as above; shares of workers are disjoint rows or columns.
        unsafe { RowsMut::from_raw(start, rows.len(), cols, operand.stride) }
    }

    /// One row of a value, all heads, to be read.
    pub(crate) fn row(&self, operand: &Operand, row: usize) -> &'a [f32] {
        let len = operand.heads * operand.width;
        // SAFETY: as in `read`.
        unsafe { std::slice::from_raw_parts(self.at(operand, row, 0, len), len) }
    }

    /// One whole row, to be written by this worker alone.
    #[allow(clippy::mut_from_ref, reason = "the arena is shared by design; shares are disjoint")]
    pub(crate) fn row_mut(&self, operand: &Operand, row: usize) -> &'a mut [f32] {
        let len = operand.heads * operand.width;
        // SAFETY: as in `write`.
        unsafe { std::slice::from_raw_parts_mut(self.at(operand, row, 0, len), len) }
    }

    /// One row of expert ids, to be read.
    pub(crate) fn ids(&self, operand: &Operand, row: usize) -> &'a [u32] {
        let elements = self.row(operand, row);
        // SAFETY: f32 and u32 have one size and alignment, and admit every bit pattern.
        unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), elements.len()) }
    }

    /// One row of expert ids, to be written by this worker alone.
    #[allow(clippy::mut_from_ref, reason = "the arena is shared by design; shares are disjoint")]
    pub(crate) fn ids_mut(&self, operand: &Operand, row: usize) -> &'a mut [u32] {
        let elements = self.row_mut(operand, row);
        // SAFETY: f32 and u32 have one size and alignment, and admit every bit pattern.
        unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), elements.len()) }
    }

    /// One head of one row, to be read.
    pub(crate) fn head(&self, operand: &Operand, row: usize, head: usize) -> &'a [f32] {
        let start = self.at(operand, row, head * operand.head_stride, operand.width);
        // SAFETY: as in `read`.
        unsafe { std::slice::from_raw_parts(start, operand.width) }
    }

    /// Some columns of one head of one row, to be written by this worker alone.
    #[allow(clippy::mut_from_ref, reason = "the arena is shared by design; shares are disjoint")]
    pub(crate) fn head_mut(
        &self,
        operand: &Operand,
        row: usize,
        head: usize,
        columns: Range<usize>,
    ) -> &'a mut [f32] {
        let start = self.at(operand, row, head * operand.head_stride + columns.start, columns.len());
        // SAFETY: as in `write`.
        unsafe { std::slice::from_raw_parts_mut(start, columns.len()) }
    }

    /// Some heads of one row as a matrix, one row per head, to be read.
    pub(crate) fn read_heads(&self, operand: &Operand, row: usize, heads: Range<usize>) -> Rows<'a> {
        let len = (heads.len() - 1) * operand.head_stride + operand.width;
        let start = self.at(operand, row, heads.start * operand.head_stride, len);
        // SAFETY: as in `read`.
        let data = unsafe { std::slice::from_raw_parts(start, len) };
        Rows::new(data, heads.len(), operand.width, operand.head_stride)
    }

    /// Some heads of one row as a matrix, one row per head, to be written by this worker alone.
    pub(crate) fn write_heads(&self, operand: &Operand, row: usize, heads: Range<usize>) -> RowsMut<'a> {
        let len = (heads.len() - 1) * operand.head_stride + operand.width;
        let start = self.at(operand, row, heads.start * operand.head_stride, len);
        // SAFETY: as in `write`.
        unsafe { RowsMut::from_raw(start, heads.len(), operand.width, operand.head_stride) }
    }
}

/// The KV cache.
impl<'a> Context<'a> {
    /// How a layer's rows are stored.
    pub(crate) fn kv_format(&self, kv_layer: usize) -> CacheRow {
        self.kv.kv_layers()[kv_layer].0.row(self.kv.cache_type())
    }

    /// A cached row of a span.
    pub(crate) fn kv_row(&self, span: &SeqSpan, kv_layer: usize, position: usize) -> &'a [u8] {
        self.kv.kv_layers()[kv_layer].1.row(slot(&span.block_table, position))
    }

    /// A cached row of a span, to be written by this worker alone.
    #[allow(clippy::mut_from_ref, reason = "a row has one writer")]
    pub(crate) fn kv_row_mut(&self, span: &SeqSpan, kv_layer: usize, position: usize) -> &'a mut [u8] {
        let memory = &self.kv.kv_layers()[kv_layer].1;
        // SAFETY: every row of a step belongs to one span, whose blocks are its own where it writes, and to one worker's share.
        unsafe { memory.row_shared(slot(&span.block_table, position)) }
    }

    /// A span's cached rows in one layer.
    pub(crate) fn kv_view<'s>(&'s self, span: &'s SeqSpan, kv_layer: usize) -> CacheView<'s> {
        let memory = &self.kv.kv_layers()[kv_layer].1;
        CacheView::new(self.kv_format(kv_layer), memory.bytes(), KV_BLOCK, &span.block_table)
            .expect("blocks of the pool")
    }
}

/// Memory outside of the plan.
impl<'a> Context<'a> {
    /// Memory for partial results of attention, to be used by this worker alone until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "tasks have disjoint parts")]
    pub(crate) fn partials_mut(&self, at: usize, len: usize) -> &'a mut [f32] {
        assert!(at + len <= self.memory.partials.len, "partial results out of range");
        // SAFETY: in range; tasks have disjoint parts.
        unsafe { std::slice::from_raw_parts_mut(self.memory.partials.start.add(at), len) }
    }

    /// Elements of that memory.
    pub(crate) fn partials_len(&self) -> usize {
        self.memory.partials.len
    }

    /// Partial results of attention, to be read after the barrier.
    pub(crate) fn partials(&self, at: usize, len: usize) -> &'a [f32] {
        assert!(at + len <= self.memory.partials.len, "partial results out of range");
        // SAFETY: in range; nobody writes until the barrier after the phase that reads them.
        unsafe { std::slice::from_raw_parts(self.memory.partials.start.add(at), len) }
    }

    /// Shared 8-bit blocks to be written by this worker alone until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "workers have disjoint rows")]
    pub(crate) fn blocks_mut(&self, at: usize, len: usize) -> &'a mut [Q8Block] {
        assert!(at + len <= self.memory.blocks_len, "8-bit blocks out of range");
        // SAFETY: in range; workers have disjoint rows.
        unsafe { std::slice::from_raw_parts_mut(self.memory.blocks.add(at), len) }
    }

    /// Shared 8-bit blocks to be read, after the barrier.
    pub(crate) fn blocks(&self, len: usize) -> &'a [Q8Block] {
        assert!(len <= self.memory.blocks_len, "8-bit blocks out of range");
        // SAFETY: in range; nobody writes until the next barrier.
        unsafe { std::slice::from_raw_parts(self.memory.blocks, len) }
    }

    /// Shared cache lines of bf16 to be written by this worker alone until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "workers have disjoint rows")]
    pub(crate) fn lines_mut(&self, at: usize, len: usize) -> &'a mut [Bf16x32] {
        assert!(at + len <= self.memory.lines_len, "lines of bf16 out of range");
        // SAFETY: in range; workers have disjoint rows.
        unsafe { std::slice::from_raw_parts_mut(self.memory.lines.add(at), len) }
    }

    /// Shared cache lines of bf16 to be read, after the barrier.
    pub(crate) fn lines(&self, len: usize) -> &'a [Bf16x32] {
        assert!(len <= self.memory.lines_len, "lines of bf16 out of range");
        // SAFETY: in range; nobody writes until the next barrier.
        unsafe { std::slice::from_raw_parts(self.memory.lines, len) }
    }

    /// Memory for expanded keys and values, in elements of one type, to be written by this worker alone until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "parts are disjoint: each worker expands its own rows")]
    pub(crate) fn expanded_mut<N: KvElement>(&self, at: usize, len: usize) -> &'a mut [N] {
        // SAFETY: in range; workers have disjoint rows; any bits are such an element.
        unsafe { std::slice::from_raw_parts_mut(self.expanded_at(at, len), len) }
    }

    /// Expanded keys and values, to be read after the barrier.
    pub(crate) fn expanded<N: KvElement>(&self, at: usize, len: usize) -> &'a [N] {
        // SAFETY: in range; nobody writes until the next barrier; any bits are such an element.
        unsafe { std::slice::from_raw_parts(self.expanded_at(at, len), len) }
    }

    fn expanded_at<N: KvElement>(&self, at: usize, len: usize) -> *mut N {
        let bytes = self.memory.expanded.len * size_of::<f32>();
        assert!((at + len) * size_of::<N>() <= bytes, "expanded keys out of range");
        self.memory.expanded.start.cast::<N>().wrapping_add(at)
    }
}
