//! The lightning indexer of sparse attention: keys into the KV cache, and the tokens that rows attend to.

use super::kv_store::stored_rows;
use crate::context::WorkerContext;
use crate::program::{IndexSelect, IndexStore};
use crate::scratch::{WorkerScratch, resize_scratch};
use latent_backend::{KV_BLOCK, SeqSpan};
use latent_graph::config::INDEX_NORM_EPS;
use latent_kernels::IndexArgs;

impl IndexStore {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let IndexStore { key, norm, kv_layer } = self;
        let format = ctx.kv_format(*kv_layer);
        let [weight, bias] = norm.map(|weight| ctx.vector(weight));
        let elements = resize_scratch(&mut scratch.results, key.width);
        for span in &ctx.batch.spans {
            for offset in stored_rows(ctx, span, *kv_layer) {
                let row = span.rows.start + offset;
                latent_kernels::layer_norm(ctx.row(key, row), weight, bias, INDEX_NORM_EPS, elements);
                ctx.rotate_index(elements, row);
                // SAFETY: each position is dealt to one worker, and the slots that a step writes belong to
                // one span: a block that another sequence shares is copied before.
                let stored = unsafe { ctx.kv_row_mut(span, *kv_layer, span.first + offset) };
                latent_kernels::store_row(format, elements, stored);
            }
        }
    }
}

impl IndexSelect {
    /// Scores all cached tokens of each row that sees more than are selected, and selects the largest. Rows are dealt to the workers; if there
    /// are fewer rows than workers, the workers share the cached tokens of each. A score depends on its row and token alone, so both give
    /// the same positions.
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let topk = self.out.width;
        let sparse = |(_, row): &(&SeqSpan, usize)| ctx.batch.positions[*row] >= topk;
        let rows = || {
            let all = ctx.batch.spans.iter();
            all.flat_map(|span| span.rows.clone().map(move |row| (span, row))).filter(sparse)
        };
        let count = rows().count();
        if count >= ctx.worker.count {
            for (_, (span, row)) in
                rows().enumerate().filter(|(at, _)| at % ctx.worker.count == ctx.worker.index)
            {
                let kv_len = ctx.batch.positions[row] + 1;
                let mut scores = std::mem::take(&mut scratch.more);
                self.score(ctx, span, row, 0..kv_len, resize_scratch(&mut scores, kv_len), scratch);
                self.select(ctx, row, &scores[..kv_len], &mut scratch.order);
                scratch.more = scores;
                ctx.beat();
            }
            return;
        }
        if count == 0 {
            return;
        }
        let mut at = 0;
        for (span, row) in rows() {
            let kv_len = ctx.batch.positions[row] + 1;
            let own = ctx.worker.share(kv_len, KV_BLOCK);
            if !own.is_empty() {
                // SAFETY: shares of the tokens are disjoint, and each row has its own scores.
                let scores = unsafe { ctx.scores_mut(at + own.start, own.len()) };
                self.score(ctx, span, row, own, scores, scratch);
                ctx.beat();
            }
            at += kv_len;
        }
        ctx.barrier();
        let mut at = 0;
        for (number, (_, row)) in rows().enumerate() {
            let kv_len = ctx.batch.positions[row] + 1;
            if number % ctx.worker.count == ctx.worker.index {
                self.select(ctx, row, ctx.scores(at, kv_len), &mut scratch.order);
            }
            at += kv_len;
        }
    }

    /// Scores of some cached tokens of a row.
    fn score(
        &self,
        ctx: &WorkerContext<'_>,
        span: &SeqSpan,
        row: usize,
        tokens: std::ops::Range<usize>,
        out: &mut [f32],
        scratch: &mut WorkerScratch,
    ) {
        let cache = ctx.kv_view(span, self.kv_layer);
        let query = resize_scratch(&mut scratch.results, self.query.heads * self.query.width);
        query.copy_from_slice(ctx.row(&self.query, row));
        query.chunks_exact_mut(cache.width()).for_each(|head| ctx.rotate_index(head, row));
        let weights = ctx.row(&self.weights, row);
        let (exact, bf16) = (ctx.model.exact, ctx.model.index_bf16);
        let args = IndexArgs { q: query, weights, cache: &cache, rows: tokens, exact, bf16 };
        latent_kernels::index_scores(&args, out, &mut scratch.attention);
    }

    /// Writes the positions of a row.
    fn select(&self, ctx: &WorkerContext<'_>, row: usize, scores: &[f32], order: &mut Vec<u32>) {
        // SAFETY: each row is dealt to one worker.
        let selected = unsafe { ctx.ids_mut(&self.out, row) };
        latent_kernels::select_largest(scores, selected, order);
    }
}
