//! F32, F16 and BF16: little-endian elements without blocks.

use half::{bf16, f16};

pub(crate) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (out, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
        *out = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    }
}

pub(crate) fn encode_f32(numbers: &[f32], out: &mut [u8]) {
    for (out, v) in out.chunks_exact_mut(4).zip(numbers) {
        out.copy_from_slice(&v.to_le_bytes());
    }
}

pub(crate) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    for (out, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *out = f16::from_le_bytes([b[0], b[1]]).to_f32();
    }
}

pub(crate) fn encode_f16(numbers: &[f32], out: &mut [u8]) {
    for (out, v) in out.chunks_exact_mut(2).zip(numbers) {
        out.copy_from_slice(&f16::from_f32(*v).to_le_bytes());
    }
}

pub(crate) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    // The shift keeps the payload and the quiet bit of NaN, so decoding is exact for every pattern.
    for (out, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
    }
}

pub(crate) fn encode_bf16(numbers: &[f32], out: &mut [u8]) {
    for (out, v) in out.chunks_exact_mut(2).zip(numbers) {
        out.copy_from_slice(&bf16::from_f32(*v).to_le_bytes());
    }
}
