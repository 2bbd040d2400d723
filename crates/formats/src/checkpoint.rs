//! A checkpoint: metadata and named tensors of a model, checked before anything uses them.

use crate::error::FormatError;
use crate::folder::{HfSource, tensor_files};
use crate::gguf::{GgufError, Header, MAGIC, Metadata};
use crate::limits;
use crate::map::Bytes;
use crate::safetensors::read_header;
use base::TensorType;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// An opened model.
pub struct Checkpoint {
    path: PathBuf,
    source: Source,
    files: Vec<Bytes>,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    fingerprint: u64,
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
    /// Bytes.
    pub bytes: usize,
    file: usize,
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
    /// Opens a GGUF file (any shard of a set), a model folder, or a safetensors file of one.
    ///
    /// # Errors
    /// What is wrong, where, and what to do.
    pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
        let io = |error| FormatError::Io { path: path.to_owned(), error };
        let metadata = std::fs::metadata(path).map_err(io)?;
        if metadata.is_dir() {
            return Self::open_folder(path);
        }
        let bytes = Bytes::map(path)?;
        if bytes.get().starts_with(MAGIC) {
            return Self::open_gguf(path, bytes);
        }
        if path.extension().is_some_and(|end| end == "safetensors") {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            return Self::open_folder(folder);
        }
        Err(FormatError::NotAModel { path: path.to_owned(), what: what_it_is(bytes.get()) })
    }

    /// A GGUF file that is built into the program.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Checkpoint, FormatError> {
        let path = PathBuf::from(name);
        let header = parse(&path, bytes)?;
        Self::assemble(path, vec![(header, Bytes::Static(bytes))])
    }

    fn open_gguf(path: &Path, bytes: Bytes) -> Result<Checkpoint, FormatError> {
        let header = parse(path, bytes.get())?;
        let shard = shard_of(path, &header)?;
        let Some((_, count)) = shard else {
            return Self::assemble(path.to_owned(), vec![(header, bytes)]);
        };
        let mut parts = Vec::with_capacity(count);
        for number in 0..count {
            let sibling = shard_path(path, number, count)?;
            let bytes = Bytes::map(&sibling).map_err(|error| match error {
                FormatError::Io { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
                    FormatError::Set {
                        path: path.to_owned(),
                        problem: format!("shard {} of {count} is missing: {}", number + 1, sibling.display()),
                    }
                }
                other => other,
            })?;
            let header = parse(&sibling, bytes.get())?;
            if shard_of(&sibling, &header)? != Some((number, count)) {
                let problem =
                    format!("its split.no or split.count does not say shard {} of {count}", number + 1);
                return Err(FormatError::Set { path: sibling, problem });
            }
            parts.push((header, bytes));
        }
        let first = shard_path(path, 0, count)?;
        Self::assemble(first, parts)
    }

    fn assemble(path: PathBuf, parts: Vec<(Header, Bytes)>) -> Result<Checkpoint, FormatError> {
        let mut hash = Fingerprint::new();
        let mut files = Vec::new();
        let mut tensors = Vec::new();
        let mut source: Option<GgufSource> = None;
        for (file, (header, bytes)) in parts.into_iter().enumerate() {
            hash.add(&(bytes.get().len() as u64).to_le_bytes());
            hash.add(&bytes.get()[..(header.data_start as usize).min(bytes.get().len())]);
            for entry in header.tensors {
                let (start, bytes) = (entry.start as usize, entry.bytes as usize);
                tensors.push(TensorInfo {
                    name: entry.name,
                    ty: entry.ty,
                    shape: entry.shape,
                    bytes,
                    file,
                    start,
                });
            }
            files.push(bytes);
            match &mut source {
                Some(source) => source.shards += 1,
                None => {
                    let mut metadata = header.metadata;
                    metadata.name_file(display(&path));
                    source = Some(GgufSource {
                        version: header.version,
                        metadata,
                        alignment: header.alignment,
                        shards: 1,
                    });
                }
            }
        }
        let Some(source) = source else {
            return Err(FormatError::Set { path, problem: "the set has no files".into() });
        };
        if let Some(expected) = source.metadata.u64("split.tensors.count")?
            && expected != tensors.len() as u64
        {
            let problem =
                format!("split.tensors.count is {expected}, but its files hold {} tensors", tensors.len());
            return Err(FormatError::Set { path, problem });
        }
        Self::finish(path, Source::Gguf(source), files, tensors, hash)
    }

    fn open_folder(folder: &Path) -> Result<Checkpoint, FormatError> {
        let source = HfSource::read(folder)?;
        let mut hash = Fingerprint::new();
        let mut files = Vec::new();
        let mut tensors = Vec::new();
        for (file, path) in tensor_files(folder)?.into_iter().enumerate() {
            let bytes = Bytes::map(&path)?;
            let entries = read_header(bytes.get())
                .map_err(|problem| FormatError::Safetensors { path: path.clone(), problem })?;
            hash.add(&(bytes.get().len() as u64).to_le_bytes());
            for entry in entries {
                hash.add(entry.name.as_bytes());
                let (start, bytes) = (entry.start, entry.bytes);
                tensors.push(TensorInfo {
                    name: entry.name,
                    ty: entry.ty,
                    shape: entry.shape,
                    bytes,
                    file,
                    start,
                });
            }
            files.push(bytes);
        }
        hash.add(serde_json::Value::Object(source.config.clone()).to_string().as_bytes());
        let checkpoint = Self::finish(folder.to_owned(), Source::HuggingFace(source), files, tensors, hash)?;
        checkpoint.check_fp8_scales()?;
        Ok(checkpoint)
    }

    fn finish(
        path: PathBuf,
        source: Source,
        files: Vec<Bytes>,
        tensors: Vec<TensorInfo>,
        hash: Fingerprint,
    ) -> Result<Checkpoint, FormatError> {
        let mut index = HashMap::with_capacity(tensors.len());
        for (i, tensor) in tensors.iter().enumerate() {
            if index.insert(tensor.name.clone(), i).is_some() {
                let problem = format!("tensor {} stands in two of its files", tensor.name);
                return Err(FormatError::Set { path, problem });
            }
        }
        Ok(Checkpoint { path, source, files, tensors, index, fingerprint: hash.0 })
    }

    /// FP8 tensors need a scale for each square of 128 × 128.
    fn check_fp8_scales(&self) -> Result<(), FormatError> {
        for tensor in self.tensors.iter().filter(|tensor| tensor.ty == TensorType::F8_E4M3) {
            let scale = format!("{}_scale_inv", tensor.name);
            let expected: Vec<usize> = tensor.shape.iter().map(|n| n.div_ceil(128)).collect();
            let found = self.tensor(&scale).map(|t| t.info.shape.clone());
            if found.as_ref() != Some(&expected) {
                let problem = match found {
                    None => format!("FP8 tensor {} lacks its scales {scale}", tensor.name),
                    Some(found) => {
                        format!("{scale} has shape {found:?}, expected {expected:?} for {}", tensor.name)
                    }
                };
                return Err(FormatError::Set { path: self.path.clone(), problem });
            }
        }
        Ok(())
    }

    /// What the file says beside tensors.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The file or folder that was opened (of shards: the first).
    pub fn path(&self) -> &Path {
        &self.path
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
        let info = &self.tensors[*self.index.get(name)?];
        Some(TensorRef { info, data: &self.files[info.file].get()[info.start..info.start + info.bytes] })
    }

    /// A number that two files share only if they have the same metadata, tensors and sizes. It says nothing about the weights' values.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Tells the system that a tensor's bytes will not be read again soon.
    pub fn advise_dropped(&self, name: &str) {
        if let Some(&i) = self.index.get(name) {
            let info = &self.tensors[i];
            self.files[info.file].drop_pages(info.start, info.bytes);
        }
    }
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

