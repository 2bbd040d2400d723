//! Row-wise operations on the CPU.

use super::force::TierGuard;
use crate::backend::KernelJob;
use crate::rows::{
    BOUND, EPS, FACTOR, INDEX_BLOCK, POSITION, RowCase, RowOp, RowOperands, TAPS, index_row,
    quantized_elements,
};
use latent_kernels::{
    CacheView, DELTA_CHUNK, DeltaChunk, DeltaRow, DeltaScratch, DeltaState, IndexArgs, MatrixView,
    MatrixViewMut, Q8_BLOCK, Q8Block,
};
use latent_types::{CacheRow, CacheType, Tier};

pub(super) struct RowJob<'o> {
    tier: Tier,
    case: &'o RowCase,
    operands: &'o RowOperands,
    /// Results in f32.
    out: Vec<f32>,
    /// Results of other types.
    bytes: Vec<u8>,
    bits: Vec<u16>,
    blocks: Vec<Q8Block>,
    chosen: Vec<u32>,
    memory: Vec<u8>,
    scratch: Vec<f32>,
    /// Inputs that the engine prepares before the call: rotations by position, or partial results
    /// of KV splits.
    ready: Vec<f32>,
}

impl<'o> RowJob<'o> {
    pub(super) fn new(tier: Tier, case: &'o RowCase, operands: &'o RowOperands) -> RowJob<'o> {
        let numbers = case.rows * case.width;
        let (mut out, mut bytes, mut bits, mut blocks, mut chosen) = (vec![], vec![], vec![], vec![], vec![]);
        // Results are NaN at first, so that one that the kernel does not write fails the
        // comparison.
        match case.op {
            RowOp::Store(ty) => bytes = vec![0; case.rows * case.cache_row(ty).bytes()],
            RowOp::ToBf16 => bits = vec![0; numbers],
            RowOp::QuantizeA8 => blocks = vec![Q8Block::ZERO; case.rows * case.width.div_ceil(Q8_BLOCK)],
            RowOp::IndexScores { .. } => out = vec![f32::NAN; case.rows],
            RowOp::Route(routing) => {
                chosen = vec![0; case.rows * routing.chosen];
                out = vec![f32::NAN; case.rows * routing.chosen];
            }
            _ => out = vec![f32::NAN; numbers],
        }
        let (memory, scratch) = (Vec::new(), Vec::new());
        let ready = match case.op {
            RowOp::Rope(_) => rotations(case),
            RowOp::CombineSplits { splits } => partials(case, splits, operands),
            _ => Vec::new(),
        };
        RowJob { tier, case, operands, out, bytes, bits, blocks, chosen, memory, scratch, ready }
    }
}

