//! Single rows of weights as numbers: the embedding, and weights that are read in another order than they are stored.

use crate::WeightMatrix;

/// Decodes row `id`, of any decodable type and layout; `memory` is scratch.
///
/// # Panics
/// When `id` is not a row, or `out` is not as wide.
pub fn decode_row(w: &WeightMatrix<'_>, id: usize, out: &mut [f32], memory: &mut Vec<u8>) {
    assert_eq!(out.len(), w.cols(), "a row of {} weights", w.ty());
    w.decode(id, 0..w.cols(), out, memory);
}
