//! Parser of a packed file's header: type, shape, layout and position of each tensor.

use super::{LAYOUT, MAGIC, PAGE, keys};
use crate::error::{FormatError, PackError};
use crate::gguf::{Header, Metadata, Value, tensor_bytes};
use crate::identity::{FNV_START, Identity, PackSource, VERSION, fnv};
use crate::limits;
use latent_types::TensorType;

/// The header of a packed file.
pub struct Directory {
    /// The source of the file.
    pub from: PackSource,
    /// All metadata of the body.
    pub(super) metadata: Metadata,
    /// The tensors, in file order.
    pub tensors: Vec<PackedEntry>,
    /// First byte of tensor data, from the start of the file.
    pub data_start: u64,
}

/// One tensor of a packed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedEntry {
    pub name: String,
    /// Type of its elements.
    pub ty: TensorType,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Rows per matrix if stored in tiles; `None` for row-major order.
    pub tile_rows: Option<usize>,
    /// First byte, from the start of the file.
    pub start: u64,
    /// Bytes in the file.
    pub bytes: u64,
}

impl Directory {
    /// Parses a whole packed file.
    pub fn parse(file: &[u8]) -> Result<Directory, PackError> {
        let found = file.len() as u64;
        let word =
            |at: usize| file.get(at..at + 8).map(|b| u64::from_le_bytes(std::array::from_fn(|i| b[i])));
        let (Some(first), Some(expected), Some(header), Some(checksum)) =
            (word(8), word(16), word(24), word(32))
        else {
            return Err(PackError::Length { expected: PAGE, found });
        };
        if !file.starts_with(MAGIC) {
            return Err(invalid("the first bytes", "they do not match those of a packed file"));
        }
        // Version and four zero bytes, which a later version may use.
        match first as u32 {
            VERSION => {}
            // A small number in the other byte order.
            version if version & 0xffff == 0 && version != 0 => return Err(PackError::BigEndian),
            version => return Err(PackError::Version { version }),
        }
        if first >> 32 != 0 {
            return Err(invalid("the prelude", "the four bytes after the version are not zero"));
        }
        let body = match file.get(PAGE as usize..) {
            Some(body) if expected == found => body,
            _ => return Err(PackError::Length { expected, found }),
        };
        let bytes = usize::try_from(header).ok().and_then(|len| body.get(..len));
        let bytes = bytes.ok_or_else(|| invalid("the header", "it is longer than the file"))?;
        // Only the header has a checksum. Hashing the weights would read the whole file at each
        // start.
        let hash = fnv(FNV_START, bytes);
        if hash != checksum {
            return Err(PackError::Checksum { expected: checksum, found: hash });
        }
        Directory::parse_body(body)
    }

    /// Parses the body, which follows the prelude.
    pub fn parse_body(body: &[u8]) -> Result<Directory, PackError> {
        let header = Header::parse_up_to(body, body.len() as u64, limits::MAX_FOLDER_TENSORS as u64)
            .map_err(PackError::Gguf)?;
        if u64::from(header.alignment) != PAGE {
            let problem = format!("it is {}, expected {PAGE}", header.alignment);
            return Err(invalid("general.alignment", problem));
        }
        let metadata = header.metadata;
        match metadata.str(keys::LAYOUT) {
            // Files from before layouts had names lack the key.
            Ok(None | Some(LAYOUT)) => {}
            Ok(Some(other)) => return Err(PackError::Layout { layout: other.to_owned() }),
            Err(_) => return Err(invalid(keys::LAYOUT, "it is not text")),
        }
        let number = |key: &str| wanted(metadata.u64(key), key);
        let from = PackSource {
            version: VERSION,
            name: wanted(metadata.str(keys::SOURCE_NAME), keys::SOURCE_NAME)?.to_owned(),
            files: number(keys::SOURCE_FILES)?,
            identity: Identity { header: number(keys::SOURCE_HEADER)?, sample: number(keys::SOURCE_SAMPLE)? },
        };
        let mut forms = TensorFormCursor::read(&metadata, header.tensors.len())?;
        let mut tensors = Vec::with_capacity(header.tensors.len());
        for entry in header.tensors {
            if entry.ty != TensorType::I8 {
                return Err(invalid(format!("tensor {}", entry.name), "its type must be I8"));
            }
            let (ty, shape, tile_rows) = forms.next(&entry.name, entry.bytes)?;
            let (name, start, bytes) = (entry.name, entry.start + PAGE, entry.bytes);
            tensors.push(PackedEntry { name, ty, shape, tile_rows, start, bytes });
        }
        // Left-over shapes would mean that earlier ones were assigned to wrong tensors.
        forms.end()?;
        Ok(Directory { from, metadata, tensors, data_start: header.data_start + PAGE })
    }
}

