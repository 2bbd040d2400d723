//! Input statistics of weights: sums of squares per column, the basis of column importances.

/// Sums over the inputs of one weight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputSquares {
    /// Input rows of each of its matrices (experts, heads).
    pub counts: Vec<u64>,
    /// Per matrix and column, the sum of squares.
    pub sums: Vec<f64>,
}

impl InputSquares {
    /// Creates zero sums for a weight of `matrices` matrices with `columns` columns.
    pub fn new(matrices: usize, columns: usize) -> InputSquares {
        InputSquares { counts: vec![0; matrices], sums: vec![0.0; matrices * columns] }
    }

    /// Adds one input row of the matrix.
    ///
    /// # Panics
    /// When the weight has no such matrix, or a row is longer than its columns.
    pub fn add(&mut self, matrix: usize, row: &[f32]) {
        self.counts[matrix] += 1;
        let columns = self.sums.len() / self.counts.len();
        for (sum, value) in self.sums[matrix * columns..][..row.len()].iter_mut().zip(row) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_count_for_their_matrix() {
        let mut squares = InputSquares::new(2, 3);
        squares.add(1, &[1.0, -2.0, 0.5]);
        squares.add(1, &[1.0, 0.0, 0.5]);
        assert_eq!(squares.counts, [0, 2]);
        assert_eq!(squares.sums, [0.0, 0.0, 0.0, 2.0, 4.0, 0.5]);
    }
}
