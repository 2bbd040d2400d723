//! Opening of GGUF files: a single file or a set of shards.

use crate::absent::{MissingFiles, RequiredFiles};
use crate::builder::{Builder, PlacedTensor, name_of};
use crate::checkpoint::{Checkpoint, CheckpointSource, GgufSource, display};
use crate::error::FormatError;
use crate::gguf::{Header, MAGIC, Metadata};
use crate::limits;
use crate::map::FileBytes;
use std::path::{Path, PathBuf};

/// Opens the file at `path` with the bytes `bytes`, and the other shards of its set. With
/// [`RequiredFiles::Some`], shards other than the first may be missing.
pub(super) fn open(path: &Path, bytes: FileBytes, needed: RequiredFiles) -> Result<Checkpoint, FormatError> {
    let header = parse(path, bytes.get())?;
    refuse_joined(path, bytes.get(), &header)?;
    let Some((_, count)) = shard_of(path, &header.metadata)? else {
        return ShardSet::start(path.to_owned(), header, bytes).finish();
    };
    let first = shard_path(path, 0, count)?;
    // Only the first shard has the metadata, so the set is read from there. `path` may be any
    // shard; its header is dropped before others are read, to hold one at a time.
    drop((header, bytes));
    let (header, bytes) = open_shard(path, 0, count).map_err(|error| match error {
        FormatError::Incomplete { path, problem } if needed == RequiredFiles::Some => {
            let problem = format!("{problem}; every rank needs the first shard, which has the metadata");
            FormatError::Incomplete { path, problem }
        }
        other => other,
    })?;
    let mut set = ShardSet::start(first, header, bytes);
    for number in 1..count {
        let shard = shard_path(path, number, count)?;
        if needed == RequiredFiles::Some && !shard.exists() {
            set.lacks(&shard);
            continue;
        }
        let (header, bytes) = open_shard(path, number, count)?;
        set.add(&shard, header, bytes)?;
    }
    set.finish()
}

/// Opens a single GGUF file in memory. It must not be a shard.
pub(super) fn in_memory(name: &str, bytes: FileBytes) -> Result<Checkpoint, FormatError> {
    let path = PathBuf::from(name);
    let header = parse(&path, bytes.get())?;
    // The other shards cannot be found without a folder.
    if let Some((number, count)) = shard_of(&path, &header.metadata)? {
        let problem =
            format!("it is shard {} of {count}, but a model in memory must be one file", number + 1);
        return Err(FormatError::Set { path, problem });
    }
    ShardSet::start(path, header, bytes).finish()
}

/// A set of shards while it is opened.
struct ShardSet {
    path: PathBuf,
    source: GgufSource,
    builder: Builder,
    absent: MissingFiles,
}

impl ShardSet {
    fn start(path: PathBuf, header: Header, bytes: FileBytes) -> ShardSet {
        let mut metadata = header.metadata;
        metadata.name_file(display(&path));
        let source = GgufSource { version: header.version, metadata, alignment: header.alignment, shards: 1 };
        let mut builder = Builder::new();
        builder.file(&path, bytes, header.data_start, header.tensors.into_iter().map(PlacedTensor::from));
        ShardSet { path, source, builder, absent: MissingFiles::default() }
    }

    /// Notes a missing shard. GGUF has no index, so its tensors are unknown.
    fn lacks(&mut self, shard: &Path) {
        self.absent.files.push(name_of(shard));
        self.source.shards += 1;
    }

