//! The table of block layouts of weight formats.
//!
//! Shaders decode weights by *octets*: eight consecutive elements of a row, the first at a multiple
//! of eight. The numbers of a layout become named constants of a shader
//! ([`BlockLayout::constants`]). The texts in `wgsl/` are per kind of quants and of scales, so that
//! formats of the same kind share them.

use latent_quant::{e2m1, iq4_nl};
use latent_types::TensorType;

/// Elements per octet.
pub const OCTET: usize = 8;

/// The packing of quants into bits. Element i of a span is in byte i mod width, at bit i / width ·
/// bits, where width is the span's size in bytes. For example, the 32 elements of a Q4_0 block are
/// in sixteen bytes, each with the elements i and i + 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitPlane {
    /// Byte offset in the block.
    pub at: usize,
    /// Bits per element.
    pub bits: usize,
    /// Elements per span.
    pub span: usize,
}

impl BitPlane {
    const fn new(at: usize, bits: usize, span: usize) -> BitPlane {
        BitPlane { at, bits, span }
    }

    /// Bytes of a span.
    pub const fn width(&self) -> usize {
        self.span * self.bits / 8
    }
}

/// The meaning of an integer that is stored in planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantEncoding {
    /// The integer minus a zero point.
    Unsigned { zero: usize },
    /// An i8.
    Signed,
    /// An index into a table.
    Table([i8; 16]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the formats' names")]
pub enum PlainFloat {
    F32,
    F16,
    BF16,
    F8E4M3,
}

/// A codebook of rows of small integers, and the encoding of an octet's row indices, signs and
/// scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the formats' names")]
pub enum GridCodebook {
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
}

/// The storage of a block's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockQuants {
    /// Floats, without blocks.
    Plain(PlainFloat),
    /// Integers. Their upper bits may be in a second plane.
    Planes {
        low: BitPlane,
        /// The upper bits.
        high: Option<BitPlane>,
        meaning: QuantEncoding,
    },
    /// Base-3 digits, five per byte (TQ1_0).
    Ternary,
    /// Rows of a codebook.
    Grid(GridCodebook),
}

/// The storage of an octet's scale and minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OctetScales {
    /// None: plain floats, and codebook formats, which have their own forms of scales.
    None,
    /// One f16 per block.
    Half,
    /// One f16 per block, and an f16 minimum that is added.
    HalfMin,
    /// One f32 per block.
    Single,
    /// One E8M0 exponent per block, for half the scale (the table has doubled values).
    E8m0,
    /// One UE4M3 per sub-block, for half the scale (the table has doubled values).
    Ue4m3,
    /// f16 times 4 bits per sub-block, minus f16 times 4 bits.
    NibbleMins,
    /// f16 times 6 bits per sub-block, minus f16 times 6 bits, packed as in Q4_K.
    SixBitMins,
    /// f16 times 6 bits with the zero point 32 per sub-block, packed as in Q3_K.
    SixBit,
    /// f16 times an i8 per sub-block.
    Bytes,
    /// f16 times 6 bits with the zero point 32 per sub-block, with low and high bits in separate
    /// fields, as in IQ4_XS.
    SplitSixBit,
}

/// The storage of a weight on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockStorage {
    /// The blocks of the file.
    File,
    /// Two planes: all blocks without their scale `d`, each a multiple of four bytes, followed by
    /// the scales of all blocks.
    Planes,
}

/// The block layout of a format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockLayout {
    pub ty: TensorType,
    pub quants: BlockQuants,
    pub scales: OctetScales,
    /// Byte offsets of scales and of the parts of codebook formats, and elements per sub-block, by
    /// the names that shaders use.
    pub fields: &'static [(&'static str, usize)],
}

/// Quants in one plane with a zero point.
const fn plane(low: BitPlane, zero: usize) -> BlockQuants {
    BlockQuants::Planes { low, high: None, meaning: QuantEncoding::Unsigned { zero } }
}

/// Quants whose upper bits are in a second plane.
const fn planes(low: BitPlane, high: BitPlane, zero: usize) -> BlockQuants {
    BlockQuants::Planes { low, high: Some(high), meaning: QuantEncoding::Unsigned { zero } }
}

/// Quants that index a table.
const fn table(low: BitPlane, values: [i8; 16]) -> BlockQuants {
    BlockQuants::Planes { low, high: None, meaning: QuantEncoding::Table(values) }
}

const fn signed(at: usize) -> BlockQuants {
    BlockQuants::Planes { low: BitPlane::new(at, 8, 1), high: None, meaning: QuantEncoding::Signed }
}

