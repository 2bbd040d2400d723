//! The header of a GGUF file: metadata, and position, type and shape of each tensor.

use super::reader::Reader;
use super::{DEFAULT_ALIGNMENT, GgufError, MAGIC, Metadata};
use crate::limits;
use latent_types::TensorType;
use std::sync::Arc;

/// A parsed header.
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Keys and values.
    pub metadata: Metadata,
    /// Tensor data begins at multiples of this.
    pub alignment: u32,
    /// The tensors, in file order.
    pub tensors: Vec<GgufTensorEntry>,
    /// First byte of tensor data.
    pub data_start: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensorEntry {
    pub name: String,
    /// Type of its elements.
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
    /// [`GgufError::NeedMore`] if `bytes` ends inside the header; otherwise the error of the
    /// header.
    pub fn parse(bytes: &[u8], file_len: u64) -> Result<Header, GgufError> {
        Header::parse_up_to(bytes, file_len, limits::MAX_TENSORS)
    }

    /// Like [`parse`](Self::parse), with at most `most` tensors. The body of a packed file has as
    /// many as a folder.
    pub(crate) fn parse_up_to(bytes: &[u8], file_len: u64, most: u64) -> Result<Header, GgufError> {
        let mut reader = Reader::new(bytes, file_len);
        let (version, tensors, keys) = read_counts(&mut reader, most)?;
        // Reject a claimed count before anything is allocated for it. A tensor takes at least
        // 8 + 1 + 4 + 4 + 8 bytes: name, dimensions, type and offset.
        reader.room_for(tensors, 25, &|| format!("the list of {tensors} tensors"))?;
        let metadata = read_metadata(&mut reader, bytes, keys)?;
        let alignment = read_alignment(&metadata)?;
        let mut entries = Vec::new();
        for number in 0..tensors {
            entries.push(read_tensor(&mut reader, number, alignment)?);
        }
        check_names(&entries)?;
        let data_start = (reader.at() as u64).next_multiple_of(u64::from(alignment));
        place(&mut entries, data_start, file_len)?;
        Ok(Header { version, metadata, alignment, tensors: entries, data_start })
    }
}

/// Version, metadata and alignment of `bytes`, the first bytes of a GGUF file up to its list of
/// tensors. A packed file stores them.
pub(crate) fn metadata_alone(bytes: &[u8]) -> Result<(u32, Metadata, u32), GgufError> {
    let mut reader = Reader::new(bytes, bytes.len() as u64);
    let (version, _, keys) = read_counts(&mut reader, u64::MAX)?;
    let metadata = read_metadata(&mut reader, bytes, keys)?;
    let alignment = read_alignment(&metadata)?;
    Ok((version, metadata, alignment))
}

/// Version, number of tensors (of at most `most`) and of keys.
fn read_counts(reader: &mut Reader<'_>, most: u64) -> Result<(u32, u64, u64), GgufError> {
    let version = read_version(reader)?;
    let tensors = limited(reader.u64(&|| "the number of tensors".into())?, most, "number of tensors")?;
    let keys =
        limited(reader.u64(&|| "the number of keys".into())?, limits::MAX_KEYS, "number of metadata keys")?;
    Ok((version, tensors, keys))
}

fn read_metadata(reader: &mut Reader<'_>, bytes: &[u8], keys: u64) -> Result<Metadata, GgufError> {
    // A key takes at least 8 + 1 + 4 + 1 bytes: name, type and value.
    reader.room_for(keys, 14, &|| format!("the list of {keys} metadata keys"))?;
    let mut metadata = Metadata::read(reader, keys)?;
    metadata.keep(Arc::from(&bytes[..reader.at()]));
    Ok(metadata)
}

fn check_names(entries: &[GgufTensorEntry]) -> Result<(), GgufError> {
    let mut names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(GgufError::Duplicate { what: "tensor", name: pair[0].to_owned() }),
        None => Ok(()),
    }
}

fn limited(value: u64, limit: u64, what: &str) -> Result<u64, GgufError> {
    if value > limit { Err(GgufError::Limit { what: what.to_owned(), value, limit }) } else { Ok(value) }
}

fn read_version(reader: &mut Reader<'_>) -> Result<u32, GgufError> {
    let magic = reader.take(4, &|| "the magic bytes".into())?;
    if magic != MAGIC {
        return Err(GgufError::Magic { found: [magic[0], magic[1], magic[2], magic[3]] });
    }
    let version = reader.u32(&|| "the version".into())?;
    match version {
        // Version 3 differs from 2 only by allowing big-endian files. Version 1 has 32-bit lengths.
        2 | 3 => Ok(version),
        // A small version number with swapped bytes.
        _ if version & 0xffff == 0 && version != 0 => {
            Err(GgufError::BigEndian { version: version.swap_bytes() })
        }
        _ => Err(GgufError::Version { version }),
    }
}

