//! Online softmax over blocks of scores: one file per accuracy class.
//!
//! Each keeps a running max and a running sum. A block of scores becomes weights relative to a max,
//! and earlier sums are rescaled when the max grows.

#[cfg(target_arch = "x86_64")]
pub(super) mod bf16;
#[cfg(target_arch = "x86_64")]
pub(super) mod f16;
pub(super) mod f32;
