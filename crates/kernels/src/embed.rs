//! Rows of the embedding.

use crate::WeightMatrix;

/// Decodes the row of token `id`, of any decodable type; `memory` is scratch.
///
/// # Panics
/// When `id` is not a row, or `out` is not as wide.
pub fn embed_row(w: &WeightMatrix<'_>, id: usize, out: &mut [f32], memory: &mut Vec<u8>) {
    assert_eq!(out.len(), w.cols, "a row of the embedding");
    if let Some(decode) = quant::decoder(w.ty) {
        decode(w.row(id, memory), out);
    }
}
