//! Texts as Python writes them.

mod format;
mod json;
mod number;
mod percent;
mod print;
mod spec;

pub(crate) use format::format;
pub(crate) use json::{Indent, JsonStyle, to_json};
pub(crate) use number::{parse_float, parse_integer};
pub(crate) use percent::percent;
pub(crate) use print::Printer;
