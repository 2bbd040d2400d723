//! Running a program: what one thread of the thread pool does in one step.
#![allow(unsafe_code, reason = "threads write disjoint parts of one arena between barriers")]

use crate::compile::{Base, Instruction, Program, Slot};
use crate::kv_memory::KvLayerMemory;
use crate::kv_store::CpuKvStore;
use crate::scratch::WorkerScratch;
use crate::trace::Recording;
use crate::weights::LoadedWeight;
use latent_backend::{Batch, CancelToken};
use latent_graph::ModelConfig;
use latent_graph::ir::AttentionPath;
use latent_kernels::{Bf16x32, KvElement, Q8Block, RopePairs, RopeTable, RouteSpec, Rows, RowsMut};
use latent_threads::Worker;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// What every operation of a model needs.
pub struct ModelData {
    /// Hyper-parameters.
    pub config: ModelConfig,
    /// All weights.
    pub weights: Vec<LoadedWeight>,
    /// Rotation angles.
    pub rope: Arc<RopeTable>,
    /// How numbers pair up.
    pub pairs: RopePairs,
    /// How rows are routed (without the bias, which is a weight).
    pub route: Option<RouteSpec<'static>>,
}

/// Numbers that the threads of a step share.
#[derive(Clone, Copy)]
pub struct Numbers {
    start: *mut f32,
    len: usize,
}

impl Numbers {
    /// Those of a vector, which nobody else may use meanwhile.
    pub fn of(numbers: &mut [f32]) -> Numbers {
        Numbers { start: numbers.as_mut_ptr(), len: numbers.len() }
    }
}

/// Memory of one kind that the threads of a step share.
#[derive(Clone, Copy)]
pub struct Shared {
    /// The arena of the plan.
    pub arena: Numbers,
    /// The residual stream.
    pub hidden: Numbers,
    /// The logits.
    pub logits: Numbers,
    /// Keys and values expanded on the fly, and rope keys.
    pub expanded: *mut f32,
    /// Numbers of it.
    pub expanded_len: usize,
    /// Partial results of attention.
    pub partials: *mut f32,
    /// Numbers of it.
    pub partial_softmax_len: usize,
    /// Inputs of a product as 8-bit blocks, where the threads convert them together.
    pub blocks: *mut Q8Block,
    /// How many.
    pub blocks_len: usize,
    /// The same as bf16.
    pub lines: *mut Bf16x32,
    /// How many.
    pub lines_len: usize,
}

// SAFETY: plain addresses; every use states which part a thread may touch.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// What one thread sees of a step.
pub struct Thread<'a> {
    /// Who it is.
    pub worker: &'a Worker<'a>,
    /// The model.
    pub model: &'a ModelData,
    /// The rows.
    pub batch: &'a Batch,
    /// Rows that the program works on: the batch's, or the wanted ones in a head program.
    pub rows: usize,
    /// The cache.
    pub kv: &'a CpuKvStore,
    /// Cosines and sines of each row's position.
    pub rotations: &'a [f32],
    /// Nanoseconds of each phase, added up by the first thread, where a profile is taken.
    pub clock: Option<&'a [AtomicU64]>,
    /// What to copy out after each phase, where a trace is taken.
    pub recording: Option<Recording<'a>>,
    /// Shared memory.
    pub shared: Shared,
    /// Asked by the first thread after each phase.
    pub cancel: &'a CancelToken,
    /// The phase after which a cancelled step ends: all threads leave after the same one, since only the first writes it, before the barrier
    /// that ends this phase.
    pub last_phase: &'a AtomicUsize,
}

/// Runs all phases of `program` as one worker of the thread pool.
pub fn run(program: &Program, thread: &Thread<'_>, local: &mut WorkerScratch) {
    let clock = thread.clock.filter(|_| thread.worker.index == 0);
    let mut start = clock.map(|_| Instant::now());
    for (phase, number) in program.phases.iter().zip(&program.numbers) {
        for step in phase {
            thread.execute(&step.instruction, step.path, local);
        }
        if thread.worker.index == 0 && thread.cancel.is_cancelled() {
            thread.last_phase.fetch_min(*number, Ordering::Relaxed);
        }
        thread.worker.barrier();
        if thread.last_phase.load(Ordering::Relaxed) <= *number {
            return;
        }
        if let Some(recording) = &thread.recording {
            thread.record(recording, *number);
        }
        if let (Some(clock), Some(start)) = (clock, &mut start) {
            let end = Instant::now();
            clock[*number].fetch_add((end - *start).as_nanos() as u64, Ordering::Relaxed);
            *start = end;
        }
    }
}

