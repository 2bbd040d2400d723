//! Kernels over their public interface.
#![allow(missing_docs, reason = "tests")]

mod extremes;
mod fp8;
mod fp8_cache;
mod sound;
mod sound_w4;
