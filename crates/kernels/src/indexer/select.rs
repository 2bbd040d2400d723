//! Partial selection in linear time: the positions of the largest scores.

/// Bits of a score's key that one pass counts.
const BITS: u32 = 11;

/// Writes the positions of the `out.len()` largest scores, ascending: of equal scores the earliest ones, and −0 equals 0. NaN is larger than
/// every number, or smaller if its sign is set. The result depends on the scores alone. `scratch` is memory of any length.
///
/// # Panics
/// When there are fewer scores than positions, or more than a `u32` counts.
pub fn select_largest(scores: &[f32], out: &mut [u32], scratch: &mut Vec<u32>) {
    assert!(out.len() <= scores.len(), "{} of {} scores", out.len(), scores.len());
    assert!(u32::try_from(scores.len()).is_ok(), "{} scores", scores.len());
    if out.is_empty() {
        return;
    }
    let (threshold, mut equal) = threshold(scores, out.len(), scratch);
    let mut next = out.iter_mut();
    for (position, score) in (0u32..).zip(scores) {
        let key = order_of(*score);
        if key > threshold || (key == threshold && equal > 0) {
            equal -= usize::from(key == threshold);
            let Some(slot) = next.next() else { break };
            *slot = position;
        }
    }
}

/// An integer for each float that compares as the floats do.
#[inline(always)]
fn order_of(score: f32) -> u32 {
    // −0 becomes 0
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// The key of the `count`-th largest score, and how many scores of this key are among the `count` largest.
fn threshold(scores: &[f32], count: usize, candidates: &mut Vec<u32>) -> (u32, usize) {
    let mut left = count;
    // the upper bits of all scores, then the bits below among those whose upper bits are the threshold's
    let first = 32 - BITS;
    let mut prefix = digit_of(scores.iter().map(|score| order_of(*score)), first, &mut left);
    candidates.clear();
    candidates.extend(scores.iter().map(|score| order_of(*score)).filter(|key| key >> first == prefix));
    let mut shift = first;
    while shift > 0 {
        let bits = BITS.min(shift);
        shift -= bits;
        let digit =
            digit_of(candidates.iter().map(|key| key & ((1 << (shift + bits)) - 1)), shift, &mut left);
        prefix = prefix << bits | digit;
        candidates.retain(|key| key >> shift == prefix);
    }
    (prefix, left)
}

/// The digit from bit `shift` on of the `left`-th largest key; `left` becomes its rank among the keys with this digit. Keys have no bits above
/// the digit's.
fn digit_of(keys: impl Iterator<Item = u32>, shift: u32, left: &mut usize) -> u32 {
    let mut counts = [0usize; 1 << BITS];
    for key in keys {
        counts[(key >> shift) as usize & ((1 << BITS) - 1)] += 1;
    }
    let mut digit = counts.len() - 1;
    while digit > 0 && counts[digit] < *left {
        *left -= counts[digit];
        digit -= 1;
    }
    digit as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(scores: &[f32], count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..scores.len() as u32).collect();
        order.sort_by(|a, b| (scores[*b as usize] + 0.0).total_cmp(&(scores[*a as usize] + 0.0)));
        order.truncate(count);
        order.sort_unstable();
        order
    }

    fn selected(scores: &[f32], count: usize) -> Vec<u32> {
        let mut out = vec![0; count];
        select_largest(scores, &mut out, &mut vec![7; 3]);
        out
    }

    #[test]
    fn the_largest_are_those_of_a_stable_sort() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        for (n, round) in [(1, 1.0), (7, 1.0), (100, 8.0), (3000, 1e6), (3000, 3.0)] {
            // rounded coarsely, many are equal
            let scores: Vec<f32> = (0..n).map(|_| (next() * round).round() / round).collect();
            for count in [0, 1, n / 3, n / 2, n - 1, n] {
                assert_eq!(
                    selected(&scores, count),
                    sorted(&scores, count),
                    "{count} of {n}, in steps of 1/{round}"
                );
            }
        }
    }

    #[test]
    fn of_equal_scores_the_earliest_are_chosen() {
        assert_eq!(selected(&[0.0, -0.0, 0.0, -0.0, 0.0], 3), [0, 1, 2]);
        assert_eq!(selected(&[-1.0, 0.5, 0.5, 2.0, 0.5], 3), [1, 2, 3]);
        assert_eq!(selected(&[f32::NEG_INFINITY, f32::MIN, f32::INFINITY, f32::NAN], 2), [2, 3]);
    }
}