/// The table of Q1_0: a set bit is 1, a clear bit is −1.
// One bit indexes only the first two entries.
const SIGNS: [i8; 16] = [-1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

const fn float(ty: TensorType, float: PlainFloat) -> BlockLayout {
    BlockLayout { ty, quants: BlockQuants::Plain(float), scales: OctetScales::None, fields: &[] }
}

const fn grid(ty: TensorType, grid: GridCodebook, fields: &'static [(&'static str, usize)]) -> BlockLayout {
    BlockLayout { ty, quants: BlockQuants::Grid(grid), scales: OctetScales::None, fields }
}

const fn row(
    ty: TensorType,
    quants: BlockQuants,
    scales: OctetScales,
    fields: &'static [(&'static str, usize)],
) -> BlockLayout {
    BlockLayout { ty, quants, scales, fields }
}

/// The formats that shaders can multiply.
pub const LAYOUTS: [BlockLayout; 30] = [
    float(TensorType::F32, PlainFloat::F32),
    float(TensorType::F16, PlainFloat::F16),
    float(TensorType::BF16, PlainFloat::BF16),
    float(TensorType::F8_E4M3, PlainFloat::F8E4M3),
    row(TensorType::Q1_0, table(BitPlane::new(2, 1, 8), SIGNS), OctetScales::Half, &[("D_AT", 0)]),
    // A span of four: the four elements of a byte are consecutive, unlike in other 2-bit formats.
    row(TensorType::Q2_0, plane(BitPlane::new(2, 2, 4), 1), OctetScales::Half, &[("D_AT", 0)]),
    row(TensorType::Q4_0, plane(BitPlane::new(2, 4, 32), 8), OctetScales::Half, &[("D_AT", 0)]),
    row(
        TensorType::Q4_1,
        plane(BitPlane::new(4, 4, 32), 0),
        OctetScales::HalfMin,
        &[("D_AT", 0), ("MIN_AT", 2)],
    ),
    row(
        TensorType::Q5_0,
        planes(BitPlane::new(6, 4, 32), BitPlane::new(2, 1, 8), 16),
        OctetScales::Half,
        &[("D_AT", 0)],
    ),
    row(
        TensorType::Q5_1,
        planes(BitPlane::new(8, 4, 32), BitPlane::new(4, 1, 8), 0),
        OctetScales::HalfMin,
        &[("D_AT", 0), ("MIN_AT", 2)],
    ),
    row(TensorType::Q8_0, signed(2), OctetScales::Half, &[("D_AT", 0)]),
    row(
        TensorType::Q2_K,
        plane(BitPlane::new(16, 2, 128), 0),
        OctetScales::NibbleMins,
        &[("D_AT", 80), ("MIN_AT", 82), ("SCALES_AT", 0), ("SUB_BLOCK", 16)],
    ),
    row(
        TensorType::Q3_K,
        // A clear upper bit subtracts 4, which is the same as a set bit of weight 4 with the zero
        // point 4.
        planes(BitPlane::new(32, 2, 128), BitPlane::new(0, 1, 256), 4),
        OctetScales::SixBit,
        &[("D_AT", 108), ("SCALES_AT", 96), ("SUB_BLOCK", 16)],
    ),
    row(
        TensorType::Q4_K,
        plane(BitPlane::new(16, 4, 64), 0),
        OctetScales::SixBitMins,
        &[("D_AT", 0), ("MIN_AT", 2), ("SCALES_AT", 4), ("SUB_BLOCK", 32)],
    ),
    row(
        TensorType::Q5_K,
        planes(BitPlane::new(48, 4, 64), BitPlane::new(16, 1, 256), 0),
        OctetScales::SixBitMins,
        &[("D_AT", 0), ("MIN_AT", 2), ("SCALES_AT", 4), ("SUB_BLOCK", 32)],
    ),
    row(
        TensorType::Q6_K,
        planes(BitPlane::new(0, 4, 128), BitPlane::new(128, 2, 128), 32),
        OctetScales::Bytes,
        &[("D_AT", 208), ("SCALES_AT", 192), ("SUB_BLOCK", 16)],
    ),
    row(TensorType::Q8_K, signed(4), OctetScales::Single, &[("D_AT", 0)]),
    row(
        TensorType::IQ4_NL,
        table(BitPlane::new(2, 4, 32), iq4_nl::VALUES),
        OctetScales::Half,
        &[("D_AT", 0)],
    ),
    row(
        TensorType::IQ4_XS,
        table(BitPlane::new(8, 4, 32), iq4_nl::VALUES),
        OctetScales::SplitSixBit,
        &[("D_AT", 0), ("UPPER_AT", 2), ("SCALES_AT", 4), ("SUB_BLOCK", 32)],
    ),
    // E2M1 has halves (0.5, 1.5), so the tables of integers have doubled values and the scales are
    // halved.
    row(TensorType::MXFP4, table(BitPlane::new(1, 4, 32), e2m1::DOUBLED), OctetScales::E8m0, &[("D_AT", 0)]),
    row(
        TensorType::NVFP4,
        table(BitPlane::new(4, 4, 16), e2m1::DOUBLED),
        OctetScales::Ue4m3,
        &[("SCALES_AT", 0), ("SUB_BLOCK", 16)],
    ),
    row(TensorType::TQ1_0, BlockQuants::Ternary, OctetScales::Half, &[("D_AT", 52)]),
    row(TensorType::TQ2_0, plane(BitPlane::new(0, 2, 128), 1), OctetScales::Half, &[("D_AT", 64)]),
    grid(TensorType::IQ1_S, GridCodebook::Iq1S, &[("D_AT", 0), ("INDEX_AT", 2), ("UPPER_AT", 34)]),
    // Without `D_AT`: the four words of scales have the f16 scale of the block in their upper four
    // bits each.
    grid(TensorType::IQ1_M, GridCodebook::Iq1M, &[("INDEX_AT", 0), ("UPPER_AT", 32), ("SCALES_AT", 48)]),
    grid(TensorType::IQ2_XXS, GridCodebook::Iq2Xxs, &[("D_AT", 0), ("INDEX_AT", 2)]),
    grid(TensorType::IQ2_XS, GridCodebook::Iq2Xs, &[("D_AT", 0), ("INDEX_AT", 2), ("SCALES_AT", 66)]),
    grid(
        TensorType::IQ2_S,
        GridCodebook::Iq2S,
        &[("D_AT", 0), ("INDEX_AT", 2), ("SIGNS_AT", 34), ("UPPER_AT", 66), ("SCALES_AT", 74)],
    ),
    grid(TensorType::IQ3_XXS, GridCodebook::Iq3Xxs, &[("D_AT", 0), ("INDEX_AT", 2), ("SIGNS_AT", 66)]),
    grid(
        TensorType::IQ3_S,
        GridCodebook::Iq3S,
        &[("D_AT", 0), ("INDEX_AT", 2), ("UPPER_AT", 66), ("SIGNS_AT", 74), ("SCALES_AT", 106)],
    ),
];

