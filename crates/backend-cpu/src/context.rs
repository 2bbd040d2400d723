//! A worker's view of a step: the model, the batch, the KV cache, and the shared buffers.
#![allow(unsafe_code, reason = "workers write disjoint parts of shared buffers between barriers")]

use crate::disjoint::{BufferUser, DisjointBuffer, ElementAccess, ElementUses, MatrixBlock};
use crate::kv_store::CpuKvStore;
use crate::program::{Buffer, OperandView};
use crate::weights::LoadedWeight;
use latent_backend::{Batch, KV_BLOCK, KvStore, RankError, RankLinks, SeqSpan, slot};
use latent_graph::ModelConfig;
use latent_kernels::{
    Bf16x32, CacheView, KvElement, MatrixView, MatrixViewMut, Q8Block, RopePairing, RopeTable, RouteSpec,
};
use latent_threads::PoolWorker;
use latent_types::{CacheRow, Tier};
use std::cell::Cell;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Minimum rows of a batch whose work is taken from queues. With fewer rows an operation reads its weights from memory once, in long streams, which
/// queues would cut.
const QUEUED_ROWS: usize = 64;

/// Data that every operation of a model needs.
pub(crate) struct ModelData {
    /// Hyper-parameters.
    pub config: ModelConfig,
    pub weights: Vec<LoadedWeight>,
    /// Of each weight the epsilon of the RMSNorm that it would belong to.
    pub norm_eps: Vec<f32>,
    /// Rotation angles.
    pub rope: Arc<RopeTable>,
    /// Which elements of a rope part form pairs.
    pub pairs: RopePairing,
    /// The same in an indexer.
    pub index_pairs: RopePairing,
    /// Tier of kernels that no plan selects and whose bits depend on it.
    pub tier: Tier,
    /// Whether an indexer's scores are in f32, whatever the cache's type.
    pub exact: bool,
    /// The router's rules, without the bias, which is a weight.
    pub route: Option<RouteSpec<'static>>,
}

/// The buffers that the workers of a step share.
pub(crate) struct SharedMemory<'m> {
    /// The arena of the plan.
    pub arena: DisjointBuffer<'m, f32>,
    /// The residual stream.
    pub hidden: DisjointBuffer<'m, f32>,
    pub logits: DisjointBuffer<'m, f32>,
    /// Keys and values expanded on the fly, and rope keys.
    pub expanded: DisjointBuffer<'m, f32>,
    /// Inputs of a product as 8-bit blocks, where the workers convert them together.
    pub blocks: DisjointBuffer<'m, Q8Block>,
    /// The same as bf16.
    pub lines: DisjointBuffer<'m, Bf16x32>,
    /// Scores of cached tokens, where the workers share those of a row.
    pub scores: DisjointBuffer<'m, f32>,
    /// Uses of the rows of the KV cache.
    pub kv_rows: ElementUses,
    /// Uses of the elements of recurrent states.
    pub states: ElementUses,
}

/// A worker's view of a step.
pub(crate) struct WorkerContext<'a> {
    pub worker: &'a PoolWorker<'a>,
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
    pub memory: &'a SharedMemory<'a>,
    /// Barriers that this worker has passed in this step.
    pub barriers: Cell<u64>,
    /// The other ranks, where several share the model.
    pub links: Option<&'a RankLinks>,
    /// The result of this step's collective.
    pub failure: &'a Mutex<Option<RankError>>,
}

impl<'a> WorkerContext<'a> {
    /// Waits until every worker is here.
    pub(crate) fn barrier(&self) {
        self.worker.barrier();
        self.barriers.set(self.barriers.get() + 1);
    }

    /// Whether other ranks detect hangs of this rank.
    pub(crate) fn is_watched(&self) -> bool {
        self.links.is_some()
    }

    /// Reports progress of the step to the detection of hangs: after each phase, and after each
    /// part of long phases (products, attention, experts).
    pub(crate) fn beat(&self) {
        if let Some(links) = self.links {
            links.beat();
        }
    }

