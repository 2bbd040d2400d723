//! Encoding and decoding over the public interface.
#![allow(missing_docs, reason = "tests")]

mod golden;
mod gptq;
mod properties;
mod quantize;
