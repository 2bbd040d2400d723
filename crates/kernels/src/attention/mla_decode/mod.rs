//! Attention in latent space: the absorbed form of MLA, one file for each type of the cache and its arithmetic.

#[cfg(target_arch = "x86_64")]
pub(super) mod f16;
pub(super) mod f32;
pub(super) mod int8;
#[cfg(target_arch = "x86_64")]
pub(super) mod int8_f16;

pub(crate) use self::f32::{HEADS, check_shapes};
