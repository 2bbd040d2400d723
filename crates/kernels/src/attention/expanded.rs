//! Attention over expanded keys and values: one query of one head.

use super::{BLOCK, Partials, dot, online_softmax};
use crate::Rows;
use std::ops::Range;

/// `q` has rows `[nope | rope]` of one head; `keys`, `rope` and `values` have a row for each cached row, of which those in `range` are seen.
pub fn attend_expanded(
    q: Rows<'_>,
    keys: Rows<'_>,
    rope: Rows<'_>,
    values: Rows<'_>,
    range: Range<usize>,
    scale: f32,
    part: &mut Partials<'_>,
) {
    for query in 0..q.rows() {
        let (nope, rotated) = q.row(query).split_at(keys.cols());
        let (max, sum) = (&mut part.max[query], &mut part.sum[query]);
        (*max, *sum) = (f32::NEG_INFINITY, 0.0);
        let o = part.o.row_mut(query);
        o.fill(0.0);
        for start in range.clone().step_by(BLOCK) {
            let end = (start + BLOCK).min(range.end);
            let mut scores = [0.0f32; BLOCK];
            let scores = &mut scores[..end - start];
            for (s, row) in scores.iter_mut().zip(start..end) {
                *s = (dot(nope, keys.row(row)) + dot(rotated, rope.row(row))) * scale;
            }
            let factor = online_softmax(scores, max, sum);
            o.iter_mut().for_each(|o| *o *= factor);
            for (s, row) in scores.iter().zip(start..end) {
                for (o, v) in o.iter_mut().zip(values.row(row)) {
                    *o += s * v;
                }
            }
        }
    }
}
