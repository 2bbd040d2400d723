//! The files of a prefix cache on disk: which there are, what they hold, and which go first. Several processes may use one folder: files appear
//! when they are whole, are never changed, and may vanish at any time.

use super::segment::{Header, START, SegmentStart};
use crate::cache::block_hash::BlockHash;
use crate::tracing;
use latent_formats::{InputError, input_file, output_file};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// End of the files' names.
const ENDING: &str = ".kv";

/// Files of writers that ended before they had finished are removed when they are as old as this.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A use of a file is noted once in this time.
const TOUCH: Duration = Duration::from_secs(30);

/// Scans of the folder take at most 1/20 of the time.
const SCAN_SHARE: u32 = 20;

/// A folder may change again within the resolution of its time.
const SETTLED: Duration = Duration::from_millis(100);

/// One file.
#[derive(Debug)]
struct KnownSegment {
    bytes: u64,
    /// The index of its first block.
    first: usize,
    used: SystemTime,
    /// The names of its blocks; none of those of another model.
    blocks: Vec<BlockHash>,
}

/// What is known of the folder.
#[derive(Debug)]
pub(super) struct SegmentFolder {
    path: PathBuf,
    id: u64,
    max_bytes: u64,
    files: HashMap<String, KnownSegment>,
    by_name: HashMap<BlockHash, String>,
    /// Of all files, however long they say that they are.
    bytes: u128,
    /// When the folder had changed last when it was read, if that was long enough before.
    seen: Option<SystemTime>,
    /// Whether the folder could not be read last time: that is said once.
    unreadable: bool,
    /// When it was read last, and how long that took.
    scanned: Option<(Instant, Duration)>,
    pub errors: u64,
    pub removed: u64,
}

impl SegmentFolder {
    /// Creates the folder if needed, and reads the names of its files.
    pub(super) fn open(path: &Path, id: u64, max_bytes: u64) -> io::Result<SegmentFolder> {
        // cached rows tell what was asked
        output_file::make_private_folder(path)?;
        let mut folder = SegmentFolder {
            path: path.to_owned(),
            id,
            max_bytes,
            files: HashMap::new(),
            by_name: HashMap::new(),
            bytes: 0,
            seen: None,
            unreadable: false,
            scanned: None,
            errors: 0,
            removed: 0,
        };
        folder.remove_abandoned();
        folder.scan()?;
        Ok(folder)
    }

    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    pub(super) fn path_of(&self, file: &str) -> PathBuf {
        self.path.join(file)
    }

