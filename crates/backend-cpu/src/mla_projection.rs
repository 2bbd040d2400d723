//! Absorption: queries into latent space before attention, results out of it after. Threads share heads × outputs.

use crate::compile::{KvWeights, Product, Slot};
use crate::linear::UNIT;
use crate::run::Thread;
use crate::scratch::{InputFormats, PreparedInput, WorkerScratch, resize_scratch};
use latent_graph::ir::AttentionPath;
use latent_kernels::{MatmulArgs, Rows, RowsMut, Scratch};
use std::ops::Range;

/// Which half of W_KV, as rows of the stored weight.
pub(crate) enum KvProjection {
    /// W_UK: from latents to keys.
    Uk,
    /// W_UV: from latents to values.
    Uv,
}

impl Thread<'_> {
    /// The product of a head with one half of W_KV: which matrix, and where its rows begin in `kv_b`.
    pub(crate) fn half(
        &self,
        kv: &KvWeights,
        half: &KvProjection,
        head: usize,
    ) -> Option<(Product, usize, Option<usize>)> {
        let a = &self.model.config.attention;
        match (kv, half) {
            (KvWeights::Split(Some(k), _), KvProjection::Uk) => Some((*k, head, None)),
            (KvWeights::Split(_, Some(v)), KvProjection::Uv) => Some((*v, head, None)),
            (KvWeights::Combined(both), KvProjection::Uk) => Some((*both, 0, Some(head * (a.nope + a.v)))),
            (KvWeights::Combined(both), KvProjection::Uv) => {
                Some((*both, 0, Some(head * (a.nope + a.v) + a.nope)))
            }
            _ => None,
        }
    }

    /// Queries of one head into latent space, `outputs` of its latent columns.
    #[allow(clippy::too_many_arguments, reason = "one product of one head")]
    fn absorb_query(
        &self,
        kv: &KvWeights,
        head: usize,
        x: &PreparedInput<'_>,
        outputs: Range<usize>,
        y: &mut RowsMut<'_>,
        scratch: &mut Scratch,
    ) {
        let nope = self.model.config.attention.nope;
        match self.half(kv, &KvProjection::Uk, head) {
            // rows of k_b are latent columns
            Some((product, matrix, None)) => self.multiply(product, matrix, x, None, outputs, y, scratch),
            // rows of kv_b are key numbers: it is read across, and only this head's rows
            Some((product, _, Some(from))) => {
                let weight = self.model.weights[product.weight].matrix(0).slice_rows(from..from + nope);
                let input = x.acts(product.activation);
                let args = MatmulArgs { weight: &weight, input: &input, row_ids: None, outputs, y };
                (product.kernel)(args, scratch);
            }
            None => {}
        }
    }

    /// Latent rows through one half of W_KV of a head, `outputs` of its numbers.
    #[allow(clippy::too_many_arguments, reason = "one product of one head")]
    pub(crate) fn project_value(
        &self,
        kv: &KvWeights,
        half: &KvProjection,
        head: usize,
        x: &PreparedInput<'_>,
        outputs: Range<usize>,
        y: &mut RowsMut<'_>,
        scratch: &mut Scratch,
    ) {
        if let Some((product, matrix, from)) = self.half(kv, half, head) {
            let from = from.unwrap_or(0);
            self.multiply(product, matrix, x, None, from + outputs.start..from + outputs.end, y, scratch);
        }
    }

    /// What forms of the latent rows the products of W_KV need.
    pub(crate) fn kv_needs(kv: &KvWeights) -> InputFormats {
        match kv {
            KvWeights::Split(k, v) => InputFormats::of_products([k, v].into_iter().flatten()),
            KvWeights::Combined(both) => InputFormats::of_products([both]),
        }
    }

    /// `[W_UKᵀ q_nope | rope(q_rope)]` of each head.
    #[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(crate) fn absorb_k(
        &self,
        q_nope: &Slot,
        q_rope: &Slot,
        rotate: bool,
        kv: &KvWeights,
        out: &Slot,
        path: AttentionPath,
        local: &mut WorkerScratch,
    ) {
        let latent = self.model.config.attention.kv_lora_rank;
        let unit = self.latent_unit(kv);
        let needs = Self::kv_needs(kv);
        let WorkerScratch { acts, scratch, .. } = local;
        for (head, outputs) in self.head_shares(out.heads, latent, unit) {
            for rows in self.batch.ranges_in(path) {
                let x = self.read(q_nope, rows.clone(), head * q_nope.head_stride, q_nope.width);
                let x = acts.prepare(x, None, needs);
                let column = head * out.head_stride + outputs.start;
                let mut y = self.write(out, rows.clone(), column, outputs.len());
                self.absorb_query(kv, head, &x, outputs.clone(), &mut y, scratch);
                if outputs.end == latent {
                    for row in rows {
                        let tail = &mut self.head_tail_mut(out, row, head, latent);
                        tail.copy_from_slice(self.head(q_rope, row, head));
                        if rotate {
                            self.rotate(tail, row);
                        }
                    }
                }
            }
        }
    }

    /// Each head's latent result through W_UV. Where attention left the pieces of its rows apart, those of a head are merged here, by each thread that
    /// needs them: no thread waits for another's.
    pub(crate) fn absorb_v(
        &self,
        input: &Slot,
        kv: &KvWeights,
        out: &Slot,
        path: AttentionPath,
        local: &mut WorkerScratch,
    ) {
        let needs = Self::kv_needs(kv);
        let WorkerScratch { acts, scratch, more, .. } = local;
        let apart = self.leaves_pieces(input, path);
        for (head, outputs) in self.head_shares(out.heads, out.width, UNIT) {
            let mut before = 0;
            for rows in self.batch.ranges_in(path) {
                let x = if apart {
                    let merged = resize_scratch(more, rows.len() * input.width);
                    self.merge_head(input, head, before, rows.clone(), merged);
                    Rows::new(merged, rows.len(), input.width, input.width)
                } else {
                    self.read(input, rows.clone(), head * input.head_stride, input.width)
                };
                before += rows.len();
                let x = acts.prepare(x, None, needs);
                let mut y = self.write(out, rows, head * out.head_stride + outputs.start, outputs.len());
                self.project_value(kv, &KvProjection::Uv, head, &x, outputs.clone(), &mut y, scratch);
            }
        }
    }

    /// Latent columns are cut at multiples of this, so that a weight read across is cut between its blocks.
    fn latent_unit(&self, kv: &KvWeights) -> usize {
        let across = match kv {
            KvWeights::Combined(both) => self.model.weights[both.weight].ty().block_len(),
            KvWeights::Split(..) => 1,
        };
        across.max(UNIT)
    }

    /// This thread's share of `heads` × `width` numbers, as (head, columns).
    pub(crate) fn head_shares(
        &self,
        heads: usize,
        width: usize,
        unit: usize,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let padded = width.next_multiple_of(unit);
        let share = self.worker.share(heads * padded, unit);
        let first = share.start / padded;
        let last = share.end.div_ceil(padded);
        (first..last).filter_map(move |head| {
            let from = share.start.saturating_sub(head * padded).min(width);
            let to = (share.end - head * padded).min(width);
            (from < to).then_some((head, from..to))
        })
    }
}