impl<'a> Thread<'a> {
    fn execute(&self, instruction: &Instruction, path: AttentionPath, local: &mut WorkerScratch) {
        match instruction {
            Instruction::Embed { weight, scale, out } => self.embed(*weight, *scale, out, local),
            Instruction::RmsNorm { input, weight, out } => self.rms_norm(input, *weight, out),
            Instruction::Linear { input, norm, products, outs, epilogue } => {
                self.linear(input, *norm, products, outs, *epilogue, local);
            }
            Instruction::Rope { input, out } => self.rope(input, out, path),
            Instruction::LatentStore { latent, norm, key, rotate, kv_layer } => {
                self.latent_store(latent, *norm, key, *rotate, *kv_layer, local);
            }
            Instruction::ExpandedStore { latent, key, rotate, kv, kv_layer } => {
                self.expanded_store(latent, key, *rotate, kv, *kv_layer, local);
            }
            Instruction::AbsorbK { q_nope, q_rope, rotate, kv, out } => {
                self.absorb_k(q_nope, q_rope, *rotate, kv, out, path, local);
            }
            Instruction::Attend { query, out, kv_layer, kernel } => {
                self.attend_latent(query, out, *kv_layer, *kernel, path, local);
            }
            Instruction::AbsorbV { input, kv, out } => self.absorb_v(input, kv, out, path, local),
            Instruction::AttendExpanded { q_nope, q_rope, kv, out, kv_layer, kernels } => {
                self.attend_expanded(q_nope, q_rope, kv.as_ref(), out, *kv_layer, *kernels, path, local);
            }
            Instruction::Route { logits, bias, chosen, mix, each } => {
                self.route(logits, *bias, (chosen, mix), *each, local);
            }
            Instruction::ExpertGateUp { input, norm, chosen, products, out } => {
                self.expert_gate_up(input, *norm, chosen.as_ref(), products, out, local);
            }
            Instruction::ExpertDown { input, chosen, mix, product, scale, add, out } => {
                self.expert_down(input, chosen, mix, product, (*scale, *add), out, local);
            }
            Instruction::SiluMul { gate, up, out } => self.silu_mul(gate, up, out),
            Instruction::Relu2 { input, out } => self.relu2(input, out),
            Instruction::Add { term, scale, out } => self.add(term, *scale, out),
            Instruction::Scale { by, out } => self.scale(*by, out),
            Instruction::GatherRows { out } => self.gather_rows(out),
        }
    }

    /// Rotates one head of a row to the row's position.
    pub(crate) fn rotate(&self, numbers: &mut [f32], row: usize) {
        let len = self.model.rope.rotation_len();
        latent_kernels::rotate(numbers, &self.rotations[row * len..(row + 1) * len], self.model.pairs);
    }

    /// Address of `len` numbers of a value, from a column of a row on.
    ///
    /// # Panics
    /// When they do not lie in the value's memory: a plan that places values elsewhere, or a step of more rows than it is for. Whose numbers
    /// they are in that memory, the plan alone says.
    fn at(&self, slot: &Slot, row: usize, column: usize, len: usize) -> *mut f32 {
        let memory = match slot.base {
            Base::Arena => self.shared.arena,
            Base::Hidden => self.shared.hidden,
            Base::Logits => self.shared.logits,
        };
        let start = slot.offset + row * slot.stride + column;
        assert!(
            start <= memory.len && len <= memory.len - start,
            "numbers {start} to {start} + {len} of {}",
            memory.len
        );
        // SAFETY: in bounds as just asserted.
        unsafe { memory.start.add(start) }
    }

