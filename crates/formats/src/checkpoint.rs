//! A checkpoint: metadata and named tensors of a model, checked before anything uses them.

use crate::error::FormatError;
use crate::folder::HfSource;
use crate::gguf::{MAGIC, Metadata};
use crate::in_use::InUse;
use crate::map::Bytes;
use crate::pack::{self, Identity, PackedFrom};
use crate::sniff::sniff;
use crate::{open_folder, open_gguf, open_packed};
use latent_types::TensorType;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// An opened model.
pub struct Checkpoint {
    path: PathBuf,
    source: Source,
    files: Vec<Bytes>,
    tensors: Vec<TensorInfo>,
    /// Numbers of tensors in the order of their names.
    by_name: Vec<u32>,
    fingerprint: u64,
    packed: Option<PackedFrom>,
    /// Its files that are no weights.
    _in_use: Vec<InUse>,
}

/// Which kind of file a checkpoint came from, with what it says beside tensors.
pub enum Source {
    /// A GGUF file, or a set of shards.
    Gguf(GgufSource),
    /// A folder of safetensors files.
    HuggingFace(HfSource),
}

/// What a GGUF file says beside its tensors.
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
    /// How numbers are stored.
    pub ty: TensorType,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Bytes in the file.
    pub bytes: usize,
    /// Rows of each of its matrices, where it lies in tiles of sixteen rows (in packed files); none where rows follow one another.
    pub tile_rows: Option<usize>,
    /// Which of the checkpoint's files holds it.
    pub(crate) file: usize,
    /// Its first byte in that file.
    start: usize,
}

/// A tensor with its bytes.
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    /// What it is.
    pub info: &'a TensorInfo,
    /// Its bytes.
    pub data: &'a [u8],
}

impl Checkpoint {
    /// Opens a GGUF file (any shard of a set), a model folder, a safetensors file of one, or a packed file.
    ///
    /// # Errors
    /// What is wrong, where, and what to do.
    pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
        let metadata =
            std::fs::metadata(path).map_err(|error| FormatError::Io { path: path.to_owned(), error })?;
        if metadata.is_dir() {
            return open_folder::open(path);
        }
        let bytes = Bytes::map(path)?;
        if bytes.get().starts_with(MAGIC) {
            return open_gguf::open(path, bytes);
        }
        if bytes.get().starts_with(pack::MAGIC) {
            return open_packed::open(path, bytes);
        }
        if path.extension().is_some_and(|end| end == "safetensors") {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            return open_folder::open(folder);
        }
        Err(FormatError::NotAModel { path: path.to_owned(), what: sniff(path, bytes.get()) })
    }

    /// A GGUF file that is built into the program.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Checkpoint, FormatError> {
        open_gguf::embedded(name, bytes)
    }

    /// What the file says beside tensors.
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

    /// A number that two files share only if they have the same metadata, tensors and sizes. It says nothing about the weights' values. A
    /// packed file has its source's.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// How many files it is.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Where a packed file came from; none for other files.
    pub fn packed_from(&self) -> Option<&PackedFrom> {
        self.packed.as_ref()
    }

    /// What tells this model from others; a packed file has its source's. Some bytes of up to [`SAMPLED`] tensors are read for it.
    pub fn identity(&self) -> Identity {
        if let Some(packed) = &self.packed {
            return packed.identity;
        }
        let mut sample = pack::FNV_START;
        for info in self.tensors.iter().step_by(self.tensors.len().div_ceil(SAMPLED).max(1)) {
            let data = &self.files[info.file].get()[info.start..info.start + info.bytes];
            let take = data.len().min(SAMPLE_BYTES);
            sample = pack::fnv(sample, &data[..take]);
            sample = pack::fnv(sample, &data[data.len() - take..]);
        }
        Identity { header: self.fingerprint, sample }
    }

    /// Tells the system that a tensor's bytes will not be read again soon.
    pub fn advise_dropped(&self, name: &str) {
        if let Some(info) = self.find(name) {
            self.files[info.file].drop_pages(info.start, info.bytes);
        }
    }

    /// Asks the system to begin reading a part of a tensor's bytes.
    pub fn advise_needed(&self, name: &str, part: Range<usize>) {
        if let Some((file, start, len)) = self.part(name, part) {
            file.ask_for(start, len);
        }
    }

    /// Waits until a part of a tensor's bytes is in memory and mapped, so that the first read of it need not. Where the system offers no such
    /// call, it returns at once.
    pub fn bring(&self, name: &str, part: Range<usize>) {
        if let Some((file, start, len)) = self.part(name, part) {
            file.bring(start, len);
        }
    }

    /// Where a part of a tensor lies in its file; what is beyond its end is left out.
    fn part(&self, name: &str, part: Range<usize>) -> Option<(&Bytes, usize, usize)> {
        let info = self.find(name)?;
        let end = part.end.min(info.bytes);
        let start = part.start.min(end);
        Some((&self.files[info.file], info.start + start, end - start))
    }
}

