//! Distance between two matrices of activations.

use latent_backend::TraceValues;
use serde::Serialize;

/// Distance of an activation's values on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distance {
    /// Number of rows that both sides have.
    pub rows: usize,
    /// Number of elements that are not finite on both sides and cannot be compared.
    pub not_finite: u64,
    /// Maximum difference of two elements.
    pub max_abs: f64,
    /// ‖b − a‖ ÷ ‖a‖ over all rows.
    pub relative: f64,
    /// Maximum of ‖b − a‖ ÷ ‖a‖ over the rows.
    pub worst_relative: f64,
    /// Cosine of the angle between a and b.
    pub cosine: f64,
    /// Row of the maximum difference.
    pub row: usize,
    pub column: usize,
    /// The elements of a and b there.
    pub numbers: [f32; 2],
}

/// Distance over the rows that both sides have; `None` without common rows.
pub(super) fn distance(a: &TraceValues, b: &TraceValues) -> Option<Distance> {
    let mut found = Distance {
        rows: 0,
        not_finite: 0,
        max_abs: 0.0,
        relative: 0.0,
        worst_relative: 0.0,
        cosine: 1.0,
        row: 0,
        column: 0,
        numbers: [0.0; 2],
    };
    let (mut difference, mut size_a, mut size_b, mut dot) = (0.0, 0.0, 0.0, 0.0);
    for row in 0..a.have.len().min(b.have.len()) {
        let (Some(left), Some(right)) = (a.row(row), b.row(row)) else { continue };
        found.rows += 1;
        found.worst_relative = found.worst_relative.max(row_error(left, right).0);
        for (column, (&x, &y)) in left.iter().zip(right).enumerate() {
            let apart = apart(x, y);
            if on_neither_side(x, y) {
                // Until a difference is found, the position is that of the first element that is
                // not finite.
                if found.not_finite == 0 && found.max_abs == 0.0 {
                    (found.row, found.column, found.numbers) = (row, column, [x, y]);
                }
                found.not_finite += 1;
                continue;
            }
            if apart > found.max_abs {
                (found.max_abs, found.row, found.column, found.numbers) = (apart, row, column, [x, y]);
            }
            // f64: sums over millions of squares in f32 would have errors above the tolerance of
            // exact precision (1e-4).
            let (x, y) = (f64::from(x), f64::from(y));
            difference += apart * apart;
            size_a += x * x;
            size_b += y * y;
            dot += x * y;
        }
    }
    if found.rows == 0 {
        return None;
    }
    found.relative = ratio(difference.sqrt(), size_a.sqrt());
    // Equal values have cosine 1 by definition; the quotient could be 0 / 0 or slightly off.
    if found.max_abs > 0.0 {
        found.cosine = ratio(dot, (size_a * size_b).sqrt()).min(1.0);
    }
    Some(found)
}

/// ‖b − a‖ ÷ ‖a‖ of one row, and ‖a‖.
pub(super) fn row_error(a: &[f32], b: &[f32]) -> (f64, f64) {
    let (mut difference, mut size) = (0.0, 0.0);
    for (&x, &y) in a.iter().zip(b).filter(|(x, y)| !on_neither_side(**x, **y)) {
        difference += apart(x, y).powi(2);
        size += f64::from(x).powi(2);
    }
    (ratio(difference.sqrt(), size.sqrt()), size.sqrt())
}

/// Whether both are NaN or the same infinity. They do not differ, but they do not agree either.
fn on_neither_side(x: f32, y: f32) -> bool {
    !x.is_finite() && (x == y || (x.is_nan() && y.is_nan()))
}

/// |y − x|; infinite if exactly one of them is not finite, or both are and differ.
fn apart(x: f32, y: f32) -> f64 {
    // Equal infinities would give NaN below.
    if x.to_bits() == y.to_bits() || on_neither_side(x, y) {
        return 0.0;
    }
    let apart = (f64::from(y) - f64::from(x)).abs();
    if apart.is_nan() { f64::INFINITY } else { apart }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if part == 0.0 {
        0.0
    } else if whole > 0.0 && part.is_finite() {
        part / whole
    } else {
        f64::INFINITY
    }
}

/// Whether two routing rows have different experts.
pub(super) fn chosen_otherwise(a: &[f32], b: &[f32]) -> bool {
    // A row has the weights of all experts. Those that were not chosen are exactly 0.
    a.iter().zip(b).any(|(a, b)| (*a == 0.0) != (*b == 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(numbers: &[f32], width: usize) -> TraceValues {
        let mut values = TraceValues::new(numbers.len() / width, width);
        values.numbers = numbers.to_vec();
        values.have.fill(true);
        values
    }

    #[test]
    fn distance_reports_the_position_of_the_maximum_difference() {
        let a = values(&[1.0, 2.0, 2.0, 3.0, 4.0, 0.0], 3);
        let b = values(&[1.0, 2.0, 2.0, 3.0, 4.5, 0.0], 3);
        let found = distance(&a, &b).unwrap();
        assert_eq!((found.row, found.column, found.numbers, found.rows), (1, 1, [4.0, 4.5], 2));
        assert!((found.max_abs - 0.5).abs() < 1e-12 && (found.worst_relative - 0.1).abs() < 1e-12);
        assert!((found.relative - 0.5 / 34f64.sqrt()).abs() < 1e-12 && found.cosine < 1.0);
        let same = distance(&a, &a).unwrap();
        assert_eq!((same.max_abs, same.relative, same.cosine), (0.0, 0.0, 1.0));
    }

    #[test]
    fn nan_and_infinity_differ_from_numbers_and_are_counted_if_equal() {
        let a = values(&[f32::NAN, 1.0], 2);
        let same = distance(&a, &a).unwrap();
        assert_eq!((same.max_abs, same.not_finite, same.row, same.column), (0.0, 1, 0, 0));
        let infinite = values(&[f32::INFINITY, f32::INFINITY], 2);
        let other = distance(&infinite, &values(&[f32::INFINITY, f32::NEG_INFINITY], 2)).unwrap();
        assert_eq!((other.max_abs, other.not_finite, other.column), (f64::INFINITY, 1, 1));
        // Finite elements are compared even if others are not finite.
        let near = distance(&a, &values(&[f32::NAN, 1.5], 2)).unwrap();
        assert_eq!((near.max_abs, near.relative, near.not_finite), (0.5, 0.5, 1));
        assert_eq!(row_error(&[f32::NAN, 1.0], &[f32::NAN, 1.5]).0, 0.5);
        let found = distance(&values(&[0.0, 1.0], 2), &a).unwrap();
        assert_eq!((found.max_abs, found.relative), (f64::INFINITY, f64::INFINITY));
        assert_eq!((found.row, found.column), (0, 0));
        assert_eq!(row_error(&[0.0], &[1e-20]).0, f64::INFINITY);
    }

    #[test]
    fn rows_missing_on_one_side_are_skipped() {
        let a = values(&[1.0, 2.0], 1);
        let mut b = values(&[9.0, 2.0], 1);
        b.have[0] = false;
        assert_eq!(distance(&a, &b).unwrap().max_abs, 0.0);
        b.have[1] = false;
        assert!(distance(&a, &b).is_none());
    }
}
