//! A strict parser for the header of a safetensors file. Duplicate names, data past the end,
//! overlapping tensors and bytes without a tensor are errors.

use super::SafetensorsError;
use super::json::{HeaderTensorsSeed, UncheckedTensor};
use crate::gguf::tensor_bytes;
use crate::limits;
use latent_types::TensorType;
use serde::de::DeserializeSeed;

/// A parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The tensors, in the header's order.
    pub tensors: Vec<SafetensorsTensorEntry>,
    /// First byte of data.
    pub data_start: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SafetensorsTensorEntry {
    pub name: String,
    /// Type of its elements. For unsigned integers and booleans, the signed type of their size.
    pub ty: TensorType,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// First byte, from the start of the file.
    pub start: u64,
    pub bytes: u64,
}

impl Header {
    /// Parses and checks the header in `bytes`, the first bytes of a file of `file_len` bytes. The
    /// position of every tensor is checked too.
    ///
    /// # Errors
    /// [`SafetensorsError::NeedMore`] if `bytes` ends inside the header; otherwise the error of the
    /// header.
    pub fn parse(bytes: &[u8], file_len: u64) -> Result<Header, SafetensorsError> {
        let file_len = file_len.max(bytes.len() as u64);
        let json = header_json(bytes, file_len)?;
        let data_start = 8 + json.len() as u64;
        let mut tensors = Vec::new();
        // serde errors are texts, so the typed error leaves the closure by this variable.
        let mut problem = None;
        let mut parser = serde_json::Deserializer::from_slice(json);
        let read = HeaderTensorsSeed(|name, described: UncheckedTensor<'_>| {
            let entry = read_entry(name, &described, data_start, file_len - data_start);
            tensors.push(entry.map_err(|error| {
                let message = error.to_string();
                problem = Some(error);
                message
            })?);
            if tensors.len() > limits::MAX_FOLDER_TENSORS {
                return Err(format!("more than {} tensors", limits::MAX_FOLDER_TENSORS));
            }
            Ok(())
        })
        .deserialize(&mut parser)
        // Writers pad the object with spaces. Anything else after it is an error.
        .and_then(|()| parser.end());
        if let Err(error) = read {
            return Err(problem.unwrap_or_else(|| SafetensorsError::Json { problem: error.to_string() }));
        }
        check_names(&tensors)?;
        check_places(&tensors, data_start, file_len)?;
        Ok(Header { tensors, data_start })
    }
}

/// The JSON text of the header.
fn header_json(bytes: &[u8], file_len: u64) -> Result<&[u8], SafetensorsError> {
    let have = bytes.len() as u64;
    let short = |claimed: u64| {
        if claimed > file_len {
            SafetensorsError::Truncated { claimed, len: file_len }
        } else {
            SafetensorsError::NeedMore { have, need: claimed }
        }
    };
    let (len, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| short(8))?;
    let claimed = u64::from_le_bytes(*len);
    // Before the length is used: in any other file, the first eight bytes are a huge number.
    if claimed > limits::MAX_SAFETENSORS_HEADER {
        return Err(SafetensorsError::HeaderLength { claimed });
    }
    rest.get(..claimed as usize).ok_or_else(|| short(8 + claimed))
}

fn read_entry(
    name: String,
    described: &UncheckedTensor<'_>,
    data_start: u64,
    data_len: u64,
) -> Result<SafetensorsTensorEntry, SafetensorsError> {
    let wrong = |tensor: &str, problem| SafetensorsError::Tensor { tensor: tensor.to_owned(), problem };
    let Some(ty) = dtype(&described.dtype) else {
        let dtype = described.dtype.chars().take(40).collect();
        return Err(SafetensorsError::Dtype { tensor: name, dtype });
    };
    let sizes: Result<Vec<usize>, _> = described.shape.0.iter().map(|&n| usize::try_from(n)).collect();
    let shape = sizes.map_err(|_| wrong(&name, "a dimension is too large".into()))?;
    let bytes = tensor_bytes(ty, &shape).map_err(|problem| wrong(&name, problem))?;
    let (start, end) = described.data_offsets;
    if end > data_len {
        return Err(SafetensorsError::PastEnd { tensor: name, start, end, len: data_len });
    }
    // The header states sizes twice, by shape and by offsets.
    if end.checked_sub(start) != Some(bytes) {
        let problem =
            format!("{shape:?} of {ty} takes {bytes} bytes, but its data are bytes {start} to {end}");
        return Err(wrong(&name, problem));
    }
    // Cannot overflow: the end lies inside the file.
    Ok(SafetensorsTensorEntry { name, ty, shape, start: data_start + start, bytes })
}

fn dtype(word: &str) -> Option<TensorType> {
    Some(match word {
        "F32" => TensorType::F32,
        "F16" => TensorType::F16,
        "BF16" => TensorType::BF16,
        "F64" => TensorType::F64,
        "F8_E4M3" => TensorType::F8_E4M3,
        "F8_E5M2" => TensorType::F8_E5M2,
        // Packed 4-bit weights and their scales are U8. Their signs have no meaning.
        "I8" | "U8" | "BOOL" => TensorType::I8,
        "I16" | "U16" => TensorType::I16,
        "I32" | "U32" => TensorType::I32,
        "I64" | "U64" => TensorType::I64,
        _ => return None,
    })
}

fn check_names(tensors: &[SafetensorsTensorEntry]) -> Result<(), SafetensorsError> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(SafetensorsError::Duplicate { name: pair[0].to_owned() }),
        None => Ok(()),
    }
}

/// Checks that tensors are contiguous from the start of the data to the end of the file, as the
/// format requires.
fn check_places(
    tensors: &[SafetensorsTensorEntry],
    data_start: u64,
    file_len: u64,
) -> Result<(), SafetensorsError> {
    // Empty tensors occupy no bytes, so their offsets do not matter.
    let mut order: Vec<&SafetensorsTensorEntry> = tensors.iter().filter(|tensor| tensor.bytes > 0).collect();
    order.sort_unstable_by_key(|tensor| tensor.start);
    let hole =
        |start: u64, end: u64| SafetensorsError::Hole { start: start - data_start, end: end - data_start };
    let mut at = data_start;
    let mut before = "";
    for tensor in order {
        if tensor.start < at {
            return Err(SafetensorsError::Overlap {
                first: before.to_owned(),
                second: tensor.name.clone(),
                at: tensor.start - data_start,
            });
        }
        if tensor.start > at {
            return Err(hole(at, tensor.start));
        }
        at = tensor.start + tensor.bytes;
        before = &tensor.name;
    }
    if at < file_len { Err(hole(at, file_len)) } else { Ok(()) }
}
