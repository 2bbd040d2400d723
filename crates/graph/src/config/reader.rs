//! Typed and checked access to keys. Every error names file, key, value and what was expected.

use super::error::ConfigError;
use super::keys::ConfigKey;
use super::source::{MetadataKeys, MetadataValue};
use std::ops::RangeInclusive;

/// Keys that share a prefix (`deepseek2.`, `text_config.`).
#[derive(Clone)]
pub(super) struct Reader<'a> {
    keys: &'a dyn MetadataKeys,
    prefix: String,
    /// Whether the file is a config.json.
    json: bool,
    /// Alternative names of keys in a family: the usual name, and the family's.
    spelled: &'static [(&'static str, &'static str)],
}

impl<'a> Reader<'a> {
    pub(super) fn gguf(keys: &'a dyn MetadataKeys, prefix: &str) -> Self {
        Reader { keys, prefix: prefix.to_owned(), json: false, spelled: &[] }
    }

    pub(super) fn json(keys: &'a dyn MetadataKeys) -> Self {
        Reader { keys, prefix: String::new(), json: true, spelled: &[] }
    }

    /// The name of a key in this kind of file.
    pub(super) fn key<T>(&self, key: &ConfigKey<T>) -> &'static str {
        if self.json { key.json } else { key.gguf }
    }

    pub(super) fn get<T: KeyNumber>(&self, key: &ConfigKey<T>) -> Result<Option<T>, ConfigError> {
        T::read(self, self.key(key), key.range.clone())
    }

    /// A required number.
    pub(super) fn need<T: KeyNumber>(&self, key: &ConfigKey<T>) -> Result<T, ConfigError> {
        self.get(key)?.ok_or_else(|| self.missing_key(key))
    }

    pub(super) fn missing_key<T>(&self, key: &ConfigKey<T>) -> ConfigError {
        self.missing(self.key(key), format!("it is {}", key.meaning))
    }

    /// A reader of the keys below `prefix`, relative to this one.
    pub(super) fn within(&self, prefix: &str) -> Reader<'a> {
        Reader { prefix: format!("{}{prefix}", self.prefix), ..self.clone() }
    }

    pub(super) fn file(&self) -> String {
        self.keys.file()
    }

    /// The same reader with alternative key names.
    pub(super) fn spelled(self, spelled: &'static [(&'static str, &'static str)]) -> Reader<'a> {
        Reader { spelled, ..self }
    }

    pub(super) fn name(&self, key: &str) -> String {
        let full = |key: &str| format!("{}{key}", self.prefix);
        // The family's name only if the file has it: Transformers writes the usual names when it
        // saves a model whose published config.json has others.
        let other = self.spelled.iter().find(|(ours, _)| *ours == key).map(|(_, theirs)| full(theirs));
        other.filter(|theirs| self.keys.mentions(theirs)).unwrap_or_else(|| full(key))
    }

    pub(super) fn field(&self, key: &str) -> Option<MetadataValue> {
        self.keys.field(&self.name(key))
    }

    /// Whether the key exists, even if it is null.
    pub(super) fn mentions(&self, key: &str) -> bool {
        self.keys.mentions(&self.name(key))
    }

    pub(super) fn wrong(
        &self,
        key: &str,
        value: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> ConfigError {
        self.wrong_place(format!("key {}", self.name(key)), value, expected)
    }

    /// An error for a value that no circuit supports.
    pub(super) fn not_computed(
        &self,
        key: &str,
        value: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> ConfigError {
        let (file, what) = (self.file(), format!("key {}", self.name(key)));
        ConfigError::NotComputed { file, what, value: value.to_string(), expected: expected.into() }
    }

    pub(super) fn wrong_shape(
        &self,
        tensor: &str,
        shape: &[usize],
        expected: impl Into<String>,
    ) -> ConfigError {
        self.wrong_place(
            format!("shape of tensor {tensor} (outermost first)"),
            format!("{shape:?}"),
            expected,
        )
    }

    pub(super) fn wrong_place(
        &self,
        what: String,
        value: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> ConfigError {
        ConfigError::Wrong { file: self.file(), what, value: value.to_string(), expected: expected.into() }
    }

    pub(super) fn missing(&self, key: &str, hint: impl Into<String>) -> ConfigError {
        ConfigError::Missing { file: self.file(), what: format!("key {}", self.name(key)), hint: hint.into() }
    }

    pub(super) fn missing_tensor(&self, tensor: &str, hint: impl Into<String>) -> ConfigError {
        ConfigError::Missing { file: self.file(), what: format!("tensor {tensor}"), hint: hint.into() }
    }

    /// An integer within `range`.
    pub(super) fn size(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, ConfigError> {
        self.field(key).map(|field| self.as_size(key, &field, &range)).transpose()
    }

    /// A required integer within `range`.
    pub(super) fn need_size(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
        what: &str,
    ) -> Result<usize, ConfigError> {
        self.size(key, range)?.ok_or_else(|| self.missing(key, format!("it is {what}")))
    }

    /// One integer for all layers, or a list with one per layer (`layers` long).
    pub(super) fn sizes(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
        layers: usize,
    ) -> Result<Option<Vec<usize>>, ConfigError> {
        let Some(field) = self.field(key) else { return Ok(None) };
        match &field {
            MetadataValue::List(values) if values.len() == layers => values
                .iter()
                .map(|value| self.as_size(key, value, &range))
                .collect::<Result<_, _>>()
                .map(Some),
            // A list of another length cannot be assigned to layers.
            MetadataValue::List(_) | MetadataValue::Count(_) => Err(self.wrong(
                key,
                &field,
                format!("an integer, or a list of {layers} integers, one per layer"),
            )),
            // One number stands for all layers.
            _ => Ok(Some(vec![self.as_size(key, &field, &range)?; layers])),
        }
    }

    fn as_size(
        &self,
        key: &str,
        field: &MetadataValue,
        range: &RangeInclusive<usize>,
    ) -> Result<usize, ConfigError> {
        let value = match field {
            MetadataValue::Integer(value) => usize::try_from(*value).ok(),
            // Some config.json files have computed lengths such as `4096.0`. 9e15 is below 2^53, up
            // to which every integer is exact in f64.
            MetadataValue::Real(value) if value.fract() == 0.0 && (0.0..9e15).contains(value) => {
                Some(*value as usize)
            }
            _ => None,
        };
        value.filter(|value| range.contains(value)).ok_or_else(|| {
            self.wrong(key, field, format!("an integer from {} to {}", range.start(), range.end()))
        })
    }

    /// A finite number within `range`.
    pub(super) fn real(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ConfigError> {
        self.field(key).map(|field| self.as_real(key, &field, &range)).transpose()
    }

    /// A required finite number within `range`.
    pub(super) fn need_real(
        &self,
        key: &str,
        range: RangeInclusive<f64>,
        what: &str,
    ) -> Result<f64, ConfigError> {
        self.real(key, range)?.ok_or_else(|| self.missing(key, format!("it is {what}")))
    }

    /// A list of `count` finite numbers within `range`.
    pub(super) fn reals(
        &self,
        key: &str,
        range: RangeInclusive<f64>,
        count: usize,
    ) -> Result<Option<Vec<f64>>, ConfigError> {
        let Some(field) = self.field(key) else { return Ok(None) };
        match &field {
            MetadataValue::List(values) if values.len() == count => values
                .iter()
                .map(|value| self.as_real(key, value, &range))
                .collect::<Result<_, _>>()
                .map(Some),
            _ => Err(self.wrong(key, &field, format!("a list of {count} numbers"))),
        }
    }

    fn as_real(
        &self,
        key: &str,
        field: &MetadataValue,
        range: &RangeInclusive<f64>,
    ) -> Result<f64, ConfigError> {
        let value = match field {
            // JSON files write whole numbers without a point: `"rope_theta": 10000`.
            MetadataValue::Integer(value) => *value as f64,
            MetadataValue::Real(value) => *value,
            // NaN is in no range, so other types fail the check below.
            _ => f64::NAN,
        };
        if value.is_finite() && range.contains(&value) {
            Ok(value)
        } else {
            Err(self.wrong(key, field, format!("a number from {:?} to {:?}", range.start(), range.end())))
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        match self.field(key) {
            None => Ok(None),
            Some(MetadataValue::Flag(flag)) => Ok(Some(flag)),
            Some(field) => Err(self.wrong(key, field, "true or false")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<String>, ConfigError> {
        match self.field(key) {
            None => Ok(None),
            Some(MetadataValue::Text(text)) => Ok(Some(text)),
            Some(field) => Err(self.wrong(key, field, "a text")),
        }
    }

    /// The number of elements of a list.
    pub(super) fn count(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        match self.field(key) {
            None => Ok(None),
            Some(MetadataValue::List(values)) => Ok(Some(values.len())),
            Some(MetadataValue::Count(count)) => Ok(Some(count)),
            Some(field) => Err(self.wrong(key, field, "a list")),
        }
    }
}

/// The type of a key's number.
pub(super) trait KeyNumber: Clone {
    fn read(reader: &Reader<'_>, key: &str, range: RangeInclusive<Self>)
    -> Result<Option<Self>, ConfigError>;
}

impl KeyNumber for usize {
    fn read(
        reader: &Reader<'_>,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ConfigError> {
        reader.size(key, range)
    }
}

impl KeyNumber for f64 {
    fn read(reader: &Reader<'_>, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ConfigError> {
        reader.real(key, range)
    }
}
