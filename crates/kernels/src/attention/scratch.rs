//! Scratch memory of a kernel call, divided into buffers.

/// Resizes `memory` and divides it into buffers of the given lengths. Their contents are
/// unspecified: they may be left over from earlier calls.
pub(super) fn resize<const N: usize>(memory: &mut Vec<f32>, lengths: [usize; N]) -> [&mut [f32]; N] {
    memory.resize(lengths.iter().sum(), 0.0);
    cut(memory, lengths)
}

/// Divides memory into buffers of the given lengths.
pub(super) fn cut<const N: usize>(memory: &mut [f32], lengths: [usize; N]) -> [&mut [f32]; N] {
    let mut rest = memory;
    lengths.map(|len| {
        let part;
        (part, rest) = std::mem::take(&mut rest).split_at_mut(len);
        part
    })
}

/// The same memory as 32-bit words.
#[inline(always)]
#[allow(unsafe_code, reason = "a view of the same bits")]
pub(super) fn words(elements: &mut [f32]) -> &mut [u32] {
    // SAFETY: f32 and u32 have the same size and alignment, and every bit pattern is valid for
    // both.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), elements.len()) }
}
