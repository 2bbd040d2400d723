//! A checkpoint: metadata and named tensors of a model, checked before anything uses them.

use crate::error::FormatError;
use crate::folder::HfSource;
use crate::gguf::Metadata;
use crate::identity::{FNV_START, Identity, PackedFrom, fnv};
use crate::in_use::InUse;
use crate::map::Bytes;
use latent_types::TensorType;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// An opened model.
pub struct Checkpoint {
    pub(crate) path: PathBuf,
    pub(crate) source: Source,
    pub(crate) files: Vec<Bytes>,
    pub(crate) tensors: Vec<TensorInfo>,
    /// Indices of tensors, sorted by name.
    pub(crate) by_name: Vec<u32>,
    pub(crate) fingerprint: u64,
    pub(crate) packed: Option<PackedFrom>,
    /// Its files other than weights.
    pub(crate) _in_use: Vec<InUse>,
}

/// The format of a checkpoint, with its metadata.
pub enum Source {
    /// A GGUF file, or a set of shards.
    Gguf(GgufSource),
    /// A folder of safetensors files.
    HuggingFace(HfSource),
}

/// Metadata of a GGUF file.
pub struct GgufSource {
    /// 2 or 3.
    pub version: u32,
    /// Metadata of the first shard.
    pub metadata: Metadata,
    /// Alignment of tensor data.
    pub alignment: u32,
    /// Files of the set.
    pub shards: usize,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the file.
    pub name: String,
    /// Type of its elements.
    pub ty: TensorType,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Bytes in the file.
    pub bytes: usize,
    /// Rows per matrix, if it is stored in tiles of sixteen rows (in packed files); none in row-major order.
    pub tile_rows: Option<usize>,
    /// Which of the checkpoint's files holds it.
    pub(crate) file: usize,
    /// Its first byte in that file.
    pub(crate) start: usize,
}

/// A tensor with its bytes.
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    /// Name, type and shape.
    pub info: &'a TensorInfo,
    /// Its bytes.
    pub data: &'a [u8],
}

impl Checkpoint {
    /// Metadata of the file.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The file or folder that was opened (of shards: the first).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rows and columns of an FP8 matrix that share a scale.
    ///
    /// # Errors
    /// A size in config.json that is not supported.
    pub fn fp8_block(&self) -> Result<(usize, usize), FormatError> {
        let Source::HuggingFace(source) = &self.source else { return Ok(crate::folder::FP8_BLOCK) };
        let path = self.path.clone();
        source.fp8_block().map_err(|problem| FormatError::Set { path, problem })
    }

    /// The path as messages show it.
    pub fn display_name(&self) -> String {
        display(&self.path)
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<TensorRef<'_>> {
        let info = self.find(name)?;
        Some(TensorRef { info, data: &self.files[info.file].get()[info.start..info.start + info.bytes] })
    }

    fn find(&self, name: &str) -> Option<&TensorInfo> {
        let place = self.by_name.binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name));
        place.ok().map(|place| &self.tensors[self.by_name[place] as usize])
    }

    /// A hash of metadata, tensors and sizes, but not of the weights' values. A
    /// packed file has its source's.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Number of its files.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Where a packed file came from; none for other files.
    pub fn packed_from(&self) -> Option<&PackedFrom> {
        self.packed.as_ref()
    }

    /// Identifies the model; a packed file has its source's identity. Reads a few bytes of up to [`SAMPLED`] tensors.
    pub fn identity(&self) -> Identity {
        if let Some(packed) = &self.packed {
            return packed.identity;
        }
        let mut sample = FNV_START;
        for info in self.tensors.iter().step_by(self.tensors.len().div_ceil(SAMPLED).max(1)) {
            let data = &self.files[info.file].get()[info.start..info.start + info.bytes];
            let take = data.len().min(SAMPLE_BYTES);
            sample = fnv(sample, &data[..take]);
            sample = fnv(sample, &data[data.len() - take..]);
        }
        Identity { header: self.fingerprint, sample }
    }

    /// Drops a tensor's pages from memory (`MADV_DONTNEED`): they will not be read again soon.
    pub fn drop_pages(&self, name: &str) {
        if let Some(info) = self.find(name) {
            self.files[info.file].drop_pages(info.start, info.bytes);
        }
    }

    /// Starts reading a part of a tensor's bytes into memory (`MADV_WILLNEED`).
    pub fn prefetch(&self, name: &str, part: Range<usize>) {
        if let Some((file, start, len)) = self.part(name, part) {
            file.prefetch(start, len);
        }
    }

    /// Waits until a part of a tensor's bytes is in memory and mapped, so that its first read does not fault (`MADV_POPULATE_READ`). If the system has no such
    /// call, it returns at once.
    pub fn populate(&self, name: &str, part: Range<usize>) {
        if let Some((file, start, len)) = self.part(name, part) {
            file.populate(start, len);
        }
    }

    fn part(&self, name: &str, part: Range<usize>) -> Option<(&Bytes, usize, usize)> {
        let (file, bytes) = self.range(name, part)?;
        Some((&self.files[file], bytes.start, bytes.len()))
    }

    /// The file of a part of a tensor, clamped to its end, and its bytes there.
    pub(crate) fn range(&self, name: &str, part: Range<usize>) -> Option<(usize, Range<usize>)> {
        let info = self.find(name)?;
        let end = part.end.min(info.bytes);
        Some((info.file, info.start + part.start.min(end)..info.start + end))
    }
}

/// Number of tensors whose first and last bytes distinguish models with the same header.
pub const SAMPLED: usize = 1024;

/// Bytes of a sample.
const SAMPLE_BYTES: usize = 64;

pub(crate) fn display(path: &Path) -> String {
    path.display().to_string()
}