/// The layout of a format, if there are shaders for it.
pub fn layout(ty: TensorType) -> Option<&'static BlockLayout> {
    LAYOUTS.iter().find(|layout| layout.ty == ty)
}

impl BlockLayout {
    /// Elements per block, or 8 for plain formats.
    pub fn block_len(&self) -> usize {
        // Shaders count in octets, so that eight elements of a plain format are one block for them.
        self.ty.block_len().max(OCTET)
    }

    pub fn block_bytes(&self) -> usize {
        self.block_len() / self.ty.block_len() * self.ty.block_bytes()
    }

    /// Whether every block begins at a multiple of four bytes, if rows are whole blocks.
    pub fn word_blocks(&self) -> bool {
        self.ty.block_bytes().is_multiple_of(4)
    }

    /// Size and offset in bytes of a block's scale `d`, if the block size is a multiple of four
    /// bytes only without the scale.
    pub fn odd_scale(&self) -> Option<(usize, usize)> {
        let at = self.fields.iter().find(|(name, _)| *name == "D_AT")?.1;
        // Q8_K has an f32 scale, but its blocks of 292 bytes are whole words with it.
        let bytes = if self.scales == OctetScales::E8m0 { 1 } else { 2 };
        // Shaders load whole words: without the scale, every block begins at one.
        (!self.word_blocks()).then_some((bytes, at))
    }

    /// Whether inputs are quantized for this format in default precision.
    pub fn has_integers(&self) -> bool {
        // The formats for which the CPU has tiles, so that both backends round alike. Q8_K is an
        // input format itself. The other excluded formats have fewer than four bits.
        use TensorType::{Q1_0, Q2_0, Q8_K, TQ2_0};
        matches!(self.quants, BlockQuants::Planes { .. }) && ![Q1_0, Q2_0, Q8_K, TQ2_0].contains(&self.ty)
    }

    /// Whether a row may end inside an octet.
    pub fn has_tails(&self) -> bool {
        self.ty.block_len() == 1
    }

