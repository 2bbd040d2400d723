//! Seeded random operands. A case has the same operands on every machine.

use latent_types::TensorType;

/// A linear congruential generator with Knuth's MMIX constants.
pub(crate) struct Random(u64);

/// Number of distinct rows of a weight.
// Larger matrices repeat them, because generating all rows would take longer than running the
// kernel.
const DISTINCT_ROWS: usize = 64;

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The low bits of a linear congruential generator have short periods.
        self.0 >> 40
    }

    pub(crate) fn bits(&mut self) -> u32 {
        // `next` has 24 bits, so two overlap to fill 32.
        (self.next() << 16 ^ self.next()) as u32
    }

    /// A value in −1..1.
    pub(crate) fn number(&mut self) -> f32 {
        // 24 bits, which f32 holds exactly.
        self.next() as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn numbers(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.number()).collect()
    }

    /// Random weight rows as stored in a file. Formats without an encoder get random blocks.
    ///
    /// # Panics
    /// If `cols` is not a multiple of the block size, which is a mistake in the table of cases.
    pub(crate) fn weight_rows(&mut self, ty: TensorType, rows: usize, cols: usize) -> Vec<u8> {
        let row_bytes = ty.row_bytes(cols).expect("whole blocks");
        let distinct = rows.min(DISTINCT_ROWS);
        let mut bytes = vec![0; row_bytes * distinct];
        if latent_quant::can_encode(ty) {
            latent_quant::encode(ty, &self.numbers(distinct * cols), &mut bytes)
                .expect("a format with an encoder");
        } else {
            // The f16 scales of these formats are at even offsets. Clearing the top exponent bit
            // keeps them finite and below 2.
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte = self.next() as u8 & if i % 2 == 1 { 0xbf } else { 0xff };
            }
        }
        bytes.iter().copied().cycle().take(row_bytes * rows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_gets_finite_weights_that_differ() {
        for ty in TensorType::all().filter(|ty| latent_quant::can_decode(*ty)) {
            let bytes = Random::new(1).weight_rows(ty, 3, 512);
            let mut numbers = vec![0.0; 3 * 512];
            latent_quant::decode(ty, &bytes, &mut numbers).unwrap();
            assert!(numbers.iter().all(|v| v.is_finite()), "{ty}");
            assert!(numbers[..512] != numbers[512..1024], "{ty}");
            assert!(numbers.iter().any(|v| *v != numbers[0]), "{ty}");
        }
    }
}
