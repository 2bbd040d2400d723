//! JSON parsing with little memory: lists and objects are allocated once with their exact capacity,
//! and unwanted fields are skipped.
//!
//! `serde_json`'s own parser grows lists by doubling, so that a body of numbers takes 75 bytes per
//! byte at its peak. With counted elements it takes 37.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::Cell;
use std::fmt;

/// Parses an object with the fields that `keep` accepts. `skipped` gets the names of other fields
/// that are not null. The text must be valid JSON. If it is not an object, only the type of the
/// result is right.
pub(super) fn object(
    text: &str,
    keep: impl Fn(&str) -> bool,
    skipped: &mut Vec<String>,
) -> Result<Value, serde_json::Error> {
    read(text, ObjectVisitor { counts: &ElementCounts::of(text), keep, skipped })
}

/// Maximum number of reported names of skipped fields.
const MAX_SKIPPED: usize = 64;

/// Validates a text and reads the scalar fields that `keep` accepts.
pub(super) fn flat_object(text: &str, keep: impl Fn(&str) -> bool) -> Result<Value, serde_json::Error> {
    read(text, FlatObjectVisitor(keep))
}

pub(crate) fn value(text: &str) -> Result<Value, serde_json::Error> {
    // Validated first: in invalid text the counts of commas could be huge, and so would be the
    // capacities.
    serde_json::from_str::<IgnoredAny>(text)?;
    read(text, TreeVisitor(&ElementCounts::of(text)))
}

fn read<'t>(text: &'t str, visitor: impl Visitor<'t, Value = Value>) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = reader.deserialize_any(visitor)?;
    // Refuses trailing text.
    reader.end()?;
    Ok(value)
}

/// The number of elements of each list and object, in order of their opening brackets.
struct ElementCounts {
    list: Vec<u32>,
    next: Cell<usize>,
}

impl ElementCounts {
    fn of(text: &str) -> ElementCounts {
        let (mut list, mut open, mut quoted) = (Vec::<u32>::new(), Vec::<usize>::new(), false);
        let mut bytes = text.bytes();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' if quoted => quoted = false,
                // The escaped character is skipped: it may be a quote.
                b'\\' if quoted => {
                    bytes.next();
                }
                _ if quoted || byte.is_ascii_whitespace() => {}
                b']' | b'}' => {
                    open.pop();
                }
                b',' => {
                    if let Some(at) = open.last() {
                        list[*at] += 1;
                    }
                }
                // The start of a value or a key: the container is not empty, and has one element
                // more than commas. A colon also ends up here and changes nothing.
                _ => {
                    if let Some(at) = open.last() {
                        list[*at] = list[*at].max(1);
                    }
                    if matches!(byte, b'[' | b'{') {
                        open.push(list.len());
                        list.push(0);
                    }
                    quoted = byte == b'"';
                }
            }
        }
        ElementCounts { list, next: Cell::new(0) }
    }

    /// The number of elements of the next list or object.
    fn next(&self) -> usize {
        // Each visitor must call this once per list or object, in document order, or all later
        // capacities are wrong. 0 is only a missing reservation.
        let at = self.next.replace(self.next.get() + 1);
        self.list.get(at).map_or(0, |count| *count as usize)
    }
}

macro_rules! visit_scalars {
    () => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON value")
        }
        fn visit_unit<E: Error>(self) -> Result<Value, E> {
            Ok(Value::Null)
        }
        fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
            Ok(Value::Bool(value))
        }
        fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
            Ok(Value::Number(value.into()))
        }
        fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
            Ok(Value::Number(value.into()))
        }
        fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
            Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
            Ok(Value::String(text.to_owned()))
        }
    };
}

macro_rules! seed {
    ($name:ident$(<$life:lifetime>)?, $value:ty) => {
        impl<'de> DeserializeSeed<'de> for $name$(<$life>)? {
            type Value = $value;

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<$value, D::Error> {
                deserializer.deserialize_any(self)
            }
        }
    };
}

/// Builds a complete value.
#[derive(Clone, Copy)]
struct TreeVisitor<'c>(&'c ElementCounts);

