//! Random numbers that are the same on every machine: PCG XSH-RR 64/32 (O'Neill 2014).

pub(crate) struct Random {
    state: u64,
}

// The constants of the reference implementation.
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const INCREMENT: u64 = 1_442_695_040_888_963_407;

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        let mut random = Random { state: seed.wrapping_add(INCREMENT) };
        // As `pcg32_srandom` of the reference implementation does.
        random.next();
        random
    }

    fn next(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let mixed = (((old >> 18) ^ old) >> 27) as u32;
        mixed.rotate_right((old >> 59) as u32)
    }

    /// A number in [0, 1) with 53 random bits.
    pub(crate) fn unit(&mut self) -> f64 {
        // The mantissa of an f64 has 53 bits. With more, rounding could give 1.
        let bits = (u64::from(self.next()) << 32) | u64::from(self.next());
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }
}
