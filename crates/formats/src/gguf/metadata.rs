//! Metadata of a GGUF file. Arrays are decoded on access, so that a vocabulary of 250 000 tokens
//! costs nothing when a file is opened.

use super::GgufError;
use super::reader::Reader;
use crate::error::FormatError;
use crate::limits;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The type of a value, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum MetadataType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl MetadataType {
    // In the order of their numbers, which are the indices.
    const ALL: [MetadataType; 13] = [
        MetadataType::U8,
        MetadataType::I8,
        MetadataType::U16,
        MetadataType::I16,
        MetadataType::U32,
        MetadataType::I32,
        MetadataType::F32,
        MetadataType::Bool,
        MetadataType::String,
        MetadataType::Array,
        MetadataType::U64,
        MetadataType::I64,
        MetadataType::F64,
    ];

    // An unknown type has an unknown size, so the rest of the header could not be parsed.
    fn from_id(id: u32, key: &str) -> Result<MetadataType, GgufError> {
        Self::ALL.get(id as usize).copied().ok_or_else(|| GgufError::Invalid {
            what: format!("metadata key {key}"),
            problem: format!("unknown value type {id}, expected 0 to 12"),
        })
    }

    /// Bytes of a value of a type with a fixed size.
    fn size(self) -> Option<u64> {
        match self {
            MetadataType::U8 | MetadataType::I8 | MetadataType::Bool => Some(1),
            MetadataType::U16 | MetadataType::I16 => Some(2),
            MetadataType::U32 | MetadataType::I32 | MetadataType::F32 => Some(4),
            MetadataType::U64 | MetadataType::I64 | MetadataType::F64 => Some(8),
            MetadataType::String | MetadataType::Array => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any unsigned integer type.
    Unsigned(u64),
    /// Any signed integer type.
    Signed(i64),
    /// Either float type.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string. Invalid UTF-8 is replaced by U+FFFD.
    String(String),
    Array(ArrayValue),
}

impl Value {
    /// A shortened description for messages.
    pub fn describe(&self) -> String {
        match self {
            Value::Unsigned(v) => v.to_string(),
            Value::Signed(v) => v.to_string(),
            Value::Float(v) => v.to_string(),
            Value::Bool(v) => v.to_string(),
            // A chat template has thousands of characters.
            Value::String(v) => format!("{:?}", v.chars().take(60).collect::<String>()),
            Value::Array(v) => format!("an array of {} {:?}", v.count, v.ty),
        }
    }
}

/// An array, encoded as in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayValue {
    /// Type of its elements.
    pub ty: MetadataType,
    /// Number of elements.
    pub count: usize,
    /// Their position in the header.
    range: Range<usize>,
}

/// All metadata of a file.
#[derive(Clone, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Position of each entry's type and value in `bytes`.
    encoded: Vec<Range<usize>>,
    index: HashMap<String, usize>,
    // Shared, because overrides clone the metadata, and a vocabulary has megabytes.
    /// The header's bytes, up to the end of the metadata.
    bytes: Arc<[u8]>,
    /// Name of the file for messages.
    file: String,
}

impl Metadata {
    /// Reads `count` pairs.
    pub(super) fn read(reader: &mut Reader<'_>, count: u64) -> Result<Metadata, GgufError> {
        let mut metadata = Metadata::default();
        for number in 0..count {
            let what = || format!("metadata key number {number}");
            let key = reader.string(limits::MAX_KEY_BYTES, &what)?;
            let key = std::str::from_utf8(key)
                .map_err(|_| GgufError::Invalid { what: what(), problem: "its name is not UTF-8".into() })?;
            if key.is_empty() {
                return Err(GgufError::Invalid { what: what(), problem: "its name is empty".into() });
            }
            let start = reader.at();
            let ty = MetadataType::from_id(reader.u32(&|| format!("metadata key {key}"))?, key)?;
            let value = read_value(reader, ty, key)?;
            metadata.encoded.push(start..reader.at());
            // Readers would disagree on which of two values counts.
            if metadata.index.insert(key.to_owned(), metadata.entries.len()).is_some() {
                return Err(GgufError::Duplicate { what: "metadata key", name: key.to_owned() });
            }
            metadata.entries.push((key.to_owned(), value));
        }
        Ok(metadata)
    }

