//! Kernels compiled for each ISA.
#![allow(unsafe_code, reason = "the token of an ISA proves its instructions")]

use super::input::W4Form;
use super::matmul::{W4Args, W4Buffers, W4MatmulFn, multiply};
use super::nibbles::Nibbles;
use super::part::W4ColumnBlock;
use super::table::{W4DequantFn, W4Entry, W4Fn, W4Kernel};
use super::{dequant, fused, gemm, integers};
use crate::MatrixViewMut;
use latent_types::{ActivationType, Tier};
use std::ops::Range;
use std::sync::OnceLock;

/// Maximum number of rows for which a striped unit decodes in registers.
const FEW_ROWS: usize = 4;

/// # Safety
/// As for [`fused::fused`].
#[inline(always)]
unsafe fn fused_part<L: Nibbles>(
    part: &W4ColumnBlock<'_>,
    args: &W4Args<'_, '_>,
    y: &mut MatrixViewMut<'_>,
    buffers: &mut W4Buffers,
) {
    // SAFETY: the contract is the same.
    unsafe {
        fused::fused::<L>(part, &args.input.float_rows(&args.rows), args.k.clone(), y, &mut buffers.floats)
    }
}

/// # Safety
/// As for [`integers::fused`].
#[inline(always)]
unsafe fn integer_part<L: Nibbles, const P: usize>(
    part: &W4ColumnBlock<'_>,
    args: &W4Args<'_, '_>,
    y: &mut MatrixViewMut<'_>,
    buffers: &mut W4Buffers,
) {
    let share = (args.rows.clone(), args.k.clone());
    // SAFETY: the contract is the same.
    unsafe { integers::fused::<L, P>(part, args.input, share, y, &mut buffers.floats) }
}

/// # Safety
/// As for [`gemm::strips`].
#[inline(always)]
unsafe fn gemm_part<L: Nibbles>(
    part: &W4ColumnBlock<'_>,
    args: &W4Args<'_, '_>,
    y: &mut MatrixViewMut<'_>,
    buffers: &mut W4Buffers,
) {
    // SAFETY: the contract is the same.
    unsafe {
        gemm::strips::<L>(part, &args.input.float_rows(&args.rows), args.k.clone(), y, &mut buffers.floats)
    }
}

/// Defines a function that calls a body compiled for an ISA, and panics if the CPU lacks it.
/// Without an ISA, the body is compiled for the baseline.
macro_rules! compiled {
    (fn $name:ident = $body:expr, ($($arg:ident : $ty:ty),*), $isa:ident) => {
        pub(super) fn $name($($arg: $ty),*) {
            crate::isa::isa_fn! { $isa;
                fn inner($($arg: $ty),*) {
                    // SAFETY: this function is compiled for the ISA, and its caller holds the ISA's
                    // token. Callers have checked the inputs of the part.
                    unsafe { $body($($arg),*) }
                }
            }
            let _proof = <crate::isa::$isa>::expect();
            // SAFETY: the token proves that the CPU has the features that `inner` is compiled for.
            unsafe { inner($($arg),*) }
        }
    };
    (fn $name:ident = $body:expr, ($($arg:ident : $ty:ty),*),) => {
        pub(super) fn $name($($arg: $ty),*) {
            // SAFETY: the baseline needs no instructions beyond those that this crate is compiled
            // for. Callers have checked the inputs of the part.
            unsafe { $body($($arg),*) }
        }
    };
}

/// The kernels of an ISA on f32 inputs: a module with a function `rows` that lists them.
macro_rules! floats {
    ($module:ident, $simd:ty, $($isa:ident)?) => {
        mod $module {
            use super::*;

            compiled!(
                fn fused = fused_part::<$simd>,
                (part: &W4ColumnBlock<'_>, args: &W4Args<'_, '_>, y: &mut MatrixViewMut<'_>, buffers: &mut W4Buffers),
                $($isa)?
            );
            compiled!(
                fn int16 = integer_part::<$simd, 2>,
                (part: &W4ColumnBlock<'_>, args: &W4Args<'_, '_>, y: &mut MatrixViewMut<'_>, buffers: &mut W4Buffers),
                $($isa)?
            );
            compiled!(
                fn int8 = integer_part::<$simd, 1>,
                (part: &W4ColumnBlock<'_>, args: &W4Args<'_, '_>, y: &mut MatrixViewMut<'_>, buffers: &mut W4Buffers),
                $($isa)?
            );
            compiled!(
                fn gemm = gemm_part::<$simd>,
                (part: &W4ColumnBlock<'_>, args: &W4Args<'_, '_>, y: &mut MatrixViewMut<'_>, buffers: &mut W4Buffers),
                $($isa)?
            );
            compiled!(
                fn decode = dequant::decode_rows::<$simd>,
                (part: &W4ColumnBlock<'_>, k: Range<usize>, out: &mut MatrixViewMut<'_>),
                $($isa)?
            );

            pub(super) fn rows(tier: Tier) -> Vec<W4Kernel> {
                let gemm: W4MatmulFn = |args, y, scratch| multiply(args, y, scratch, gemm);
                let fused: W4MatmulFn = |args, y, scratch| multiply(args, y, scratch, fused);
                let striped: W4MatmulFn = |args, y, scratch| {
                    multiply(args, y, scratch, if args.rows.len() <= FEW_ROWS { self::fused } else { self::gemm });
                };
                let int16: W4MatmulFn = |args, y, scratch| multiply(args, y, scratch, int16);
                let int8: W4MatmulFn = |args, y, scratch| multiply(args, y, scratch, int8);
                let decode: W4DequantFn = |of, out, scratch| dequant::dequantize(of, out, scratch, decode);
                let row = |entry, function| kernel(entry, tier, W4Form::F32, function);
                vec![
                    kernel(W4Entry::Fused, tier, W4Form::Int16, W4Fn::Matmul(int16)),
                    kernel(W4Entry::Striped, tier, W4Form::Int16, W4Fn::Matmul(int16)),
                    kernel(W4Entry::Gemm, tier, W4Form::Int16, W4Fn::Matmul(int16)),
                    kernel(W4Entry::Gemm, tier, W4Form::Int8, W4Fn::Matmul(int8)),
                    kernel(W4Entry::Fused, tier, W4Form::Int8, W4Fn::Matmul(int8)),
                    kernel(W4Entry::Striped, tier, W4Form::Int8, W4Fn::Matmul(int8)),
                    row(W4Entry::Gemm, W4Fn::Matmul(gemm)),
                    row(W4Entry::Fused, W4Fn::Matmul(fused)),
                    row(W4Entry::Striped, W4Fn::Matmul(striped)),
                    row(W4Entry::Dequant, W4Fn::Dequant(decode)),
                    row(W4Entry::Reduce, W4Fn::Plain),
                    row(W4Entry::Zero, W4Fn::Plain),
                ]
            }
        }
    };
}
floats!(portable, crate::simd::portable::PortableSimd,);
#[cfg(target_arch = "x86_64")]
floats!(avx2, crate::simd::avx2::Avx2<false>, Avx2);
#[cfg(target_arch = "x86_64")]
floats!(avx512, crate::simd::avx512::Avx512, Avx512);