fn read_alignment(metadata: &Metadata) -> Result<u32, GgufError> {
    let wrong =
        |problem: String| GgufError::Invalid { what: "metadata key general.alignment".into(), problem };
    match metadata.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(super::Value::Unsigned(value)) => match u32::try_from(*value) {
            Ok(alignment) if alignment.is_power_of_two() && alignment <= limits::MAX_ALIGNMENT => {
                Ok(alignment)
            }
            _ => Err(wrong(format!("{value} is not a power of two of at most {}", limits::MAX_ALIGNMENT))),
        },
        Some(other) => Err(wrong(format!("{} is not an unsigned integer", other.describe()))),
    }
}

fn read_tensor(reader: &mut Reader<'_>, number: u64, alignment: u32) -> Result<GgufTensorEntry, GgufError> {
    let what = || format!("tensor number {number}");
    let invalid = |what: String, problem: String| GgufError::Invalid { what, problem };
    let name = reader.string(limits::MAX_NAME_BYTES, &what)?;
    let name = std::str::from_utf8(name).map_err(|_| invalid(what(), "its name is not UTF-8".into()))?;
    if name.is_empty() {
        return Err(invalid(what(), "its name is empty".into()));
    }
    let what = || format!("tensor {name}");
    let dimensions = reader.u32(&what)?;
    if dimensions > limits::MAX_DIMENSIONS {
        let limit = u64::from(limits::MAX_DIMENSIONS);
        return Err(GgufError::Limit {
            what: format!("dimensions of {}", what()),
            value: dimensions.into(),
            limit,
        });
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    for _ in 0..dimensions {
        let size = reader.u64(&what)?;
        // ggml has dimensions as i64. A dimension of 0 is legal: an empty tensor.
        let fits = usize::try_from(size).ok().filter(|_| i64::try_from(size).is_ok());
        let problem = || format!("its dimension {size} is negative or exceeds this machine's address space");
        shape.push(fits.ok_or_else(|| invalid(what(), problem()))?);
    }
    // GGUF lists the innermost dimension first.
    shape.reverse();
    let id = reader.u32(&what)?;
    let ty = TensorType::from_ggml_id(id).map_err(|_| {
        invalid(what(), format!("unknown tensor type {id}; the file may be newer than this program"))
    })?;
    let offset = reader.u64(&what)?;
    if offset % u64::from(alignment) != 0 {
        return Err(invalid(
            what(),
            format!("its offset {offset} is not a multiple of the alignment {alignment}"),
        ));
    }
    let bytes = tensor_bytes(ty, &shape).map_err(|problem| invalid(what(), problem))?;
    Ok(GgufTensorEntry { name: name.to_owned(), ty, shape, start: offset, bytes })
}

/// Bytes of a tensor of this type and shape, outermost dimension first.
pub(crate) fn tensor_bytes(ty: TensorType, shape: &[usize]) -> Result<u64, String> {
    // A tensor without dimensions has one element.
    let inner = shape.last().copied().unwrap_or(1);
    let row = ty.row_bytes(inner).ok_or_else(|| {
        format!("row length {inner} is not a multiple of the block size {} ({ty})", ty.block_len())
    })?;
    // Count a dimension of 0 as 1. Then no product of a part of the dimensions can overflow later,
    // even if the tensor is empty. Fuzzing found such a tensor.
    let product =
        |start: usize, sizes: &[usize]| sizes.iter().try_fold(start, |n, size| n.checked_mul(*size.max(&1)));
    let outer = &shape[..shape.len().saturating_sub(1)];
    let bytes = product(row.max(1), outer).filter(|&bytes| bytes <= i64::MAX as usize);
    match (bytes, product(1, shape)) {
        (Some(bytes), Some(_)) => Ok(if row == 0 || outer.contains(&0) { 0 } else { bytes as u64 }),
        _ => Err(format!("the size of shape {shape:?} overflows")),
    }
}

/// Converts offsets to positions in the file. Checks that tensors are inside the file and do not
/// overlap.
fn place(entries: &mut [GgufTensorEntry], data_start: u64, file_len: u64) -> Result<(), GgufError> {
    for entry in entries.iter_mut() {
        let start = data_start.checked_add(entry.start);
        let end = start.and_then(|start| start.checked_add(entry.bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_len => entry.start = start,
            _ => {
                return Err(GgufError::PastEnd {
                    tensor: entry.name.clone(),
                    start: start.unwrap_or(u64::MAX),
                    end: end.unwrap_or(u64::MAX),
                    len: file_len,
                });
            }
        }
    }
    // Empty tensors cannot overlap others.
    let mut order: Vec<&GgufTensorEntry> = entries.iter().filter(|entry| entry.bytes > 0).collect();
    order.sort_by_key(|entry| entry.start);
    for pair in order.windows(2) {
        if pair[0].start + pair[0].bytes > pair[1].start {
            return Err(GgufError::Overlap {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
                at: pair[1].start,
            });
        }
    }
    Ok(())
}