    /// Rows of a value, `cols` numbers from `column` on, to be read.
    pub(crate) fn read(&self, slot: &Slot, rows: Range<usize>, column: usize, cols: usize) -> Rows<'a> {
        if rows.is_empty() {
            return Rows::new(&[], 0, cols, slot.stride);
        }
        let len = (rows.len() - 1) * slot.stride + cols;
        // SAFETY: in bounds as above; no thread writes what another reads between two barriers (`schedule`).
        let data = unsafe { std::slice::from_raw_parts(self.at(slot, rows.start, column, len), len) };
        Rows::new(data, rows.len(), cols, slot.stride)
    }

    /// Rows of a value, `cols` numbers from `column` on, to be written by this thread alone.
    pub(crate) fn write(&self, slot: &Slot, rows: Range<usize>, column: usize, cols: usize) -> RowsMut<'a> {
        if rows.is_empty() {
            return RowsMut::new(&mut [], 0, cols, slot.stride);
        }
        let start = self.at(slot, rows.start, column, (rows.len() - 1) * slot.stride + cols);
        // SAFETY: in bounds as above; shares of threads are disjoint rows or columns.
        unsafe { RowsMut::from_raw(start, rows.len(), cols, slot.stride) }
    }

    /// One row of a value, all heads, to be read.
    pub(crate) fn row(&self, slot: &Slot, row: usize) -> &'a [f32] {
        // SAFETY: as in `read`.
        unsafe {
            let len = slot.heads * slot.width;
            std::slice::from_raw_parts(self.at(slot, row, 0, len), len)
        }
    }

    /// One head of one row, to be written by this thread alone.
    #[allow(clippy::mut_from_ref, reason = "the arena is shared by design; shares are disjoint")]
    pub(crate) fn head_mut(&self, slot: &Slot, row: usize, head: usize) -> &'a mut [f32] {
        // SAFETY: as in `write`.
        unsafe {
            let start = self.at(slot, row, head * slot.head_stride, slot.width);
            std::slice::from_raw_parts_mut(start, slot.width)
        }
    }

    /// One head of one row, to be read.
    pub(crate) fn head(&self, slot: &Slot, row: usize, head: usize) -> &'a [f32] {
        // SAFETY: as in `read`.
        unsafe {
            let start = self.at(slot, row, head * slot.head_stride, slot.width);
            std::slice::from_raw_parts(start, slot.width)
        }
    }

    /// One whole row, to be written by this thread alone.
    #[allow(clippy::mut_from_ref, reason = "the arena is shared by design; shares are disjoint")]
    pub(crate) fn row_mut(&self, slot: &Slot, row: usize) -> &'a mut [f32] {
        // SAFETY: as in `write`.
        unsafe {
            let len = slot.heads * slot.width;
            std::slice::from_raw_parts_mut(self.at(slot, row, 0, len), len)
        }
    }

    /// This thread's rows of a value.
    pub(crate) fn my_rows(&self, slot: &Slot) -> Range<usize> {
        self.worker.share(slot.rows.of(self.rows), 1)
    }

    /// Weight and epsilon of a norm.
    pub(crate) fn norm(&self, weight: Option<usize>) -> Option<(&'a [f32], f32)> {
        weight.map(|w| (self.model.weights[w].vector(), self.model.config.rms_eps as f32))
    }

    /// The tail of one head, from `from` on, to be written by this thread alone.
    #[allow(clippy::mut_from_ref, reason = "the arena is shared by design; shares are disjoint")]
    pub(crate) fn head_tail_mut(&self, slot: &Slot, row: usize, head: usize, from: usize) -> &'a mut [f32] {
        let len = slot.width - from;
        let start = self.at(slot, row, head * slot.head_stride + from, len);
        // SAFETY: as in `write`.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Some heads of one row as a matrix, one row a head, to be read.
    pub(crate) fn read_heads(&self, slot: &Slot, row: usize, heads: Range<usize>) -> Rows<'a> {
        let len = (heads.len() - 1) * slot.head_stride + slot.width;
        let start = self.at(slot, row, heads.start * slot.head_stride, len);
        // SAFETY: as in `read`.
        let data = unsafe { std::slice::from_raw_parts(start, len) };
        Rows::new(data, heads.len(), slot.width, slot.head_stride)
    }

    /// Some heads of one row as a matrix, one row a head, to be written by this thread alone.
    pub(crate) fn write_heads(&self, slot: &Slot, row: usize, heads: Range<usize>) -> RowsMut<'a> {
        let len = (heads.len() - 1) * slot.head_stride + slot.width;
        let start = self.at(slot, row, heads.start * slot.head_stride, len);
        // SAFETY: as in `write`.
        unsafe { RowsMut::from_raw(start, heads.len(), slot.width, slot.head_stride) }
    }

    /// A row of a cache stream, to be written by this thread alone.
    #[allow(clippy::mut_from_ref, reason = "a row has one writer")]
    pub(crate) fn cache_row<'m>(&self, memory: &'m KvLayerMemory, place: usize) -> &'m mut [u8] {
        // SAFETY: every row of a step belongs to one span, whose pages are its own where it writes, and to one thread's share.
        unsafe { memory.row_shared(place) }
    }

    /// Part of the memory for partial results of attention, to be used by this thread alone until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "parts are disjoint: one a task")]
    pub(crate) fn partial_memory(&self, at: usize, len: usize) -> &'a mut [f32] {
        assert!(at + len <= self.shared.partial_softmax_len, "partial results out of range");
        // SAFETY: in range; tasks have disjoint parts.
        unsafe { std::slice::from_raw_parts_mut(self.shared.partials.add(at), len) }
    }

    /// Part of that memory to be read, after the barrier.
    pub(crate) fn partials(&self, at: usize, len: usize) -> &'a [f32] {
        assert!(at + len <= self.shared.partial_softmax_len, "partial results out of range");
        // SAFETY: in range; nobody writes until the barrier after the phase that reads them.
        unsafe { std::slice::from_raw_parts(self.shared.partials.add(at), len) }
    }

    /// Shared 8-bit blocks to be written by this thread alone until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "threads have disjoint rows")]
    pub(crate) fn blocks_mut(&self, at: usize, len: usize) -> &'a mut [Q8Block] {
        assert!(at + len <= self.shared.blocks_len, "8-bit blocks out of range");
        // SAFETY: in range; threads have disjoint rows.
        unsafe { std::slice::from_raw_parts_mut(self.shared.blocks.add(at), len) }
    }

    /// Shared 8-bit blocks to be read, after the barrier.
    pub(crate) fn blocks(&self, len: usize) -> &'a [Q8Block] {
        assert!(len <= self.shared.blocks_len, "8-bit blocks out of range");
        // SAFETY: in range; nobody writes until the next barrier.
        unsafe { std::slice::from_raw_parts(self.shared.blocks, len) }
    }

    /// Shared lines of bf16 to be written by this thread alone until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "threads have disjoint rows")]
    pub(crate) fn lines_mut(&self, at: usize, len: usize) -> &'a mut [Bf16x32] {
        assert!(at + len <= self.shared.lines_len, "lines of bf16 out of range");
        // SAFETY: in range; threads have disjoint rows.
        unsafe { std::slice::from_raw_parts_mut(self.shared.lines.add(at), len) }
    }

    /// Shared lines of bf16 to be read, after the barrier.
    pub(crate) fn lines(&self, len: usize) -> &'a [Bf16x32] {
        assert!(len <= self.shared.lines_len, "lines of bf16 out of range");
        // SAFETY: in range; nobody writes until the next barrier.
        unsafe { std::slice::from_raw_parts(self.shared.lines, len) }
    }

    /// Part of the memory for expanded keys and values, in numbers of one kind, to be written by this thread alone until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "parts are disjoint: each thread expands its own rows")]
    pub(crate) fn expanded_memory<N: KvElement>(&self, at: usize, len: usize) -> &'a mut [N] {
        // SAFETY: in range; threads have disjoint rows; any bits are such a number.
        unsafe { std::slice::from_raw_parts_mut(self.expanded_at(at, len), len) }
    }

    /// Part of that memory to be read, after the barrier.
    pub(crate) fn expanded_numbers<N: KvElement>(&self, at: usize, len: usize) -> &'a [N] {
        // SAFETY: in range; nobody writes until the next barrier; any bits are such a number.
        unsafe { std::slice::from_raw_parts(self.expanded_at(at, len), len) }
    }

    fn expanded_at<N: KvElement>(&self, at: usize, len: usize) -> *mut N {
        let bytes = self.shared.expanded_len * size_of::<f32>();
        assert!((at + len) * size_of::<N>() <= bytes, "expanded keys out of range");
        self.shared.expanded.cast::<N>().wrapping_add(at)
    }
}