/// FNV-1a.
struct Fingerprint(u64);

impl Fingerprint {
    fn new() -> Fingerprint {
        Fingerprint(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Header, FormatError> {
    let wrong = |error: GgufError| FormatError::Gguf { path: path.to_owned(), error };
    let mut header = Header::parse(bytes, bytes.len() as u64).map_err(wrong)?;
    header.metadata.name_file(display(path));
    Ok(header)
}

/// Number (from 0) and count of the set that a file belongs to.
fn shard_of(path: &Path, header: &Header) -> Result<Option<(usize, usize)>, FormatError> {
    let count = header.metadata.u64("split.count")?.unwrap_or(0);
    if count <= 1 {
        return Ok(None);
    }
    let number = header.metadata.u64("split.no")?.unwrap_or(u64::MAX);
    if count > limits::MAX_SHARDS as u64 || number >= count {
        let problem = format!(
            "split.no {number} and split.count {count} make no sense (at most {} files)",
            limits::MAX_SHARDS
        );
        return Err(FormatError::Set { path: path.to_owned(), problem });
    }
    Ok(Some((number as usize, count as usize)))
}

/// The path of shard `number` (from 0) beside `path`, which must be named `…-00001-of-0000N.gguf`.
fn shard_path(path: &Path, number: usize, count: usize) -> Result<PathBuf, FormatError> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let end = format!("-of-{count:05}.gguf");
    let stem = name.strip_suffix(&end).and_then(|rest| {
        let (stem, digits) = rest.split_at_checked(rest.len().checked_sub(5)?)?;
        let numbered = digits.bytes().all(|b| b.is_ascii_digit());
        (numbered && stem.ends_with('-')).then_some(stem)
    });
    let Some(stem) = stem else {
        let problem = format!("it is one of {count} shards, whose names must end in -00001{end} and so on");
        return Err(FormatError::Set { path: path.to_owned(), problem });
    };
    Ok(path.with_file_name(format!("{stem}{:05}{end}", number + 1)))
}

/// What a file that is no model seems to be.
fn what_it_is(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(512)];
    let text = String::from_utf8_lossy(start);
    let begins = |what: &str| text.trim_start().to_ascii_lowercase().starts_with(what);
    if begins("version https://git-lfs") {
        "it is a Git LFS pointer, not the model itself; fetch it with `git lfs pull`".into()
    } else if begins("<!doctype html") || begins("<html") {
        "it is a web page; download the file itself, not the page that shows it".into()
    } else if start.starts_with(b"PK\x03\x04") || start.starts_with(&[0x80, 2]) {
        "it looks like a PyTorch pickle, which can run any program when it is read; Latent does not read pickles: convert the model to safetensors or GGUF".into()
    } else if start.starts_with(b"FUGG") {
        "it is a big-endian GGUF file; convert it to little-endian".into()
    } else if start.iter().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace()) {
        "it is a text file; Latent reads .gguf files and folders of .safetensors".into()
    } else {
        format!(
            "its first bytes are {:02x?}; Latent reads .gguf files and folders of .safetensors",
            &start[..start.len().min(4)]
        )
    }
}
