//! Statistics of a tensor's weights, for auditing the values of a model.

use crate::blocks::{bytes_at, half};
use crate::{mxfp4, nvfp4};
use latent_types::TensorType;

/// Accumulators per sum, so that the compiler vectorizes the loops.
const LANES: usize = 16;

/// Buckets of magnitudes, half an octave each: the eight exponent bits and the first mantissa bit.
const BUCKETS: usize = 512;

/// A scale is an outlier if it is this many half octaves above the median: 64 times as large.
const WILD: usize = 12;

/// Statistics of a tensor or of some of its rows. Statistics of disjoint rows can be
/// [merged](Statistics::merge).
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// Elements.
    pub numbers: u64,
    /// NaN elements.
    pub nan: u64,
    /// Infinite elements.
    pub infinite: u64,
    /// Row and column of the first NaN or infinity.
    pub first_bad: Option<(u64, u64)>,
    /// Zero elements.
    pub zeros: u64,
    /// Rows of zeros only.
    pub zero_rows: u64,
    pub first_zero_row: Option<u64>,
    /// Smallest finite element.
    pub min: f32,
    /// Largest finite element.
    pub max: f32,
    /// Largest finite magnitude, and its row.
    pub largest: (f32, u64),
    sum: f64,
    squares: f64,
    scales: ScaleDistribution,
}

#[derive(Clone, Debug, PartialEq)]
struct ScaleDistribution {
    buckets: Box<[u64; BUCKETS]>,
    bad: u64,
    /// Largest magnitude, and its row.
    largest: (f32, u64),
}

impl Default for Statistics {
    fn default() -> Statistics {
        Statistics {
            numbers: 0,
            nan: 0,
            infinite: 0,
            first_bad: None,
            zeros: 0,
            zero_rows: 0,
            first_zero_row: None,
            min: f32::INFINITY,
            max: f32::NEG_INFINITY,
            largest: (0.0, 0),
            sum: 0.0,
            squares: 0.0,
            scales: ScaleDistribution { buckets: Box::new([0; BUCKETS]), bad: 0, largest: (0.0, 0) },
        }
    }
}

impl Statistics {
    /// Adds row `row` of a tensor: its dequantized elements, and the bytes that they came from, for
    /// the scales.
    pub fn add(&mut self, ty: TensorType, row: u64, bytes: &[u8], numbers: &[f32]) {
        // One vectorized pass for all rows; rows with NaN or infinities, which are rare, are
        // visited again element by element.
        let sums = RowStatistics::of(numbers);
        self.numbers += numbers.len() as u64;
        let zeros =
            if sums.finite { self.plain(row, numbers.len(), &sums) } else { self.broken(row, numbers) };
        self.zeros += zeros;
        if zeros == numbers.len() as u64 && zeros > 0 {
            self.zero_rows += 1;
            self.first_zero_row.get_or_insert(row);
        }
        // A damaged block shows in its scale, even if its quants are plausible.
        if ty.is_quantized() {
            for block in bytes.chunks_exact(ty.block_bytes()) {
                self.scales.add(scale(ty, block), row);
            }
        } else if sums.finite {
            self.scales.add(sums.max.max(-sums.min), row);
        }
    }

    fn plain(&mut self, row: u64, len: usize, sums: &RowStatistics) -> u64 {
        if len > 0 {
            self.extremes(row, sums.min, sums.max);
        }
        self.sum += sums.sum;
        self.squares += sums.squares;
        sums.zeros
    }

    /// As [`plain`](Self::plain), for a row with NaN or infinities, element by element.
    fn broken(&mut self, row: u64, numbers: &[f32]) -> u64 {
        let mut zeros = 0;
        for (column, &x) in numbers.iter().enumerate() {
            if x.is_finite() {
                self.extremes(row, x, x);
                self.sum += f64::from(x);
                self.squares += f64::from(x) * f64::from(x);
                zeros += u64::from(x == 0.0);
                continue;
            }
            if x.is_nan() {
                self.nan += 1;
            } else {
                self.infinite += 1;
            }
            self.first_bad.get_or_insert((row, column as u64));
        }
        zeros
    }

