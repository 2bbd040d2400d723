//! Python's text forms of values: `str`, `repr`, `json.dumps` and format specs.

mod json;
mod number;
mod print;
mod spec;

pub(crate) use json::{Indent, JsonStyle, to_json};
pub(crate) use number::{parse_float, parse_integer};
pub(crate) use print::{ValuePrinter, hex_escape};
pub(crate) use spec::{FormatSpec, number_at};
