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
    // a macro rather than a function that takes the block's: only direct calls are compiled with the tier's instructions
    macro_rules! each {
        ($block:ident, $len:literal, $bytes:literal) => {{
            debug_assert_eq!(($len, $bytes), (ty.block_len(), ty.block_bytes()));
            let groups = scales.chunks_exact_mut($len / GROUP).zip(mins.chunks_exact_mut($len / GROUP));
            let outs = codes.chunks_exact_mut($len).zip(groups);
            for (bytes, (codes, (scales, mins))) in row.chunks_exact($bytes).zip(outs) {
                $block(bytes, codes, scales, mins);
            }
        }};
    }
    match ty {
        TensorType::Q8_0 => each!(q8_0, 32, 34),
        TensorType::Q4_0 => each!(q4_0, 32, 18),
        TensorType::Q4_1 => each!(q4_1, 32, 20),
        TensorType::Q5_0 => each!(q5_0, 32, 22),
        TensorType::Q5_1 => each!(q5_1, 32, 24),
        TensorType::Q4_K => each!(q4_k, 256, 144),
        TensorType::Q5_K => each!(q5_k, 256, 176),
        _ => each!(q6_k, 256, 210),
    }
}

/// The first `N` bytes, which a block is known to have.
#[inline(always)]
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

/// Low halves, then high halves. Through local arrays, which the compiler knows to be apart, so that it vectorises.
#[inline(always)]
fn nibbles<const N: usize>(bytes: &[u8], codes: &mut [i8], offset: i8) {
    let bytes: [u8; N] = first(bytes);
    let (mut low, mut high) = ([0; N], [0; N]);
    for i in 0..N {
        low[i] = (bytes[i] & 15) as i8 - offset;
        high[i] = (bytes[i] >> 4) as i8 - offset;
    }
    codes[..N].copy_from_slice(&low);
    codes[N..2 * N].copy_from_slice(&high);
}

/// Adds 16 to the codes whose bit is set.
#[inline(always)]
fn fifth_bits(bits: &[u8], codes: &mut [i8]) {
    let bits = u32::from_le_bytes(first(bits));
    let mut sums = [0i8; 32];
    sums.copy_from_slice(&codes[..32]);
    for (i, sum) in sums.iter_mut().enumerate() {
        *sum += (((bits >> i) & 1) << 4) as i8;
    }
    codes[..32].copy_from_slice(&sums);
}

#[inline(always)]
fn q8_0(block: &[u8], codes: &mut [i8], scales: &mut [f32], _mins: &mut [f32]) {
    scales.fill(half(block, 0));
    codes.copy_from_slice(&first::<32>(&block[2..]).map(|byte| byte as i8));
}

#[inline(always)]
fn q4_0(block: &[u8], codes: &mut [i8], scales: &mut [f32], _mins: &mut [f32]) {
    scales.fill(half(block, 0));
    nibbles::<16>(&block[2..18], codes, 8);
}

#[inline(always)]
fn q4_1(block: &[u8], codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
    scales.fill(half(block, 0));
    mins.fill(-half(block, 2));
    nibbles::<16>(&block[4..20], codes, 0);
}

#[inline(always)]
fn q5_0(block: &[u8], codes: &mut [i8], scales: &mut [f32], _mins: &mut [f32]) {
    scales.fill(half(block, 0));
    nibbles::<16>(&block[6..22], codes, 16);
    fifth_bits(&block[2..6], codes);
}

#[inline(always)]
fn q5_1(block: &[u8], codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
    scales.fill(half(block, 0));
    mins.fill(-half(block, 2));
    nibbles::<16>(&block[8..24], codes, 0);
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
        nibbles::<32>(bytes, codes, 0);
    }
}

#[inline(always)]
fn q5_k(block: &[u8], codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
    k_groups(block, scales, mins);
    let high: [u8; 32] = first(&block[16..48]);
    for (i, (bytes, codes)) in block[48..].chunks_exact(32).zip(codes.chunks_exact_mut(64)).enumerate() {
        let bytes: [u8; 32] = first(bytes);
        let (mut a, mut b) = ([0; 32], [0; 32]);
        for l in 0..32 {
            a[l] = ((bytes[l] & 15) | (((high[l] >> (2 * i)) & 1) << 4)) as i8;
            b[l] = ((bytes[l] >> 4) | (((high[l] >> (2 * i + 1)) & 1) << 4)) as i8;
        }
        codes[..32].copy_from_slice(&a);
        codes[32..].copy_from_slice(&b);
    }
}

#[inline(always)]
fn q6_k(block: &[u8], codes: &mut [i8], scales: &mut [f32], _mins: &mut [f32]) {
    let d = half(block, 208);
    for (scale, byte) in scales.iter_mut().zip(&block[192..208]) {
        *scale = d * f32::from(*byte as i8);
    }
    for (n, codes) in codes.chunks_exact_mut(128).enumerate() {
        let low: [u8; 64] = first(&block[n * 64..]);
        let high: [u8; 32] = first(&block[128 + n * 32..]);
        let mut out = [[0i8; 32]; 4];
        for l in 0..32 {
            let h = high[l];
            out[0][l] = ((low[l] & 15) | ((h & 3) << 4)) as i8 - 32;
            out[1][l] = ((low[l + 32] & 15) | (((h >> 2) & 3) << 4)) as i8 - 32;
            out[2][l] = ((low[l] >> 4) | (((h >> 4) & 3) << 4)) as i8 - 32;
            out[3][l] = ((low[l + 32] >> 4) | ((h >> 6) << 4)) as i8 - 32;
        }
        for (codes, out) in codes.chunks_exact_mut(32).zip(&out) {
            codes.copy_from_slice(out);
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
