//! Writing models in other types.
//!
//! * [`quantize_row`]: a row of weights in a type, by the instructions of this CPU.
#![deny(unsafe_code)]

mod rows;

pub use rows::quantize_row;
