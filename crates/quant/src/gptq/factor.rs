//! The triangular factor of a Hessian.

use std::fmt;

/// Fraction of the diagonal's mean that is added to the diagonal, as in the GPTQ paper.
pub const DEFAULT_DAMPING: f64 = 0.01;

/// Rows of the factor per block: the rows below are read once for all of them.
const ROW_BLOCK: usize = 32;

/// Lanes of a sum.
const LANES: usize = 8;

/// Options for factoring a Hessian.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GptqOptions {
    /// Fraction of the diagonal's mean that is added to the diagonal. Without it, inputs that are
    /// always 0 in the calibration text make the matrix singular.
    pub damping: f64,
    /// Whether the columns of a group are rounded by descending diagonal.
    pub act_order: bool,
}

impl Default for GptqOptions {
    fn default() -> GptqOptions {
        GptqOptions { damping: DEFAULT_DAMPING, act_order: false }
    }
}

/// An invalid Hessian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GptqError {
    /// The number of values is not that of a lower triangle of these columns.
    Length { columns: usize, values: usize },
    /// A value is NaN or infinite.
    NotFinite { row: usize, column: usize },
    /// The matrix is not positive definite, even with damping.
    NotPositive { column: usize },
}

impl fmt::Display for GptqError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GptqError::Length { columns, values } => {
                write!(
                    f,
                    "a Hessian of {columns} columns needs {:?} values (a lower triangle), but has {values}",
                    triangle_len(*columns).unwrap_or(usize::MAX)
                )
            }
            GptqError::NotFinite { row, column } => {
                write!(f, "the Hessian has a value at [{row}, {column}] that is NaN or infinite")
            }
            GptqError::NotPositive { column } => {
                write!(f, "the Hessian is not positive definite at column {column}; raise the damping")
            }
        }
    }
}

impl std::error::Error for GptqError {}

/// Number of values of the lower triangle of a square matrix; `None` on overflow.
pub fn triangle_len(columns: usize) -> Option<usize> {
    columns.checked_add(1)?.checked_mul(columns).map(|twice| twice / 2)
}

/// R of H + λ·1 = R·Rᵀ, upper triangular and row-major, with each column divided by its diagonal
/// value.
#[derive(Clone, Debug)]
pub struct HessianFactor {
    columns: usize,
    group: usize,
    /// Column of each position.
    order: Vec<u32>,
    /// Row k: R\[k,i\] / R\[i,i\] for i from k on.
    ratios: Vec<f32>,
    /// R\[i,i\]², with a mean of 1.
    costs: Vec<f32>,
}

impl HessianFactor {
    /// Factors a Hessian given by its row-major lower triangle. Scales are shared by `group`
    /// consecutive columns, which stay adjacent.
    ///
    /// # Errors
    /// When the length does not match, a value is not finite, or the matrix is not positive
    /// definite.
    pub fn new(
        triangle: &[f32],
        columns: usize,
        group: usize,
        options: GptqOptions,
    ) -> Result<HessianFactor, GptqError> {
        if triangle_len(columns) != Some(triangle.len()) || columns == 0 {
            return Err(GptqError::Length { columns, values: triangle.len() });
        }
        let value = |a: usize, b: usize| {
            let (row, column) = (a.max(b), a.min(b));
            f64::from(triangle[row * (row + 1) / 2 + column])
        };
        for row in 0..columns {
            let start = row * (row + 1) / 2;
            if let Some(column) = triangle[start..=start + row].iter().position(|v| !v.is_finite()) {
                return Err(GptqError::NotFinite { row, column });
            }
        }
        let group = group.max(1);
        let order = order(columns, group, options.act_order, &|column| value(column, column));
        let mean = (0..columns).map(|column| value(column, column)).sum::<f64>() / columns as f64;
        // A matrix of zeros becomes a multiple of the identity: rounding to nearest.
        let added = options.damping * if mean > 0.0 { mean } else { 1.0 };
        let at = |a: usize, b: usize| {
            let v = value(order[a] as usize, order[b] as usize);
            if a == b { v + added } else { v }
        };
        // In f64: diagonal values are differences of long sums, which would become negative in f32
        // for nearly dependent inputs.
        let mut rows: Vec<f64> = Vec::with_capacity(triangle.len());
        for row in 0..columns {
            rows.extend((row..columns).map(|column| at(row, column)));
        }
        factor(&mut rows, columns)
            .map_err(|place| GptqError::NotPositive { column: order[place] as usize })?;
        let diagonal: Vec<f64> = (0..columns).map(|row| rows[start_of(row, columns)]).collect();
        // Costs have a mean of 1, so that losses stay in f32's range for Hessians of any magnitude.
        let squares = diagonal.iter().map(|d| d * d).sum::<f64>() / columns as f64;
        let costs = diagonal.iter().map(|d| (d * d / squares) as f32).collect();
        let mut ratios = Vec::with_capacity(rows.len());
        for row in 0..columns {
            let of_row = &rows[start_of(row, columns)..start_of(row + 1, columns)];
            ratios.extend(of_row.iter().zip(&diagonal[row..]).map(|(v, d)| (v / d) as f32));
        }
        Ok(HessianFactor { columns, group, order, ratios, costs })
    }