/// A row of the table.
fn kernel(entry: W4Entry, tier: Tier, form: W4Form, function: W4Fn) -> W4Kernel {
    let (activation, by) = match form {
        W4Form::F32 => (ActivationType::F32, ""),
        W4Form::Int16 => (ActivationType::F32, "_by_int16"),
        W4Form::Int8 => (ActivationType::A8, ""),
        W4Form::Pairs | W4Form::TileRows => (ActivationType::Bf16, ""),
    };
    // Reductions and decoding have no input rows, so their names have no type.
    let ty = match entry {
        W4Entry::Reduce | W4Entry::Zero | W4Entry::Dequant => String::new(),
        _ => format!("_{}{by}", activation.name()),
    };
    let name = format!("{tier}_w4_{}{ty}", entry.name()).leak();
    W4Kernel { name, entry, tier, activation, form, whole_words: form != W4Form::F32, function }
}

/// Products of bf16 pairs.
#[cfg(target_arch = "x86_64")]
fn pairs() -> Vec<W4Kernel> {
    fn strips(
        part: &W4ColumnBlock<'_>,
        args: &W4Args<'_, '_>,
        y: &mut MatrixViewMut<'_>,
        buffers: &mut W4Buffers,
    ) {
        let _proof = crate::isa::Avx512Bf16::expect();
        let (share, memory) =
            ((args.rows.clone(), args.k.clone()), (&mut buffers.words, &mut buffers.floats));
        // SAFETY: the token proves AVX512-BF16, and callers have checked the inputs.
        unsafe { super::pairs::strips(part, args.input, share, y, memory) }
    }

    if crate::isa::Avx512Bf16::detect().is_none() {
        return Vec::new();
    }
    let gemm: W4MatmulFn = |args, y, scratch| multiply(args, y, scratch, strips);
    let row = |entry| kernel(entry, Tier::Avx512, W4Form::Pairs, W4Fn::Matmul(gemm));
    vec![row(W4Entry::Gemm), row(W4Entry::Striped)]
}

/// Products in AMX tiles.
#[cfg(target_arch = "x86_64")]
fn tiles() -> [W4Kernel; 2] {
    fn strips(
        part: &W4ColumnBlock<'_>,
        args: &W4Args<'_, '_>,
        y: &mut MatrixViewMut<'_>,
        buffers: &mut W4Buffers,
    ) {
        let _proof = crate::isa::Avx512Bf16::expect();
        let (share, memory) =
            ((args.rows.clone(), args.k.clone()), (&mut buffers.words, &mut buffers.floats));
        // SAFETY: the token proves AVX512-BF16, and callers have checked the inputs.
        unsafe { super::tiles::strips(part, args.input, share, y, memory) }
    }

    let gemm: W4MatmulFn = |args, y, scratch| multiply(args, y, scratch, strips);
    let row = |entry| kernel(entry, Tier::Amx, W4Form::TileRows, W4Fn::Matmul(gemm));
    [row(W4Entry::Gemm), row(W4Entry::Striped)]
}

/// All kernels, beginning with the lowest ISA.
fn kernels() -> Vec<W4Kernel> {
    let mut kernels = portable::rows(Tier::Portable);
    #[cfg(target_arch = "x86_64")]
    {
        kernels.extend(avx2::rows(Tier::Avx2));
        kernels.extend(pairs());
        kernels.extend(avx512::rows(Tier::Avx512));
        kernels.extend(tiles());
    }
    kernels
}

/// Every kernel for 4-bit weights. Kernels that need features beyond their tier (bf16 arithmetic)
/// are listed only if the CPU has them, and before the other kernels of their tier.
pub fn w4_table() -> &'static [W4Kernel] {
    static TABLE: OnceLock<Vec<W4Kernel>> = OnceLock::new();
    TABLE.get_or_init(kernels)
}