impl KernelJob for RowJob<'_> {
    fn run(&mut self, _copy: usize) {
        let RowCase { op, rows, width } = *self.case;
        let RowOperands { x, y, bytes } = self.operands;
        let _forced = TierGuard::tier(self.tier);
        let row = |i: usize| i * width..(i + 1) * width;
        match op {
            // These operate in place: copy the operand first.
            RowOp::Rope(_)
            | RowOp::Silu
            | RowOp::Relu2
            | RowOp::Scale
            | RowOp::Add
            | RowOp::L2Norm
            | RowOp::GatedNorm => {
                self.out.copy_from_slice(x);
            }
            RowOp::SiluMul | RowOp::SigmoidMul { .. } | RowOp::Axpy => self.out.copy_from_slice(y),
            _ => {}
        }
        if let RowOp::CombineSplits { splits } = op {
            let mut out = MatrixViewMut::new(&mut self.out, rows, width, width);
            latent_kernels::combine_splits(&self.ready, splits, rows, width, 0..rows, &mut out);
            return;
        }
        match op {
            RowOp::DeltaRule => return self.delta(),
            RowOp::DeltaChunks => return self.delta_chunks(),
            _ => {}
        }
        if let RowOp::IndexScores { cache, exact, heads } = op {
            let row = index_row(cache, width);
            let table: Vec<u32> = (0..(bytes.len() / row.bytes() / INDEX_BLOCK) as u32).collect();
            let cache = CacheView::new(row, bytes, INDEX_BLOCK, &table).expect("whole blocks");
            let args = IndexArgs {
                q: x,
                weights: y,
                heads,
                cache: &cache,
                rows: 0..rows,
                exact,
                avx512: !exact && self.tier >= Tier::Avx512,
            };
            return latent_kernels::index_scores(&args, &mut self.out, &mut self.scratch);
        }
        for i in 0..rows {
            match op {
                RowOp::L2Norm => latent_kernels::l2_norm(&mut self.out[row(i)], FACTOR),
                RowOp::SoftplusDecay => {
                    latent_kernels::softplus_decay(&x[row(i)], &y[..width], FACTOR, &mut self.out[row(i)]);
                }
                RowOp::BoundedDecay => {
                    let factors = (FACTOR, BOUND);
                    latent_kernels::bounded_decay(&x[row(i)], &y[..width], factors, &mut self.out[row(i)]);
                }
                RowOp::GatedNorm => {
                    latent_kernels::gated_norm(&mut self.out[row(i)], &y[..width], &y[row(i)], EPS);
                }
                RowOp::ShortConv => {
                    // Inputs before the first row count as zeros.
                    let zeros = vec![0.0; width];
                    let seen = |back: usize| i.checked_sub(back).map_or(&zeros[..], |i| &x[row(i)]);
                    let inputs: [&[f32]; TAPS] = std::array::from_fn(|tap| seen(TAPS - 1 - tap));
                    latent_kernels::short_conv(&inputs, y, &mut self.out[row(i)]);
                }
                RowOp::Embed(ty, layout) => {
                    let weight = self.case.weight(ty, layout, bytes);
                    latent_kernels::decode_row(&weight, i, &mut self.out[row(i)], &mut self.memory);
                }
                RowOp::RmsNorm => {
                    latent_kernels::rms_norm(&x[row(i)], &y[..width], EPS, &mut self.out[row(i)])
                }
                RowOp::Rope(pairs) => {
                    let len = self.ready.len() / rows;
                    latent_kernels::rotate(&mut self.out[row(i)], &self.ready[i * len..(i + 1) * len], pairs);
                }
                RowOp::Store(ty) => {
                    let stored = self.case.cache_row(ty);
                    let bytes = i * stored.bytes()..(i + 1) * stored.bytes();
                    latent_kernels::store_row(stored, &x[row(i)], &mut self.bytes[bytes]);
                }
                RowOp::Load(ty) => {
                    let stored = self.case.cache_row(ty);
                    let bytes = &bytes[i * stored.bytes()..(i + 1) * stored.bytes()];
                    latent_kernels::load_row(stored, bytes, &mut self.out[row(i)]);
                }
                RowOp::QuantizeA8 => {
                    let blocks = width.div_ceil(Q8_BLOCK);
                    latent_kernels::quantize_q8(&x[row(i)], &mut self.blocks[i * blocks..(i + 1) * blocks]);
                }
                RowOp::ToBf16 => latent_kernels::to_bf16(&x[row(i)], &mut self.bits[row(i)]),
                RowOp::Silu => latent_kernels::silu_row(&mut self.out[row(i)]),
                RowOp::SiluMul => latent_kernels::silu_mul(&x[row(i)], &mut self.out[row(i)]),
                RowOp::SigmoidMul { heads } => {
                    let gate = &x[row(i)][..RowOp::gates(heads, width)];
                    latent_kernels::sigmoid_mul(gate, &mut self.out[row(i)]);
                }
                RowOp::Relu2 => latent_kernels::relu2(&mut self.out[row(i)]),
                RowOp::Add => latent_kernels::add(&mut self.out[row(i)], &y[row(i)]),
                RowOp::Scale => latent_kernels::scale(&mut self.out[row(i)], FACTOR),
                RowOp::Axpy => latent_kernels::axpy(&mut self.out[row(i)], FACTOR, &x[row(i)]),
                RowOp::Route(routing) => {
                    let k = routing.chosen;
                    let (chosen, weights) = (&mut self.chosen[i * k..][..k], &mut self.out[i * k..][..k]);
                    latent_kernels::route(&x[row(i)], &routing.spec(y), chosen, weights, &mut self.scratch);
                }
                RowOp::CombineSplits { .. }
                | RowOp::DeltaRule
                | RowOp::DeltaChunks
                | RowOp::IndexScores { .. } => {}
            }
        }
    }

    fn results(&self) -> Vec<f32> {
        match self.case.op {
            RowOp::Store(ty) => stored(self.case.cache_row(ty), &self.bytes),
            RowOp::ToBf16 => self.bits.iter().map(|bits| crate::float16::bf16_value(*bits)).collect(),
            RowOp::QuantizeA8 => self.blocks.iter().flat_map(numbers).collect(),
            RowOp::Route(routing) => {
                let k = routing.chosen;
                let row = |i: usize| {
                    let chosen = self.chosen[i * k..(i + 1) * k].iter().map(|e| *e as f32);
                    chosen.chain(self.out[i * k..(i + 1) * k].iter().copied())
                };
                (0..self.case.rows).flat_map(row).collect()
            }
            _ => self.out.clone(),
        }
    }
}

impl RowJob<'_> {
    /// The delta rule from a zero state.
    fn delta(&mut self) {
        let RowCase { rows, width, .. } = *self.case;
        let RowOperands { x, y, .. } = self.operands;
        let mut scratch = DeltaScratch::default();
        let (mut state, mut other) = (vec![0.0; width * width], vec![0.0; width * width]);
        for i in 0..rows {
            let row = i * width..(i + 1) * width;
            let (q, k) = (&x[row.clone()], &y[row.clone()]);
            // The case has two operands; the reversed query serves as the value, as in the
            // reference.
            let v: Vec<f32> = q.iter().rev().copied().collect();
            let (decays, beta) = RowCase::decays(q, k);
            let given = DeltaRow { q, k, v: &v, log_decay: &decays, beta };
            // A second state and in-place updates alternate, to test both.
            if i % 2 == 0 {
                let states = DeltaState::From(&state, &mut other);
                latent_kernels::delta_row(given, states, &mut scratch, &mut self.out[row]);
                std::mem::swap(&mut state, &mut other);
            } else {
                let states = DeltaState::InPlace(&mut state);
                latent_kernels::delta_row(given, states, &mut scratch, &mut self.out[row]);
            }
        }
    }
}

