//! Weight rows as small integers with scales, for products with 8-bit inputs.

use base::TensorType;
use quant::k_scales;

/// Scale and minimum of 16 numbers: number = scale · code − min.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Group {
    /// Factor on the codes.
    pub scale: f32,
    /// Subtracted afterwards.
    pub min: f32,
}

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
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Decodes one row of a format of [`FORMATS`].
#[inline(always)]
pub fn unpack(ty: TensorType, row: &[u8], codes: &mut [i8], groups: &mut [Group]) {
    let len = ty.block_len();
    let blocks = row.chunks_exact(ty.block_bytes());
    for ((block, codes), groups) in
        blocks.zip(codes.chunks_exact_mut(len)).zip(groups.chunks_exact_mut(len / GROUP))
    {
        match ty {
            TensorType::Q8_0 => q8_0(block, codes, groups),
            TensorType::Q4_0 => q4_0(block, codes, groups),
            TensorType::Q4_1 => q4_1(block, codes, groups),
            TensorType::Q5_0 => q5_0(block, codes, groups),
            TensorType::Q5_1 => q5_1(block, codes, groups),
            TensorType::Q4_K => q4_k(block, codes, groups),
            TensorType::Q5_K => q5_k(block, codes, groups),
            _ => q6_k(block, codes, groups),
        }
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
fn q8_0(block: &[u8], codes: &mut [i8], groups: &mut [Group]) {
    groups.fill(Group { scale: half(block, 0), min: 0.0 });
    for (code, byte) in codes.iter_mut().zip(&block[2..]) {
        *code = *byte as i8;
    }
}

#[inline(always)]
fn q4_0(block: &[u8], codes: &mut [i8], groups: &mut [Group]) {
    groups.fill(Group { scale: half(block, 0), min: 0.0 });
    nibbles(&block[2..18], codes, 8);
}

#[inline(always)]
fn q4_1(block: &[u8], codes: &mut [i8], groups: &mut [Group]) {
    groups.fill(Group { scale: half(block, 0), min: -half(block, 2) });
    nibbles(&block[4..20], codes, 0);
}

#[inline(always)]
fn q5_0(block: &[u8], codes: &mut [i8], groups: &mut [Group]) {
    groups.fill(Group { scale: half(block, 0), min: 0.0 });
    nibbles(&block[6..22], codes, 16);
    fifth_bits(&block[2..6], codes);
}

#[inline(always)]
fn q5_1(block: &[u8], codes: &mut [i8], groups: &mut [Group]) {
    groups.fill(Group { scale: half(block, 0), min: -half(block, 2) });
    nibbles(&block[8..24], codes, 0);
    fifth_bits(&block[4..8], codes);
}

/// Scales and minimums of the eight sub-blocks of Q4_K and Q5_K.
#[inline(always)]
fn k_groups(block: &[u8], groups: &mut [Group]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let mut packed = [0; 12];
    packed.copy_from_slice(&block[4..16]);
    let (scales, mins) = k_scales::unpack_scales_mins(&packed);
    for (i, pair) in groups.chunks_exact_mut(2).enumerate() {
        pair.fill(Group { scale: d * f32::from(scales[i]), min: dmin * f32::from(mins[i]) });
    }
}

#[inline(always)]
fn q4_k(block: &[u8], codes: &mut [i8], groups: &mut [Group]) {
    k_groups(block, groups);
    for (bytes, codes) in block[16..].chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
        nibbles(bytes, codes, 0);
    }
}

#[inline(always)]
fn q5_k(block: &[u8], codes: &mut [i8], groups: &mut [Group]) {
    k_groups(block, groups);
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
fn q6_k(block: &[u8], codes: &mut [i8], groups: &mut [Group]) {
    let d = half(block, 208);
    for (group, scale) in groups.iter_mut().zip(&block[192..208]) {
        *group = Group { scale: d * f32::from(*scale as i8), min: 0.0 };
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
            let (mut codes, mut groups) = (vec![0; n], vec![Group::default(); n / GROUP]);
            unpack(ty, &row, &mut codes, &mut groups);
            let mut truth = vec![0.0; n];
            quant::decode(ty, &row, &mut truth).unwrap();
            for i in 0..n {
                let group = groups[i / GROUP];
                let value = group.scale * f32::from(codes[i]) - group.min;
                assert!(
                    (value - truth[i]).abs() <= 1e-5 * truth[i].abs().max(group.min.abs()),
                    "{ty} {i}: {value} {}",
                    truth[i]
                );
            }
        }
    }
}
