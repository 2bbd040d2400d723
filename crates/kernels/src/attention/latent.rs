//! Attention in latent space, heads as the batch.

use super::{BLOCK, CacheView, Partials, dot, load_row, online_softmax};
use crate::Rows;
use std::ops::Range;

/// Scores content and rope in one dot product.
pub fn attend_latent(
    q: Rows<'_>,
    cache: &CacheView<'_>,
    rows: Range<usize>,
    scale: f32,
    latent: usize,
    part: &mut Partials<'_>,
) {
    attend(q, cache, rows, latent, part, |q, row| dot(q, row) * scale);
}

/// Scores content and rope apart, and adds them.
pub fn attend_split(
    q: Rows<'_>,
    cache: &CacheView<'_>,
    rows: Range<usize>,
    scale: f32,
    latent: usize,
    part: &mut Partials<'_>,
) {
    attend(q, cache, rows, latent, part, |q, row| {
        (dot(&q[..latent], &row[..latent]) + dot(&q[latent..], &row[latent..])) * scale
    });
}

thread_local! {
    /// Rows of a block as f32, so that each is converted once for all heads.
    static LINES: std::cell::RefCell<Vec<f32>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[inline(always)]
fn attend(
    q: Rows<'_>,
    cache: &CacheView<'_>,
    rows: Range<usize>,
    latent: usize,
    part: &mut Partials<'_>,
    score: impl Fn(&[f32], &[f32]) -> f32,
) {
    let heads = q.rows();
    part.max[..heads].fill(f32::NEG_INFINITY);
    part.sum[..heads].fill(0.0);
    (0..heads).for_each(|head| part.o.row_mut(head).fill(0.0));
    LINES.with_borrow_mut(|lines| {
        lines.resize(BLOCK * cache.width, 0.0);
        for start in rows.clone().step_by(BLOCK) {
            let end = (start + BLOCK).min(rows.end);
            for (row, line) in (start..end).zip(lines.chunks_exact_mut(cache.width)) {
                load_row(cache.ty, cache.row(row), line);
            }
            for head in 0..heads {
                let mut scores = [0.0f32; BLOCK];
                let scores = &mut scores[..end - start];
                for (s, line) in scores.iter_mut().zip(lines.chunks_exact(cache.width)) {
                    *s = score(q.row(head), line);
                }
                let factor = online_softmax(scores, &mut part.max[head], &mut part.sum[head]);
                let o = part.o.row_mut(head);
                o.iter_mut().for_each(|o| *o *= factor);
                for (s, line) in scores.iter().zip(lines.chunks_exact(cache.width)) {
                    for (o, v) in o.iter_mut().zip(&line[..latent]) {
                        *o += s * v;
                    }
                }
            }
        }
    });
}
