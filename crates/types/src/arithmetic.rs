//! Arithmetic of multiplications and additions.

/// The arithmetic of a kernel. It selects the peak rate of the device that the kernel is compared
/// with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Integers of 8 bits.
    Int8,
    F32,
    /// f16, with sums in f16 or f32.
    F16,
    /// bf16, in AMX tiles or vectors, with sums in f32.
    Bf16,
}

impl Arithmetic {
    pub const ALL: [Arithmetic; 4] = [Arithmetic::Int8, Arithmetic::F32, Arithmetic::F16, Arithmetic::Bf16];
}