    /// Keeps why the step cannot go on.
    pub(crate) fn fail(&self, error: RankError) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Whether a collective has failed. The lock is taken by the first worker alone.
    pub(crate) fn has_failed(&self) -> bool {
        self.links.is_some() && self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn taker(&self) -> BufferUser {
        BufferUser { worker: self.worker.index, interval: self.barriers.get() + 1 }
    }

    /// Rotates one head of a row to the row's position.
    pub(crate) fn rotate(&self, elements: &mut [f32], row: usize) {
        let len = self.model.rope.rotation_len();
        latent_kernels::rotate(elements, &self.rotations[row * len..(row + 1) * len], self.model.pairs);
    }

    /// Rotates the first elements of one head of an indexer to the row's position.
    pub(crate) fn rotate_index(&self, elements: &mut [f32], row: usize) {
        let len = self.model.rope.rotation_len();
        let rotation = &self.rotations[row * len..(row + 1) * len];
        latent_kernels::rotate(&mut elements[..len], rotation, self.model.index_pairs);
    }

    /// Weight and epsilon of a norm.
    pub(crate) fn norm(&self, weight: Option<usize>) -> Option<(&'a [f32], f32)> {
        weight.map(|w| (self.vector(w), self.model.norm_eps[w]))
    }

    /// A weight that is one row.
    pub(crate) fn vector(&self, weight: usize) -> &'a [f32] {
        self.model.weights[weight].vector()
    }

    /// Factor on the attention scores of a query at `position`.
    pub(crate) fn score_scale(&self, position: usize) -> f32 {
        let a = &self.model.config.attention;
        (a.softmax_scale * a.temperature.map_or(1.0, |t| t.factor(position))) as f32
    }

    /// This worker's rows of a value.
    pub(crate) fn own_rows(&self, operand: &OperandView) -> Range<usize> {
        self.worker.share(operand.rows.of(self.rows), 1)
    }
}

/// Values of the plan. Offsets that a plan gives, or a step of more rows than it was made for, may be outside
/// of a value's buffer: then each of these panics. That elements of the buffer belong to this value, the plan
/// alone says.
impl<'a> WorkerContext<'a> {
    fn buffer(&self, operand: &OperandView) -> &'a DisjointBuffer<'a, f32> {
        match operand.buffer {
            Buffer::Arena => &self.memory.arena,
            Buffer::Hidden => &self.memory.hidden,
            Buffer::Logits => &self.memory.logits,
        }
    }

