//! Blocks in GGUF's layout, from quants with one per byte.

/// Packs quants of four bits: of 32 quants, byte i holds quants i and i + 16.
fn nibbles(quants: &[u8], out: &mut [u8]) {
    let (low, high) = quants.split_at(quants.len() / 2);
    for ((low, high), out) in low.iter().zip(high).zip(out) {
        *out = low & 15 | high << 4;
    }
}

/// Q4_0: quants of 0 to 15 whose zero point is 8.
pub(super) fn q4_0(scale: u16, quants: &[u8; 32], out: &mut [u8]) {
    out[..2].copy_from_slice(&scale.to_le_bytes());
    nibbles(quants, &mut out[2..18]);
}

/// Q5_0, from quants of 0 to 15 with a zero point of 0 to 15.
pub(super) fn q5_0(scale: u16, zero: u8, quants: &[u8; 32], out: &mut [u8]) {
    // Q5_0 subtracts 16 from a quant. The fifth bits of all quants are in a word of their own.
    let moved = quants.map(|quant| quant + 16 - zero);
    let fifth = moved.iter().enumerate().fold(0u32, |bits, (i, quant)| bits | u32::from(quant >> 4) << i);
    out[..2].copy_from_slice(&scale.to_le_bytes());
    out[2..6].copy_from_slice(&fifth.to_le_bytes());
    nibbles(&moved, &mut out[6..22]);
}

/// MXFP4 block: a scale and 32 codes.
pub(super) fn mxfp4(scale: u8, codes: &[u8], out: &mut [u8]) {
    out[0] = scale;
    nibbles(codes, &mut out[1..17]);
}

/// NVFP4 block: four scales and 64 codes, packed in groups of sixteen.
pub(super) fn nvfp4(scales: &[u8], codes: &[u8], out: &mut [u8]) {
    out[..4].copy_from_slice(scales);
    // Each group of sixteen has its own scale, so `nibbles` runs per group, not per block.
    for (codes, out) in codes.chunks_exact(16).zip(out[4..36].chunks_exact_mut(8)) {
        nibbles(codes, out);
    }
}
