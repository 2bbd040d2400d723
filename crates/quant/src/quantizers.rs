//! The functions behind [`quantize`](crate::quantize), unchecked, one per format: inlined, so that a caller compiles them for its ISA. If lengths disagree, whole
//! blocks of the shorter one are written; an importance must have as many values as there are weights.

macro_rules! quantizers {
    ($($ty:ident $format:ident),*) => {
        $(#[inline(always)]
        pub fn $format(numbers: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
            crate::blocks::encode_blocks(numbers, importance, out, crate::$format::search);
        })*
    };
}

crate::block_formats!(quantizers);