    /// Rows of a value, `cols` elements from `column` on.
    pub(crate) fn read(
        &self,
        operand: &OperandView,
        rows: Range<usize>,
        column: usize,
        cols: usize,
    ) -> MatrixView<'a> {
        self.buffer(operand).read_block(self.taker(), operand.block(rows, column, cols))
    }

    /// Rows of a value to write, `cols` elements from `column` on.
    ///
    /// # Safety
    /// Of all workers, this one alone uses these rows and columns until the next barrier, and only through
    /// the result.
    pub(crate) unsafe fn write(
        &self,
        operand: &OperandView,
        rows: Range<usize>,
        column: usize,
        cols: usize,
    ) -> MatrixViewMut<'a> {
        // SAFETY: the caller promises exclusive use of the elements. The memory plan gives
        // different values of a phase different elements.
        unsafe { self.buffer(operand).write_block(self.taker(), operand.block(rows, column, cols)) }
    }

    /// One row of a value, all heads.
    pub(crate) fn row(&self, operand: &OperandView, row: usize) -> &'a [f32] {
        self.buffer(operand).read(self.taker(), operand.at(row, 0), operand.heads * operand.width)
    }

    /// One row of a value to write, all heads.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the row is its own")]
    pub(crate) unsafe fn row_mut(&self, operand: &OperandView, row: usize) -> &'a mut [f32] {
        let len = operand.heads * operand.width;
        // SAFETY: as in `write`.
        unsafe { self.buffer(operand).write(self.taker(), operand.at(row, 0), len) }
    }

    /// One row of expert ids.
    pub(crate) fn ids(&self, operand: &OperandView, row: usize) -> &'a [u32] {
        let elements = self.row(operand, row);
        // SAFETY: f32 and u32 have one size and alignment, and admit every bit pattern.
        unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), elements.len()) }
    }

    /// One row of expert ids to write.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the row is its own")]
    pub(crate) unsafe fn ids_mut(&self, operand: &OperandView, row: usize) -> &'a mut [u32] {
        // SAFETY: as in `write`.
        let elements = unsafe { self.row_mut(operand, row) };
        // SAFETY: f32 and u32 have one size and alignment, and admit every bit pattern; the borrow moves to
        // the result.
        unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), elements.len()) }
    }

    pub(crate) fn head(&self, operand: &OperandView, row: usize, head: usize) -> &'a [f32] {
        let start = operand.at(row, head * operand.head_stride);
        self.buffer(operand).read(self.taker(), start, operand.width)
    }

    /// Some columns of one head of one row, to write.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the columns are its own")]
    pub(crate) unsafe fn head_mut(
        &self,
        operand: &OperandView,
        row: usize,
        head: usize,
        columns: Range<usize>,
    ) -> &'a mut [f32] {
        let start = operand.at(row, head * operand.head_stride + columns.start);
        // SAFETY: as in `write`.
        unsafe { self.buffer(operand).write(self.taker(), start, columns.len()) }
    }

    /// Elements of a row from one on, across heads.
    pub(crate) fn elements(&self, operand: &OperandView, row: usize, elements: Range<usize>) -> &'a [f32] {
        self.buffer(operand).read(self.taker(), operand.at(row, elements.start), elements.len())
    }

    /// Elements of a row from one on, across heads, to write.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the elements are its own")]
    pub(crate) unsafe fn elements_mut(
        &self,
        operand: &OperandView,
        row: usize,
        elements: Range<usize>,
    ) -> &'a mut [f32] {
        // SAFETY: as in `write`.
        unsafe { self.buffer(operand).write(self.taker(), operand.at(row, elements.start), elements.len()) }
    }

    /// Some heads of one row as a matrix, one row per head.
    pub(crate) fn read_heads(
        &self,
        operand: &OperandView,
        row: usize,
        heads: Range<usize>,
    ) -> MatrixView<'a> {
        self.buffer(operand).read_block(self.taker(), operand.heads_block(row, heads))
    }

    /// All heads of some rows as one matrix: those of the first row, then those of the next. None where they are not
    /// evenly spaced.
    pub(crate) fn read_rows_of_heads(
        &self,
        operand: &OperandView,
        rows: Range<usize>,
    ) -> Option<MatrixView<'a>> {
        let even = operand.stride == operand.heads * operand.head_stride || rows.len() == 1;
        let block = MatrixBlock {
            rows: rows.len() * operand.heads,
            ..operand.heads_block(rows.start, 0..operand.heads)
        };
        even.then(|| self.buffer(operand).read_block(self.taker(), block))
    }

    /// Some heads of one row as a matrix to write, one row per head.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    pub(crate) unsafe fn write_heads(
        &self,
        operand: &OperandView,
        row: usize,
        heads: Range<usize>,
    ) -> MatrixViewMut<'a> {
        // SAFETY: as in `write`.
        unsafe { self.buffer(operand).write_block(self.taker(), operand.heads_block(row, heads)) }
    }
}

impl OperandView {
    /// Offset of an element of a row.
    fn at(&self, row: usize, column: usize) -> usize {
        self.offset + row * self.stride + column
    }

    /// Rows, `cols` elements from `column` on.
    fn block(&self, rows: Range<usize>, column: usize, cols: usize) -> MatrixBlock {
        MatrixBlock { start: self.at(rows.start, column), rows: rows.len(), cols, stride: self.stride }
    }

    fn heads_block(&self, row: usize, heads: Range<usize>) -> MatrixBlock {
        let start = self.at(row, heads.start * self.head_stride);
        MatrixBlock { start, rows: heads.len(), cols: self.width, stride: self.head_stride }
    }
}

