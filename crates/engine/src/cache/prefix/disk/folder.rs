//! The folder of a prefix cache on disk: an index of its files, and the removal of old ones.
//! Several processes may use one folder: files appear when they are complete, are never changed,
//! and may vanish at any time.

use super::segment::{Header, START, SegmentStart};
use crate::cache::block_hash::BlockHash;
use crate::tracing;
use latent_formats::{InputError, input_file, output_file};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// The extension of the files.
const ENDING: &str = ".kv";

/// Minimum age of unfinished files that are removed. Younger ones may belong to a writer that is
/// still running.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Minimum time between two updates of a file's time of use. Saves a system call per file and job.
const TOUCH: Duration = Duration::from_secs(30);

/// Scans of the folder take at most 1/20 of the time.
const SCAN_SHARE: u32 = 20;

/// Minimum age of the folder's modification time for it to prove that nothing has changed. A change
/// within the resolution of the file system's clock may leave the time as it was.
const SETTLED: Duration = Duration::from_millis(100);

/// A file in the index.
#[derive(Debug)]
struct KnownSegment {
    bytes: u64,
    /// The index of the first block in its text.
    first: usize,
    used: SystemTime,
    /// The names of the blocks. Empty for files of other models, which only count with their size.
    blocks: Vec<BlockHash>,
}

/// The index of the folder.
#[derive(Debug)]
pub(super) struct SegmentFolder {
    path: PathBuf,
    id: u64,
    max_bytes: u64,
    files: HashMap<String, KnownSegment>,
    by_name: HashMap<BlockHash, String>,
    /// Total size of all files. 128 bits, since sparse files can have any size and the sum of their
    /// sizes exceeds 64 bits.
    bytes: u128,
    /// Modification time of the folder at the last scan, if it was older than [`SETTLED`] then.
    seen: Option<SystemTime>,
    /// Whether the last scan failed. The error is logged once.
    unreadable: bool,
    /// The end of the last scan, and its duration.
    scanned: Option<(Instant, Duration)>,
    pub errors: u64,
    pub removed: u64,
}

impl SegmentFolder {
    /// Creates the folder if needed, and reads the names of its files.
    pub(super) fn open(path: &Path, id: u64, max_bytes: u64) -> io::Result<SegmentFolder> {
        // Accessible to its owner only: cached tokens and rows reveal prompts.
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

    /// The name of the file with these blocks. It contains the index of the first block, so that
    /// `make_room` need not open files of other models.
    pub(super) fn name(&self, first: usize, last: BlockHash) -> String {
        let last: String = last.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:016x}-{first:08x}-{last}{ENDING}", self.id)
    }

    /// The known file that holds a block.
    pub(super) fn find(&self, block: BlockHash) -> Option<&String> {
        self.by_name.get(&block)
    }

    /// Scans the folder again if another process may have changed it. Limits the share of time that
    /// scans of a large folder take.
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

    /// Updates the index with the names of all files, and with the headers of new files of this
    /// model.
    fn scan(&mut self) -> io::Result<()> {
        // Read before the entries: a change during the scan makes the next one find another time.
        let changed = fs::metadata(&self.path)?.modified()?;
        let age = SystemTime::now().duration_since(changed).unwrap_or_default();
        self.seen = (age > SETTLED).then_some(changed);
        let mut there = HashSet::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Some((id, first)) = parse_name(&name) else { continue };
            if !self.files.contains_key(&name) {
                // Another process may have removed the file since the folder was read.
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

    /// Reads the names of a file's blocks. Removes the file and returns `None` if it is damaged.
    fn blocks_of(&mut self, file: &str) -> Option<Vec<BlockHash>> {
        match read_header(&self.path_of(file), self.id) {
            Ok((header, _)) => Some(header.entries.into_iter().map(|entry| entry.name).collect()),
            Err(error) => {
                self.damaged(file, &error);
                None
            }
        }
    }

    /// Adds a file to the index.
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
            // Another file may hold the same block.
            if self.by_name.get(&block).is_some_and(|of| of == file) {
                self.by_name.remove(&block);
            }
        }
    }

    /// Removes a file that cannot be used.
    pub(super) fn damaged(&mut self, file: &str, error: &io::Error) {
        self.forget(file);
        // Another process has removed it to make room, which is not an error.
        if error.kind() == io::ErrorKind::NotFound {
            return;
        }
        let path = self.path_of(file);
        self.failed(&path, error);
        drop(fs::remove_file(path));
    }

    /// Logs and counts an error. Requests do not fail because of the cache.
    pub(super) fn failed(&mut self, path: &Path, error: &io::Error) {
        self.errors += 1;
        tracing::warn!("prefix cache: {}: {error}; the file is skipped", path.display());
    }

    /// Sets the time of use of these files to the same current time.
    pub(super) fn touch(&mut self, files: &HashSet<String>) {
        let now = SystemTime::now();
        for file in files {
            let path = self.path.join(file);
            let Some(known) = self.files.get_mut(file) else { continue };
            if now.duration_since(known.used).is_ok_and(|age| age > TOUCH) {
                known.used = now;
                // The modification time is the time of use, which other processes read. Errors are
                // ignored: the file may be gone, or belong to another user.
                drop(output_file::open_in_place(&path).map(|file| file.set_modified(now)));
            }
        }
    }

    /// Removes the least recently used files until `bytes` more fit. Returns false if they are more
    /// than the maximum. Of files of one text, those with later blocks are removed first, since
    /// they are useless without the earlier ones.
    pub(super) fn make_room(&mut self, bytes: u64) -> bool {
        self.refresh();
        if bytes > self.max_bytes {
            return false;
        }
        // Files of one text are touched at the same time, but the exact times in the file system
        // differ. Rounded to TOUCH, they are equal, and the index of the first block decides.
        let seconds = |time: SystemTime| {
            time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() / TOUCH.as_secs())
        };
        while self.bytes + u128::from(bytes) > u128::from(self.max_bytes) {
            let oldest = self.files.iter().min_by_key(|(name, known)| {
                (seconds(known.used), std::cmp::Reverse(known.first), known.used, (*name).clone())
            });
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else { return true };
            // Forgotten even if it cannot be removed, or the loop would not end.
            drop(fs::remove_file(self.path_of(&oldest)));
            self.forget(&oldest);
            self.removed += 1;
        }
        true
    }

    /// Removes unfinished files of writers that were killed.
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

/// The cache id and the index of the first block in a file's name.
fn parse_name(name: &str) -> Option<(u64, usize)> {
    let mut parts = name.strip_suffix(ENDING)?.split('-');
    let (id, first, last) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = id.len() == 16 && first.len() == 8 && last.len() == 32 && parts.next().is_none();
    let id = u64::from_str_radix(id, 16).ok().filter(|_| whole)?;
    Some((id, usize::from_str_radix(first, 16).ok()?))
}

/// Reads a file's header. Returns the file too, positioned after the header.
pub(super) fn read_header(path: &Path, id: u64) -> io::Result<(Header, File)> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "its header is damaged");
    let (mut file, metadata) = input_file::open(path).map_err(|error| match error {
        InputError::Io { error, .. } => error,
        other => io::Error::other(other),
    })?;
    let mut bytes = vec![0; START];
    file.read_exact(&mut bytes)?;
    // The first bytes hold the length of the header, which is checked before memory is allocated
    // for it.
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
    fn sizes_of_sparse_files_do_not_overflow() {
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
