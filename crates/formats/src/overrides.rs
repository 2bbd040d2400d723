//! Overrides of metadata of a GGUF file.

use crate::checkpoint::{Checkpoint, CheckpointSource, GgufSource};
use crate::gguf::Value;
use crate::identity::fnv;
use crate::limits;
use std::str::FromStr;
use std::sync::Arc;

/// A value that overrides the file's: `KEY=TYPE:VALUE` with the types int, float, bool and str, as
/// in llama.cpp.
#[derive(Clone, Debug, PartialEq)]
pub struct MetadataOverride {
    pub key: String,
    pub value: Value,
}

/// An error of an override.
#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    #[error("{file}: only metadata of a GGUF file can be overridden; edit config.json")]
    NotGguf { file: String },
    #[error("{key}: a value of type {given} cannot replace the file's {found}")]
    Type { key: String, found: String, given: &'static str },
}

impl FromStr for MetadataOverride {
    type Err = String;

    fn from_str(text: &str) -> Result<MetadataOverride, String> {
        let expected = || "expected KEY=TYPE:VALUE with the type int, float, bool or str".to_owned();
        let (key, typed) = text.split_once('=').ok_or_else(expected)?;
        let (ty, word) = typed.split_once(':').ok_or_else(expected)?;
        if key.is_empty() || key.len() as u64 > limits::MAX_KEY_BYTES {
            return Err(format!("expected a key of 1 to {} bytes before =", limits::MAX_KEY_BYTES));
        }
        let wrong = |expected: &str| format!("{word:?}: expected {expected}");
        let value = match ty {
            "int" => {
                // i64, as in llama.cpp. Numbers that are not negative are stored as unsigned, like
                // most keys.
                let number: i64 = word.parse().map_err(|_| wrong("an integer"))?;
                u64::try_from(number).map_or(Value::Signed(number), Value::Unsigned)
            }
            "float" => {
                let number = word.parse().ok().filter(|number: &f64| number.is_finite());
                Value::Float(number.ok_or_else(|| wrong("a number"))?)
            }
            "bool" => Value::Bool(word.parse().map_err(|_| wrong("true or false"))?),
            "str" => Value::String(word.to_owned()),
            _ => return Err(expected()),
        };
        Ok(MetadataOverride { key: key.to_owned(), value })
    }
}

impl MetadataOverride {
    fn type_name(&self) -> &'static str {
        match self.value {
            Value::Unsigned(_) | Value::Signed(_) => "int",
            Value::Float(_) => "float",
            Value::Bool(_) => "bool",
            Value::String(_) => "str",
            Value::Array(_) => "array",
        }
    }

    /// Whether it has the type of the file's value `found`. Signedness of integers does not count.
    fn replaces(&self, found: &Value) -> bool {
        match (found, &self.value) {
            (Value::Unsigned(_) | Value::Signed(_), Value::Unsigned(_) | Value::Signed(_)) => true,
            (found, own) => std::mem::discriminant(found) == std::mem::discriminant(own),
        }
    }
}

impl Checkpoint {
    /// The same model with other metadata. Its fingerprint differs, so that saved caches of one do
    /// not fit the other.
    ///
    /// # Errors
    /// [`OverrideError`] if the model is not a GGUF file, or a value has another type than the
    /// file's.
    pub fn with_metadata(self, overrides: &[MetadataOverride]) -> Result<Checkpoint, OverrideError> {
        if overrides.is_empty() {
            return Ok(self);
        }
        let CheckpointSource::Gguf(source) = self.source() else {
            return Err(OverrideError::NotGguf { file: self.display_name() });
        };
        let mut metadata = source.metadata.clone();
        let mut fingerprint = self.fingerprint;
        for one in overrides {
            // A key that the file lacks is added.
            if let Some(found) = metadata.get(&one.key).filter(|found| !one.replaces(found)) {
                let (key, found) = (one.key.clone(), found.describe());
                return Err(OverrideError::Type { key, found, given: one.type_name() });
            }
            // `describe` truncates long strings, so two templates could have one fingerprint.
            // The debug form includes the type, so that `int:1` and `str:1` differ.
            fingerprint = fnv(fingerprint, format!("{}={:?}\n", one.key, one.value).as_bytes());
            metadata.set(&one.key, one.value.clone());
        }
        let GgufSource { version, alignment, shards, .. } = *source;
        let source = CheckpointSource::Gguf(GgufSource { version, metadata, alignment, shards });
        Ok(Checkpoint { source: Arc::new(source), fingerprint, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_have_a_key_a_type_and_a_value() {
        let read = |text: &str| text.parse::<MetadataOverride>();
        for (text, value) in [
            ("a.b=int:7", Value::Unsigned(7)),
            ("a.b=int:-7", Value::Signed(-7)),
            ("a.b=float:1e6", Value::Float(1e6)),
            ("a.b=bool:true", Value::Bool(true)),
            ("a.b=str:x=y:z", Value::String("x=y:z".into())),
            ("a.b=str:", Value::String(String::new())),
        ] {
            assert_eq!(read(text), Ok(MetadataOverride { key: "a.b".into(), value }), "{text}");
        }
        for (text, word) in [
            ("", "KEY=TYPE:VALUE"),
            ("a=7", "KEY=TYPE:VALUE"),
            ("a=list:7", "KEY=TYPE:VALUE"),
            ("=int:7", "a key"),
            ("a=int:x", "an integer"),
            ("a=int:99999999999999999999", "an integer"),
            ("a=float:inf", "a number"),
            ("a=bool:1", "true or false"),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(word), "{text}: {problem}");
        }
    }
}