pub(super) fn invalid(what: impl Into<String>, problem: impl Into<String>) -> PackError {
    PackError::Invalid { what: what.into(), problem: problem.into() }
}

/// The value of a required key.
pub(super) fn wanted<T>(value: Result<Option<T>, FormatError>, key: &str) -> Result<T, PackError> {
    match value {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(invalid(key, "it is missing")),
        Err(FormatError::Key { found, expected, .. }) => {
            Err(invalid(key, format!("it is {found}, expected {expected}")))
        }
        Err(other) => Err(invalid(key, other.to_string())),
    }
}

/// A cursor over types, shapes and layouts of the tensors.
struct TensorFormCursor<'a> {
    types: std::vec::IntoIter<&'a [u8]>,
    dimensions: std::slice::Iter<'a, u8>,
    shapes: std::vec::IntoIter<u64>,
    tile_rows: std::vec::IntoIter<u64>,
}

impl<'a> TensorFormCursor<'a> {
    fn read(metadata: &'a Metadata, tensors: usize) -> Result<TensorFormCursor<'a>, PackError> {
        let long = |key: &str, len: usize| {
            let problem = format!("it has {len} elements for {tensors} tensors");
            if len == tensors { Ok(()) } else { Err(invalid(key, problem)) }
        };
        // The counts are checked before the arrays are decoded.
        for key in [keys::TYPES, keys::DIMENSIONS, keys::TILE_ROWS] {
            match metadata.get(key) {
                Some(Value::Array(array)) => long(key, array.count)?,
                Some(other) => return Err(invalid(key, format!("it is {}", other.describe()))),
                None => return Err(invalid(key, "it is missing")),
            }
        }
        Ok(TensorFormCursor {
            types: wanted(metadata.strings(keys::TYPES), keys::TYPES)?.into_iter(),
            dimensions: wanted(metadata.bytes(keys::DIMENSIONS), keys::DIMENSIONS)?.iter(),
            shapes: wanted(metadata.words(keys::SHAPES), keys::SHAPES)?.into_iter(),
            tile_rows: wanted(metadata.words(keys::TILE_ROWS), keys::TILE_ROWS)?.into_iter(),
        })
    }

    /// Type, shape and [`PackedEntry::tile_rows`] of the next tensor, which has `bytes` bytes in
    /// the file.
    fn next(&mut self, name: &str, bytes: u64) -> Result<(TensorType, Vec<usize>, Option<usize>), PackError> {
        let wrong = |problem: String| invalid(format!("tensor {name}"), problem);
        let ended = || wrong("its type or shape is missing".into());
        let word = String::from_utf8_lossy(self.types.next().ok_or_else(ended)?);
        let ty = TensorType::from_name(&word).map_err(|error| wrong(error.to_string()))?;
        let count = usize::from(*self.dimensions.next().ok_or_else(ended)?);
        if count > limits::MAX_SAFETENSORS_DIMENSIONS {
            return Err(wrong(format!("it has {count} dimensions")));
        }
        let shape: Vec<usize> =
            self.shapes.by_ref().take(count).map(|n| usize::try_from(n).unwrap_or(usize::MAX)).collect();
        if shape.len() < count {
            return Err(ended());
        }
        let as_rows = tensor_bytes(ty, &shape).map_err(wrong)?;
        let tile_rows = self.tile_rows.next().ok_or_else(ended)?;
        if tile_rows == 0 {
            if bytes != as_rows {
                return Err(wrong(format!("{shape:?} of {ty} takes {as_rows} bytes, not {bytes}")));
            }
            return Ok((ty, shape, None));
        }
        // The exact size of tiles is known to the crate `quant` and checked when they are loaded.
        // It is never less than that of the rows.
        let rows: usize = shape.iter().rev().skip(1).product();
        match usize::try_from(tile_rows) {
            Ok(each) if shape.len() >= 2 && rows.is_multiple_of(each) && bytes >= as_rows => {
                Ok((ty, shape, Some(each)))
            }
            _ => {
                let problem = "cannot be tiles of matrices of";
                Err(wrong(format!("{shape:?} of {ty} {problem} {tile_rows} rows in {bytes} bytes")))
            }
        }
    }

    fn end(mut self) -> Result<(), PackError> {
        match self.shapes.next() {
            None => Ok(()),
            Some(_) => Err(invalid(keys::SHAPES, "it is longer than the tensors' dimensions")),
        }
    }
}
