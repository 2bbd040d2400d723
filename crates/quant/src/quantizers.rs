//! The unchecked functions behind [`quantize`](crate::quantize), one per format. They are inlined,
//! so that a caller compiles them for its ISA. If lengths disagree, only the whole blocks of the
//! shorter slice are written. An importance must have one value per weight.

macro_rules! quantizers {
    ($($ty:ident $format:ident),*) => {
        $(#[inline(always)]
        pub fn $format(numbers: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
            crate::blocks::encode_blocks(numbers, importance, out, crate::$format::search);
        })*
    };
}

crate::block_formats!(quantizers);
