//! Texts as Python writes them.

mod json;
mod number;
mod print;
mod spec;

pub(crate) use json::{Indent, JsonStyle, to_json};
pub(crate) use number::{parse_float, parse_integer};
pub(crate) use print::Printer;
pub(crate) use spec::{Spec, number_at};
