//! A checkpoint: metadata and named tensors of a model, checked before anything uses them.

use crate::absent::MissingFiles;
use crate::attached::AttachedAdapter;
use crate::derived::DerivedSource;
use crate::error::FormatError;
use crate::folder::HfSource;
use crate::four_bit::FourBitWeight;
use crate::gguf::Metadata;
use crate::identity::{FNV_START, Identity, PackSource, fnv};
use crate::map::FileBytes;
use crate::tensor::{TensorCut, TensorInfo, TensorLocation, TensorRef};
use latent_files::OpenFileGuard;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An opened model.
pub struct Checkpoint {
    pub(crate) path: PathBuf,
    pub(crate) source: Arc<CheckpointSource>,
    pub(crate) files: Vec<Arc<FileBytes>>,
    /// Name and header length of each file.
    pub(crate) headers: Vec<(String, usize)>,
    pub(crate) tensors: Vec<TensorInfo>,
    // Not a map, which would need copies of the names.
    /// Indices of tensors, sorted by name.
    pub(crate) by_name: Vec<u32>,
    pub(crate) fingerprint: u64,
    pub(crate) packed: Option<PackSource>,
    /// Weights that are assembled from several tensors of the files.
    pub(crate) four_bit: Arc<Vec<FourBitWeight>>,
    /// Parts of tensors that are not contiguous in a file; see [`parts`](Self::parts).
    pub(crate) cuts: Vec<TensorCut>,
    /// Tensors that are computed from others.
    pub(crate) derived: Arc<Vec<DerivedSource>>,
    // `identity` samples these, so that derived tensors and adapters do not change it.
    /// The tensors of the files, if `tensors` has derived ones too.
    pub(crate) in_files: Option<Arc<Vec<TensorInfo>>>,
    /// Adapters whose matrices are among the tensors.
    pub(crate) adapters: Arc<Vec<AttachedAdapter>>,
    /// Files of the set that are missing here.
    pub(crate) absent: Arc<MissingFiles>,
    /// Guards of the files other than weights.
    pub(crate) _in_use: Vec<OpenFileGuard>,
}

/// The format of a checkpoint, with its metadata.
pub enum CheckpointSource {
    /// A GGUF file, or a set of shards.
    Gguf(GgufSource),
    /// A folder of safetensors files.
    HuggingFace(HfSource),
}

impl CheckpointSource {
    /// Rows and columns of an FP8 matrix that share a scale, in the file at `path`.
    pub(crate) fn fp8_block(&self, path: &Path) -> Result<(usize, usize), FormatError> {
        let CheckpointSource::HuggingFace(source) = self else { return Ok(crate::folder::FP8_BLOCK) };
        source.fp8_block().map_err(|problem| FormatError::Set { path: path.to_owned(), problem })
    }
}

/// Metadata of a GGUF file.
pub struct GgufSource {
    /// 2 or 3.
    pub version: u32,
    /// Metadata of the first shard.
    pub metadata: Metadata,
    /// Alignment of tensor data.
    pub alignment: u32,
    /// Number of files of the set.
    pub shards: usize,
}

impl Checkpoint {
    /// The format and metadata.
    pub fn source(&self) -> &CheckpointSource {
        &self.source
    }

    /// The file or folder that was opened (of shards: the first).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rows and columns of an FP8 matrix that share a scale.
    pub fn fp8_block(&self) -> Result<(usize, usize), FormatError> {
        self.source.fp8_block(&self.path)
    }

    /// The path as text, for messages.
    pub fn display_name(&self) -> String {
        display(&self.path)
    }

    /// All tensors in the order of the files, then known tensors of missing files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name, if a file stores its bytes. [`rows`](Self::rows) reads any tensor.
    pub fn tensor(&self, name: &str) -> Option<TensorRef<'_>> {
        let info = self.info(name)?;
        info.is_stored().then(|| TensorRef { info, data: self.stored(info) })
    }

    /// The bytes of a stored tensor; empty for other tensors.
    pub(crate) fn stored(&self, info: &TensorInfo) -> &[u8] {
        match info.place {
            // Cannot be out of range: headers were checked against the files' lengths.
            TensorLocation::File { file, start } => &self.files[file].get()[start..start + info.bytes],
            TensorLocation::FourBit(_)
            | TensorLocation::Factor(_)
            | TensorLocation::Cut(_)
            | TensorLocation::Derived(_)
            | TensorLocation::Absent => &[],
        }
    }

    /// Name, type and shape of the tensor of this name.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        let place = self.by_name.binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name));
        place.ok().map(|place| &self.tensors[self.by_name[place] as usize])
    }

    /// A hash of metadata, tensors and sizes, but not of weights. A packed file has its source's.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Number of files that are present here.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// The source of a packed file; `None` for other files.
    pub fn packed_from(&self) -> Option<&PackSource> {
        self.packed.as_ref()
    }

    /// Identifies the model. A packed file has its source's identity. Reads a few bytes of up to
    /// [`SAMPLED`] tensors.
    pub fn identity(&self) -> Identity {
        if let Some(packed) = &self.packed {
            return packed.identity;
        }
        // Two fine-tunes of a model have the same header. Samples of the weights distinguish them
        // without reading gigabytes.
        let mut sample = FNV_START;
        let tensors = self.in_files.as_deref().unwrap_or(&self.tensors);
        for info in tensors.iter().step_by(tensors.len().div_ceil(SAMPLED).max(1)) {
            let data = match info.place {
                TensorLocation::File { .. } => self.stored(info),
                TensorLocation::FourBit(index) => self.stored(&self.four_bit[index].quants),
                TensorLocation::Factor(index) => self.stored(&self.four_bit[index].scales),
                TensorLocation::Cut(index) => self.stored(&self.cuts[index].whole),
                TensorLocation::Derived(index) => self.stored(&self.derived[index].from),
                TensorLocation::Absent => &[],
            };
            let take = data.len().min(SAMPLE_BYTES);
            sample = fnv(sample, &data[..take]);
            sample = fnv(sample, &data[data.len() - take..]);
        }
        Identity { header: self.fingerprint, sample }
    }
}

/// Maximum number of tensors that [`Checkpoint::identity`] samples.
pub const SAMPLED: usize = 1024;

pub(crate) const SAMPLE_BYTES: usize = 64;

pub(crate) fn display(path: &Path) -> String {
    path.display().to_string()
}
