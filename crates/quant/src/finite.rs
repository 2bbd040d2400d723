//! Checks for NaN, infinities and overflow.

use crate::statistics::scale;
use latent_types::TensorType;

/// How many elements are NaN or infinite; for quantized formats, how many blocks have such a scale or element. 0 for types that are not weights.
/// Ignores an incomplete last block.
pub fn not_finite(ty: TensorType, bytes: &[u8]) -> u64 {
    let count = match ty {
        TensorType::F32 => floats::<4>(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        TensorType::F64 => {
            floats::<8>(bytes, |b| u64::from_le_bytes(b) & 0x7ff0_0000_0000_0000 == 0x7ff0_0000_0000_0000)
        }
        TensorType::F16 => floats::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        TensorType::BF16 => floats::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        // the format has no infinity
        TensorType::F8_E4M3 => floats::<1>(bytes, |b| b[0] & 0x7f == 0x7f),
        ty if ty.is_quantized() && crate::can_decode(ty) => {
            bytes.chunks_exact(ty.block_bytes()).filter(|block| is_bad(ty, block)).count()
        }
        _ => 0,
    };
    count as u64
}

/// Above this, scale · quant may overflow f32.
const LARGE: f32 = 1e35;

/// The index and value of the largest number of the first block that `ty` cannot hold, or `None`. `decoded` has what `numbers` became: the scale
/// of such a block decodes to NaN or infinity, or it was cut off. All numbers of the block are then wrong. Ignores blocks with NaN or infinities.
pub fn overflow(ty: TensorType, numbers: &[f32], decoded: &[f32]) -> Option<(usize, f32)> {
    /// The largest f16. Smaller numbers do not overflow a scale.
    const LIMIT: f32 = 65504.0;
    /// The largest number of a block keeps more than this share in every format, unless its importance is 0.
    const SHARE: f32 = 0.125;
    let largest = |numbers: &[f32]| numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
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
    let (index, number) = numbers.iter().enumerate().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))?;
    Some((at * block + index, *number))
}

fn is_bad(ty: TensorType, block: &[u8]) -> bool {
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

    /// The count agrees with what decoding finds, for every format: blocks of which every byte is the same.
    #[test]
    fn what_decodes_to_no_number_is_counted() {
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
    fn every_bad_number_counts_and_half_a_number_does_not() {
        let numbers = [1.0f32, f32::NAN, f32::NEG_INFINITY, 0.0, f32::MAX];
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        bytes.extend([0xff; 3]);
        assert_eq!(not_finite(TensorType::F32, &bytes), 2);
        assert_eq!(not_finite(TensorType::BF16, &[0x80, 0x7f, 0, 0, 0xc0, 0xff]), 2);
        assert_eq!(not_finite(TensorType::F16, &[0, 0x7c, 0xff, 0x7b]), 1);
    }
}
