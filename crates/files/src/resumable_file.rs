//! Resumable output files. An interrupted run leaves a part file in the target's folder, and the
//! next run of the same work continues it.
//!
//! The name of the part consists of the target's name and the fingerprint of the work:
//! `model.gguf.0123456789abcdef.part`. Until the last step, its first eight bytes are not those of
//! the target but the number of bytes that are certainly on disk. So a part is never mistaken for a
//! complete file. Bytes after the counted ones may be damaged by a power cut and are written again.

use crate::output_file::{OutputError, OutputFile, create_in_place, examine, folder, sync_folder};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Size of the count, which replaces the first bytes of the target.
const COUNT_BYTES: usize = 8;

/// Size of the write buffer.
const BUFFER: usize = 1 << 20;

/// Number of written bytes between two syncs. An interrupted run repeats at most this much.
const SYNC_EVERY: u64 = 512 << 20;

/// A part that is being written, locked against other runs.
#[derive(Debug)]
pub struct ResumableFile {
    target: PathBuf,
    part: PathBuf,
    file: File,
    /// Appended bytes that are not in the file yet.
    pending: Vec<u8>,
    /// Appended bytes, including `pending`.
    written: u64,
    /// Bytes in the file.
    flushed: u64,
    /// Bytes on disk, as stored in the count.
    counted: u64,
}

impl ResumableFile {
    /// Number of bytes at the beginning of the target that are written last.
    pub const COUNT_BYTES: usize = COUNT_BYTES;

    pub fn part_of(target: &Path, fingerprint: u64) -> PathBuf {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{fingerprint:016x}.part"));
        target.with_file_name(name)
    }

