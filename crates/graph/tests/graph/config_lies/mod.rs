//! Wrong hyper-parameters. Each is refused with the file, the key or tensor, the value, and the
//! expected value.

mod any_value;
mod attention;
mod experts;
mod refused;
mod rope;
mod unsupported;
mod whole;
