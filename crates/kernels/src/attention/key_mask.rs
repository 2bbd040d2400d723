//! Mask of the keys that an indexer has selected for the queries of a prefill call.

/// Queries per word: the width of a panel of queries in bf16 kernels, which apply a word as two
/// vector masks.
const LANES: usize = 32;

/// The number of words per set is a multiple of this, the largest block of keys, so that kernels
/// read whole blocks.
const KEY_STEP: usize = 128;

/// The score of a key that is not selected: far below any other, but finite. No key of a block may
/// be selected, and −∞ − −∞ is NaN.
pub(super) const MASKED: f32 = -1e30;

/// A bit for each query and key: whether the query attends to the key. Queries are in sets of 32,
/// each with a word per key.
#[derive(Debug, Default)]
pub struct KeyMask {
    words: Vec<u32>,
    keys: usize,
}

impl KeyMask {
    /// Resets to `queries` queries that attend to no key.
    pub fn reset(&mut self, queries: usize, keys: usize) {
        self.keys = keys.next_multiple_of(KEY_STEP);
        self.words.clear();
        self.words.resize(queries.div_ceil(LANES) * self.keys, 0);
    }

    /// Adds keys that a query attends to.
    ///
    /// # Panics
    /// When the query or a key is not one of the mask's.
    pub fn select(&mut self, query: usize, keys: impl Iterator<Item = usize>) {
        let words = &mut self.words[query / LANES * self.keys..][..self.keys];
        keys.for_each(|key| words[key] |= 1 << (query % LANES));
    }

    /// Asserts that the mask covers these queries and keys.
    pub(super) fn check(&self, queries: usize, keys: usize) {
        let sets = self.words.len().checked_div(self.keys).unwrap_or(0);
        assert!(
            queries.div_ceil(LANES) <= sets && keys <= self.keys,
            "a mask of {queries} queries and {keys} keys"
        );
    }

    /// The words of the set of a query for the keys of a block.
    #[inline(always)]
    pub(super) fn block(&self, query: usize, start: usize, keys: usize) -> &[u32] {
        &self.words[query / LANES * self.keys + start..][..keys]
    }

    /// Masks the scores of one query, keys as lanes.
    #[inline(always)]
    pub(super) fn apply(&self, query: usize, start: usize, scores: &mut [f32]) {
        let (lane, words) = (query % LANES, self.block(query, start, scores.len()));
        for (score, word) in scores.iter_mut().zip(words) {
            *score = if word >> lane & 1 == 0 { MASKED } else { *score };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_not_selected_are_masked() {
        let mut mask = KeyMask::default();
        for queries in [1, 33, 70] {
            mask.reset(queries, 200);
            mask.check(queries, 200);
            for query in 0..queries {
                mask.select(query, (query % 3..200).step_by(3));
            }
            for query in [0, 31 % queries, queries - 1] {
                let mut scores = [2.0; 64];
                mask.apply(query, 128, &mut scores);
                for (key, score) in (128..).zip(scores) {
                    assert_eq!(score == 2.0, key < 200 && key % 3 == query % 3, "{query} {key}");
                }
            }
        }
    }
}