    /// Columns of the weight.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Columns that share scales and stay adjacent.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Maximum memory of [`new`](Self::new) in bytes, including the Hessian.
    pub fn working_bytes(columns: usize) -> u64 {
        // The triangle in f32, R in f64 and the ratios in f32.
        (columns as u64).saturating_mul(columns as u64 + 1) / 2 * (4 + 8 + 4)
    }

    /// The column at each position.
    pub(crate) fn order(&self) -> &[u32] {
        &self.order
    }

    /// The weight of a squared error at each position.
    pub(crate) fn costs(&self) -> &[f32] {
        &self.costs
    }

    /// Factors by which an error at position `k` is added to the targets of positions from `k` on;
    /// 1 for `k` itself.
    pub(crate) fn ratios(&self, k: usize) -> &[f32] {
        &self.ratios[start_of(k, self.columns)..start_of(k + 1, self.columns)]
    }
}

/// Columns by position: within each group by descending diagonal if `act_order`, else in their own
/// order.
// Only within groups, since the columns of a group share a scale in the file.
fn order(columns: usize, group: usize, act_order: bool, diagonal: &dyn Fn(usize) -> f64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..columns as u32).collect();
    if act_order {
        for group in order.chunks_mut(group) {
            // Ties by column, so that the order is deterministic.
            group.sort_by(|a, b| diagonal(*b as usize).total_cmp(&diagonal(*a as usize)).then(a.cmp(b)));
        }
    }
    order
}

/// Index of the start of row `row` in a row-major upper triangle.
fn start_of(row: usize, columns: usize) -> usize {
    row * columns - row * row.saturating_sub(1) / 2
}

/// Replaces the upper triangle of a symmetric matrix by R with R·Rᵀ equal to it. Returns the
/// position of a diagonal value that is not positive.
// A Cholesky decomposition from the last row up: with R upper triangular, row i needs only the rows
// below it. Blocked: first the columns of finished rows, for `ROW_BLOCK` rows at a time, then the
// triangle of the block itself.
fn factor(rows: &mut [f64], columns: usize) -> Result<(), usize> {
    let mut last = columns;
    while last > 0 {
        let first = last.saturating_sub(ROW_BLOCK);
        let (head, below) = rows.split_at_mut(start_of(last, columns));
        let block = &mut head[start_of(first, columns)..];
        let start = |row: usize| start_of(row, columns) - start_of(first, columns);
        for j in (last..columns).rev() {
            let at = start_of(j, columns) - start_of(last, columns);
            let done = &below[at..at + columns - j];
            for i in first..last {
                let row = &mut block[start(i)..start(i) + columns - i];
                let sum = dot(&row[j + 1 - i..], &done[1..]);
                row[j - i] = (row[j - i] - sum) / done[0];
            }
        }
        for i in (first..last).rev() {
            let (upper, lower) = block.split_at_mut(start(i + 1));
            let row = &mut upper[start(i)..];
            for j in (i + 1..last).rev() {
                let at = start(j) - start(i + 1);
                let done = &lower[at..at + columns - j];
                let sum = dot(&row[j + 1 - i..], &done[1..]);
                row[j - i] = (row[j - i] - sum) / done[0];
            }
            // NaN fails the comparison too.
            let left = row[0] - dot(&row[1..], &row[1..]);
            if !(left > 0.0 && left.is_finite()) {
                return Err(i);
            }
            row[0] = left.sqrt();
        }
        last = first;
    }
    Ok(())
}