seed!(TreeVisitor<'_>, Value);

impl<'de> Visitor<'de> for TreeVisitor<'_> {
    type Value = Value;

    visit_scalars!();

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::with_capacity(self.0.next());
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::with_capacity(self.0.next());
        while let Some(name) = fields.next_key::<String>()? {
            map.insert(name, fields.next_value_seed(self)?);
        }
        Ok(Value::Object(map))
    }
}

/// Builds a scalar, or an empty list or object.
#[derive(Clone, Copy)]
struct FlatVisitor;

seed!(FlatVisitor, Value);

impl<'de> Visitor<'de> for FlatVisitor {
    type Value = Value;

    visit_scalars!();

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Array(Vec::new()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Object(Map::new()))
    }
}

/// Skips a value but advances the counts, which are consumed in order. Lists and objects become
/// `true`, so that the caller can tell them from null.
#[derive(Clone, Copy)]
struct SkipVisitor<'c>(&'c ElementCounts);

seed!(SkipVisitor<'_>, Value);

impl<'de> Visitor<'de> for SkipVisitor<'_> {
    type Value = Value;

    visit_scalars!();

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.0.next();
        while items.next_element_seed(self)?.is_some() {}
        Ok(Value::Bool(true))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        self.0.next();
        while fields.next_key::<IgnoredAny>()?.is_some() {
            fields.next_value_seed(self)?;
        }
        Ok(Value::Bool(true))
    }
}

/// Builds an object with some of its fields.
struct ObjectVisitor<'c, K> {
    counts: &'c ElementCounts,
    keep: K,
    skipped: &'c mut Vec<String>,
}

impl<'de, K: Fn(&str) -> bool> Visitor<'de> for ObjectVisitor<'_, K> {
    type Value = Value;

    visit_scalars!();

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Value, A::Error> {
        FlatVisitor.visit_seq(items)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        self.counts.next();
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if (self.keep)(&name) {
                map.insert(name, fields.next_value_seed(TreeVisitor(self.counts))?);
            } else {
                let given = !fields.next_value_seed(SkipVisitor(self.counts))?.is_null();
                // An explicit null means unset and has no effect to report.
                if given && self.skipped.len() < MAX_SKIPPED {
                    self.skipped.push(name);
                }
            }
        }
        Ok(Value::Object(map))
    }
}

/// Builds an object with some of its scalar fields.
struct FlatObjectVisitor<K>(K);

impl<'de, K: Fn(&str) -> bool> Visitor<'de> for FlatObjectVisitor<K> {
    type Value = Value;

    visit_scalars!();

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Value, A::Error> {
        FlatVisitor.visit_seq(items)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if (self.0)(&name) {
                map.insert(name, fields.next_value_seed(FlatVisitor)?);
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_and_objects_get_their_capacity_once() {
        let text = r#" {"a]": [ ] , "b": [1, "x,y\"", {}, [ [] ]], "skip": [[1,2],{"c":{}}], "d": {"e": 1, "f": [null, true]}} "#;
        let counts = ElementCounts::of(text);
        // The number of elements of each list and object, in the order of their opening brackets.
        assert_eq!(counts.list, [4, 0, 4, 0, 1, 0, 2, 2, 1, 0, 2, 2]);
        let mut skipped = Vec::new();
        let value = object(text, |name| name != "skip", &mut skipped).unwrap();
        assert_eq!(value, json!({"a]": [], "b": [1, "x,y\"", {}, [[]]], "d": {"e": 1, "f": [null, true]}}));
        for list in [&value["a]"], &value["b"], &value["d"]["f"]].map(|list| list.as_array().unwrap()) {
            assert_eq!(list.len(), list.capacity());
        }
        assert_eq!(flat_object(text, |name| name != "a]").unwrap(), json!({"b": [], "skip": [], "d": {}}));
        assert_eq!(super::value("[1, {\"a\": [2]}]").unwrap(), json!([1, {"a": [2]}]));
        assert!(super::value("[1] 2").is_err() && super::value("[,,,,]").is_err());
        assert!(object("[1, 2]", |_| true, &mut skipped).unwrap().is_array());
    }
}
