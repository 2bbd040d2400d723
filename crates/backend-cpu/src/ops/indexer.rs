//! The lightning indexer of sparse attention: stores its keys in the KV cache, and selects the
//! tokens that rows attend to.

use super::kv_store::stored_rows;
use crate::context::WorkerContext;
use crate::program::{IndexSelect, IndexStore};
use crate::scratch::{WorkerScratch, resize_scratch};
use latent_backend::{KV_BLOCK, SeqSpan};
use latent_graph::config::INDEX_NORM_EPS;
use latent_kernels::IndexArgs;
use latent_types::Tier;
use std::ops::Range;

/// Maximum rows per scan of the cached keys. A key is loaded once for all of them.
const TILE_ROWS: usize = 8;

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
                // SAFETY: each position is dealt to one worker, and the slots that a step writes
                // belong to one span: a block that another sequence shares is copied before.
                let stored = unsafe { ctx.kv_row_mut(span, *kv_layer, span.first + offset) };
                latent_kernels::store_row(format, elements, stored);
            }
        }
    }
}

impl IndexSelect {
    /// Scores the cached tokens of each row that sees more tokens than are selected, and selects
    /// those with the largest scores. Tiles of rows are dealt to the workers. If there are fewer
    /// rows than workers, the workers divide the cached tokens of each row instead. A score depends
    /// on its row and token only, so both ways select the same positions.
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let topk = self.out.width;
        // Positions ascend in a span, so its sparse rows are the last ones.
        let sparse = || {
            ctx.batch.spans.iter().map(move |span| {
                let dense = topk.saturating_sub(span.first).min(span.rows.len());
                (span, span.rows.start + dense..span.rows.end)
            })
        };
        let count: usize = sparse().map(|(_, rows)| rows.len()).sum();
        if count >= ctx.worker.count {
            let size = (count / ctx.worker.count).min(TILE_ROWS);
            let tiles = sparse().flat_map(|(span, rows)| {
                let end = rows.end;
                rows.step_by(size).map(move |row| (span, row..end.min(row + size)))
            });
            for (_, (span, rows)) in
                tiles.enumerate().filter(|(at, _)| at % ctx.worker.count == ctx.worker.index)
            {
                // The last row sees the most tokens. The other rows are scored against all of
                // these, and the scores of later tokens are ignored.
                let max_tokens = ctx.batch.positions[rows.end - 1] + 1;
                let mut scores = std::mem::take(&mut scratch.more);
                let all = resize_scratch(&mut scores, max_tokens * rows.len());
                self.score(ctx, span, rows.clone(), 0..max_tokens, all, scratch);
                for (scores, row) in all.chunks_exact(max_tokens).zip(rows) {
                    self.select(ctx, row, &scores[..ctx.batch.positions[row] + 1], &mut scratch.order);
                }
                scratch.more = scores;
                ctx.beat();
            }
            return;
        }
        if count == 0 {
            return;
        }
        let rows = || sparse().flat_map(|(span, rows)| rows.map(move |row| (span, row)));
        let mut at = 0;
        for (span, row) in rows() {
            let kv_len = ctx.batch.positions[row] + 1;
            let own = ctx.worker.share(kv_len, KV_BLOCK);
            if !own.is_empty() {
                // SAFETY: shares of the tokens are disjoint, and each row has its own scores.
                let scores = unsafe { ctx.scores_mut(at + own.start, own.len()) };
                self.score(ctx, span, row..row + 1, own, scores, scratch);
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

    /// Computes the scores of some cached tokens as `[rows, tokens]`.
    fn score(
        &self,
        ctx: &WorkerContext<'_>,
        span: &SeqSpan,
        rows: Range<usize>,
        tokens: Range<usize>,
        out: &mut [f32],
        scratch: &mut WorkerScratch,
    ) {
        let cache = ctx.kv_view(span, self.kv_layer);
        let elements = self.query.heads * self.query.width;
        let heads = elements / cache.width();
        let numbers = (elements + heads) * rows.len();
        let (queries, weights) =
            resize_scratch(&mut scratch.results, numbers).split_at_mut(elements * rows.len());
        let lines = queries.chunks_exact_mut(elements).zip(weights.chunks_exact_mut(heads));
        for ((query, weights), row) in lines.zip(rows) {
            query.copy_from_slice(ctx.row(&self.query, row));
            query.chunks_exact_mut(cache.width()).for_each(|head| ctx.rotate_index(head, row));
            weights.copy_from_slice(ctx.row(&self.weights, row));
        }
        let (exact, avx512) = (ctx.model.exact, ctx.model.tier >= Tier::Avx512);
        let args = IndexArgs { q: queries, weights, heads, cache: &cache, rows: tokens, exact, avx512 };
        latent_kernels::index_scores(&args, out, &mut scratch.attention);
    }

    /// Selects the positions of a row.
    fn select(&self, ctx: &WorkerContext<'_>, row: usize, scores: &[f32], order: &mut Vec<u32>) {
        // SAFETY: each row is dealt to one worker.
        let selected = unsafe { ctx.ids_mut(&self.out, row) };
        latent_kernels::select_largest(scores, selected, order);
    }
}
