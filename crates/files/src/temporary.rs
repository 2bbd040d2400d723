//! Temporary files and folders with random names, which are removed when they are dropped.

use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of names to try.
const MAX_TRIES: usize = 1000;

/// A file that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    file: File,
    path: TemporaryPath,
}

/// The path of a closed temporary file.
#[derive(Debug)]
pub(crate) struct TemporaryPath(PathBuf);

/// A temporary folder with access for its owner only. It is removed with its contents when it is
/// dropped.
#[derive(Debug)]
pub struct TemporaryFolder(PathBuf);

/// A name that no other file is likely to have.
fn random_name(suffix: &str) -> String {
    // `RandomState` is the only source of randomness in std. The name need not be secret: creation
    // fails if the name exists.
    let random = |part: u8| RandomState::new().hash_one((std::process::id(), part));
    format!(".latent-{:016x}{:08x}{suffix}", random(0), random(1) as u32)
}

/// Calls `make` with random names in `folder` until one does not exist.
fn make_in<T>(
    folder: &Path,
    suffix: &str,
    mut make: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    let mut tries = 0;
    loop {
        tries += 1;
        let path = folder.join(random_name(suffix));
        match make(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < MAX_TRIES => {}
            made => return made.map(|made| (path, made)),
        }
    }
}

impl TemporaryFile {
    /// Creates a file in `folder`. With `private`, only the owner may read it.
    pub(crate) fn create_in(folder: &Path, private: bool) -> io::Result<TemporaryFile> {
        let mut options = OpenOptions::new();
        // `create_new` fails if the name exists, and does not follow a link of that name.
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, if private { 0o600 } else { 0o666 });
        #[cfg(not(unix))]
        let _ = private;
        let (path, file) = make_in(folder, ".part", |path| options.open(path))?;
        Ok(TemporaryFile { file, path: TemporaryPath(path) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path.0
    }

    pub(crate) fn as_file(&self) -> &File {
        &self.file
    }

    pub(crate) fn as_file_mut(&mut self) -> &mut File {
        &mut self.file
    }

    /// Closes the file.
    pub(crate) fn close(self) -> TemporaryPath {
        self.path
    }
}

impl io::Write for TemporaryFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl TemporaryPath {
    /// Renames the file to `target`, and replaces an older file.
    ///
    /// # Errors
    /// An error of the system. The temporary file is then removed.
    pub(crate) fn persist(mut self, target: &Path) -> io::Result<()> {
        std::fs::rename(&self.0, target)?;
        self.0 = PathBuf::new();
        Ok(())
    }
}

impl Drop for TemporaryPath {
    fn drop(&mut self) {
        // Empty if the file was renamed.
        if !self.0.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

impl TemporaryFolder {
    pub(crate) fn create_in(parent: &Path) -> io::Result<TemporaryFolder> {
        #[cfg_attr(not(unix), expect(unused_mut))]
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        // An absolute path stays valid if the working directory changes.
        let parent = std::path::absolute(parent)?;
        let (path, ()) = make_in(&parent, "", |path| builder.create(path))?;
        Ok(TemporaryFolder(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for TemporaryFolder {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn dropping_removes_a_file_unless_it_was_persisted() {
        let folder = TemporaryFolder::create_in(&std::env::temp_dir()).unwrap();
        let inside = folder.path().to_owned();
        let mut file = TemporaryFile::create_in(&inside, true).unwrap();
        file.write_all(b"dropped").unwrap();
        let path = file.path().to_owned();
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with(".latent-"));
        drop(file);
        assert!(!path.exists());
        let mut file = TemporaryFile::create_in(&inside, false).unwrap();
        file.write_all(b"kept").unwrap();
        let target = inside.join("kept");
        std::fs::write(&target, b"older").unwrap();
        file.close().persist(&target).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"kept");
        assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 1);
        drop(folder);
        assert!(!inside.exists());
    }

    #[test]
    fn an_existing_name_is_not_reused() {
        let folder = TemporaryFolder::create_in(&std::env::temp_dir()).unwrap();
        let mut calls = 0;
        let made = make_in(folder.path(), "", |_| {
            calls += 1;
            if calls < 3 { Err(io::ErrorKind::AlreadyExists.into()) } else { Ok(calls) }
        });
        assert_eq!(made.unwrap().1, 3);
        let full = make_in::<()>(folder.path(), "", |_| Err(io::ErrorKind::AlreadyExists.into()));
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