/// Tensors whose first and last bytes tell a model from another with the same header.
pub const SAMPLED: usize = 1024;

/// Bytes of a sample.
const SAMPLE_BYTES: usize = 64;

pub(crate) fn display(path: &Path) -> String {
    path.display().to_string()
}

/// A checkpoint while its files are opened one after another.
pub(crate) struct Builder {
    files: Vec<Bytes>,
    tensors: Vec<TensorInfo>,
    /// FNV-1a of headers and sizes.
    hash: u64,
    in_use: Vec<InUse>,
}

/// A tensor as both formats' headers give it.
pub(crate) struct Placed {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    pub(crate) shape: Vec<usize>,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) tile_rows: Option<usize>,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder { files: Vec::new(), tensors: Vec::new(), hash: pack::FNV_START, in_use: Vec::new() }
    }

    /// Counts files beside the weights as open while the checkpoint is.
    pub(crate) fn keep(&mut self, in_use: Vec<InUse>) {
        self.in_use = in_use;
    }

    /// Adds bytes to the fingerprint.
    pub(crate) fn note(&mut self, bytes: &[u8]) {
        self.hash = pack::fnv(self.hash, bytes);
    }

    /// Adds a file whose header, its first `header` bytes, was checked against the file's length.
    pub(crate) fn file(&mut self, bytes: Bytes, header: u64, tensors: impl Iterator<Item = Placed>) {
        let file = self.files.len();
        self.note(&(bytes.get().len() as u64).to_le_bytes());
        self.note(&bytes.get()[..bytes.get().len().min(header as usize)]);
        self.files.push(bytes);
        self.tensors.extend(tensors.map(|t| TensorInfo {
            name: t.name,
            ty: t.ty,
            shape: t.shape,
            bytes: t.bytes as usize,
            tile_rows: t.tile_rows,
            file,
            start: t.start as usize,
        }));
    }

    pub(crate) fn tensors(&self) -> usize {
        self.tensors.len()
    }

    /// The checkpoint of a packed file, which goes by its source's fingerprint.
    pub(crate) fn finish_packed(
        mut self,
        path: PathBuf,
        source: Source,
        from: PackedFrom,
    ) -> Result<Checkpoint, FormatError> {
        self.hash = from.identity.header;
        let mut checkpoint = self.finish(path, source)?;
        checkpoint.packed = Some(from);
        Ok(checkpoint)
    }

    pub(crate) fn finish(self, path: PathBuf, source: Source) -> Result<Checkpoint, FormatError> {
        let Builder { files, tensors, hash, in_use } = self;
        let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
        by_name.sort_unstable_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
        let twice = |pair: &&[u32]| tensors[pair[0] as usize].name == tensors[pair[1] as usize].name;
        if let Some(pair) = by_name.windows(2).find(twice) {
            let problem = format!("tensor {} stands in two of its files", tensors[pair[0] as usize].name);
            return Err(FormatError::Set { path, problem });
        }
        Ok(Checkpoint {
            path,
            source,
            files,
            tensors,
            by_name,
            fingerprint: hash,
            packed: None,
            _in_use: in_use,
        })
    }
}
