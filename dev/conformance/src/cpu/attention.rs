//! Attention on the CPU.

use crate::attention::{
    ExpandedCase, ExpandedLines, ExpandedOperands, KeysCase, KeysOperands, LatentCase, LatentOperands, SCALE,
};
use crate::backend::KernelJob;
use latent_kernels::{
    AttendArgs, AttendExpandedArgs, AttendExpandedFn, AttendFn, ExpandArgs, ExpandKeysFn, KeyMask, KvElement,
    MatrixView, MatrixViewMut, PartialSoftmax, combine_splits, partial_softmax_len,
};

pub(super) struct CpuLatentJob<'o> {
    kernel: AttendFn,
    case: &'o LatentCase,
    operands: &'o LatentOperands,
    partials: Vec<f32>,
    scratch: Vec<f32>,
    out: Vec<f32>,
}

impl<'o> CpuLatentJob<'o> {
    pub(super) fn new(
        kernel: AttendFn,
        case: &'o LatentCase,
        operands: &'o LatentOperands,
    ) -> CpuLatentJob<'o> {
        let LatentCase { heads, latent, splits, .. } = *case;
        CpuLatentJob {
            kernel,
            case,
            operands,
            partials: vec![0.0; splits * partial_softmax_len(heads, latent)],
            scratch: Vec::new(),
            // NaN: an output that the kernel does not write fails the comparison.
            out: vec![f32::NAN; heads * latent],
        }
    }
}

impl KernelJob for CpuLatentJob<'_> {
    fn run(&mut self, copy: usize) {
        let LatentCase { heads, latent, rows, splits, .. } = *self.case;
        let (width, cache) = (self.case.width(), self.operands.cache(self.case, copy));
        let queries = MatrixView::new(&self.operands.queries, heads, width, width);
        // Rounded up, so that fewer pieces than `splits` may cover all rows.
        let piece = rows.div_ceil(splits);
        let mut used = 0;
        let memories = self.partials.chunks_exact_mut(partial_softmax_len(heads, latent));
        for (start, memory) in (0..rows).step_by(piece).zip(memories) {
            let mut part = PartialSoftmax::in_memory(memory, heads, latent);
            let rows = start..(start + piece).min(rows);
            let args = AttendArgs { q: queries, cache: &cache, rows, scale: SCALE, latent };
            (self.kernel)(&args, &mut part, &mut self.scratch);
            used += 1;
        }
        let mut out = MatrixViewMut::new(&mut self.out, heads, latent, latent);
        combine_splits(&self.partials, used, heads, latent, 0..heads, &mut out);
    }

    fn results(&self) -> Vec<f32> {
        self.out.clone()
    }
}

pub(super) struct CpuExpandedJob<'o, N> {
    kernel: AttendExpandedFn<N>,
    case: &'o ExpandedCase,
    operands: &'o ExpandedOperands,
    lines: ExpandedLines<N>,
    scratch: Vec<f32>,
    out: Vec<f32>,
}

impl<'o, N: KvElement> CpuExpandedJob<'o, N> {
    pub(super) fn new(
        kernel: AttendExpandedFn<N>,
        case: &'o ExpandedCase,
        operands: &'o ExpandedOperands,
    ) -> CpuExpandedJob<'o, N> {
        let out = vec![f32::NAN; case.queries * case.values];
        // Scratch of an odd length, filled with NaN: kernels must not read what they did not write.
        CpuExpandedJob {
            kernel,
            case,
            operands,
            lines: operands.lines(case),
            scratch: vec![f32::NAN; 9],
            out,
        }
    }
}

impl<N: KvElement> KernelJob for CpuExpandedJob<'_, N> {
    fn run(&mut self, _copy: usize) {
        let ExpandedCase { queries, position, nope, rope, values, .. } = *self.case;
        let width = nope + rope;
        let q = MatrixView::new(&self.operands.queries, queries, width, width);
        let expanded = &self.lines.view(self.case);
        let mask = self.case.selects.then(|| {
            let mut mask = KeyMask::default();
            mask.reset(queries, position + queries);
            for query in 0..queries {
                mask.select(query, (0..position + queries).filter(|key| self.case.attends(query, *key)));
            }
            mask
        });
        let mut out = MatrixViewMut::new(&mut self.out, queries, values, values);
        let args =
            AttendExpandedArgs { q, expanded, position, scales: &self.operands.scales, mask: mask.as_ref() };
        (self.kernel)(&args, &mut out, &mut self.scratch);
    }

    fn results(&self) -> Vec<f32> {
        self.out.clone()
    }
}

pub(super) struct KeysJob<'o, N> {
    kernel: ExpandKeysFn<N>,
    case: &'o KeysCase,
    operands: &'o KeysOperands,
    latents: Vec<N>,
    scratch: Vec<f32>,
    keys: Vec<N>,
}

impl<'o, N: KvElement> KeysJob<'o, N> {
    pub(super) fn new(
        kernel: ExpandKeysFn<N>,
        case: &'o KeysCase,
        operands: &'o KeysOperands,
    ) -> KeysJob<'o, N> {
        let keys = vec![N::ZERO; case.rows() * N::padded(case.nope)];
        KeysJob { kernel, case, operands, latents: operands.numbers(case), scratch: Vec::new(), keys }
    }
}

impl<N: KvElement + Into<f32>> KernelJob for KeysJob<'_, N> {
    fn run(&mut self, _copy: usize) {
        let blocks = &self.operands.view(self.case, &self.latents);
        let args = ExpandArgs { weights: &self.operands.weights, order: self.case.order, blocks };
        (self.kernel)(&args, &mut self.keys, &mut self.scratch);
    }

    fn results(&self) -> Vec<f32> {
        let nope = self.case.nope;
        let places =
            (0..self.case.rows()).flat_map(|row| (0..nope).map(move |n| N::key_offset(nope, row, n)));
        places.map(|place| self.keys[place].into()).collect()
    }
}
