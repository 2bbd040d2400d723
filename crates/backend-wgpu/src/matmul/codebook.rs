//! Codebooks of the IQ formats as words, for a buffer that shaders read: a constant array of that size would be copied into every thread's memory.

use super::layout::{BlockLayout, BlockQuants, GridCodebook};
use latent_quant::grids;

fn words<const W: usize, const N: usize>(rows: &[[i8; W]; N]) -> Vec<u32> {
    let bytes: Vec<u8> = rows.iter().flatten().map(|value| *value as u8).collect();
    bytes.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

/// The codebook of a format, four values per word: rows of two words, of IQ3 one.
pub fn codebook(layout: &BlockLayout) -> Option<Vec<u32>> {
    let BlockQuants::Grid(grid) = layout.quants else { return None };
    Some(match grid {
        GridCodebook::Iq1S | GridCodebook::Iq1M => words(&grids::IQ1),
        GridCodebook::Iq2Xxs => words(&grids::IQ2_XXS),
        GridCodebook::Iq2Xs => words(&grids::IQ2_XS),
        GridCodebook::Iq2S => words(&grids::IQ2_S),
        GridCodebook::Iq3Xxs => words(&grids::IQ3_XXS),
        GridCodebook::Iq3S => words(&grids::IQ3_S),
    })
}
