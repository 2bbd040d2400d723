//! Builder of a checkpoint from files with checked headers.

use crate::absent::MissingFiles;
use crate::checkpoint::{Checkpoint, CheckpointSource};
use crate::error::FormatError;
use crate::identity::{FNV_START, PackSource, fnv};
use crate::index::SafetensorsIndex;
use crate::map::FileBytes;
use crate::tensor::{TensorInfo, TensorLocation};
use latent_files::OpenFileGuard;
use latent_types::TensorType;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Collects the files of a checkpoint while they are opened one after another.
pub(crate) struct Builder {
    files: Vec<Arc<FileBytes>>,
    /// Name and header length of each file.
    headers: Vec<(String, usize)>,
    tensors: Vec<TensorInfo>,
    /// FNV-1a of headers and file sizes.
    hash: u64,
    in_use: Vec<OpenFileGuard>,
    absent: MissingFiles,
}

/// A tensor from a header of any format.
pub(crate) struct PlacedTensor {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    pub(crate) shape: Vec<usize>,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) tile_rows: Option<usize>,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder {
            files: Vec::new(),
            headers: Vec::new(),
            tensors: Vec::new(),
            hash: FNV_START,
            in_use: Vec::new(),
            absent: MissingFiles::default(),
        }
    }

    /// Marks the folder's other files as in use while the checkpoint is open.
    pub(crate) fn keep(&mut self, in_use: Vec<OpenFileGuard>) {
        self.in_use = in_use;
    }

    /// Adds bytes to the fingerprint.
    pub(crate) fn note(&mut self, bytes: &[u8]) {
        self.hash = fnv(self.hash, bytes);
    }

    /// Sets the missing files.
    pub(crate) fn lacks(&mut self, absent: MissingFiles) {
        self.absent = absent;
    }

    /// Adds the file at `path`. `header` is the length of its header, which was checked against the
    /// file's length.
    pub(crate) fn file(
        &mut self,
        path: &Path,
        bytes: FileBytes,
        header: u64,
        tensors: impl Iterator<Item = PlacedTensor>,
    ) {
        let file = self.files.len();
        // The size too: files with equal headers and other lengths are different models.
        self.note(&(bytes.get().len() as u64).to_le_bytes());
        self.note(&bytes.get()[..bytes.get().len().min(header as usize)]);
        self.headers.push((name_of(path), header as usize));
        self.files.push(Arc::new(bytes));
        self.tensors.extend(tensors.map(|t| TensorInfo {
            name: t.name,
            ty: t.ty,
            shape: t.shape,
            bytes: t.bytes as usize,
            tile_rows: t.tile_rows,
            place: TensorLocation::File { file, start: t.start as usize },
        }));
    }

    /// Removes copies of tensors from files other than that of the index. `number` maps a file to
    /// its number in the index.
    pub(crate) fn keep_copies(
        &mut self,
        index: &SafetensorsIndex,
        number: &dyn Fn(usize) -> u32,
        is_here: &dyn Fn(u32) -> bool,
    ) {
        let file = |info: &TensorInfo| match info.place {
            TensorLocation::File { file, .. } => number(file),
            // Cannot occur: a builder has only stored tensors.
            _ => u32::MAX,
        };
        index.remove_other_copies(&mut self.tensors, &|info| (info.name.as_str(), file(info)), is_here);
    }

    pub(crate) fn tensors(&self) -> usize {
        self.tensors.len()
    }

    /// The checkpoint of a packed file, with its source's fingerprint.
    pub(crate) fn finish_packed(
        mut self,
        path: PathBuf,
        source: CheckpointSource,
        from: PackSource,
    ) -> Result<Checkpoint, FormatError> {
        // Caches that were saved with the source fit the packed file too.
        self.hash = from.identity.header;
        let mut checkpoint = self.finish(path, source)?;
        checkpoint.packed = Some(from);
        Ok(checkpoint)
    }

    pub(crate) fn finish(self, path: PathBuf, source: CheckpointSource) -> Result<Checkpoint, FormatError> {
        let Builder { files, headers, tensors, hash, in_use, absent } = self;
        // Headers were checked for duplicates one by one. Two files of a set may have the same
        // tensor.
        let by_name = by_name(&tensors);
        let twice = |pair: &&[u32]| tensors[pair[0] as usize].name == tensors[pair[1] as usize].name;
        if let Some(pair) = by_name.windows(2).find(twice) {
            let [one, other] = [pair[0], pair[1]].map(|i| match tensors[i as usize].place {
                TensorLocation::File { file, .. } => headers[file].0.as_str(),
                _ => "the file",
            });
            let name = &tensors[pair[0] as usize].name;
            let problem = format!(
                "tensor {name} is in {one} and in {other}; remove the file that does not belong to the model"
            );
            return Err(FormatError::Set { path, problem });
        }
        Ok(Checkpoint {
            path,
            source: Arc::new(source),
            files,
            headers,
            tensors,
            by_name,
            fingerprint: hash,
            packed: None,
            four_bit: Arc::default(),
            cuts: Vec::new(),
            derived: Arc::default(),
            in_files: None,
            absent: Arc::new(absent),
            adapters: Arc::default(),
            _in_use: in_use,
        })
    }
}

/// The name of a file in its set.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Indices of tensors, sorted by name.
pub(crate) fn by_name(tensors: &[TensorInfo]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    order.sort_unstable_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
    order
}
