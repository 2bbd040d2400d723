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

/// Minimum rows of a batch whose work is taken from queues. With fewer rows an operation is bound
/// by memory: it reads its weights in long streams, which a queue would cut into short ones.
const QUEUED_ROWS: usize = 64;

/// Data that every operation of a model needs.
pub(crate) struct ModelData {
    pub config: ModelConfig,
    pub weights: Vec<LoadedWeight>,
    /// Epsilon of the RMSNorm with this weight, by index in `weights`. Unused for other weights.
    pub norm_eps: Vec<f32>,
    /// Rotation angles.
    pub rope: Arc<RopeTable>,
    /// Which elements of a rope part form pairs.
    pub pairs: RopePairing,
    /// The pairing in an indexer.
    pub index_pairs: RopePairing,
    /// Tier of kernels that no plan selects and whose bits depend on it.
    pub tier: Tier,
    /// Whether indexer scores are computed in f32, whatever the cache's type.
    pub exact: bool,
    /// The router's rules without the bias, which is a weight of each layer.
    pub route: Option<RouteSpec<'static>>,
}

/// The buffers that the workers of a step share.
pub(crate) struct SharedMemory<'m> {
    /// The arena of the plan.
    pub arena: DisjointBuffer<'m, f32>,
    /// The residual stream.
    pub hidden: DisjointBuffer<'m, f32>,
    pub logits: DisjointBuffer<'m, f32>,
    /// Expanded keys and values of naive MLA, and its rope keys.
    pub expanded: DisjointBuffer<'m, f32>,
    /// Inputs of a product as 8-bit blocks, converted by all workers together.
    pub blocks: DisjointBuffer<'m, Q8Block>,
    /// Inputs of a product as bf16, converted by all workers together.
    pub lines: DisjointBuffer<'m, Bf16x32>,
    /// Indexer scores of rows whose cached tokens are shared by the workers.
    pub scores: DisjointBuffer<'m, f32>,
    /// Uses of the rows of the KV cache (debug builds).
    pub kv_rows: ElementUses,
    /// Uses of the elements of recurrent states (debug builds).
    pub states: ElementUses,
}

/// A worker's view of a step.
pub(crate) struct WorkerContext<'a> {
    pub worker: &'a PoolWorker<'a>,
    pub model: &'a ModelData,
    pub batch: &'a Batch,
    /// Number of rows that the program works on: those of the batch, or the wanted ones in an
    /// `lm_head` program.
    pub rows: usize,
    pub kv: &'a CpuKvStore,
    /// Cosines and sines of each row's position.
    pub rotations: &'a [f32],
    /// Whether values are recorded. Every value must then be in its operand at the end of its
    /// phase.
    pub traced: bool,
    pub memory: &'a SharedMemory<'a>,
    /// Barriers that this worker has passed in this step.
    pub barriers: Cell<u64>,
    /// Links to the other ranks, if several ranks share the model.
    pub links: Option<&'a RankLinks>,
    /// The error of a failed collective of this step.
    pub failure: &'a Mutex<Option<RankError>>,
}

impl<'a> WorkerContext<'a> {
    /// Waits until every worker has called it.
    pub(crate) fn barrier(&self) {
        self.worker.barrier();
        self.barriers.set(self.barriers.get() + 1);
    }

    /// Whether other ranks expect [`beat`](Self::beat)s of this rank within a step.
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

    /// Stores the error that ends the step.
    pub(crate) fn fail(&self, error: RankError) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Whether a collective has failed. Only the first worker, which runs collectives, calls this.
    pub(crate) fn has_failed(&self) -> bool {
        // Without links no collective runs, so the lock is skipped.
        self.links.is_some() && self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn user(&self) -> BufferUser {
        BufferUser { worker: self.worker.index, interval: self.barriers.get() + 1 }
    }

    /// Rotates one head of a row to the row's position.
    pub(crate) fn rotate(&self, elements: &mut [f32], row: usize) {
        let len = self.model.rope.rotation_len();
        latent_kernels::rotate(elements, &self.rotations[row * len..(row + 1) * len], self.model.pairs);
    }

    /// Rotates the rope part (the first elements) of one head of an indexer to the row's position.
    pub(crate) fn rotate_index(&self, elements: &mut [f32], row: usize) {
        let len = self.model.rope.rotation_len();
        let rotation = &self.rotations[row * len..(row + 1) * len];
        latent_kernels::rotate(&mut elements[..len], rotation, self.model.index_pairs);
    }

    /// Weight and epsilon of a norm.
    pub(crate) fn norm(&self, weight: Option<usize>) -> Option<(&'a [f32], f32)> {
        weight.map(|w| (self.vector(w), self.model.norm_eps[w]))
    }

    /// The elements of a vector (norm weight, bias) or of another plain weight.
    pub(crate) fn vector(&self, weight: usize) -> &'a [f32] {
        self.model.weights[weight].vector()
    }