/// Σ a·b in eight lanes, in the same order on every ISA.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    let (whole, rest) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f64 = whole.remainder().iter().zip(rest.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in whole.zip(rest) {
        for l in 0..LANES {
            sums[l] += a[l] * b[l];
        }
    }
    sums.iter().sum::<f64>() + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    fn triangle(columns: usize) -> Vec<f32> {
        // Σ x·xᵀ of more rows than columns.
        let rows = columns + 7;
        let x = |r: usize, c: usize| ((r * 31 + c * 17 + r * c * 7) % 23) as f32 / 11.0 - 1.0;
        let mut out = Vec::new();
        for i in 0..columns {
            for j in 0..=i {
                out.push((0..rows).map(|r| x(r, i) * x(r, j)).sum());
            }
        }
        out
    }

    #[test]
    fn the_factor_times_its_transpose_is_the_damped_matrix() {
        for columns in [1, 2, 31, 32, 33, 65, 100] {
            let h = triangle(columns);
            for act_order in [false, true] {
                let options = GptqOptions { damping: 0.05, act_order };
                let factor = HessianFactor::new(&h, columns, 8, options).unwrap();
                let at = |a: usize, b: usize| f64::from(h[a.max(b) * (a.max(b) + 1) / 2 + a.min(b)]);
                let mean = (0..columns).map(|i| at(i, i)).sum::<f64>() / columns as f64;
                // Costs have a mean of 1, so the product is the matrix up to a factor.
                let r = |k: usize, i: usize| {
                    if i < k {
                        0.0
                    } else {
                        f64::from(factor.ratios(k)[i - k]) * f64::from(factor.costs()[i]).sqrt()
                    }
                };
                let product = |a: usize, b: usize| (0..columns).map(|i| r(a, i) * r(b, i)).sum::<f64>();
                let wanted = |a: usize, b: usize| {
                    let (ca, cb) = (factor.order()[a] as usize, factor.order()[b] as usize);
                    at(ca, cb) + if ca == cb { 0.05 * mean } else { 0.0 }
                };
                let scale = wanted(0, 0) / product(0, 0);
                for a in 0..columns {
                    for b in 0..columns {
                        let off = (product(a, b) * scale - wanted(a, b)).abs();
                        assert!(off < 1e-4 * mean, "{columns} {act_order} [{a}, {b}]: {off}");
                    }
                }
                let mut sorted = factor.order().to_vec();
                sorted.sort_unstable();
                assert!(sorted.iter().enumerate().all(|(i, c)| i == *c as usize));
                assert!(factor.order().iter().enumerate().all(|(i, c)| i / 8 == *c as usize / 8));
            }
        }
    }

    #[test]
    fn invalid_matrices_are_reported() {
        let options = GptqOptions::default();
        let new = |h: &[f32], columns| HessianFactor::new(h, columns, 1, options).unwrap_err();
        assert_eq!(new(&[1.0, 2.0], 2), GptqError::Length { columns: 2, values: 2 });
        assert_eq!(new(&[], 0), GptqError::Length { columns: 0, values: 0 });
        assert_eq!(new(&[1.0, f32::NAN, 1.0], 2), GptqError::NotFinite { row: 1, column: 0 });
        assert_eq!(new(&[1.0, 5.0, 1.0], 2), GptqError::NotPositive { column: 0 });
        // Inputs that are always zero give a singular matrix, which damping makes regular.
        assert!(HessianFactor::new(&[0.0; 6], 3, 1, options).is_ok());
    }
}