impl RowJob<'_> {
    /// The delta rule in chunks, from a zero state.
    fn delta_chunks(&mut self) {
        let RowCase { rows, width, .. } = *self.case;
        let RowOperands { x, y, .. } = self.operands;
        let mut scratch = DeltaScratch::default();
        let (mut state, mut other) = (vec![0.0; width * width], vec![0.0; width * width]);
        let v: Vec<f32> = x.chunks_exact(width).flat_map(|q| q.iter().rev().copied()).collect();
        let given = x.chunks_exact(width).zip(y.chunks_exact(width)).map(|(q, k)| RowCase::decays(q, k));
        let (decays, betas): (Vec<_>, Vec<f32>) = given.unzip();
        let decays = decays.concat();
        for (turn, first) in (0..rows).step_by(DELTA_CHUNK).enumerate() {
            let part = first..(first + DELTA_CHUNK).min(rows);
            let view = |data, width| MatrixView::new(data, rows, width, width).slice_rows(part.clone());
            let chunk = DeltaChunk {
                q: view(x, width),
                k: view(y, width),
                v: view(&v, width),
                log_decay: view(&decays, width),
                beta: view(&betas, 1),
            };
            let out = &mut self.out[part.start * width..part.end * width];
            let mut out = MatrixViewMut::new(out, part.len(), width, width);
            // A second state and in-place updates alternate, to test both.
            if turn % 2 == 0 {
                let states = DeltaState::From(&state, &mut other);
                latent_kernels::delta_chunk(self.tier, &chunk, states, &mut scratch, &mut out);
                std::mem::swap(&mut state, &mut other);
            } else {
                let states = DeltaState::InPlace(&mut state);
                latent_kernels::delta_chunk(self.tier, &chunk, states, &mut scratch, &mut out);
            }
        }
    }
}

/// Rotations of the rows' positions.
fn rotations(case: &RowCase) -> Vec<f32> {
    let table = case.rope_table();
    let mut rotations = vec![0.0; case.rows * table.rotation_len()];
    for (i, rotation) in rotations.chunks_exact_mut(table.rotation_len()).enumerate() {
        table.rotation(POSITION + i as i64, rotation);
    }
    rotations
}

/// Partial results per KV split: maxima, sums and values of all rows (heads).
fn partials(case: &RowCase, splits: usize, operands: &RowOperands) -> Vec<f32> {
    let (max, sum) = operands.x.split_at(splits * case.rows);
    let mut memory = Vec::new();
    for piece in 0..splits {
        let heads = piece * case.rows..(piece + 1) * case.rows;
        memory.extend(&max[heads.clone()]);
        memory.extend(&sum[heads.clone()]);
        memory.extend(&operands.y[heads.start * case.width..heads.end * case.width]);
    }
    memory
}

/// Decodes stored rows.
fn stored(row: CacheRow, bytes: &[u8]) -> Vec<f32> {
    let pairs = || halves(bytes);
    match row.ty {
        CacheType::F32 => {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        CacheType::F16 => pairs().map(crate::float16::f16_value).collect(),
        CacheType::Bf16 => pairs().map(crate::float16::bf16_value).collect(),
        // Quants, scale, rope part.
        CacheType::Int8 => {
            let numbers = |bytes: &[u8]| {
                let (quants, rest) = bytes.split_at(row.content);
                let (rope, scale) = rest.split_at(2 * row.rope);
                let mut numbers: Vec<f32> = quants.iter().map(|code| f32::from(*code) - 128.0).collect();
                numbers.push(f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]));
                numbers.extend(halves(rope).map(crate::float16::f16_value));
                numbers
            };
            bytes.chunks_exact(row.bytes()).flat_map(numbers).collect()
        }
        CacheType::Q8_0 | CacheType::Q4_0 | CacheType::Fp8 => {
            bytes.chunks_exact(row.bytes()).flat_map(|bytes| quantized_elements(row, bytes)).collect()
        }
    }
}

/// The bits of 16-bit floats.
fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> + use<'_> {
    bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]))
}

/// All fields of a block.
fn numbers(block: &Q8Block) -> Vec<f32> {
    let quants = block.quants.iter().map(|code| f32::from(*code));
    let sums = [block.bias, block.half_biases[0], block.half_biases[1]].map(|bias| bias as f32);
    quants.chain([block.scale, block.total, block.halves[0], block.halves[1]]).chain(sums).collect()
}