    /// Sets the header's bytes, from which arrays are decoded.
    pub(super) fn keep(&mut self, bytes: Arc<[u8]>) {
        self.bytes = bytes;
    }

    /// The first bytes of the file, to the end of its metadata.
    pub(crate) fn header_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn name_file(&mut self, file: String) {
        self.file = file;
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// Replaces or adds a value. The encoded form remains that of the file.
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        match self.index.get(key) {
            Some(&at) => self.entries[at].1 = value,
            None => {
                self.index.insert(key.to_owned(), self.entries.len());
                self.entries.push((key.to_owned(), value));
            }
        }
    }

    /// All keys in file order, with type and value in the file's encoding, for bit-exact copies.
    pub fn encoded(&self) -> impl Iterator<Item = (&str, &[u8])> {
        // `zip` ends before entries that `set` has added, which have no encoded form.
        self.entries
            .iter()
            .zip(&self.encoded)
            .map(|((key, _), range)| (key.as_str(), &self.bytes[range.clone()]))
    }

    /// All pairs, in file order.
    pub fn entries(&self) -> &[(String, Value)] {
        &self.entries
    }

    fn wrong<T>(&self, key: &str, value: &Value, expected: &'static str) -> Result<T, FormatError> {
        Err(FormatError::Key {
            file: self.file.clone(),
            key: key.to_owned(),
            found: value.describe(),
            expected,
        })
    }

    // Converters write the same key with different integer and float types, so accessors accept all
    // of them.
    /// A non-negative integer of any integer type.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(v)) => Ok(Some(*v)),
            Some(Value::Signed(v)) if *v >= 0 => Ok(Some(v.unsigned_abs())),
            Some(other) => self.wrong(key, other, "a non-negative integer"),
        }
    }

    /// A number of any type.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(v)) => Ok(Some(*v)),
            Some(Value::Unsigned(v)) => Ok(Some(*v as f64)),
            Some(Value::Signed(v)) => Ok(Some(*v as f64)),
            Some(other) => self.wrong(key, other, "a number"),
        }
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(other) => self.wrong(key, other, "a boolean"),
        }
    }

    pub fn str(&self, key: &str) -> Result<Option<&str>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(v)) => Ok(Some(v)),
            Some(other) => self.wrong(key, other, "a string"),
        }
    }

    fn array(&self, key: &str, expected: &'static str) -> Result<Option<&ArrayValue>, FormatError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(other) => self.wrong(key, other, expected),
        }
    }

    fn array_of(
        &self,
        key: &str,
        ty: MetadataType,
        expected: &'static str,
    ) -> Result<Option<&[u8]>, FormatError> {
        match self.array(key, expected)? {
            None => Ok(None),
            Some(array) if array.ty == ty => Ok(Some(&self.bytes[array.range.clone()])),
            Some(array) => self.wrong(key, &Value::Array(array.clone()), expected),
        }
    }

    /// An array of bytes, as stored in the file.
    pub fn bytes(&self, key: &str) -> Result<Option<&[u8]>, FormatError> {
        self.array_of(key, MetadataType::U8, "an array of bytes")
    }

    /// An array of 64-bit unsigned integers.
    pub fn words(&self, key: &str) -> Result<Option<Vec<u64>>, FormatError> {
        let bytes = self.array_of(key, MetadataType::U64, "an array of 64-bit unsigned integers")?;
        let word = |b: &[u8]| u64::from_le_bytes(std::array::from_fn(|i| b[i]));
        Ok(bytes.map(|bytes| bytes.chunks_exact(8).map(word).collect()))
    }

    /// An array of strings as bytes. Texts of tokens need not be UTF-8.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&[u8]>>, FormatError> {
        let expected = "an array of strings";
        let Some(array) = self.array(key, expected)? else { return Ok(None) };
        if array.ty != MetadataType::String {
            return self.wrong(key, &Value::Array(array.clone()), expected);
        }
        let bytes = &self.bytes[array.range.clone()];
        let mut reader = Reader::new(bytes, bytes.len() as u64);
        let mut strings = Vec::with_capacity(array.count);
        for _ in 0..array.count {
            // Cannot fail: the lengths were checked when the header was parsed.
            strings.push(reader.string(u64::MAX, &String::new).unwrap_or_default());
        }
        Ok(Some(strings))
    }

    /// An array of integers or floats, as f64 (exact for every integer below 2^53).
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, FormatError> {
        let expected = "an array of numbers";
        let Some(array) = self.array(key, expected)? else { return Ok(None) };
        let Some(size) = array.ty.size() else {
            return self.wrong(key, &Value::Array(array.clone()), expected);
        };
        let bytes = &self.bytes[array.range.clone()];
        let number = |b: &[u8]| match scalar(array.ty, b) {
            Value::Unsigned(v) => v as f64,
            Value::Signed(v) => v as f64,
            Value::Float(v) => v,
            Value::Bool(v) => f64::from(u8::from(v)),
            _ => 0.0,
        };
        Ok(Some(bytes.chunks_exact(size as usize).map(number).collect()))
    }
}

