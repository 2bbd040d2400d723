//! Methods of strings, lists and dictionaries.

mod cases;
mod containers;
mod format;
mod pieces;
mod string;

pub(crate) use cases::{PaddingSide, is_cased, lowered, padded, raised, recased};
pub(crate) use containers::pairs;
pub(crate) use pieces::{ends_with_line_end, lines, replaced, stripped};

use crate::error::{Error, Result};
use crate::runtime::{Args, Runtime};
use crate::value::{Value, changes_receiver};

/// Calls a method that [`method_of`](crate::value::method_of) found.
#[inline(never)]
pub(crate) fn call(
    runtime: &mut Runtime<'_>,
    receiver: &Value,
    name: &'static str,
    args: Args,
) -> Result<Value> {
    if changes_receiver(name) {
        let kind = receiver.type_name();
        return Err(Error::unsupported(format!(
            "{kind}.{name} would change the {kind}, which a chat template must not; build a new one with +"
        )));
    }
    match receiver {
        Value::Str(text) => string::call(runtime, text, name, args),
        other => containers::call(runtime, other, name, args),
    }
}
