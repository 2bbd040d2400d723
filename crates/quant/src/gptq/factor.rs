//! The triangular factor of a Hessian.

use std::fmt;

/// Part of the mean of the diagonal that is added to the diagonal.
pub const DEFAULT_DAMPING: f64 = 0.01;

/// Rows of the factor that are computed together, so that those below them are read once for all.
const TOGETHER: usize = 32;

/// Lanes of a sum.
const LANES: usize = 8;

/// How a Hessian is prepared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GptqOptions {
    /// Part of the mean of the diagonal that is added to the diagonal: inputs that were never seen then count for something.
    pub damping: f64,
    /// Whether the columns of a group are rounded by descending diagonal.
    pub act_order: bool,
}

impl Default for GptqOptions {
    fn default() -> GptqOptions {
        GptqOptions { damping: DEFAULT_DAMPING, act_order: false }
    }
}

/// A Hessian that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GptqError {
    /// It has another number of values than a lower triangle of these columns.
    Length { columns: usize, values: usize },
    /// A value is NaN or infinite.
    NotFinite { row: usize, column: usize },
    /// It is not positive definite, even with damping.
    NotPositive { column: usize },
}

impl fmt::Display for GptqError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GptqError::Length { columns, values } => {
                write!(
                    f,
                    "a Hessian of {columns} columns is a lower triangle of {:?} values, but {values} were given",
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

/// Values of the lower triangle of a square matrix, row by row; none where they cannot be counted.
pub fn triangle_len(columns: usize) -> Option<usize> {
    columns.checked_add(1)?.checked_mul(columns).map(|twice| twice / 2)
}

/// R of H + λ·1 = R·Rᵀ, upper triangular, by rows; each column divided by its diagonal value.
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
    /// Factors the Hessian whose lower triangle is given row by row. Scales are shared by `group` consecutive columns, which stay together.
    ///
    /// # Errors
    /// A triangle of another length; values that are not finite; a matrix that is not positive definite.
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
        let added = options.damping * if mean > 0.0 { mean } else { 1.0 };
        let at = |a: usize, b: usize| {
            let v = value(order[a] as usize, order[b] as usize);
            if a == b { v + added } else { v }
        };
        let mut rows: Vec<f64> = Vec::with_capacity(triangle.len());
        for row in 0..columns {
            rows.extend((row..columns).map(|column| at(row, column)));
        }
        factor(&mut rows, columns)
            .map_err(|place| GptqError::NotPositive { column: order[place] as usize })?;
        let diagonal: Vec<f64> = (0..columns).map(|row| rows[start_of(row, columns)]).collect();
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

    /// Columns that share scales and keep together.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Bytes that [`new`](Self::new) takes at most, with the Hessian itself.
    pub fn working_bytes(columns: usize) -> u64 {
        // the triangle in f32, R in f64 and the ratios in f32
        (columns as u64).saturating_mul(columns as u64 + 1) / 2 * (4 + 8 + 4)
    }

    /// The column at each position.
    pub(crate) fn order(&self) -> &[u32] {
        &self.order
    }

    /// How much a squared error of each position counts.
    pub(crate) fn costs(&self) -> &[f32] {
        &self.costs
    }

    /// What an error at position `k` adds to the targets of positions from `k` on; 1 for its own.
    pub(crate) fn ratios(&self, k: usize) -> &[f32] {
        &self.ratios[start_of(k, self.columns)..start_of(k + 1, self.columns)]
    }
}

/// Columns by position: within each group by descending diagonal, or as they are.
fn order(columns: usize, group: usize, act_order: bool, diagonal: &dyn Fn(usize) -> f64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..columns as u32).collect();
    if act_order {
        for group in order.chunks_mut(group) {
            group.sort_by(|a, b| diagonal(*b as usize).total_cmp(&diagonal(*a as usize)).then(a.cmp(b)));
        }
    }
    order
}

/// Where row `row` of an upper triangle begins, which is stored row by row.
fn start_of(row: usize, columns: usize) -> usize {
    row * columns - row * row.saturating_sub(1) / 2
}

/// Replaces the upper triangle of a symmetric matrix by R, from its last row up; the place of a diagonal value that is not positive.
fn factor(rows: &mut [f64], columns: usize) -> Result<(), usize> {
    let mut last = columns;
    while last > 0 {
        let first = last.saturating_sub(TOGETHER);
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

/// Σ a·b in lanes side by side.
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
        // Σ x·xᵀ of more rows than columns
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
                // costs have a mean of 1, so that the product is the matrix up to a factor
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
    fn matrices_that_cannot_be_factored_are_named() {
        let options = GptqOptions::default();
        let new = |h: &[f32], columns| HessianFactor::new(h, columns, 1, options).unwrap_err();
        assert_eq!(new(&[1.0, 2.0], 2), GptqError::Length { columns: 2, values: 2 });
        assert_eq!(new(&[], 0), GptqError::Length { columns: 0, values: 0 });
        assert_eq!(new(&[1.0, f32::NAN, 1.0], 2), GptqError::NotFinite { row: 1, column: 0 });
        assert_eq!(new(&[1.0, 5.0, 1.0], 2), GptqError::NotPositive { column: 0 });
        // inputs that are always zero leave a matrix that damping makes regular
        assert!(HessianFactor::new(&[0.0; 6], 3, 1, options).is_ok());
    }
}