fn read_value(reader: &mut Reader<'_>, ty: MetadataType, key: &str) -> Result<Value, GgufError> {
    let what = || format!("the value of metadata key {key}");
    match ty {
        MetadataType::String => {
            let bytes = reader.string(limits::MAX_STRING_BYTES, &what)?;
            let mut text = String::from_utf8_lossy(bytes).into_owned();
            // Each replaced byte becomes three, and the buffer grows by doubling.
            text.shrink_to_fit();
            Ok(Value::String(text))
        }
        MetadataType::Array => read_array(reader, key).map(Value::Array),
        _ => {
            let bytes = reader.take(ty.size().unwrap_or(0), &what)?;
            // GGUF's specification calls other values invalid.
            if ty == MetadataType::Bool && bytes[0] > 1 {
                let problem = format!("{} is not a boolean (0 or 1)", bytes[0]);
                return Err(GgufError::Invalid { what: format!("metadata key {key}"), problem });
            }
            Ok(scalar(ty, bytes))
        }
    }
}

fn scalar(ty: MetadataType, b: &[u8]) -> Value {
    let mut wide = [0; 8];
    wide[..b.len()].copy_from_slice(b);
    let unsigned = u64::from_le_bytes(wide);
    // Shifting left and right as i64 extends the sign.
    let shift = 64 - 8 * b.len() as u32;
    match ty {
        MetadataType::U8 | MetadataType::U16 | MetadataType::U32 | MetadataType::U64 => {
            Value::Unsigned(unsigned)
        }
        MetadataType::I8 | MetadataType::I16 | MetadataType::I32 | MetadataType::I64 => {
            Value::Signed(((unsigned << shift) as i64) >> shift)
        }
        MetadataType::F32 => Value::Float(f64::from(f32::from_bits(unsigned as u32))),
        MetadataType::F64 => Value::Float(f64::from_bits(unsigned)),
        _ => Value::Bool(unsigned != 0),
    }
}

fn read_array(reader: &mut Reader<'_>, key: &str) -> Result<ArrayValue, GgufError> {
    let what = || format!("the array of metadata key {key}");
    let ty = MetadataType::from_id(reader.u32(&what)?, key)?;
    // Nested arrays would need recursion, which a file could drive to a stack overflow.
    if ty == MetadataType::Array {
        let problem = "arrays of arrays are not supported".into();
        return Err(GgufError::Invalid { what: format!("metadata key {key}"), problem });
    }
    let count = reader.u64(&what)?;
    if count > limits::MAX_ARRAY {
        return Err(GgufError::Limit {
            what: format!("elements of {}", what()),
            value: count,
            limit: limits::MAX_ARRAY,
        });
    }
    let start = reader.at();
    match ty.size() {
        Some(size) => {
            // Cannot overflow: `count` is at most `MAX_ARRAY`.
            reader.take(count * size, &what)?;
        }
        None => {
            // Each string has at least its length. Checked first, so that a count of 2^28 in a
            // small file fails without a loop.
            reader.room_for(count, 8, &what)?;
            for element in 0..count {
                let what = || format!("string {element} of metadata key {key}");
                reader.string(limits::MAX_STRING_BYTES, &what)?;
            }
        }
    }
    Ok(ArrayValue { ty, count: count as usize, range: start..reader.at() })
}
