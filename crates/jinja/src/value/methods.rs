//! Method names per type.

use super::{SeqKind, Value};

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

/// Methods that modify their receiver, which transformers' sandbox refuses. They are known so that
/// the error can say why. `method_of` slices this list by position.
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

/// Returns the interned method name if the value has this method.
pub(crate) fn method_of(value: &Value, name: &str) -> Option<&'static str> {
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

pub(crate) fn changes_receiver(method: &str) -> bool {
    CHANGING.contains(&method)
}