    fn extremes(&mut self, row: u64, min: f32, max: f32) {
        self.min = self.min.min(min);
        self.max = self.max.max(max);
        let magnitude = max.max(-min);
        if magnitude > self.largest.0 {
            self.largest = (magnitude, row);
        }
    }

    /// Adds the statistics of other rows of this tensor, or of a tensor to be counted with it.
    pub fn merge(&mut self, other: &Statistics) {
        let earlier = |a: Option<(u64, u64)>, b: Option<(u64, u64)>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.numbers += other.numbers;
        self.nan += other.nan;
        self.infinite += other.infinite;
        self.first_bad = earlier(self.first_bad, other.first_bad);
        self.zeros += other.zeros;
        self.zero_rows += other.zero_rows;
        let first = |row: Option<u64>| row.map(|row| (row, 0));
        self.first_zero_row =
            earlier(first(self.first_zero_row), first(other.first_zero_row)).map(|(row, _)| row);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.largest = larger(self.largest, other.largest);
        self.sum += other.sum;
        self.squares += other.squares;
        for (a, b) in self.scales.buckets.iter_mut().zip(other.scales.buckets.iter()) {
            *a += b;
        }
        self.scales.bad += other.scales.bad;
        self.scales.largest = larger(self.scales.largest, other.scales.largest);
    }

    /// Finite elements.
    pub fn finite(&self) -> u64 {
        self.numbers - self.nan - self.infinite
    }

    /// Mean of the finite elements.
    pub fn mean(&self) -> f64 {
        self.sum / self.finite().max(1) as f64
    }

    /// Root mean square of the finite elements.
    pub fn rms(&self) -> f64 {
        (self.squares / self.finite().max(1) as f64).sqrt()
    }

    /// Scales that are not finite.
    pub fn bad_scales(&self) -> u64 {
        self.scales.bad
    }

    /// Scales at least 64 times the median of the nonzero ones: their number, and the largest with
    /// its row. In formats without scales, the largest magnitude of each row is used instead.
    pub fn wild_scales(&self) -> Option<(u64, f32, u64)> {
        // Bucket 0 has zeros and the smallest subnormals: a tensor with many rows of zeros would
        // otherwise have a median of 0.
        let nonzero: u64 = self.scales.buckets[1..].iter().sum();
        let mut seen = 0;
        let median = (1..BUCKETS).find(|i| {
            seen += self.scales.buckets[*i];
            seen * 2 >= nonzero && nonzero > 0
        })?;
        let wild: u64 = self.scales.buckets.iter().skip(median + WILD).sum();
        (wild > 0).then_some((wild, self.scales.largest.0, self.scales.largest.1))
    }
}

/// The larger magnitude with its row. On a tie the lower row, so that the result does not depend on
/// the order of merging.
fn larger(a: (f32, u64), b: (f32, u64)) -> (f32, u64) {
    if b.0 > a.0 || (b.0 == a.0 && b.1 < a.1) { b } else { a }
}

impl ScaleDistribution {
    fn add(&mut self, scale: f32, row: u64) {
        if !scale.is_finite() {
            self.bad += 1;
            return;
        }
        // Nine bits remain, so the remainder changes nothing; it lets the compiler omit the
        // bounds check.
        self.buckets[(scale.abs().to_bits() >> 22) as usize % BUCKETS] += 1;
        self.largest = larger(self.largest, (scale.abs(), row));
    }
}

