//! Tests of the shaders on the adapter of the machine. In CI it is Mesa's lavapipe.

mod decode;
mod experts;
pub(crate) mod translate;
mod variants;
mod w4;

/// A linear congruential generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// Numbers between −1 and 1.
    fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next() as f32 / (1u32 << 30) as f32 - 1.0).collect()
    }

    /// Bytes for blocks. f16 at even offsets are finite, because the highest bit of their exponents
    /// is 0; f16 scales of infinity or NaN would hide other errors of a block.
    fn blocks(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|i| (self.next() >> 7) as u8 & if i % 2 == 1 { 0xbf } else { 0xff }).collect()
    }
}
