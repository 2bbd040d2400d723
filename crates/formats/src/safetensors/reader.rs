//! The header of a safetensors file, read strictly: nothing twice, nothing past the end, nothing shared.

use crate::gguf::tensor_bytes;
use crate::limits;
use base::TensorType;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// One tensor of a file.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    pub(crate) shape: Vec<usize>,
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

#[derive(serde::Deserialize)]
struct Described {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Pairs in file order, so that a name that stands twice is seen.
struct Pairs(Vec<(String, serde_json::Value)>);

impl<'de> serde::Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object that names tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}

/// The tensors of a file whose bytes are `bytes`.
pub(crate) fn read_header(bytes: &[u8]) -> Result<Vec<Entry>, String> {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(format!(
            "the file has {} bytes, too few for a safetensors header; it is truncated",
            bytes.len()
        ));
    };
    let len = u64::from_le_bytes(*len);
    if len > limits::MAX_SAFETENSORS_HEADER {
        return Err(format!(
            "the header claims {len} bytes, more than the limit of {}: not a safetensors file",
            limits::MAX_SAFETENSORS_HEADER
        ));
    }
    let len = len as usize;
    if len > rest.len() {
        return Err(format!(
            "the header claims {len} bytes, but only {} follow; the file is truncated",
            rest.len()
        ));
    }
    let (header, data) = rest.split_at(len);
    let pairs: Pairs = serde_json::from_slice(header).map_err(|e| format!("the header is no JSON: {e}"))?;
    if pairs.0.len() as u64 > limits::MAX_TENSORS {
        return Err(format!("{} tensors exceed the limit of {}", pairs.0.len(), limits::MAX_TENSORS));
    }
    let mut names = HashSet::new();
    let mut entries = Vec::with_capacity(pairs.0.len());
    for (name, value) in pairs.0 {
        if !names.insert(name.clone()) {
            return Err(format!("tensor {name:?} stands twice"));
        }
        if name != "__metadata__" {
            entries.push(read_entry(name, value, 8 + len, data.len())?);
        }
    }
    check_apart(&entries)?;
    Ok(entries)
}

fn read_entry(
    name: String,
    value: serde_json::Value,
    data_start: usize,
    data_len: usize,
) -> Result<Entry, String> {
    let described: Described = serde_json::from_value(value).map_err(|e| format!("tensor {name}: {e}"))?;
    let wrong = |problem: String| Err(format!("tensor {name}: {problem}"));
    let Some(ty) = dtype(&described.dtype) else {
        return wrong(format!(
            "dtype {:?} is not supported (BF16, F16, F32, F64, F8_E4M3, I8 to I64 are)",
            described.dtype
        ));
    };
    if described.shape.len() > limits::MAX_SAFETENSORS_DIMENSIONS {
        return wrong(format!(
            "{} dimensions exceed the limit of {}",
            described.shape.len(),
            limits::MAX_SAFETENSORS_DIMENSIONS
        ));
    }
    let shape: Vec<usize> = match described.shape.iter().map(|&n| usize::try_from(n)).collect() {
        Ok(shape) => shape,
        Err(_) => return wrong("a dimension overflows".into()),
    };
    let bytes = match tensor_bytes(ty, &shape) {
        Ok(bytes) => bytes,
        Err(problem) => return wrong(problem),
    };
    let (from, to) = described.data_offsets;
    if from > to || to > data_len as u64 {
        return wrong(format!(
            "its data (bytes {from} to {to}) passes the end of the data ({data_len} bytes); the file is truncated"
        ));
    }
    if to - from != bytes {
        return wrong(format!("{:?} of {ty} takes {bytes} bytes, but its data has {}", shape, to - from));
    }
    Ok(Entry { name, ty, shape, start: data_start + from as usize, bytes: bytes as usize })
}

fn dtype(word: &str) -> Option<TensorType> {
    Some(match word {
        "F32" => TensorType::F32,
        "F16" => TensorType::F16,
        "BF16" => TensorType::BF16,
        "F64" => TensorType::F64,
        "F8_E4M3" => TensorType::F8_E4M3,
        "I8" | "U8" | "BOOL" => TensorType::I8,
        "I16" | "U16" => TensorType::I16,
        "I32" | "U32" => TensorType::I32,
        "I64" | "U64" => TensorType::I64,
        _ => return None,
    })
}

fn check_apart(entries: &[Entry]) -> Result<(), String> {
    let mut order: Vec<&Entry> = entries.iter().filter(|entry| entry.bytes > 0).collect();
    order.sort_by_key(|entry| entry.start);
    for pair in order.windows(2) {
        if pair[0].start + pair[0].bytes > pair[1].start {
            return Err(format!("the data of tensors {} and {} overlap", pair[0].name, pair[1].name));
        }
    }
    Ok(())
}
