//! JSON text to values, in as little memory as their type allows: lists and objects have no spare capacity, and fields can be skipped.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// The object in a text, with the fields to keep. Of what is no object, only the kind of value is right.
pub(super) fn object(text: &str, keep: impl Fn(&str) -> bool) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = reader.deserialize_any(Object(keep))?;
    reader.end()?;
    Ok(value)
}

/// The value in a text.
pub(crate) fn value(text: &str) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = reader.deserialize_any(Tree)?;
    reader.end()?;
    Ok(value)
}

struct Tree;

impl<'de> DeserializeSeed<'de> for Tree {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(Tree)
    }
}

/// Makes room for one more element without doubling the capacity.
fn reserve<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 16).max(4));
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
    };
}

impl<'de> Visitor<'de> for Tree {
    type Value = Value;

    visit_scalars!();

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Tree)? {
            reserve(&mut list);
            list.push(item);
        }
        list.shrink_to_fit();
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(name) = fields.next_key::<String>()? {
            reserve(&mut list);
            list.push((name, fields.next_value_seed(Tree)?));
        }
        let mut map = Map::with_capacity(list.len());
        map.extend(list);
        Ok(Value::Object(map))
    }
}

/// An object of which only some fields are kept.
struct Object<K>(K);

impl<'de, K: Fn(&str) -> bool> Visitor<'de> for Object<K> {
    type Value = Value;

    visit_scalars!();

    fn visit_str<E: Error>(self, _text: &str) -> Result<Value, E> {
        Ok(Value::String(String::new()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Array(Vec::new()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if (self.0)(&name) {
                let value = fields.next_value_seed(Tree)?;
                map.insert(name, value);
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Value::Object(map))
    }
}