/// The scale of a block: the largest if it has several, NaN if one is NaN.
pub(crate) fn scale(ty: TensorType, block: &[u8]) -> f32 {
    use TensorType as T;
    let halves = |at: &[usize]| {
        at.iter()
            .map(|at| half(block, *at).abs())
            // Not `max`, which would drop NaN.
            .fold(0.0, |largest: f32, d| if d > largest || d.is_nan() { d } else { largest })
    };
    match ty {
        T::Q1_0 | T::Q2_0 | T::Q4_0 | T::Q5_0 | T::Q8_0 | T::IQ4_NL | T::IQ4_XS => halves(&[0]),
        T::IQ1_S | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S | T::IQ3_XXS | T::IQ3_S => halves(&[0]),
        T::Q4_1 | T::Q5_1 | T::Q4_K | T::Q5_K => halves(&[0, 2]),
        T::Q2_K => halves(&[80, 82]),
        T::Q3_K => halves(&[108]),
        T::Q6_K => halves(&[208]),
        T::TQ1_0 => halves(&[52]),
        T::TQ2_0 => halves(&[64]),
        T::Q8_K => f32::from_le_bytes(bytes_at(block, 0)),
        // Half scales: outliers are relative to the median of the same format.
        T::MXFP4 => mxfp4::half_scale(block[0]),
        T::NVFP4 => block[..4].iter().map(|code| nvfp4::half_scale(*code)).fold(0.0, f32::max),
        T::IQ1_M => {
            let upper = |i: usize| u16::from_le_bytes(bytes_at(block, 48 + 2 * i)) >> 12;
            half::f16::from_bits((0..4).fold(0, |bits, i| bits | upper(i) << (4 * i))).to_f32()
        }
        _ => 0.0,
    }
}

/// Sums of one row. Vectorized, so that they run at memory speed.
struct RowStatistics {
    min: f32,
    max: f32,
    sum: f64,
    squares: f64,
    zeros: u64,
    finite: bool,
}

