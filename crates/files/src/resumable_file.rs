//! Resumable output files. An interrupted run leaves a part file in the target's folder, and the
//! next run of the same work continues it.
//!
//! The name of the part consists of the target's name and the fingerprint of the work:
//! `model.gguf.0123456789abcdef.part`. Until the last step its first eight bytes are not those of
//! the target but the number of bytes known to be on disk. So a part is never mistaken for a
//! complete file. Bytes that a power cut left behind the known ones are written again.

use crate::output_file::{OutputError, OutputFile, create_in_place, examine, folder, sync_folder};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Bytes of the target that the count stands in for.
const COUNT_BYTES: usize = 8;

/// Bytes that are appended together.
const BUFFER: usize = 1 << 20;

/// Written bytes after which they are brought to the disk and counted.
const SYNC_EVERY: u64 = 512 << 20;

/// A part that is being written, locked against other runs.
#[derive(Debug)]
pub struct ResumableFile {
    target: PathBuf,
    part: PathBuf,
    file: File,
    /// Appended bytes that the file does not have yet.
    pending: Vec<u8>,
    written: u64,
    /// As far as the file has them.
    flushed: u64,
    counted: u64,
}

impl ResumableFile {
    /// Bytes of the target that are written last.
    pub const COUNT_BYTES: usize = COUNT_BYTES;

    pub fn part_of(target: &Path, fingerprint: u64) -> PathBuf {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{fingerprint:016x}.part"));
        target.with_file_name(name)
    }

    /// Opens the part of `target` that work of this fingerprint has left, or begins one. The fingerprint stands for every byte of the target.
    ///
    /// # Errors
    /// A target that is refused; a part that another run is writing; an error of the system.
    pub fn open(target: &Path, fingerprint: u64) -> Result<ResumableFile, OutputError> {
        OutputFile::check(target)?;
        let part = ResumableFile::part_of(target, fingerprint);
        let io = |error| OutputError::Io { path: part.clone(), error };
        let mut file = create_in_place(&part)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let problem = "another run is writing it".to_owned();
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

    /// Bytes that are written, those of an earlier run included. If there are any, writing goes on behind them.
    pub fn written(&self) -> u64 {
        self.written
    }

    pub fn part(&self) -> &Path {
        &self.part
    }

    /// Bytes that a later run goes on behind.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Forgets what an earlier run has written.
    pub fn begin_anew(&mut self) -> Result<(), OutputError> {
        self.pending.clear();
        (self.written, self.flushed, self.counted) = (0, 0, 0);
        self.cut().map_err(|error| OutputError::Io { path: self.part.clone(), error })
    }

    /// Removes the part: no run can go on with it.
    pub fn discard(self) {
        let _ = std::fs::remove_file(&self.part);
    }

    /// Appends bytes. After an error the file ends behind an earlier append, and bytes that were appended since are not [written](Self::written).
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        // the count stands in for the first ones
        let first = (COUNT_BYTES as u64).saturating_sub(self.written).min(bytes.len() as u64) as usize;
        self.pending.extend_from_slice(&[0; COUNT_BYTES][..first]);
        self.pending.extend_from_slice(&bytes[first..]);
        self.written += bytes.len() as u64;
        if self.pending.len() >= BUFFER {
            self.flush()?;
        }
        if self.written - self.counted >= SYNC_EVERY { self.count() } else { Ok(()) }
    }

    /// Brings all bytes to the disk and counts them: where a later run goes on.
    pub fn count(&mut self) -> io::Result<()> {
        self.flush()?;
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
                // discard what was written after the last flush
                self.cut()?;
            }
        }
        done
    }

    /// Ends the file behind its written bytes.
    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.written)?;
        self.file.seek(SeekFrom::Start(self.written)).map(drop)
    }

    /// Puts the first bytes in their place and gives the part its target's name.
    pub fn publish(self, start: [u8; COUNT_BYTES]) -> Result<(), OutputError> {
        ResumableFile::publish_all(vec![(self, start)])
    }

    /// Publishes all files with their first bytes, or none that was not there before: after a failure those already published are removed again.
    pub fn publish_all(mut files: Vec<(ResumableFile, [u8; COUNT_BYTES])>) -> Result<(), OutputError> {
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
                // the error matters more than files that cannot be removed
                new.iter().for_each(|path| drop(std::fs::remove_file(path)));
                return Err(error);
            }
            if fresh {
                new.push(target);
            }
        }
        Ok(())
    }

    /// Brings all bytes to the disk, the first ones in place of their count.
    fn whole(&mut self, start: [u8; COUNT_BYTES]) -> io::Result<()> {
        self.flush()?;
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
    fn a_part_goes_on_where_it_was_counted() {
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
        assert!(error.contains("another run is writing it"), "{error}");
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
    fn what_is_given_up_leaves_nothing() {
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
