//! Dequantization of single weight rows: for the embedding, and for weights that are read in
//! another order than stored.

use crate::WeightMatrix;

/// Dequantizes row `id` of a weight in any decodable format and layout; `memory` is scratch.
///
/// # Panics
/// When `id` is not a row, or `out` is not as long.
pub fn decode_row(w: &WeightMatrix<'_>, id: usize, out: &mut [f32], memory: &mut Vec<u8>) {
    assert_eq!(out.len(), w.cols(), "a row of {} weights", w.ty());
    w.decode(id, 0..w.cols(), out, memory);
}