    /// Factor on the attention scores of a query at `position`.
    pub(crate) fn score_scale(&self, position: usize) -> f32 {
        // In f64 and rounded once, as in the GPU backend.
        let a = &self.model.config.attention;
        (a.softmax_scale * a.temperature.map_or(1.0, |t| t.factor(position))) as f32
    }

    /// This worker's rows of a value.
    pub(crate) fn own_rows(&self, operand: &OperandView) -> Range<usize> {
        self.worker.share(operand.rows.of(self.rows), 1)
    }
}

/// Access to the values of the plan. Each method panics if the elements are outside of the value's
/// buffer, as they are for a wrong offset or for more rows than the plan was made for. Nothing
/// checks that elements inside the buffer belong to the value: that is the plan's responsibility.
impl<'a> WorkerContext<'a> {
    fn buffer(&self, operand: &OperandView) -> &'a DisjointBuffer<'a, f32> {
        match operand.buffer {
            Buffer::Arena => &self.memory.arena,
            Buffer::Hidden => &self.memory.hidden,
            Buffer::Logits => &self.memory.logits,
        }
    }

    /// Rows of a value: `cols` elements of each, from `column` on.
    pub(crate) fn read(
        &self,
        operand: &OperandView,
        rows: Range<usize>,
        column: usize,
        cols: usize,
    ) -> MatrixView<'a> {
        self.buffer(operand).read_block(self.user(), operand.block(rows, column, cols))
    }

    /// Rows of a value to write: `cols` elements of each, from `column` on.
    ///
    /// # Safety
    /// Until the next barrier, no other worker uses these rows and columns, and this worker uses
    /// them only through the result.
    pub(crate) unsafe fn write(
        &self,
        operand: &OperandView,
        rows: Range<usize>,
        column: usize,
        cols: usize,
    ) -> MatrixViewMut<'a> {
        // SAFETY: the caller promises exclusive use of the elements. The memory plan gives
        // different values of a phase different elements.
        unsafe { self.buffer(operand).write_block(self.user(), operand.block(rows, column, cols)) }
    }

    /// One row of a value, all heads.
    pub(crate) fn row(&self, operand: &OperandView, row: usize) -> &'a [f32] {
        self.buffer(operand).read(self.user(), operand.at(row, 0), operand.heads * operand.width)
    }

    /// One row of a value to write, all heads.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the row is its own")]
    pub(crate) unsafe fn row_mut(&self, operand: &OperandView, row: usize) -> &'a mut [f32] {
        let len = operand.heads * operand.width;
        // SAFETY: as in `write`.
        unsafe { self.buffer(operand).write(self.user(), operand.at(row, 0), len) }
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
        // SAFETY: f32 and u32 have one size and alignment, and admit every bit pattern; the borrow
        // moves to the result.
        unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), elements.len()) }
    }

    pub(crate) fn head(&self, operand: &OperandView, row: usize, head: usize) -> &'a [f32] {
        let start = operand.at(row, head * operand.head_stride);
        self.buffer(operand).read(self.user(), start, operand.width)
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
        unsafe { self.buffer(operand).write(self.user(), start, columns.len()) }
    }

    /// A range of elements of a row, across heads.
    pub(crate) fn elements(&self, operand: &OperandView, row: usize, elements: Range<usize>) -> &'a [f32] {
        self.buffer(operand).read(self.user(), operand.at(row, elements.start), elements.len())
    }

    /// A range of elements of a row, across heads, to write.
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
        unsafe { self.buffer(operand).write(self.user(), operand.at(row, elements.start), elements.len()) }
    }

    /// Some heads of one row as a matrix, one row per head.
    pub(crate) fn read_heads(
        &self,
        operand: &OperandView,
        row: usize,
        heads: Range<usize>,
    ) -> MatrixView<'a> {
        self.buffer(operand).read_block(self.user(), operand.heads_block(row, heads))
    }

    /// All heads of some rows as one matrix: the heads of the first row, then those of the next.
    /// None if the heads of different rows are not evenly spaced in memory.
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
        even.then(|| self.buffer(operand).read_block(self.user(), block))
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
        unsafe { self.buffer(operand).write_block(self.user(), operand.heads_block(row, heads)) }
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

    /// The positions that a row attends to. None if it attends to all positions up to its own: the
    /// attention is dense, or the row sees at most as many tokens as would be selected.
    pub(crate) fn selected(&self, selected: Option<&OperandView>, row: usize) -> Option<&'a [u32]> {
        let chosen = selected.filter(|selected| self.batch.positions[row] >= selected.width)?;
        Some(self.ids(chosen, row))
    }

    /// Number of cached rows that a row attends to: the selected ones, or all up to its own.
    pub(crate) fn attended(&self, row: usize) -> usize {
        let limit = self.model.config.attention.indexer.map_or(usize::MAX, |indexer| indexer.topk);
        (self.batch.positions[row] + 1).min(limit)
    }

    /// A cached row of a span to write.
    ///
    /// # Safety
    /// Until the next barrier, no other worker uses the row, and this worker uses it only through
    /// the result.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the row is its own")]
    pub(crate) unsafe fn kv_row_mut(&self, span: &SeqSpan, kv_layer: usize, position: usize) -> &'a mut [u8] {
        let slot = slot(&span.block_table, position);
        self.record_kv(kv_layer, slot, ElementAccess::Write);
        // SAFETY: the caller's promise.
        unsafe { self.kv.kv_layer(kv_layer).1.row_shared(slot) }
    }

    /// Calls `work` with the ranges of `n` items that this worker computes, cut at multiples of
    /// `unit`. Batches of many rows take ranges from a queue, so that a worker on a slower or
    /// busier CPU takes fewer. Otherwise each worker has one range, its share.
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

    /// The heads of this worker's share, each with its span. The share is the same in every
    /// operation that is divided by heads, so such operations may share a phase without a barrier.
    pub(crate) fn own_heads(&self, heads: usize) -> impl Iterator<Item = (&'a SeqSpan, usize)> + use<'a> {
        let spans = &self.batch.spans;
        self.worker.share(spans.len() * heads, 1).map(move |item| (&spans[item / heads], item % heads))
    }

    /// The heads of [`own_heads`](Self::own_heads) as one range per sequence, so that an operation
    /// can visit the sequence's rows in the order of their memory.
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
    /// Until the next barrier, no other worker uses the elements, and this worker uses them only
    /// through the result.
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
        // The sum over layers is not free, and release builds record nothing.
        if cfg!(any(test, debug_assertions)) {
            let states = self.kv.layout().state_slots as usize;
            let before = self.kv.layout().recurrent().take_while(|(layer, _)| *layer < kv_layer);
            let before: usize = before.map(|(_, state)| states * state.elements()).sum();
            let start = before + slot as usize * self.kv.state_layer(kv_layer).0.elements();
            self.memory.states.record(self.user(), start + elements.start..start + elements.end, access);
        }
    }

    fn record_kv(&self, kv_layer: usize, slot: usize, access: ElementAccess) {
        let row = kv_layer * self.kv.layout().slots() + slot;
        self.memory.kv_rows.record(self.user(), row..row + 1, access);
    }

    /// A span's cached rows in one layer.
    pub(crate) fn kv_view<'s>(&'s self, span: &'s SeqSpan, kv_layer: usize) -> CacheView<'s> {
        let memory = &self.kv.kv_layer(kv_layer).1;
        CacheView::new(self.kv_format(kv_layer), memory.bytes(), KV_BLOCK, &span.block_table)
            .expect("blocks of the pool")
    }
}

