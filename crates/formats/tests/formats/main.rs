//! Tests of model files through the public API.
#![allow(missing_docs, reason = "tests")]

mod folders;
mod four_bit;
mod fp8;
mod gguf_files;
mod gguf_malformed;
mod mutations;
mod outlines;
#[cfg(unix)]
mod output_files;
mod packed;
mod parts;
mod rank_files;
#[path = "../support/mod.rs"]
mod support;
