//! List and dictionary methods.

use crate::error::{Error, Result};
use crate::runtime::{Args, Runtime};
use crate::value::{Dict, SeqBuilder, SeqKind, Value, equal};

pub(super) fn call(
    runtime: &mut Runtime<'_>,
    receiver: &Value,
    name: &'static str,
    args: Args,
) -> Result<Value> {
    match (receiver, name) {
        (Value::Dict(dict), "get") => {
            let [key, default] = args.bind("get", ["key", "default"])?;
            let key = key.ok_or_else(|| Error::value("get needs a key"))?;
            // `get` never returns undefined: templates print None for a missing key, like Python.
            Ok(dict.get(&runtime.meter, &key)?.cloned().or(default).unwrap_or(Value::None))
        }
        (Value::Dict(dict), "items") => {
            let [] = args.bind("items", [])?;
            pairs(runtime, dict, SeqKind::Pairs)
        }
        (Value::Dict(dict), "keys" | "values") => {
            let [] = args.bind(name, [])?;
            let mut items = SeqBuilder::with_capacity(&runtime.meter, dict.entries().len())?;
            for (key, value) in dict.entries() {
                items.push(if name == "keys" { key.clone() } else { value.clone() })?;
            }
            items.of_kind(if name == "keys" { SeqKind::Keys } else { SeqKind::Values })
        }
        (Value::Dict(_) | Value::Seq(_), "copy") => {
            let [] = args.bind("copy", [])?;
            // Lists and dictionaries are immutable, so sharing is a copy.
            Ok(receiver.clone())
        }
        (Value::Seq(seq), "count" | "index") => {
            let [wanted] = args.bind(name, ["value"])?;
            let wanted = wanted.ok_or_else(|| Error::value(format!("{name} needs a value")))?;
            let mut found = 0;
            for (at, item) in seq.items().iter().enumerate() {
                if equal(&runtime.meter, item, &wanted)? {
                    if name == "index" {
                        return Ok(Value::Int(at as i128));
                    }
                    found += 1;
                }
            }
            if name == "index" {
                return Err(Error::value("the value is not in the list"));
            }
            Ok(Value::Int(found))
        }
        (other, name) => Err(Error::value(format!("{} has no method {name}", other.type_name()))),
    }
}

/// Key-value pairs as tuples.
pub(crate) fn pairs(runtime: &Runtime<'_>, dict: &Dict, kind: SeqKind) -> Result<Value> {
    let mut items = SeqBuilder::with_capacity(&runtime.meter, dict.entries().len())?;
    for (key, value) in dict.entries() {
        let mut pair = SeqBuilder::with_capacity(&runtime.meter, 2)?;
        pair.push(key.clone())?;
        pair.push(value.clone())?;
        items.push(pair.of_kind(SeqKind::Tuple)?)?;
    }
    items.of_kind(kind)
}
