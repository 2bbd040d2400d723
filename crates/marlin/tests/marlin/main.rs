//! Compares the library with sums in f64, of weights that are decoded from their definitions.
#![forbid(unsafe_code)]
#![allow(missing_docs, clippy::print_stdout, reason = "tests, which say what they skip")]

mod codes;
mod devices;
mod errors;
mod gptq;
mod packing;
mod products;
mod truth;
