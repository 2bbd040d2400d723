//! Vectors of 32 elements of bf16.
#![allow(unsafe_code, reason = "loads from addresses that callers keep in bounds")]

use half::bf16;
use std::arch::x86_64::*;

/// A line of a right panel.
///
/// # Safety
/// `from` is the address of a line; the CPU has AVX-512.
#[inline(always)]
pub(super) unsafe fn line(from: *const bf16) -> __m512bh {
    // SAFETY: 32 elements by this function's contract.
    unsafe { as_bf16(_mm512_loadu_si512(from.cast())) }
}

/// The same bits as bf16.
#[inline(always)]
pub(super) fn as_bf16(bits: __m512i) -> __m512bh {
    // SAFETY: both types have 512 bits, and every bit pattern is valid for both.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
}