    /// Opens the part that an earlier run with this fingerprint has left for `target`, or begins
    /// one. Equal fingerprints must mean equal bytes of the target.
    ///
    /// # Errors
    /// A rejected target; a part that another run is writing; an error of the system.
    pub fn open(target: &Path, fingerprint: u64) -> Result<ResumableFile, OutputError> {
        OutputFile::check(target)?;
        let part = ResumableFile::part_of(target, fingerprint);
        let io = |error| OutputError::Io { path: part.clone(), error };
        let mut file = create_in_place(&part)?;
        // The system releases the lock when the file is closed, even after a crash.
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let problem = "another process is writing it".to_owned();
                return Err(OutputError::Refused { path: part, problem });
            }
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        let len = file.metadata().map_err(io)?.len();
        let mut count = [0; COUNT_BYTES];
        let counted = if len >= COUNT_BYTES as u64 {
            file.read_exact(&mut count).map_err(io)?;
            u64::from_le_bytes(count)
        } else {
            0
        };
        // A count beyond the end belongs to a damaged or foreign file.
        let counted = if counted <= len { counted } else { 0 };
        file.set_len(counted).map_err(io)?;
        file.seek(SeekFrom::Start(counted)).map_err(io)?;
        Ok(ResumableFile {
            target: target.to_owned(),
            part,
            file,
            pending: Vec::new(),
            written: counted,
            flushed: counted,
            counted,
        })
    }

    /// Number of written bytes, including those of an earlier run. Appending continues after them.
    pub fn written(&self) -> u64 {
        self.written
    }

    pub fn part(&self) -> &Path {
        &self.part
    }

    /// Number of bytes after which a later run would continue.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Discards the bytes of an earlier run.
    pub fn begin_anew(&mut self) -> Result<(), OutputError> {
        self.pending.clear();
        (self.written, self.flushed, self.counted) = (0, 0, 0);
        self.cut().map_err(|error| OutputError::Io { path: self.part.clone(), error })
    }

    /// Removes the part.
    pub fn discard(self) {
        let _ = std::fs::remove_file(&self.part);
    }

    /// Appends bytes. After an error, the file ends after an earlier append, and later bytes do not
    /// count as [written](Self::written).
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Zeros in place of the first bytes: a count of 0 until the first sync.
        let first = (COUNT_BYTES as u64).saturating_sub(self.written).min(bytes.len() as u64) as usize;
        self.pending.extend_from_slice(&[0; COUNT_BYTES][..first]);
        self.pending.extend_from_slice(&bytes[first..]);
        self.written += bytes.len() as u64;
        if self.pending.len() >= BUFFER {
            self.flush()?;
        }
        if self.written - self.counted >= SYNC_EVERY { self.count() } else { Ok(()) }
    }

    /// Syncs all bytes to disk and stores their count.
    pub fn count(&mut self) -> io::Result<()> {
        self.flush()?;
        // The bytes must be on disk before the count that vouches for them.
        self.file.sync_data()?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&self.written.to_le_bytes())?;
        self.file.seek(SeekFrom::Start(self.written))?;
        self.counted = self.written;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.file.write_all(&self.pending);
        self.pending.clear();
        match done {
            Ok(()) => self.flushed = self.written,
            Err(_) => {
                self.written = self.flushed;
                // A full disk may have taken a part of the buffer. Cut it off, so that the file
                // ends at an append.
                self.cut()?;
            }
        }
        done
    }

    /// Truncates the file to its written bytes.
    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.written)?;
        self.file.seek(SeekFrom::Start(self.written)).map(drop)
    }

    /// Writes the first bytes and renames the part to its target.
    pub fn publish(self, start: [u8; COUNT_BYTES]) -> Result<(), OutputError> {
        ResumableFile::publish_all(vec![(self, start)])
    }

    /// Publishes all files with their first bytes. After a failure, new files that were already
    /// published are removed.
    pub fn publish_all(mut files: Vec<(ResumableFile, [u8; COUNT_BYTES])>) -> Result<(), OutputError> {
        // All files are completed before any is renamed, so that a full disk fails before the first
        // rename.
        for (file, start) in &mut files {
            file.whole(*start).map_err(|error| OutputError::Io { path: file.target.clone(), error })?;
        }
        let mut new: Vec<PathBuf> = Vec::new();
        for (ResumableFile { part, target, .. }, _) in files {
            let fresh = std::fs::symlink_metadata(&target).is_err();
            let io = |error| OutputError::Io { path: target.clone(), error };
            let renamed = examine(&target).and_then(|_| std::fs::rename(&part, &target).map_err(io));
            let done = renamed.and_then(|()| sync_folder(folder(&target)).map_err(io));
            if let Err(error) = done {
                // Errors of the removal are ignored: the first error is reported.
                new.iter().for_each(|path| drop(std::fs::remove_file(path)));
                return Err(error);
            }
            if fresh {
                new.push(target);
            }
        }
        Ok(())
    }

    /// Writes the first bytes in place of the count and syncs the file.
    fn whole(&mut self, start: [u8; COUNT_BYTES]) -> io::Result<()> {
        self.flush()?;
        // The other bytes first: with its first bytes, the file looks complete.
        self.file.sync_data()?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&start)?;
        self.file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_run_continues_after_the_counted_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out.bin");
        let mut file = ResumableFile::open(&target, 7).unwrap();
        file.append(b"01234").unwrap();
        file.append(b"56789abc").unwrap();
        file.count().unwrap();
        file.append(b"lost by a power cut").unwrap();
        drop(file);
        assert!(!target.exists());

        let mut file = ResumableFile::open(&target, 7).unwrap();
        assert_eq!(file.written(), 13);
        file.append(b"def").unwrap();
        file.publish(*b"01234567").unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"0123456789abcdef");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn other_work_has_a_part_of_its_own_and_two_runs_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out.bin");
        let mut file = ResumableFile::open(&target, 7).unwrap();
        file.append(b"0123456789").unwrap();
        file.count().unwrap();
        assert_eq!(ResumableFile::open(&target, 8).unwrap().written(), 0);
        let error = ResumableFile::open(&target, 7).unwrap_err().to_string();
        assert!(error.contains("another process is writing it"), "{error}");
    }

    #[test]
    fn a_part_that_is_cut_off_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out.bin");
        for bytes in [&b"abc"[..], &u64::MAX.to_le_bytes()] {
            std::fs::write(ResumableFile::part_of(&target, 1), bytes).unwrap();
            assert_eq!(ResumableFile::open(&target, 1).unwrap().written(), 0);
        }
    }

    #[test]
    fn begin_anew_and_discard_leave_no_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out.bin");
        let mut file = ResumableFile::open(&target, 7).unwrap();
        file.append(b"0123456789").unwrap();
        file.count().unwrap();
        file.begin_anew().unwrap();
        assert_eq!((file.written(), file.counted()), (0, 0));
        file.append(b"01234567x").unwrap();
        file.publish(*b"abcdefgh").unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"abcdefghx");
        ResumableFile::open(&target, 7).unwrap().discard();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