    fn add(&mut self, shard: &Path, header: Header, bytes: FileBytes) -> Result<(), FormatError> {
        self.builder.file(
            shard,
            bytes,
            header.data_start,
            header.tensors.into_iter().map(PlacedTensor::from),
        );
        self.source.shards += 1;
        // Each header is limited by itself, and a set has up to 4096 files.
        if self.builder.tensors() as u64 > limits::MAX_TENSORS {
            let problem = format!("its files hold more than {} tensors", limits::MAX_TENSORS);
            return Err(FormatError::Set { path: self.path.clone(), problem });
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Checkpoint, FormatError> {
        let held = self.builder.tensors() as u64;
        if let Some(expected) = self.source.metadata.u64("split.tensors.count")? {
            // Missing shards have the remaining tensors.
            let fits = if self.absent.files.is_empty() { expected == held } else { expected >= held };
            if !fits {
                let problem = format!("split.tensors.count is {expected}, but its files hold {held} tensors");
                return Err(FormatError::Set { path: self.path, problem });
            }
            self.absent.tensors = Some(expected - held);
        }
        self.builder.lacks(self.absent);
        self.builder.finish(self.path, CheckpointSource::Gguf(self.source))
    }
}

impl From<crate::gguf::GgufTensorEntry> for PlacedTensor {
    fn from(t: crate::gguf::GgufTensorEntry) -> PlacedTensor {
        PlacedTensor {
            name: t.name,
            ty: t.ty,
            shape: t.shape,
            start: t.start,
            bytes: t.bytes,
            tile_rows: None,
        }
    }
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Header, FormatError> {
    let parsed = Header::parse(bytes, bytes.len() as u64);
    let mut header = parsed.map_err(|error| FormatError::Gguf { path: path.to_owned(), error })?;
    header.metadata.name_file(display(path));
    Ok(header)
}

fn open_shard(path: &Path, number: usize, count: usize) -> Result<(Header, FileBytes), FormatError> {
    let shard = shard_path(path, number, count)?;
    let bytes = FileBytes::map(&shard).map_err(|error| match error {
        FormatError::Io { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
            let problem = format!("shard {} of {count} is missing: {}", number + 1, shard.display());
            FormatError::Incomplete { path: path.to_owned(), problem }
        }
        other => other,
    })?;
    let header = parse(&shard, bytes.get())?;
    // A renamed shard would put tensors of another set into the model.
    if shard_of(&shard, &header.metadata)? != Some((number, count)) {
        let problem = format!("its split.no and split.count do not match shard {} of {count}", number + 1);
        return Err(FormatError::Set { path: shard, problem });
    }
    Ok((header, bytes))
}

/// Rejects shards that were concatenated into one file. The header describes only the tensors of
/// the first shard, so the others would be missing.
fn refuse_joined(path: &Path, bytes: &[u8], header: &Header) -> Result<(), FormatError> {
    let end = header.tensors.iter().map(|t| t.start + t.bytes).max().unwrap_or(header.data_start);
    // Some writers pad the last tensor and some do not, so both positions are tried.
    let begins = |at: &u64| usize::try_from(*at).is_ok_and(|at| bytes.get(at..at + 4) == Some(&MAGIC[..]));
    let Some(at) = [end, end.next_multiple_of(u64::from(header.alignment.max(1)))].into_iter().find(begins)
    else {
        return Ok(());
    };
    let problem = format!(
        "another GGUF file begins at byte {at}: shards were concatenated into one file; put the original \
         shards in one folder and pass the path of the first"
    );
    Err(FormatError::Set { path: path.to_owned(), problem })
}

/// Number (from 0) and count of shards, if the file is one of several.
pub(crate) fn shard_of(path: &Path, metadata: &Metadata) -> Result<Option<(usize, usize)>, FormatError> {
    // llama-gguf-split writes `split.count` 0 into merged files.
    let count = metadata.u64("split.count")?.unwrap_or(0);
    if count <= 1 {
        return Ok(None);
    }
    let wrong = |problem: String| Err(FormatError::Set { path: path.to_owned(), problem });
    let Some(number) = metadata.u64("split.no")? else {
        return wrong(format!("split.count is {count}, but split.no is missing"));
    };
    if count > limits::MAX_SHARDS as u64 || number >= count {
        let limit = limits::MAX_SHARDS;
        return wrong(format!(
            "split.no {number} and split.count {count} are invalid (at most {limit} files)"
        ));
    }
    Ok(Some((number as usize, count as usize)))
}

/// The path of shard `number` (from 0) in the folder of `path`, which must be named
/// `…-00001-of-0000N.gguf`.
pub(crate) fn shard_path(path: &Path, number: usize, count: usize) -> Result<PathBuf, FormatError> {
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
