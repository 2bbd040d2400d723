//! Inputs of a model: tokens or embeddings.

/// Consecutive input rows of one sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InputRows<'a> {
    /// Token ids, for embedding lookup.
    Tokens(&'a [u32]),
    /// Embedding rows, for example from a vision encoder. They are the input of the first layer,
    /// after the factor that some models apply to embeddings. Equal rows give the same results as
    /// tokens.
    Embeddings {
        /// Rows × width.
        values: &'a [f32],
        /// Elements of a row: the model's hidden size.
        width: usize,
    },
}

/// One row of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InputRow<'a> {
    /// A token id.
    Token(u32),
    Embedding(&'a [f32]),
}

impl<'a> InputRows<'a> {
    /// Number of rows, without an incomplete last one.
    pub fn len(&self) -> usize {
        match self {
            InputRows::Tokens(tokens) => tokens.len(),
            InputRows::Embeddings { values, width } => values.len().checked_div(*width).unwrap_or(0),
        }
    }

    /// Whether the input has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows, in order.
    pub fn iter(&self) -> impl Iterator<Item = InputRow<'a>> + use<'a> {
        // Both cases need one iterator type, so one of the two slices is empty.
        let (tokens, values, width) = match *self {
            InputRows::Tokens(tokens) => (tokens, &[][..], 1),
            // `chunks_exact` panics for a width of 0.
            InputRows::Embeddings { values, width } => (&[][..], values, width.max(1)),
        };
        let tokens = tokens.iter().map(|token| InputRow::Token(*token));
        tokens.chain(values.chunks_exact(width).map(InputRow::Embedding))
    }
}

impl<'a> From<&'a [u32]> for InputRows<'a> {
    fn from(tokens: &'a [u32]) -> InputRows<'a> {
        InputRows::Tokens(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_rows_count() {
        let rows = |values, width| InputRows::Embeddings { values, width };
        assert_eq!((rows(&[1.0; 7], 3).len(), rows(&[1.0; 7], 0).len(), rows(&[], 3).len()), (2, 0, 0));
        assert_eq!(rows(&[1.0, 2.0, 3.0], 2).iter().collect::<Vec<_>>(), [InputRow::Embedding(&[1.0, 2.0])]);
        let tokens = InputRows::from(&[5, 6][..]);
        assert_eq!(tokens.iter().collect::<Vec<_>>(), [InputRow::Token(5), InputRow::Token(6)]);
    }
}
