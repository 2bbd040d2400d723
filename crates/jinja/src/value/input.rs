//! Conversion of JSON inputs to values.

use super::{DictBuilder, SeqBuilder, Value};
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::text::TemplateString;
use serde_json::Value as Json;
use std::rc::Rc;

/// Converts an input. `content` says whether it came from a client. Strings for which `trust`
/// returns true, given their key and text, still count as the template's own.
pub(crate) fn from_json(
    meter: &Rc<Meter>,
    json: &Json,
    content: bool,
    trust: &dyn Fn(&str, &str) -> bool,
) -> Result<Value> {
    convert(meter, json, content, trust, 0)
}

fn convert(
    meter: &Rc<Meter>,
    json: &Json,
    content: bool,
    trust: &dyn Fn(&str, &str) -> bool,
    depth: u16,
) -> Result<Value> {
    // The builders check the depth only on the way up. serde_json limits the depth of parsed texts,
    // but a caller can build a deeper value, which would overflow the stack here.
    let limit = meter.limits().value_depth;
    if depth > limit {
        return Err(Error::limit(format!("an input is nested deeper than {limit} levels")));
    }
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            // serde_json has separate accessors below and above i64::MAX.
            (Some(n), _) => Value::Int(n.into()),
            (_, Some(n)) => Value::Int(n.into()),
            _ => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::Str(TemplateString::from_str(meter, text, content)?),
        Json::Array(list) => {
            let mut items = SeqBuilder::with_capacity(meter, list.len())?;
            if content {
                items.mark_content();
            }
            for item in list {
                items.push(convert(meter, item, content, trust, depth + 1)?)?;
            }
            items.list()?
        }
        Json::Object(map) => {
            let mut entries = DictBuilder::with_capacity(meter, map.len())?;
            if content {
                entries.mark_content();
            }
            for (key, value) in map {
                // Keys are content as well: clients choose the names of tool parameters.
                let name = Value::Str(TemplateString::from_str(meter, key, content)?);
                let own = value.as_str().is_some_and(|text| trust(key, text));
                // `append` needs distinct keys, which a JSON map guarantees.
                entries.append(name, convert(meter, value, content && !own, trust, depth + 1)?)?;
            }
            entries.finish()
        }
    })
}