impl RowStatistics {
    fn of(numbers: &[f32]) -> RowStatistics {
        let mut min = [f32::INFINITY; LANES];
        let mut max = [f32::NEG_INFINITY; LANES];
        // f32 suffices within a row, since each of sixteen lanes adds some hundred elements. Rows
        // are added in f64.
        let (mut sum, mut squares, mut poison) = ([0.0f32; LANES], [0.0f32; LANES], [0.0f32; LANES]);
        let mut zeros = [0u32; LANES];
        let (chunks, rest) = numbers.as_chunks::<LANES>();
        for x in chunks {
            for i in 0..LANES {
                min[i] = if x[i] < min[i] { x[i] } else { min[i] };
                max[i] = if x[i] > max[i] { x[i] } else { max[i] };
                sum[i] += x[i];
                squares[i] += x[i] * x[i];
                zeros[i] += u32::from(x[i] == 0.0);
                // Infinity and NaN times zero are NaN, and the sum stays NaN. Unlike a test with an
                // exit, this vectorizes.
                poison[i] += x[i] * 0.0;
            }
        }
        for (i, &x) in rest.iter().enumerate() {
            (min[i], max[i]) = (min[i].min(x), max[i].max(x));
            sum[i] += x;
            squares[i] += x * x;
            zeros[i] += u32::from(x == 0.0);
            poison[i] += x * 0.0;
        }
        RowStatistics {
            min: min.into_iter().fold(f32::INFINITY, f32::min),
            max: max.into_iter().fold(f32::NEG_INFINITY, f32::max),
            sum: sum.into_iter().map(f64::from).sum(),
            squares: squares.into_iter().map(f64::from).sum(),
            zeros: zeros.into_iter().map(u64::from).sum(),
            finite: poison.into_iter().sum::<f32>() == 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode, encode};

    /// Rows of `cols` numbers in a format, added one by one.
    fn of(ty: TensorType, rows: &[Vec<f32>]) -> Statistics {
        let mut statistics = Statistics::default();
        for (i, row) in rows.iter().enumerate() {
            let mut bytes = vec![0; ty.row_bytes(row.len()).unwrap()];
            encode(ty, row, &mut bytes).unwrap();
            let mut back = vec![0.0; row.len()];
            decode(ty, &bytes, &mut back).unwrap();
            statistics.add(ty, i as u64, &bytes, &back);
        }
        statistics
    }

    #[test]
    fn statistics_of_plain_numbers_are_exact() {
        // 37 columns: whole lanes and a remainder.
        let rows: Vec<Vec<f32>> =
            (0..5).map(|r| (0..37).map(|c| (r * 37 + c) as f32 - 90.0).collect()).collect();
        let s = of(TensorType::F32, &rows);
        let all: Vec<f64> = rows.iter().flatten().map(|x| f64::from(*x)).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let rms = (all.iter().map(|x| x * x).sum::<f64>() / all.len() as f64).sqrt();
        assert_eq!((s.numbers, s.zeros, s.nan, s.infinite, s.zero_rows), (185, 1, 0, 0, 0));
        assert_eq!((s.min, s.max, s.largest), (-90.0, 94.0, (94.0, 4)));
        assert!((s.mean() - mean).abs() < 1e-9 && (s.rms() - rms).abs() < 1e-4);
        assert_eq!((s.wild_scales(), s.bad_scales(), s.first_bad), (None, 0, None));
    }

    #[test]
    fn nan_and_infinity_are_found_with_their_position() {
        let mut rows = vec![vec![1.0; 40]; 4];
        rows[2][39] = f32::NAN;
        rows[3][1] = f32::NEG_INFINITY;
        let s = of(TensorType::F32, &rows);
        assert_eq!((s.nan, s.infinite, s.first_bad), (1, 1, Some((2, 39))));
        assert_eq!((s.min, s.max, s.finite()), (1.0, 1.0, 158));
        assert_eq!(s.mean(), 1.0);
    }

    #[test]
    fn rows_of_zeros_are_found() {
        let mut rows = vec![vec![0.5; 64]; 6];
        rows[3] = vec![0.0; 64];
        rows[5] = vec![0.0; 64];
        for ty in [TensorType::BF16, TensorType::Q8_0, TensorType::Q4_0] {
            let s = of(ty, &rows);
            assert_eq!((s.zero_rows, s.first_zero_row, s.zeros), (2, Some(3), 128), "{ty}");
        }
    }

    #[test]
    fn wild_scales_are_found_in_every_format_that_can_be_written() {
        for ty in crate::encodable() {
            let mut rows: Vec<Vec<f32>> =
                (0..9).map(|r| (0..256).map(|c| 0.01 * ((r * 256 + c) as f32).sin()).collect()).collect();
            assert_eq!(of(ty, &rows).wild_scales(), None, "{ty}");
            rows[7].iter_mut().for_each(|x| *x *= 400.0);
            let (count, _, row) = of(ty, &rows).wild_scales().unwrap_or_else(|| panic!("{ty}"));
            assert!(count > 0 && row == 7, "{ty}: {count} {row}");
        }
    }

    #[test]
    fn scales_that_are_not_finite_are_found_in_every_block_format() {
        // All bits set: every factor is NaN or the largest of its type.
        for ty in TensorType::all().filter(|ty| ty.is_quantized() && crate::can_decode(*ty)) {
            let bytes = vec![0xff; ty.block_bytes()];
            let mut numbers = vec![0.0; ty.block_len()];
            decode(ty, &bytes, &mut numbers).unwrap();
            let mut s = Statistics::default();
            s.add(ty, 0, &bytes, &numbers);
            let finite = numbers.iter().all(|x| x.is_finite());
            assert!(finite || s.nan + s.infinite > 0, "{ty}");
            assert_eq!(s.bad_scales() > 0, !scale(ty, &bytes).is_finite(), "{ty}");
        }
    }

    #[test]
    fn merged_statistics_equal_those_of_the_whole() {
        let rows: Vec<Vec<f32>> =
            (0..8).map(|r| (0..64).map(|c| ((r * 64 + c) as f32).cos()).collect()).collect();
        let whole = of(TensorType::F32, &rows);
        let mut merged = of(TensorType::F32, &rows[..3]);
        let mut rest = Statistics::default();
        for (i, row) in rows.iter().enumerate().skip(3) {
            rest.add(TensorType::F32, i as u64, &[], row);
        }
        merged.merge(&rest);
        assert_eq!(
            (merged.numbers, merged.min, merged.max, merged.largest),
            (whole.numbers, whole.min, whole.max, whole.largest)
        );
        assert!((merged.mean() - whole.mean()).abs() < 1e-12);
        let mut empty = Statistics::default();
        empty.merge(&whole);
        assert_eq!(empty, whole);
    }
}
