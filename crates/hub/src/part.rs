//! The partial file of a download: the bytes received so far, and their hash.

use crate::digest::{Digest, Hasher};
use crate::error::HubError;
use crate::listing::RepoFile;
use latent_files::{input_file, output_file};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Size of buffers for reading and writing.
pub(crate) const BUFFER: usize = 1 << 20;

/// Maximum length of a stored ETag.
const MAX_ETAG: usize = 512;

/// A file that is being downloaded.
pub(crate) struct PartialFile<'a> {
    path: PathBuf,
    file: File,
    wanted: &'a RepoFile,
    hash: Hasher,
    /// Bytes that are in the file and in the hash.
    len: u64,
    /// Whether bytes of an earlier process are among them.
    pub(crate) resumed: bool,
}

impl<'a> PartialFile<'a> {
    /// Opens the part at `path`, which an earlier process may have left. `read` is called with the
    /// number of bytes that are hashed again, and returns whether to continue.
    pub(crate) fn open(
        path: &Path,
        wanted: &'a RepoFile,
        read: &dyn Fn(u64) -> bool,
    ) -> Result<PartialFile<'a>, HubError> {
        let file = output_file::create_in_place(path).map_err(HubError::refused)?;
        let hash = Hasher::new(wanted.digest.as_ref(), wanted.size);
        let mut part = PartialFile { path: path.into(), file, wanted, hash, len: 0, resumed: false };
        part.take_up(read).map_err(HubError::io(path))?;
        Ok(part)
    }

    /// Hashes the bytes of an earlier process.
    fn take_up(&mut self, read: &dyn Fn(u64) -> bool) -> io::Result<()> {
        // The state of a hash cannot be saved, so the part is read again.
        let there = self.file.metadata()?.len();
        // A longer part is of another file.
        if there > self.wanted.size {
            return self.restart();
        }
        let mut buffer = vec![0; BUFFER];
        while self.len < there {
            let n = self.file.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            self.hash.update(&buffer[..n]);
            self.len += n as u64;
            self.resumed = true;
            if !read(n as u64) {
                break;
            }
        }
        Ok(())
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Discards all bytes.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hash = Hasher::new(self.wanted.digest.as_ref(), self.wanted.size);
        self.len = 0;
        self.resumed = false;
        Ok(())
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// A full disk. Earlier bytes are kept.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        if let Err(error) = self.file.write_all(bytes) {
            // A partial write is not in the hash, so it is cut off.
            let _ = self.file.set_len(self.len);
            let (path, kept, size) = (self.path.clone(), self.len, self.wanted.size);
            return Err(match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                    HubError::DiskFull { path, error, kept, size }
                }
                _ => HubError::Io { path, error },
            });
        }
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// The ETag of the bytes of an earlier process.
    pub(crate) fn etag(&self) -> Option<String> {
        let text = input_file::read_text(&self.etag_path(), MAX_ETAG as u64).ok()?;
        (text.len() > 2 && text.bytes().all(|b| b.is_ascii_graphic())).then_some(text)
    }

    /// Stores the ETag of the following bytes. Weak ETags do not guarantee equal bytes and are not
    /// stored.
    pub(crate) fn set_etag(&self, etag: &str) {
        let strong = etag.starts_with('"') && etag.len() < MAX_ETAG;
        // Without an ETag, only the checksum detects a file that has changed.
        if strong {
            let _ = output_file::write(&self.etag_path(), etag.as_bytes());
        } else {
            remove(&self.etag_path());
        }
    }

    fn etag_path(&self) -> PathBuf {
        self.path.with_extension("etag")
    }

    /// Verifies the checksum and renames the part to its final name. With a wrong checksum, the
    /// part is removed.
    pub(crate) fn finish(self, target: &Path) -> Result<(), HubError> {
        let PartialFile { path, file, wanted, hash, .. } = self;
        let etag = path.with_extension("etag");
        let got = hash.finish();
        if let Some(expected) = wanted.digest.as_ref().filter(|expected| **expected != got) {
            drop(file);
            remove(&path);
            remove(&etag);
            return Err(wrong(wanted, expected, &got));
        }
        // The bytes must be on disk before the name: after a power cut, a file with its final name
        // is assumed to be complete.
        file.sync_all().map_err(HubError::io(&path))?;
        drop(file);
        std::fs::rename(&path, target).map_err(HubError::io(target))?;
        remove(&etag);
        sync_folder(target);
        Ok(())
    }

    /// Removes the part.
    pub(crate) fn discard(self) {
        drop(self.file);
        remove(&self.path);
        remove(&self.path.with_extension("etag"));
    }
}

fn wrong(wanted: &RepoFile, expected: &Digest, got: &Digest) -> HubError {
    HubError::Checksum { file: wanted.path.clone(), expected: expected.to_string(), got: got.to_string() }
}

fn remove(path: &Path) {
    // A part that cannot be removed fails its checksum again.
    let _ = std::fs::remove_file(path);
}

/// Syncs the folder of a renamed file, on systems with such a call. An error is ignored: the file
/// itself is on disk.
fn sync_folder(target: &Path) {
    if cfg!(unix)
        && let Some(folder) = target.parent()
    {
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finish_removes_a_wrong_part_and_renames_a_correct_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("x.part"), folder.path().join("x"));
        let digest = Digest::sha256("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
        let wanted = RepoFile { path: "x".into(), size: 6, digest };
        std::fs::write(&path, "hel").unwrap();
        let mut part = PartialFile::open(&path, &wanted, &|_| true).unwrap();
        assert!(part.resumed && part.len() == 3 && part.etag().is_none());
        part.set_etag("\"e\"");
        assert_eq!(part.etag().as_deref(), Some("\"e\""));
        part.write(b"lo?").unwrap();
        let error = part.finish(&target).unwrap_err().to_string();
        assert!(error.contains("5891b5") && error.contains("removed"), "{error}");
        assert!(!path.exists() && !target.exists() && !folder.path().join("x.etag").exists());
        std::fs::write(&path, "much too long").unwrap();
        let mut part = PartialFile::open(&path, &wanted, &|_| true).unwrap();
        assert_eq!(part.len(), 0);
        part.write(b"hello\n").unwrap();
        part.finish(&target).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"hello\n");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_has_its_own_error() {
        let wanted = RepoFile { path: "x".into(), size: 6, digest: None };
        let file = File::options().write(true).open("/dev/full").unwrap();
        let hash = Hasher::new(None, 6);
        let mut part =
            PartialFile { path: "/cache/x.part".into(), file, wanted: &wanted, hash, len: 0, resumed: false };
        let error = part.write(b"abc").unwrap_err();
        assert!(matches!(error, HubError::DiskFull { kept: 0, size: 6, .. }), "{error}");
        assert!(error.to_string().contains("free some space"), "{error}");
    }

    #[test]
    #[cfg(unix)]
    fn nothing_is_written_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        std::os::unix::fs::symlink(folder.path().join("victim"), &path).unwrap();
        let wanted = RepoFile { path: "x".into(), size: 6, digest: None };
        assert!(matches!(PartialFile::open(&path, &wanted, &|_| true), Err(HubError::Cache { .. })));
    }
}
