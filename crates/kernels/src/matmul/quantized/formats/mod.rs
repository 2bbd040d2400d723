//! Reading quantized formats from tiles.

mod format;
mod k_quants;
mod legacy;
mod lookup;

pub(crate) use format::{PlaneAddresses, QuantFormat, QuantKind, two};
pub(crate) use k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub(crate) use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use lookup::{Iq4Nl, Iq4Xs, Mxfp4, Nvfp4};

#[cfg(test)]
mod tests {
    use super::*;
    use latent_quant::tiles::TileLayout;

    /// Prefetching covers exactly the bytes of a tile.
    #[test]
    fn blocks_of_tiles_are_as_long_as_formats_say() {
        macro_rules! check {
            ($($format:ident)*) => {
                $({
                    let blocks = 8;
                    let layout = TileLayout::new($format::TY, blocks * 32 * $format::SUB_BLOCKS).expect("a format with tiles");
                    assert_eq!(layout.blocks(), blocks);
                    let bytes = $format::QUANT_VECTORS * 64 + $format::REST_BYTES;
                    assert_eq!(layout.tile_bytes(), blocks * bytes, "{}", $format::TY);
                })*
            };
        }
        check!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4 Nvfp4);
    }
}
