//! Methods of strings, lists and dictionaries.

mod cases;
mod containers;
mod pieces;
mod string;

pub(crate) use cases::{Side, is_cased, lowered, padded, raised, recased};
pub(crate) use containers::pairs;
pub(crate) use pieces::{ends_with_line_end, lines, replaced, stripped};

use crate::error::{Error, Result};
use crate::eval::{Args, Evaluator};
use crate::value::{SeqKind, Value};

const STRING: [&str; 43] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
];

/// Methods that change their receiver, which transformers' sandbox refuses.
const CHANGING: [&str; 13] = [
    "append",
    "extend",
    "insert",
    "pop",
    "remove",
    "reverse",
    "sort",
    "clear",
    "update",
    "setdefault",
    "popitem",
    "add",
    "discard",
];

/// The method of a name, if a value has it.
pub(crate) fn find(value: &Value, name: &str) -> Option<&'static str> {
    let among = |names: &[&'static str]| names.iter().find(|known| **known == name).copied();
    match value {
        Value::Str(_) => among(&STRING).or_else(|| among(&["zfill"])),
        Value::Dict(_) => among(&["get", "items", "keys", "values", "copy"])
            .or_else(|| among(&CHANGING[7..11]))
            .or_else(|| among(&["pop"])),
        Value::Seq(seq) => match seq.kind {
            SeqKind::List => among(&["index", "count", "copy"]).or_else(|| among(&CHANGING[..8])),
            SeqKind::Tuple | SeqKind::Group | SeqKind::Range => among(&["index", "count"]),
            _ => None,
        },
        Value::Loop(_) => among(&["cycle", "changed"]),
        _ => None,
    }
}

/// Calls a method that [`find`] found.
#[inline(never)]
pub(crate) fn call(
    evaluator: &mut Evaluator<'_>,
    receiver: &Value,
    name: &'static str,
    args: Args,
) -> Result<Value> {
    if CHANGING.contains(&name) {
        let kind = receiver.type_name();
        return Err(Error::unsupported(format!(
            "{kind}.{name} would change the {kind}, which a chat template must not; build a new one with +"
        )));
    }
    match receiver {
        Value::Str(text) => string::call(evaluator, text, name, args),
        other => containers::call(evaluator, other, name, args),
    }
}
