//! Weight rows as small integers with scales, for products with 8-bit inputs.

use base::TensorType;
use quant::k_scales;

/// Numbers of a group.
pub const GROUP: usize = 16;

/// Formats whose numbers are integers of at most 8 bits with scales for at least 16 numbers.
pub const FORMATS: [TensorType; 8] = [
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
];

#[inline(always)]
fn half(bytes: &[u8], at: usize) -> f32 {
    crate::widen::f16(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// Whether numbers of a format of [`FORMATS`] have a minimum: number = scale · code − min.
pub fn has_mins(ty: TensorType) -> bool {
    matches!(ty, TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K)
}

/// Decodes one row of a format of [`FORMATS`]: codes, and for each 16 of them a scale and (where the format has it) a minimum.
#[inline(always)]
pub fn unpack(ty: TensorType, row: &[u8], codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
    match ty {
        TensorType::Q8_0 => each(ty, row, codes, scales, mins, q8_0),
        TensorType::Q4_0 => each(ty, row, codes, scales, mins, q4_0),
        TensorType::Q4_1 => each(ty, row, codes, scales, mins, q4_1),
        TensorType::Q5_0 => each(ty, row, codes, scales, mins, q5_0),
        TensorType::Q5_1 => each(ty, row, codes, scales, mins, q5_1),
        TensorType::Q4_K => each(ty, row, codes, scales, mins, q4_k),
        TensorType::Q5_K => each(ty, row, codes, scales, mins, q5_k),
        _ => each(ty, row, codes, scales, mins, q6_k),
    }
}

#[inline(always)]
fn each(
    ty: TensorType,
    row: &[u8],
    codes: &mut [i8],
    scales: &mut [f32],
    mins: &mut [f32],
    block: impl Fn(&[u8], &mut [i8], &mut [f32], &mut [f32]),
) {
    let len = ty.block_len();
    let outs = codes
        .chunks_exact_mut(len)
        .zip(scales.chunks_exact_mut(len / GROUP))
        .zip(mins.chunks_exact_mut(len / GROUP));
    for (bytes, ((codes, scales), mins)) in row.chunks_exact(ty.block_bytes()).zip(outs) {
        block(bytes, codes, scales, mins);
    }
}

#[inline(always)]
fn nibbles(bytes: &[u8], codes: &mut [i8], offset: i8) {
    let n = bytes.len();
    let (low, high) = codes.split_at_mut(n);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = (byte & 15) as i8 - offset;
        *high = (byte >> 4) as i8 - offset;
    }
}

#[inline(always)]
fn fifth_bits(bits: &[u8], codes: &mut [i8]) {
    let bits = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    for (i, code) in codes.iter_mut().enumerate() {
        *code += (((bits >> i) & 1) << 4) as i8;
    }
}

#[inline(always)]
fn q8_0(block: &[u8], codes: &mut [i8], scales: &mut [f32], _mins: &mut [f32]) {
    scales.fill(half(block, 0));
    for (code, byte) in codes.iter_mut().zip(&block[2..]) {
        *code = *byte as i8;
    }
}

#[inline(always)]
fn q4_0(block: &[u8], codes: &mut [i8], scales: &mut [f32], _mins: &mut [f32]) {
    scales.fill(half(block, 0));
    nibbles(&block[2..18], codes, 8);
}

#[inline(always)]
fn q4_1(block: &[u8], codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
    scales.fill(half(block, 0));
    mins.fill(-half(block, 2));
    nibbles(&block[4..20], codes, 0);
}

#[inline(always)]
fn q5_0(block: &[u8], codes: &mut [i8], scales: &mut [f32], _mins: &mut [f32]) {
    scales.fill(half(block, 0));
    nibbles(&block[6..22], codes, 16);
    fifth_bits(&block[2..6], codes);
}

#[inline(always)]
fn q5_1(block: &[u8], codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
    scales.fill(half(block, 0));
    mins.fill(-half(block, 2));
    nibbles(&block[8..24], codes, 0);
    fifth_bits(&block[4..8], codes);
}

/// Scales and minimums of the eight sub-blocks of Q4_K and Q5_K.
#[inline(always)]
fn k_groups(block: &[u8], all_scales: &mut [f32], all_mins: &mut [f32]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let mut packed = [0; 12];
    packed.copy_from_slice(&block[4..16]);
    let (scales, mins) = k_scales::unpack_scales_mins(&packed);
    for i in 0..8 {
        all_scales[2 * i..2 * i + 2].fill(d * f32::from(scales[i]));
        all_mins[2 * i..2 * i + 2].fill(dmin * f32::from(mins[i]));
    }
}

#[inline(always)]
fn q4_k(block: &[u8], codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
    k_groups(block, scales, mins);
    for (bytes, codes) in block[16..].chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
        nibbles(bytes, codes, 0);
    }
}

