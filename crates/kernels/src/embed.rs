//! Rows of the embedding.

use crate::WeightRows;

/// Decodes the row of token `id`, of any decodable type.
///
/// # Panics
/// When `id` is not a row, or `out` is not as wide.
pub fn embed_row(w: &WeightRows<'_>, id: usize, out: &mut [f32]) {
    assert_eq!(out.len(), w.cols, "a row of the embedding");
    if let Some(decode) = quant::decoder(w.ty) {
        decode(w.row(id), out);
    }
}