/// The KV cache.
impl<'a> WorkerContext<'a> {
    /// How a layer's rows are stored.
    pub(crate) fn kv_format(&self, kv_layer: usize) -> CacheRow {
        self.kv.kv_layer(kv_layer).0.row(self.kv.cache_type())
    }

    /// A cached row of a span.
    pub(crate) fn kv_row(&self, span: &SeqSpan, kv_layer: usize, position: usize) -> &'a [u8] {
        let slot = slot(&span.block_table, position);
        self.record_kv(kv_layer, slot, ElementAccess::Read);
        self.kv.kv_layer(kv_layer).1.row(slot)
    }

    /// The positions that a row attends to, where they are selected and not all up to its own.
    pub(crate) fn selected(&self, selected: Option<&OperandView>, row: usize) -> Option<&'a [u32]> {
        let chosen = selected.filter(|selected| self.batch.positions[row] >= selected.width)?;
        Some(self.ids(chosen, row))
    }

    /// Cached rows that a row attends to: those of the selected tokens, or all up to its own.
    pub(crate) fn attended(&self, row: usize) -> usize {
        let most = self.model.config.attention.indexer.map_or(usize::MAX, |indexer| indexer.topk);
        (self.batch.positions[row] + 1).min(most)
    }

    /// A cached row of a span to write.
    ///
    /// # Safety
    /// Of all workers, this one alone uses the row until the next barrier, and only through the result.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the row is its own")]
    pub(crate) unsafe fn kv_row_mut(&self, span: &SeqSpan, kv_layer: usize, position: usize) -> &'a mut [u8] {
        let slot = slot(&span.block_table, position);
        self.record_kv(kv_layer, slot, ElementAccess::Write);
        // SAFETY: the caller's promise.
        unsafe { self.kv.kv_layer(kv_layer).1.row_shared(slot) }
    }

    /// Calls `work` with the ranges of `n` items that this worker computes, cut at multiples of `unit`. If the batch has many rows, they come from
    /// a queue, so that workers with a slower or busier CPU take fewer; else one range is the worker's share, which no other operation waits for.
    // measured: docs/notes/threads-and-placement.md "Sharing cores with another program"
    pub(crate) fn for_each_range(&self, n: usize, unit: usize, mut work: impl FnMut(Range<usize>)) {
        if self.takes_from_queues() {
            return self.worker.for_each_range(n, unit, work);
        }
        let share = self.worker.share(n, unit);
        if !share.is_empty() {
            work(share);
        }
    }

    /// Whether operations take their work from queues.
    pub(crate) fn takes_from_queues(&self) -> bool {
        self.rows >= QUEUED_ROWS
    }

    /// The heads of this worker's share, each with its span: the same in every operation that is computed by heads.
    pub(crate) fn own_heads(&self, heads: usize) -> impl Iterator<Item = (&'a SeqSpan, usize)> + use<'a> {
        let spans = &self.batch.spans;
        self.worker.share(spans.len() * heads, 1).map(move |item| (&spans[item / heads], item % heads))
    }

    /// The same heads, as ranges of each sequence: to go through its rows in the order of their memory.
    pub(crate) fn own_head_ranges(
        &self,
        heads: usize,
    ) -> impl Iterator<Item = (&'a SeqSpan, Range<usize>)> + use<'a> {
        let spans = &self.batch.spans;
        let share = self.worker.share(spans.len() * heads, 1);
        spans.iter().enumerate().filter_map(move |(index, span)| {
            let first = share.start.max(index * heads);
            let end = share.end.min((index + 1) * heads);
            (first < end).then(|| (span, first - index * heads..end - index * heads))
        })
    }

    /// Elements of a state of a layer.
    pub(crate) fn state(&self, kv_layer: usize, slot: u32, elements: Range<usize>) -> &'a [f32] {
        self.record_state(kv_layer, slot, &elements, ElementAccess::Read);
        self.kv.state_layer(kv_layer).1.state(slot as usize, elements)
    }

    /// Elements of a state of a layer to write.
    ///
    /// # Safety
    /// Of all workers, this one alone uses the elements until the next barrier, and only through the result.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the elements are its own")]
    pub(crate) unsafe fn state_mut(
        &self,
        kv_layer: usize,
        slot: u32,
        elements: Range<usize>,
    ) -> &'a mut [f32] {
        self.record_state(kv_layer, slot, &elements, ElementAccess::Write);
        // SAFETY: the caller's promise.
        unsafe { self.kv.state_layer(kv_layer).1.state_shared(slot as usize, elements) }
    }

    fn record_state(&self, kv_layer: usize, slot: u32, elements: &Range<usize>, access: ElementAccess) {
        if cfg!(any(test, debug_assertions)) {
            let states = self.kv.layout().state_slots as usize;
            let before = self.kv.layout().recurrent().take_while(|(layer, _)| *layer < kv_layer);
            let before: usize = before.map(|(_, state)| states * state.elements()).sum();
            let start = before + slot as usize * self.kv.state_layer(kv_layer).0.elements();
            self.memory.states.record(self.taker(), start + elements.start..start + elements.end, access);
        }
    }

    fn record_kv(&self, kv_layer: usize, slot: usize, access: ElementAccess) {
        let row = kv_layer * self.kv.layout().slots() + slot;
        self.memory.kv_rows.record(self.taker(), row..row + 1, access);
    }

    /// A span's cached rows in one layer.
    pub(crate) fn kv_view<'s>(&'s self, span: &'s SeqSpan, kv_layer: usize) -> CacheView<'s> {
        let memory = &self.kv.kv_layer(kv_layer).1;
        CacheView::new(self.kv_format(kv_layer), memory.bytes(), KV_BLOCK, &span.block_table)
            .expect("blocks of the pool")
    }
}

