//! Products of 8-bit rows with weights in tiles of sixteen rows.
#![allow(
    unsafe_code,
    reason = "vector instructions, and addresses that the shapes checked on entry keep in bounds"
)]

mod ahead;
mod blocks;
mod body;
pub(crate) mod formats;
mod one_row;
mod operands;
mod unpacked;

use super::{MatmulFn, Scratch};
use crate::lanes::portable;
#[cfg(target_arch = "x86_64")]
use crate::lanes::{avx2, avx512};
use crate::{Acts, RowsMut, WeightMatrix};
use base::{TensorType, Tier};
use formats::*;
use std::ops::Range;

/// The products of one format: portable, AVX2, AVX-512 with 8-bit inputs, and the tile unit with inputs of bf16.
macro_rules! format {
    ($format:ident) => {{
        fn portable(
            w: &WeightMatrix<'_>,
            x: &Acts<'_>,
            index: Option<&[u32]>,
            outs: Range<usize>,
            y: &mut RowsMut<'_>,
            scratch: &mut Scratch,
        ) {
            let Acts::A8(x) = x else { return };
            // SAFETY: plain Rust.
            unsafe { body::multiply::<portable::Portable, $format>(w, x, index, outs, y, scratch) }
        }

        #[cfg(target_arch = "x86_64")]
        fn avx2(
            w: &WeightMatrix<'_>,
            x: &Acts<'_>,
            index: Option<&[u32]>,
            outs: Range<usize>,
            y: &mut RowsMut<'_>,
            scratch: &mut Scratch,
        ) {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn inner(
                w: &WeightMatrix<'_>,
                x: &crate::A8Rows<'_>,
                index: Option<&[u32]>,
                outs: Range<usize>,
                y: &mut RowsMut<'_>,
                scratch: &mut Scratch,
            ) {
                // SAFETY: compiled for AVX2.
                unsafe { body::multiply::<avx2::Avx2<false>, $format>(w, x, index, outs, y, scratch) }
            }
            #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
            fn vnni(
                w: &WeightMatrix<'_>,
                x: &crate::A8Rows<'_>,
                index: Option<&[u32]>,
                outs: Range<usize>,
                y: &mut RowsMut<'_>,
                scratch: &mut Scratch,
            ) {
                // SAFETY: compiled for AVX2 and AVX-VNNI.
                unsafe { body::multiply::<avx2::Avx2<true>, $format>(w, x, index, outs, y, scratch) }
            }
            let Acts::A8(x) = x else { return };
            let features = crate::features();
            assert!(features.avx2, "an AVX2 kernel on a machine without it");
            if features.avx_vnni && !super::without_vnni() {
                // SAFETY: the processor has AVX2 and AVX-VNNI, as just checked.
                unsafe { vnni(w, x, index, outs, y, scratch) }
            } else {
                // SAFETY: the processor has AVX2, as just checked.
                unsafe { inner(w, x, index, outs, y, scratch) }
            }
        }

        #[cfg(target_arch = "x86_64")]
        fn avx512(
            w: &WeightMatrix<'_>,
            x: &Acts<'_>,
            index: Option<&[u32]>,
            outs: Range<usize>,
            y: &mut RowsMut<'_>,
            scratch: &mut Scratch,
        ) {
            #[target_feature(
                enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx2,fma,f16c"
            )]
            fn inner(
                w: &WeightMatrix<'_>,
                x: &crate::A8Rows<'_>,
                index: Option<&[u32]>,
                outs: Range<usize>,
                y: &mut RowsMut<'_>,
                scratch: &mut Scratch,
            ) {
                // SAFETY: compiled for AVX-512.
                unsafe { body::multiply::<avx512::Avx512, $format>(w, x, index, outs, y, scratch) }
            }
            let Acts::A8(x) = x else { return };
            assert!(crate::features().avx512, "an AVX-512 kernel on a machine without it");
            // SAFETY: the processor has the features, as just checked.
            unsafe { inner(w, x, index, outs, y, scratch) }
        }

        #[cfg(target_arch = "x86_64")]
        fn amx(
            w: &WeightMatrix<'_>,
            x: &Acts<'_>,
            index: Option<&[u32]>,
            outs: Range<usize>,
            y: &mut RowsMut<'_>,
            scratch: &mut Scratch,
        ) {
            crate::amx::multiply::<$format>(w, x, index, outs, y, &mut scratch.tiles);
        }

        let ty = <$format as Format>::TY;
        [
            (ty, Tier::Portable, portable as MatmulFn),
            #[cfg(target_arch = "x86_64")]
            (ty, Tier::Avx2, avx2 as MatmulFn),
            #[cfg(target_arch = "x86_64")]
            (ty, Tier::Avx512, avx512 as MatmulFn),
            #[cfg(target_arch = "x86_64")]
            (ty, Tier::Amx, amx as MatmulFn),
        ]
    }};
}

/// Every product over tiles.
pub(super) fn kernels() -> Vec<(TensorType, Tier, MatmulFn)> {
    [
        format!(Q4_0),
        format!(Q4_1),
        format!(Q5_0),
        format!(Q5_1),
        format!(Q8_0),
        format!(Q2K),
        format!(Q3K),
        format!(Q4K),
        format!(Q5K),
        format!(Q6K),
        format!(Iq4Nl),
        format!(Iq4Xs),
        format!(Mxfp4),
        format!(Nvfp4),
    ]
    .concat()
}