#[inline(always)]
fn q5_k(block: &[u8], codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
    k_groups(block, scales, mins);
    let high = &block[16..48];
    for (i, (bytes, codes)) in block[48..].chunks_exact(32).zip(codes.chunks_exact_mut(64)).enumerate() {
        nibbles(bytes, codes, 0);
        let (a, b) = codes.split_at_mut(32);
        for ((a, b), h) in a.iter_mut().zip(b).zip(high) {
            *a += (((h >> (2 * i)) & 1) << 4) as i8;
            *b += (((h >> (2 * i + 1)) & 1) << 4) as i8;
        }
    }
}

#[inline(always)]
fn q6_k(block: &[u8], codes: &mut [i8], scales: &mut [f32], _mins: &mut [f32]) {
    let d = half(block, 208);
    for (scale, byte) in scales.iter_mut().zip(&block[192..208]) {
        *scale = d * f32::from(*byte as i8);
    }
    for (n, codes) in codes.chunks_exact_mut(128).enumerate() {
        let (low, high) = (&block[n * 64..n * 64 + 64], &block[128 + n * 32..128 + n * 32 + 32]);
        let (c0, rest) = codes.split_at_mut(32);
        let (c1, rest) = rest.split_at_mut(32);
        let (c2, c3) = rest.split_at_mut(32);
        for l in 0..32 {
            let h = high[l];
            c0[l] = ((low[l] & 15) | ((h & 3) << 4)) as i8 - 32;
            c1[l] = ((low[l + 32] & 15) | (((h >> 2) & 3) << 4)) as i8 - 32;
            c2[l] = ((low[l] >> 4) | (((h >> 4) & 3) << 4)) as i8 - 32;
            c3[l] = ((low[l + 32] >> 4) | ((h >> 6) << 4)) as i8 - 32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_groups_mean_what_decoding_says() {
        for ty in FORMATS {
            let mut state = 7u32;
            let mut row: Vec<u8> = (0..ty.block_bytes() * 3)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            // finite scales: clear the top exponent bit of every half float that may be one
            for block in row.chunks_exact_mut(ty.block_bytes()) {
                for at in [1, 3, 209] {
                    if let Some(byte) = block.get_mut(at) {
                        *byte &= 0x3f;
                    }
                }
            }
            let n = ty.block_len() * 3;
            let (mut codes, mut scales, mut mins) = (vec![0; n], vec![0.0; n / GROUP], vec![0.0; n / GROUP]);
            unpack(ty, &row, &mut codes, &mut scales, &mut mins);
            assert_eq!(has_mins(ty), mins.iter().any(|m| *m != 0.0), "{ty}");
            let mut truth = vec![0.0; n];
            quant::decode(ty, &row, &mut truth).unwrap();
            for i in 0..n {
                let min = mins[i / GROUP];
                let value = scales[i / GROUP] * f32::from(codes[i]) - min;
                assert!(
                    (value - truth[i]).abs() <= 1e-5 * truth[i].abs().max(min.abs()),
                    "{ty} {i}: {value} {}",
                    truth[i]
                );
            }
        }
    }
}