/// Memory outside of the plan. What an `unsafe` function of these hands out must be used by no other worker
/// until the next barrier, and by this one only through the result.
impl<'a> WorkerContext<'a> {
    /// The first 8-bit blocks.
    pub(crate) fn blocks(&self, len: usize) -> &'a [Q8Block] {
        self.memory.blocks.read(self.taker(), 0, len)
    }

    /// 8-bit blocks to write.
    ///
    /// # Safety
    /// No other worker uses them until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that they are its own")]
    pub(crate) unsafe fn blocks_mut(&self, at: usize, len: usize) -> &'a mut [Q8Block] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.blocks.write(self.taker(), at, len) }
    }

    /// The first cache lines of bf16.
    pub(crate) fn lines(&self, len: usize) -> &'a [Bf16x32] {
        self.memory.lines.read(self.taker(), 0, len)
    }

    /// Cache lines of bf16 to write.
    ///
    /// # Safety
    /// No other worker uses them until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that they are its own")]
    pub(crate) unsafe fn lines_mut(&self, at: usize, len: usize) -> &'a mut [Bf16x32] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.lines.write(self.taker(), at, len) }
    }

    /// Scores of cached tokens.
    pub(crate) fn scores(&self, at: usize, len: usize) -> &'a [f32] {
        self.memory.scores.read(self.taker(), at, len)
    }

    /// Scores of cached tokens to write.
    ///
    /// # Safety
    /// No other worker uses them until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that they are its own")]
    pub(crate) unsafe fn scores_mut(&self, at: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.scores.write(self.taker(), at, len) }
    }

    /// Expanded keys or values.
    pub(crate) fn expanded<N: KvElement>(&self, at: usize, len: usize) -> &'a [N] {
        self.memory.expanded.read_elements(self.taker(), at, len)
    }

    /// Expanded keys or values to write.
    ///
    /// # Safety
    /// No other worker uses them until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that they are its own")]
    pub(crate) unsafe fn expanded_mut<N: KvElement>(&self, at: usize, len: usize) -> &'a mut [N] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.expanded.write_elements(self.taker(), at, len) }
    }
}
