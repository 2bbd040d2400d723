//! The packed 6-bit scales of K-quants.

/// Unpacks eight 6-bit scales and eight 6-bit mins from twelve bytes, as Q4_K and Q5_K store them.
///
/// Bytes 0–3 hold scales 0–3 and bytes 4–7 mins 0–3, in their low six bits. Bytes 8–11 hold the low
/// four bits of scales 4–7 and, above them, of mins 4–7. The upper two bits of these are the upper
/// two bits of bytes 0–3 and 4–7.
#[inline(always)]
pub fn unpack_scales_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        scales[i] = packed[i] & 63;
        mins[i] = packed[i + 4] & 63;
        scales[i + 4] = (packed[i + 8] & 15) | ((packed[i] >> 6) << 4);
        mins[i + 4] = (packed[i + 8] >> 4) | ((packed[i + 4] >> 6) << 4);
    }
    (scales, mins)
}

/// The inverse of [`unpack_scales_mins`], for values below 64.
pub fn pack_scales_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for i in 0..4 {
        packed[i] = scales[i] | ((scales[i + 4] >> 4) << 6);
        packed[i + 4] = mins[i] | ((mins[i + 4] >> 4) << 6);
        packed[i + 8] = (scales[i + 4] & 15) | ((mins[i + 4] & 15) << 4);
    }
    packed
}

/// Unpacks sixteen 6-bit scales with the zero point 32 from twelve bytes, as Q3_K stores them.
/// Bytes 0–7 hold the low four bits of scales 0–7 and, above them, of scales 8–15. Bytes 8–11 hold
/// the upper two bits of each.
#[inline(always)]
pub fn unpack_q3_scales(packed: &[u8; 12]) -> [i8; 16] {
    let mut scales = [0; 16];
    for (i, scale) in scales.iter_mut().enumerate() {
        let low = if i < 8 { packed[i] & 15 } else { packed[i - 8] >> 4 };
        let high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
        *scale = (low | (high << 4)) as i8 - 32;
    }
    scales
}

/// The inverse of [`unpack_q3_scales`], for scales from −32 to 31.
pub fn pack_q3_scales(scales: &[i8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (i, scale) in scales.iter().enumerate() {
        let bits = (scale + 32) as u8;
        packed[i % 8] |= (bits & 15) << (4 * (i / 8));
        packed[8 + i % 4] |= (bits >> 4) << (2 * (i / 4));
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_and_unpacking_are_inverse() {
        let scales = [1, 63, 16, 15, 47, 0, 33, 62];
        let mins = [0, 5, 63, 32, 31, 48, 17, 9];
        assert_eq!(unpack_scales_mins(&pack_scales_mins(&scales, &mins)), (scales, mins));
        let signed: [i8; 16] = std::array::from_fn(|i| (i * 11 % 63) as i8 - 31);
        assert_eq!(unpack_q3_scales(&pack_q3_scales(&signed)), signed);
    }
}
