//! Partial selection in linear time: the positions of the largest scores.

/// Bits of a score's key that one pass counts: three passes cover 32 bits, and the counters of a
/// pass (four sets of 2048) are 32 KB.
const BITS: u32 = 11;

/// Writes the positions of the `out.len()` largest scores in ascending order. Of equal scores the
/// earliest are selected, and −0 equals 0. NaN is larger than every number, or smaller if its sign
/// is set. The result depends on the scores alone. `scratch` is memory of any length.
///
/// # Panics
/// When there are fewer scores than positions, or more than a `u32` counts.
pub fn select_largest(scores: &[f32], out: &mut [u32], scratch: &mut Vec<u32>) {
    assert!(out.len() <= scores.len(), "{} of {} scores", out.len(), scores.len());
    assert!(u32::try_from(scores.len()).is_ok(), "{} scores", scores.len());
    if out.is_empty() {
        return;
    }
    if scratch.len() < scores.len() {
        scratch.resize(scores.len(), 0);
    }
    let threshold = threshold(scores, out.len(), scratch);
    let keys = scores.iter().map(|score| order_of(*score));
    let found = collect((0u32..).zip(keys).map(|(position, key)| (position, key >= threshold)), scratch);
    // Of the scores that equal the threshold, the last ones are dropped.
    let mut surplus = found.len() - out.len();
    let selected = found.iter().rev().filter(|position| {
        let dropped = surplus > 0 && order_of(scores[**position as usize]) == threshold;
        surplus -= usize::from(dropped);
        !dropped
    });
    for (slot, position) in out.iter_mut().rev().zip(selected) {
        *slot = *position;
    }
}

/// Compacts the values whose flag is set into `out`, in order, and returns them. Branch-free: the
/// flags are unpredictable.
#[inline(always)]
fn collect(values: impl Iterator<Item = (u32, bool)>, out: &mut [u32]) -> &mut [u32] {
    let mut count = 0;
    for (value, taken) in values {
        out[count] = value;
        count += usize::from(taken);
    }
    &mut out[..count]
}

/// An integer for each float that compares as the floats do.
#[inline(always)]
fn order_of(score: f32) -> u32 {
    // Adding 0 turns −0 into 0.
    let bits = (score + 0.0).to_bits();
    // Positive numbers sort above negative ones, and negative ones in the reverse order of their
    // magnitudes.
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// The key of the `count`-th largest score. `candidates` has room for all keys.
fn threshold(scores: &[f32], count: usize, candidates: &mut [u32]) -> u32 {
    let mut left = count;
    // Radix selection: the upper digit of all scores, then the next digit of the scores whose upper
    // digits equal the threshold's.
    let mut shift = 32 - BITS;
    let keys = || scores.iter().map(|score| order_of(*score));
    let mut prefix = largest_digit(keys().map(|key| key >> shift), &mut left);
    let mut found = collect(keys().map(|key| (key, key >> shift == prefix)), candidates);
    while shift > 0 {
        let bits = BITS.min(shift);
        shift -= bits;
        let mask = (1 << bits) - 1;
        let digit = largest_digit(found.iter().map(|key| key >> shift & mask), &mut left);
        prefix = prefix << bits | digit;
        let mut kept = 0;
        for at in 0..found.len() {
            found[kept] = found[at];
            kept += usize::from(found[at] >> shift == prefix);
        }
        found = &mut found[..kept];
    }
    prefix
}

/// The `left`-th largest of digits below 2^[`BITS`]; `left` becomes its rank among the digits that
/// equal it.
fn largest_digit(digits: impl Iterator<Item = u32>, left: &mut usize) -> u32 {
    // Four sets of counters in turn. Neighboring digits are often equal, and an increment of a
    // counter waits for the previous store to it.
    let mut counts = [[0u32; 1 << BITS]; 4];
    for (at, digit) in digits.enumerate() {
        counts[at % 4][digit as usize & ((1 << BITS) - 1)] += 1;
    }
    let [a, b, c, d] = &counts;
    let count = |digit: usize| (a[digit] + b[digit] + c[digit] + d[digit]) as usize;
    let mut digit = (1 << BITS) - 1;
    while digit > 0 && count(digit) < *left {
        *left -= count(digit);
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
    fn selection_equals_a_stable_sort() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        for (n, round) in [(1, 1.0), (7, 1.0), (100, 8.0), (3000, 1e6), (3000, 3.0)] {
            // Coarse rounding makes many scores equal.
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
    fn of_equal_scores_the_earliest_are_selected() {
        assert_eq!(selected(&[0.0, -0.0, 0.0, -0.0, 0.0], 3), [0, 1, 2]);
        assert_eq!(selected(&[-1.0, 0.5, 0.5, 2.0, 0.5], 3), [1, 2, 3]);
        assert_eq!(selected(&[f32::NEG_INFINITY, f32::MIN, f32::INFINITY, f32::NAN], 2), [2, 3]);
    }
}
