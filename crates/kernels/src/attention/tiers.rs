//! Attention compiled for every ISA.
#![allow(
    unsafe_code,
    reason = "a function compiled for an instruction set may only run where the processor has it"
)]

use super::args::{AttendArgs, AttendExpandedArgs, ExpandArgs, HEADS};
use super::split_kv::PartialSoftmax;
use super::{AttendExpandedFn, AttendFn, ExpandKeysFn, mla_decode, mla_prefill};
use crate::MatrixViewMut;
use latent_types::Tier;

#[cfg(target_arch = "x86_64")]
use half::{bf16, f16};

/// An [`AttendFn`] for any number of heads from one for up to [`HEADS`].
macro_rules! by_groups {
    ($kernel:expr) => {{
        let kernel: AttendFn = |args, part, memory| {
            // Groups of heads read the cached rows again, from L2 if the split is small enough.
            for first in (0..args.q.rows()).step_by(HEADS) {
                let heads = first..(first + HEADS).min(args.q.rows());
                let group = AttendArgs { q: args.q.slice_rows(heads.clone()), ..args.clone() };
                $kernel(&group, &mut part.heads(heads), memory);
            }
        };
        kernel
    }};
}

/// Wraps nothing, for kernels of any number of heads.
macro_rules! unchanged {
    ($kernel:expr) => {
        $kernel
    };
}

/// Compiles a body that is generic over [`Simd`](crate::simd::Simd) for every ISA, and wraps each
/// function by the macro `$wrap`.
macro_rules! for_each_isa {
    ($wrap:ident, $ty:ty, $($body:ident)::+ $(, $parameter:literal)?; $($arg:ident : $arg_ty:ty),*) => {{
        fn portable($($arg: $arg_ty),*) {
            // SAFETY: the portable lanes are plain Rust, which every CPU runs.
            unsafe { $($body)::+::<crate::simd::portable::PortableSimd $(, $parameter)?>($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        fn avx2($($arg: $arg_ty),*) {
            crate::isa::isa_fn! { Avx2;
                fn inner($($arg: $arg_ty),*) {
                    // SAFETY: this function is compiled for AVX2, and the body is inlined into it.
                    unsafe { $($body)::+::<crate::simd::avx2::Avx2<false> $(, $parameter)?>($($arg),*) }
                }
            }
            let _proof = <crate::isa::Avx2>::expect();
            // SAFETY: the token proves that the CPU has the features that `inner` is compiled for.
            unsafe { inner($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        fn avx512($($arg: $arg_ty),*) {
            crate::isa::isa_fn! { Avx512;
                fn inner($($arg: $arg_ty),*) {
                    // SAFETY: this function is compiled for AVX-512, and the body is inlined into
                    // it.
                    unsafe { $($body)::+::<crate::simd::avx512::Avx512 $(, $parameter)?>($($arg),*) }
                }
            }
            let _proof = crate::isa::Avx512::expect();
            // SAFETY: the token proves that the CPU has the features that `inner` is compiled for.
            unsafe { inner($($arg),*) }
        }
        vec![
            (Tier::Portable, $wrap!(portable) as $ty),
            #[cfg(target_arch = "x86_64")]
            (Tier::Avx2, $wrap!(avx2) as $ty),
            #[cfg(target_arch = "x86_64")]
            (Tier::Avx512, $wrap!(avx512) as $ty),
        ]
    }};
}

macro_rules! decode {
    ($($body:tt)*) => {
        for_each_isa!(
            by_groups, AttendFn, $($body)*;
            args: &AttendArgs<'_>, part: &mut PartialSoftmax<'_>, memory: &mut Vec<f32>
        )
    };
}

/// MLA decode in f32, over any cache.
pub(crate) fn decode_f32() -> Vec<(Tier, AttendFn)> {
    decode!(mla_decode::f32::attend, false)
}

/// MLA decode in f32 with separate scores of content and RoPE.
pub(crate) fn decode_separate() -> Vec<(Tier, AttendFn)> {
    decode!(mla_decode::f32::attend, true)
}

/// MLA decode over int8.
pub(crate) fn decode_int8() -> Vec<(Tier, AttendFn)> {
    decode!(mla_decode::int8::attend)
}

pub(crate) fn prefill_f32() -> Vec<(Tier, AttendExpandedFn)> {
    for_each_isa!(
        unchanged, AttendExpandedFn, mla_prefill::f32::attend;
        args: &AttendExpandedArgs<'_>, out: &mut MatrixViewMut<'_>, memory: &mut Vec<f32>
    )
}

/// Expansion of keys in f32.
pub(crate) fn expand_keys_f32() -> Vec<(Tier, ExpandKeysFn)> {
    for_each_isa!(
        unchanged, ExpandKeysFn, mla_prefill::f32::expand_keys;
        args: &ExpandArgs<'_>, keys: &mut [f32], memory: &mut Vec<f32>
    )
}

/// MLA decode over f16 by AVX512-FP16.
#[cfg(target_arch = "x86_64")]
pub(crate) fn decode_f16() -> AttendFn {
    by_groups!(mla_decode::f16::attend)
}

/// MLA decode over int8 by AVX512-FP16.
#[cfg(target_arch = "x86_64")]
pub(crate) fn decode_int8_f16() -> AttendFn {
    by_groups!(mla_decode::int8_f16::attend)
}

/// Prefill and expansion of keys by AVX512-FP16.
#[cfg(target_arch = "x86_64")]
pub(crate) fn prefill_f16() -> (AttendExpandedFn<f16>, ExpandKeysFn<f16>) {
    (mla_prefill::f16::attend, mla_prefill::f16::expand_keys)
}

/// MLA decode by `D`, over the caches that it reads.
#[cfg(target_arch = "x86_64")]
pub(crate) fn decode_bf16<D: crate::bf16::dot::Bf16Dot>() -> AttendFn {
    mla_decode::bf16::attend::<D>
}

/// Prefill and expansion of keys by `D`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn prefill_bf16<D: crate::bf16::dot::Bf16Dot>() -> (AttendExpandedFn<bf16>, ExpandKeysFn<bf16>) {
    (mla_prefill::bf16::attend::<D>, mla_prefill::bf16::expand_keys::<D>)
}