/// Access to shared memory outside of the plan. The `unsafe` methods return elements that no other
/// worker may use until the next barrier, and that this worker may use only through the result.
impl<'a> WorkerContext<'a> {
    /// The first 8-bit blocks.
    pub(crate) fn blocks(&self, len: usize) -> &'a [Q8Block] {
        self.memory.blocks.read(self.user(), 0, len)
    }

    /// 8-bit blocks to write.
    ///
    /// # Safety
    /// No other worker uses them until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that they are its own")]
    pub(crate) unsafe fn blocks_mut(&self, at: usize, len: usize) -> &'a mut [Q8Block] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.blocks.write(self.user(), at, len) }
    }

    /// The first cache lines of bf16.
    pub(crate) fn lines(&self, len: usize) -> &'a [Bf16x32] {
        self.memory.lines.read(self.user(), 0, len)
    }

    /// Cache lines of bf16 to write.
    ///
    /// # Safety
    /// No other worker uses them until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that they are its own")]
    pub(crate) unsafe fn lines_mut(&self, at: usize, len: usize) -> &'a mut [Bf16x32] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.lines.write(self.user(), at, len) }
    }

    /// Scores of cached tokens.
    pub(crate) fn scores(&self, at: usize, len: usize) -> &'a [f32] {
        self.memory.scores.read(self.user(), at, len)
    }

    /// Scores of cached tokens to write.
    ///
    /// # Safety
    /// No other worker uses them until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that they are its own")]
    pub(crate) unsafe fn scores_mut(&self, at: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.scores.write(self.user(), at, len) }
    }

    /// Expanded keys or values.
    pub(crate) fn expanded<N: KvElement>(&self, at: usize, len: usize) -> &'a [N] {
        self.memory.expanded.read_elements(self.user(), at, len)
    }

    /// Expanded keys or values to write.
    ///
    /// # Safety
    /// No other worker uses them until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that they are its own")]
    pub(crate) unsafe fn expanded_mut<N: KvElement>(&self, at: usize, len: usize) -> &'a mut [N] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.expanded.write_elements(self.user(), at, len) }
    }
}
