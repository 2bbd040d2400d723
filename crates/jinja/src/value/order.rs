//! Python's `<` and stable sorting.

use super::{Value, equal};
use crate::error::{Error, Result};
use crate::meter::Meter;
use std::cmp::Ordering;

/// Orders two values; `None` if one is NaN.
pub(crate) fn compare(meter: &Meter, a: &Value, b: &Value) -> Result<Option<Ordering>> {
    meter.spend(1)?;
    // Integers first: as f64, integers above 2^53 would compare equal.
    if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
        return Ok(Some(a.cmp(&b)));
    }
    if let (Some(a), Some(b)) = (a.as_float(), b.as_float()) {
        return Ok(a.partial_cmp(&b));
    }
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => {
            meter.touch(a.len().min(b.len()))?;
            // UTF-8 bytes order like code points, which is Python's order.
            Ok(Some(a.as_str().cmp(b.as_str())))
        }
        (Value::Seq(a), Value::Seq(b)) if a.kind.has_positions() && a.kind == b.kind => {
            for (a, b) in a.items().iter().zip(b.items()) {
                if !equal(meter, a, b)? {
                    return compare(meter, a, b);
                }
            }
            Ok(Some(a.items().len().cmp(&b.items().len())))
        }
        _ => Err(Error::value(format!(
            "values of the types {} and {} cannot be ordered",
            a.type_name(),
            b.type_name()
        ))),
    }
}

/// `a < b`.
pub(crate) fn less(meter: &Meter, a: &Value, b: &Value) -> Result<bool> {
    Ok(compare(meter, a, b)? == Some(Ordering::Less))
}

/// Stable merge sort that returns positions. `slice::sort_by` cannot stop at an error, and may
/// panic if the order is not total, as with NaN.
pub(crate) fn sort_by(
    meter: &Meter,
    count: usize,
    mut before: impl FnMut(usize, usize) -> Result<bool>,
) -> Result<Vec<usize>> {
    // The comparisons charge the rest.
    meter.spend(count)?;
    let mut from: Vec<usize> = (0..count).collect();
    let mut to = from.clone();
    let mut width = 1;
    while width < count {
        for start in (0..count).step_by(width * 2) {
            let middle = (start + width).min(count);
            let end = (start + width * 2).min(count);
            let (mut left, mut right) = (start, middle);
            for slot in &mut to[start..end] {
                // Take the right element only if it is strictly less: this keeps the sort stable.
                let take_right = right < end && (left >= middle || before(from[right], from[left])?);
                let source = if take_right { &mut right } else { &mut left };
                *slot = from[*source];
                *source += 1;
            }
        }
        std::mem::swap(&mut from, &mut to);
        width *= 2;
    }
    Ok(from)
}
