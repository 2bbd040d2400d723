//! Checks for NaN, infinities and overflow.

use crate::statistics::scale;
use latent_types::TensorType;

/// Number of NaN and infinite elements. For quantized formats, the number of blocks with such a
/// scale or element. 0 for types that are not weights. Ignores an incomplete last block.
pub fn not_finite(ty: TensorType, bytes: &[u8]) -> u64 {
    let count = match ty {
        // All exponent bits set: infinity or NaN. Integer comparisons vectorize.
        TensorType::F32 => floats::<4>(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        TensorType::F64 => {
            floats::<8>(bytes, |b| u64::from_le_bytes(b) & 0x7ff0_0000_0000_0000 == 0x7ff0_0000_0000_0000)
        }
        TensorType::F16 => floats::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        TensorType::BF16 => floats::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        // The format has no infinity, and one NaN code per sign.
        TensorType::F8_E4M3 => floats::<1>(bytes, |b| b[0] & 0x7f == 0x7f),
        ty if ty.is_quantized() && crate::can_decode(ty) => {
            bytes.chunks_exact(ty.block_bytes()).filter(|block| is_bad(ty, block)).count()
        }
        _ => 0,
    };
    count as u64
}

/// Above this, scale · sub-block scale · quant may overflow f32. Blocks with smaller scales need
/// not be decoded.
const LARGE: f32 = 1e35;

/// The index and value of the largest number of the first block whose scale overflows `ty`, or
/// `None`. `decoded` are the dequantized `numbers`: such a block decodes to NaN or infinities, or
/// to far smaller numbers if its scale was clamped. Ignores blocks with NaN or infinities.
pub fn overflow(ty: TensorType, numbers: &[f32], decoded: &[f32]) -> Option<(usize, f32)> {
    /// The largest f16. A block without larger numbers does not overflow an f16 scale.
    const LIMIT: f32 = 65504.0;
    /// In every format, the largest number of a block decodes to more than this share of itself,
    /// unless its importance is 0.
    const SHARE: f32 = 0.125;
    let largest = |numbers: &[f32]| numbers.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    // The usual case, in one pass.
    if largest(numbers) <= LIMIT {
        return None;
    }
    let block = ty.block_len();
    let blocks = numbers.chunks(block).zip(decoded.chunks(block));
    let (at, (numbers, _)) = blocks.enumerate().find(|(_, (old, new))| {
        old.iter().all(|x| x.is_finite())
            && (new.iter().any(|x| !x.is_finite())
                || (largest(old) > LIMIT && largest(new) < largest(old) * SHARE))
    })?;
    // The largest number determines the scale, so it is the one to report.
    let (index, number) = numbers.iter().enumerate().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))?;
    Some((at * block + index, *number))
}

fn is_bad(ty: TensorType, block: &[u8]) -> bool {
    // Checks the scale first: decoding every block of a file would be many times slower. NaN is not
    // below `LARGE`.
    let scale = scale(ty, block);
    if scale.abs() < LARGE {
        return false;
    }
    let mut numbers = vec![0.0; ty.block_len()];
    !scale.is_finite()
        || crate::decode(ty, block, &mut numbers).is_err()
        || numbers.iter().any(|x| !x.is_finite())
}

fn floats<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool) -> usize {
    bytes.as_chunks::<N>().0.iter().map(|number| usize::from(bad(*number))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every format, the count agrees with decoding: blocks of equal bytes.
    #[test]
    fn blocks_that_decode_to_nan_or_infinity_are_counted() {
        for ty in TensorType::all().filter(|ty| crate::can_decode(*ty)) {
            let block = vec![0xff; ty.block_bytes()];
            let mut numbers = vec![0.0; ty.block_len()];
            crate::decode(ty, &block, &mut numbers).unwrap();
            let bad = numbers.iter().any(|x| !x.is_finite());
            assert_eq!(not_finite(ty, &block) > 0, bad, "{ty}");
            assert_eq!(not_finite(ty, &vec![0; 4 * ty.block_bytes()]), 0, "{ty}");
        }
    }

    #[test]
    fn every_bad_number_counts_and_an_incomplete_one_does_not() {
        let numbers = [1.0f32, f32::NAN, f32::NEG_INFINITY, 0.0, f32::MAX];
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        bytes.extend([0xff; 3]);
        assert_eq!(not_finite(TensorType::F32, &bytes), 2);
        assert_eq!(not_finite(TensorType::BF16, &[0x80, 0x7f, 0, 0, 0xc0, 0xff]), 2);
        assert_eq!(not_finite(TensorType::F16, &[0, 0x7c, 0xff, 0x7b]), 1);
    }
}
