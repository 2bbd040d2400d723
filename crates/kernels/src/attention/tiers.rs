//! Attention compiled for each tier, and the rows of the table that it fills.
#![allow(
    unsafe_code,
    reason = "a function compiled for an instruction set may only run where the processor has it"
)]

use super::{AttendExpandedFn, AttendFn, ExpandKeysFn, KEYS, KeyBlocks, KeyOrder, mla_decode, mla_prefill};
use crate::gemm::{Left, gemm};
use crate::simd::Simd;
use crate::{KernelFn, RowsMut};
use latent_types::{CacheType, OpKind, Tier};

/// As [`ExpandKeysFn`].
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn expand_keys<L: Simd>(
    weights: &[f32],
    order: KeyOrder,
    blocks: &KeyBlocks<'_>,
    keys: &mut [f32],
    _memory: &mut Vec<f32>,
) {
    blocks.check(weights, keys);
    let (nope, latent) = (blocks.nope, blocks.latent);
    let weights = match order {
        KeyOrder::Keys => Left::Rows(weights, latent),
        KeyOrder::Latents => Left::Columns(weights, nope),
    };
    for (block, keys) in keys.chunks_exact_mut(nope * KEYS).enumerate() {
        let latents = &blocks.latents[block * blocks.stride..];
        let mut keys = RowsMut::new(keys, nope, KEYS, KEYS);
        // SAFETY: the caller's promise.
        unsafe { gemm::<L>(latent, weights, (latents, KEYS), &mut keys, false) }
    }
}

/// An [`AttendFn`] from one for heads that attend together: one group of heads after the other.
macro_rules! by_groups {
    ($kernel:expr) => {{
        let kernel: AttendFn = |q, cache, rows, scale, latent, part, memory| {
            for first in (0..q.rows()).step_by(mla_decode::HEADS) {
                let heads = first..(first + mla_decode::HEADS).min(q.rows());
                let (q, part) = (q.slice_rows(heads.clone()), &mut part.heads(heads));
                $kernel(q, cache, rows.clone(), scale, latent, part, memory);
            }
        };
        kernel
    }};
}

/// A function as it is.
macro_rules! as_it_is {
    ($kernel:expr) => {
        $kernel
    };
}

/// One function for each tier from a body that is generic over lanes, made what it is to be by a macro.
macro_rules! shells {
    ($made:ident, $ty:ty, $($body:ident)::+ $(, $split:literal)?; $($arg:ident : $arg_ty:ty),*) => {{
        fn portable($($arg: $arg_ty),*) {
            // SAFETY: plain Rust.
            unsafe { $($body)::+::<crate::simd::portable::Portable $(, $split)?>($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        fn avx2($($arg: $arg_ty),*) {
            crate::isa::isa_fn! { Avx2;
                fn inner($($arg: $arg_ty),*) {
                    // SAFETY: compiled for AVX2.
                    unsafe { $($body)::+::<crate::simd::avx2::Avx2<false> $(, $split)?>($($arg),*) }
                }
            }
            let _proof = <crate::isa::Avx2>::expect();
            // SAFETY: the token proves that the processor has the features that `inner` is compiled for.
            unsafe { inner($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        fn avx512($($arg: $arg_ty),*) {
            crate::isa::isa_fn! { Avx512;
                fn inner($($arg: $arg_ty),*) {
                    // SAFETY: compiled for AVX-512.
                    unsafe { $($body)::+::<crate::simd::avx512::Avx512 $(, $split)?>($($arg),*) }
                }
            }
            let _proof = crate::isa::Avx512::expect();
            // SAFETY: the token proves that the processor has the features that `inner` is compiled for.
            unsafe { inner($($arg),*) }
        }
        [
            (Tier::Portable, $made!(portable) as $ty),
            #[cfg(target_arch = "x86_64")]
            (Tier::Avx2, $made!(avx2) as $ty),
            #[cfg(target_arch = "x86_64")]
            (Tier::Avx512, $made!(avx512) as $ty),
        ]
    }};
}

macro_rules! latent_shells {
    ($split:literal) => {
        shells!(
            by_groups, AttendFn, mla_decode::f32::attend, $split;
            q: crate::Rows<'_>, cache: &super::CacheView<'_>, rows: std::ops::Range<usize>, scale: f32,
            latent: usize, part: &mut super::PartialSoftmax<'_>, memory: &mut Vec<f32>
        )
    };
}

/// Every form of attention.
pub(crate) fn kernels() -> Vec<(OpKind, Tier, KernelFn)> {
    let mut kernels = Vec::new();
    for (tier, kernel) in latent_shells!(false) {
        kernels.push((OpKind::AttendLatent, tier, KernelFn::AttendLatent(kernel)));
    }
    for (tier, kernel) in latent_shells!(true) {
        kernels.push((OpKind::AttendSeparate, tier, KernelFn::AttendSeparate(kernel)));
    }
    let expanded = shells!(
        as_it_is, AttendExpandedFn, mla_prefill::f32::attend;
        q: crate::Rows<'_>, expanded: &super::Expanded<'_>, position: usize, scales: &[f32],
        out: &mut crate::RowsMut<'_>, memory: &mut Vec<f32>
    );
    for (tier, kernel) in expanded {
        kernels.push((OpKind::AttendExpanded, tier, KernelFn::AttendExpanded(kernel)));
    }
    let keys = shells!(
        as_it_is, ExpandKeysFn, expand_keys;
        weights: &[f32], order: super::KeyOrder, blocks: &super::KeyBlocks<'_>, keys: &mut [f32],
        memory: &mut Vec<f32>
    );
    for (tier, kernel) in keys {
        kernels.push((OpKind::ExpandKeys, tier, KernelFn::ExpandKeys(kernel)));
    }
    kernels
}

/// Forms for a cache of codes.
pub(crate) fn int8_kernels() -> impl Iterator<Item = (Tier, KernelFn)> {
    let shells = shells!(
        by_groups, AttendFn, mla_decode::int8::attend;
        q: crate::Rows<'_>, cache: &super::CacheView<'_>, rows: std::ops::Range<usize>, scale: f32,
        latent: usize, part: &mut super::PartialSoftmax<'_>, memory: &mut Vec<f32>
    );
    shells.into_iter().map(|(tier, kernel)| (tier, KernelFn::AttendLatent(kernel)))
}

/// Forms that multiply f16: operation, the cache's type, kernel.
#[cfg(target_arch = "x86_64")]
pub(crate) fn f16_kernels() -> Vec<(OpKind, Option<CacheType>, KernelFn)> {
    let mut kernels = Vec::new();
    for (cache, latent) in [
        (CacheType::F16, by_groups!(mla_decode::f16::attend)),
        (CacheType::Int8, by_groups!(mla_decode::int8_f16::attend)),
    ] {
        let cache = Some(cache);
        kernels.extend([
            (OpKind::AttendLatent, cache, KernelFn::AttendLatent(latent)),
            (OpKind::AttendExpanded, cache, KernelFn::PrefillAttnF16(mla_prefill::f16::attend)),
            (OpKind::ExpandKeys, cache, KernelFn::ExpandKeysF16(mla_prefill::f16::expand_keys)),
        ]);
    }
    kernels
}

/// Forms that multiply f16: none on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn f16_kernels() -> Vec<(OpKind, Option<CacheType>, KernelFn)> {
    Vec::new()
}
