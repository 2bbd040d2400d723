//! Attention over expanded keys and values, one file for each type that they have.

#[cfg(target_arch = "x86_64")]
pub(super) mod f16;
pub(super) mod f32;

pub use self::f32::KEYS;
