//! Input statistics of weights: sums of squares per column, the basis of column importances.

/// Sums over the inputs of one weight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputSquares {
    /// Number of input rows per matrix (expert, head).
    pub counts: Vec<u64>,
    /// Sum of squares per matrix and column.
    // In f64: millions of small squares would be lost in an f32 sum.
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
    /// If the weight has no such matrix, or the row has more elements than columns.
    pub fn add(&mut self, matrix: usize, row: &[f32]) {
        self.counts[matrix] += 1;
        let columns = self.sums.len() / self.counts.len();
        for (sum, value) in self.sums[matrix * columns..][..row.len()].iter_mut().zip(row) {
            // The square of an f32 is exact in f64.
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_added_to_their_matrix() {
        let mut squares = InputSquares::new(2, 3);
        squares.add(1, &[1.0, -2.0, 0.5]);
        squares.add(1, &[1.0, 0.0, 0.5]);
        assert_eq!(squares.counts, [0, 2]);
        assert_eq!(squares.sums, [0.0, 0.0, 0.0, 2.0, 4.0, 0.5]);
    }
}
