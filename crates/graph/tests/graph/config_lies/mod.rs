//! Hyper-parameters that lie: each is refused with the file, the key or tensor, the value, and what was expected.

mod any_value;
mod attention;
mod experts;
mod refused;
mod rope;
mod unsupported;
mod whole;