    /// The name of a file with these blocks.
    pub(super) fn name(&self, first: usize, last: BlockHash) -> String {
        let last: String = last.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:016x}-{first:08x}-{last}{ENDING}", self.id)
    }

    /// The file that holds a block, as far as is known.
    pub(super) fn find(&self, block: BlockHash) -> Option<&String> {
        self.by_name.get(&block)
    }

    /// Reads the folder again where it has changed: in a large folder not often.
    pub(super) fn refresh(&mut self) {
        if self.scanned.is_some_and(|(at, took)| at.elapsed() < SCAN_SHARE * took) {
            return;
        }
        let changed = fs::metadata(&self.path).and_then(|folder| folder.modified());
        let same = self.seen.is_some() && changed.as_ref().ok() == self.seen.as_ref();
        if same {
            return;
        }
        let start = Instant::now();
        let scanned = self.scan();
        self.scanned = Some((Instant::now(), start.elapsed()));
        if let Err(error) = &scanned
            && !self.unreadable
        {
            self.failed(&self.path.clone(), error);
        }
        self.unreadable = scanned.is_err();
    }

    /// Reads which files there are, and the headers of new ones of this model.
    fn scan(&mut self) -> io::Result<()> {
        let changed = fs::metadata(&self.path)?.modified()?;
        let age = SystemTime::now().duration_since(changed).unwrap_or_default();
        self.seen = (age > SETTLED).then_some(changed);
        let mut there = HashSet::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Some((id, first)) = parse_name(&name) else { continue };
            if !self.files.contains_key(&name) {
                let Ok(metadata) = entry.metadata() else { continue };
                if !metadata.is_file() {
                    continue;
                }
                let blocks = if id == self.id { self.blocks_of(&name) } else { Some(Vec::new()) };
                let Some(blocks) = blocks else { continue };
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                self.add(name.clone(), metadata.len(), first, used, blocks);
            }
            there.insert(name);
        }
        let gone: Vec<String> = self.files.keys().filter(|name| !there.contains(*name)).cloned().collect();
        gone.iter().for_each(|name| self.forget(name));
        Ok(())
    }

    /// The names of a file's blocks; none where it is damaged, and removed.
    fn blocks_of(&mut self, file: &str) -> Option<Vec<BlockHash>> {
        match read_header(&self.path_of(file), self.id) {
            Ok((header, _)) => Some(header.entries.into_iter().map(|entry| entry.name).collect()),
            Err(error) => {
                self.damaged(file, &error);
                None
            }
        }
    }

    /// Notes a file that is there.
    pub(super) fn add(
        &mut self,
        file: String,
        bytes: u64,
        first: usize,
        used: SystemTime,
        blocks: Vec<BlockHash>,
    ) {
        self.forget(&file);
        for block in &blocks {
            self.by_name.insert(*block, file.clone());
        }
        self.bytes += u128::from(bytes);
        self.files.insert(file, KnownSegment { bytes, first, used, blocks });
    }

    fn forget(&mut self, file: &str) {
        let Some(known) = self.files.remove(file) else { return };
        self.bytes -= u128::from(known.bytes);
        for block in known.blocks {
            if self.by_name.get(&block).is_some_and(|of| of == file) {
                self.by_name.remove(&block);
            }
        }
    }

    /// Removes a file that cannot be used.
    pub(super) fn damaged(&mut self, file: &str, error: &io::Error) {
        self.forget(file);
        if error.kind() == io::ErrorKind::NotFound {
            return;
        }
        let path = self.path_of(file);
        self.failed(&path, error);
        drop(fs::remove_file(path));
    }

    /// Notes an error, which concerns no request.
    pub(super) fn failed(&mut self, path: &Path, error: &io::Error) {
        self.errors += 1;
        tracing::warn!("prefix cache: {}: {error}; the file is skipped", path.display());
    }

    /// Notes that these files are used now, all at the same time.
    pub(super) fn touch(&mut self, files: &HashSet<String>) {
        let now = SystemTime::now();
        for file in files {
            let path = self.path.join(file);
            let Some(known) = self.files.get_mut(file) else { continue };
            if now.duration_since(known.used).is_ok_and(|age| age > TOUCH) {
                known.used = now;
                // a file that is gone, or another user's, keeps its time
                drop(output_file::open_in_place(&path).map(|file| file.set_modified(now)));
            }
        }
    }

    /// Removes the least recently used files until `bytes` more fit; whether they do. Of files of one text, the later blocks go first, since they are of
    /// no use without the earlier ones.
    pub(super) fn make_room(&mut self, bytes: u64) -> bool {
        self.refresh();
        if bytes > self.max_bytes {
            return false;
        }
        let seconds = |time: SystemTime| {
            time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() / TOUCH.as_secs())
        };
        while self.bytes + u128::from(bytes) > u128::from(self.max_bytes) {
            let oldest = self.files.iter().min_by_key(|(name, known)| {
                (seconds(known.used), std::cmp::Reverse(known.first), known.used, (*name).clone())
            });
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else { return true };
            drop(fs::remove_file(self.path_of(&oldest)));
            self.forget(&oldest);
            self.removed += 1;
        }
        true
    }

    /// Removes what writers have left behind that were killed.
    fn remove_abandoned(&self) {
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let unfinished =
                name.to_str().is_some_and(|name| name.starts_with(".latent-") && name.ends_with(".part"));
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let age = modified.ok().and_then(|time| SystemTime::now().duration_since(time).ok());
            if unfinished && age.is_some_and(|age| age > ABANDONED) {
                drop(fs::remove_file(entry.path()));
            }
        }
    }
}

/// The cache id and the first block that a file's name says.
fn parse_name(name: &str) -> Option<(u64, usize)> {
    let mut parts = name.strip_suffix(ENDING)?.split('-');
    let (id, first, last) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = id.len() == 16 && first.len() == 8 && last.len() == 32 && parts.next().is_none();
    let id = u64::from_str_radix(id, 16).ok().filter(|_| whole)?;
    Some((id, usize::from_str_radix(first, 16).ok()?))
}

/// Reads a file's header; the file is at its end.
pub(super) fn read_header(path: &Path, id: u64) -> io::Result<(Header, File)> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "its header is damaged");
    let (mut file, metadata) = input_file::open(path).map_err(|error| match error {
        InputError::Io { error, .. } => error,
        other => io::Error::other(other),
    })?;
    let mut bytes = vec![0; START];
    file.read_exact(&mut bytes)?;
    let start = SegmentStart::parse(&bytes, id, metadata.len()).ok_or_else(damaged)?;
    bytes.resize(start.header, 0);
    file.read_exact(&mut bytes[START..])?;
    let header = Header::parse(&bytes, id, metadata.len()).ok_or_else(damaged)?;
    Ok((header, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_longer_than_any_disk_are_the_first_to_go() {
        let place = tempfile::tempdir().unwrap();
        let mut folder = SegmentFolder::open(place.path(), 9, 1000).unwrap();
        for (index, bytes) in [u64::MAX, u64::MAX, 600].into_iter().enumerate() {
            let name = folder.name(index, BlockHash([index as u8; 16]));
            let age = Duration::from_secs(3600 * (10 - index as u64));
            folder.add(name, bytes, index, SystemTime::now() - age, Vec::new());
        }
        assert_eq!((folder.files(), folder.bytes()), (3, u64::MAX));
        folder.seen = fs::metadata(place.path()).unwrap().modified().ok();
        assert!(folder.make_room(400));
        assert_eq!((folder.files(), folder.bytes(), folder.removed), (1, 600, 2));
    }
}
