//! Keys of a GGUF file to be written. They can be read back like those of a file.

use super::decimal::written;
use super::source::{MetadataKeys, MetadataValue};
use latent_formats::gguf::WriterValue;

/// Metadata of a GGUF file that is not yet written: 32-bit integers and floats, flags, texts, and
/// lists of flags or integers.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyList {
    keys: Vec<(String, MetadataValue)>,
    /// Prefix of the architecture's keys.
    prefix: String,
}

impl KeyList {
    /// A list with the architecture's key.
    pub(super) fn new(architecture: &str) -> KeyList {
        let keys = vec![("general.architecture".to_owned(), MetadataValue::Text(architecture.to_owned()))];
        KeyList { keys, prefix: format!("{architecture}.") }
    }

    /// Adds a key of the architecture. A float is rounded to what a reader will get from the file's
    /// f32.
    pub(super) fn add(&mut self, key: &str, value: MetadataValue) {
        let value = match value {
            MetadataValue::Real(value) => MetadataValue::Real(written(f64::from(value as f32))),
            other => other,
        };
        self.keys.push((format!("{}{key}", self.prefix), value));
    }

    pub(super) fn add_size(&mut self, key: &str, size: usize) {
        self.add(key, MetadataValue::Integer(size as i128));
    }

    pub(super) fn add_real(&mut self, key: &str, value: f64) {
        self.add(key, MetadataValue::Real(value));
    }

    pub(super) fn add_text(&mut self, key: &str, text: &str) {
        self.add(key, MetadataValue::Text(text.to_owned()));
    }

    /// The keys in file order, the architecture first.
    pub fn written(&self) -> impl Iterator<Item = (&str, WriterValue)> {
        self.keys.iter().filter_map(|(key, value)| Some((key.as_str(), writer_value(value)?)))
    }
}

/// The value with the type that llama.cpp's converter writes; `None` if GGUF cannot hold it.
fn writer_value(value: &MetadataValue) -> Option<WriterValue> {
    Some(match value {
        // llama.cpp's converter writes u32. `limits` keeps sizes in range.
        MetadataValue::Integer(value) => WriterValue::U32(u32::try_from(*value).unwrap_or(u32::MAX)),
        MetadataValue::Real(value) => WriterValue::F32(*value as f32),
        MetadataValue::Flag(value) => WriterValue::Bool(*value),
        MetadataValue::Text(value) => WriterValue::String(value.clone()),
        MetadataValue::List(values)
            if values.iter().all(|value| matches!(value, MetadataValue::Integer(_))) =>
        {
            let number = |value: &MetadataValue| match value {
                MetadataValue::Integer(value) => i32::try_from(*value).unwrap_or(i32::MAX),
                _ => 0,
            };
            WriterValue::I32s(values.iter().map(number).collect())
        }
        MetadataValue::List(values) => {
            WriterValue::Bools(values.iter().map(|value| *value == MetadataValue::Flag(true)).collect())
        }
        MetadataValue::Count(_) | MetadataValue::Object(_) => return None,
    })
}

impl MetadataKeys for KeyList {
    fn file(&self) -> String {
        "the GGUF file".into()
    }

    fn field(&self, key: &str) -> Option<MetadataValue> {
        self.keys.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    }
}