    /// Whether weights are scale · quant + minimum. A device may round that once (fma) or twice.
    pub fn adds(&self) -> bool {
        matches!(self.scales, OctetScales::HalfMin | OctetScales::NibbleMins | OctetScales::SixBitMins)
    }

    /// The shader constants of this layout for a storage.
    pub fn constants(&self, storage: BlockStorage) -> Vec<(&'static str, usize)> {
        let all = self.numbers();
        match (storage, self.odd_scale()) {
            (BlockStorage::File, _) | (_, None) => all,
            (BlockStorage::Planes, Some((bytes, at))) => {
                let moved = all.into_iter().filter(|(name, _)| *name != "D_AT").map(|(name, value)| {
                    // Without the scale, blocks are shorter and the fields behind it move forward.
                    let behind = name == "BLOCK_BYTES" || (name.ends_with("_AT") && value > at);
                    (name, if behind { value - bytes } else { value })
                });
                moved.chain([("D_BYTES", bytes)]).collect()
            }
        }
    }

    /// The shader constants for blocks as the file stores them.
    fn numbers(&self) -> Vec<(&'static str, usize)> {
        let mut all = vec![("BLOCK_OCTETS", self.block_len() / OCTET), ("BLOCK_BYTES", self.block_bytes())];
        all.extend(self.fields);
        if let BlockQuants::Planes { low, high, meaning } = self.quants {
            all.extend([("LOW_AT", low.at), ("LOW_BITS", low.bits), ("LOW_SPAN", low.span)]);
            all.push(("LOW_WIDTH", low.width()));
            if let Some(high) = high {
                all.extend([("HIGH_AT", high.at), ("HIGH_BITS", high.bits), ("HIGH_SPAN", high.span)]);
                all.push(("HIGH_WIDTH", high.width()));
            }
            match meaning {
                QuantEncoding::Unsigned { zero } => all.push(("ZERO", zero)),
                QuantEncoding::Signed => {}
                QuantEncoding::Table(values) => {
                    // Sixteen i8 are four words. Constants need no binding, unlike codebooks.
                    const NAMES: [&str; 4] = ["TABLE_0", "TABLE_1", "TABLE_2", "TABLE_3"];
                    for (name, four) in NAMES.into_iter().zip(values.chunks_exact(4)) {
                        let word = u32::from_le_bytes(std::array::from_fn(|i| four[i] as u8));
                        all.push((name, word as usize));
                    }
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_that_can_be_decoded_has_a_layout() {
        let missing: Vec<_> =
            TensorType::all().filter(|ty| latent_quant::can_decode(*ty) && layout(*ty).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn planes_are_whole_octets_inside_of_their_block() {
        for layout in &LAYOUTS {
            let BlockQuants::Planes { low, high, .. } = layout.quants else { continue };
            for plane in [Some(low), high].into_iter().flatten() {
                assert!(
                    plane.at + layout.block_len() * plane.bits / 8 <= layout.block_bytes(),
                    "{}",
                    layout.ty
                );
                let whole = plane.width() >= OCTET || plane.width() == 1;
                assert!(whole && layout.block_len().is_multiple_of(plane.span), "{}", layout.ty);
            }
        }
    }

    #[test]
    fn blocks_without_their_scale_are_whole_words() {
        let mut repacked = 0;
        for layout in LAYOUTS.iter().filter(|layout| layout.ty.is_quantized() && !layout.word_blocks()) {
            let (bytes, at) = layout.odd_scale().expect("a scale");
            assert!((layout.block_bytes() - bytes).is_multiple_of(4), "{}", layout.ty);
            // The first or the last field, so that no field is cut.
            assert!(at == 0 || at + bytes == layout.block_bytes(), "{}", layout.ty);
            repacked += 1;
        }
        assert_eq!(repacked, 17);
    }

    #[test]
    fn inputs_are_quantized_for_the_formats_for_which_the_cpu_does() {
        for layout in LAYOUTS.iter().filter(|layout| layout.ty.is_quantized()) {
            let tiles = latent_quant::tiles::TileLayout::new(layout.ty, 256).is_some();
            assert_eq!(layout.has_integers(), tiles, "{}", layout.ty);
        }
    }

    #[test]
    fn names_are_defined_once() {
        for (layout, storage) in
            LAYOUTS.iter().flat_map(|l| [(l, BlockStorage::File), (l, BlockStorage::Planes)])
        {
            let constants = layout.constants(storage);
            let mut names: Vec<&str> = constants.iter().map(|(name, _)| *name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), constants.len(), "{}", layout.ty);
        }
    }
}
