//! Atomic writing of files. All output of the program goes through this module.
//!
//! A file is written under a random name in the folder of its target, synced, and renamed to the
//! target. So the target is always the old file or the new one, even with several writers, a full
//! disk or a power cut.
//!
//! The target is a regular file or does not exist. Rejected are devices, pipes, sockets, folders,
//! files that the user may not write, and files of a model that this process has open, under any
//! name. Symbolic links are rejected too, because another user may have chosen where they lead.
//! Links in the parent folders are followed.

use crate::in_use;
use crate::input_file::{guarded, kind};
use crate::temporary::{TemporaryFile, TemporaryFolder, TemporaryPath};
use crate::unfinished::UnfinishedName;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

pub use crate::unfinished::remove_unfinished;

/// An error of writing a file.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error("{}: {error}", path.display())]
    Io {
        /// The target, not the temporary file.
        path: PathBuf,
        error: io::Error,
    },
    #[error("{}: {problem}", path.display())]
    Refused {
        /// The target.
        path: PathBuf,
        /// The existing object, and advice.
        problem: String,
    },
}

/// A file that is being written. If it is dropped before it is finished, it is removed.
#[derive(Debug)]
pub struct OutputFile {
    target: PathBuf,
    file: BufWriter<TemporaryFile>,
    noted: UnfinishedName,
}

/// A file that is complete and on disk, without its final name. If it is dropped before it is
/// published, it is removed.
#[derive(Debug)]
pub struct CompleteFile {
    target: PathBuf,
    temporary: TemporaryPath,
    bytes: u64,
    noted: UnfinishedName,
}

impl OutputFile {
    /// Checks in advance, as far as possible, whether a file can be written at `target`. Use it
    /// before long work.
    pub fn check(target: &Path) -> Result<(), OutputError> {
        examine(target)?;
        let io = |error| OutputError::Io { path: target.to_owned(), error };
        if std::fs::metadata(folder(target)).map_err(io)?.is_dir() {
            return Ok(());
        }
        Err(io(io::ErrorKind::NotADirectory.into()))
    }

    /// Begins a file for `target`, with the permissions of an existing target, or those of a new
    /// file.
    pub fn create(target: &Path) -> Result<OutputFile, OutputError> {
        OutputFile::begin(target, false)
    }

    /// Like [`create`](Self::create) for files with conversation contents: only the owner may read
    /// the file, regardless of the umask and of an existing target.
    pub fn create_private(target: &Path) -> Result<OutputFile, OutputError> {
        OutputFile::begin(target, true)
    }

    fn begin(target: &Path, private: bool) -> Result<OutputFile, OutputError> {
        let old = examine(target)?;
        let io = |error| OutputError::Io { path: target.to_owned(), error };
        // An absolute path stays valid if the working directory changes.
        let folder = std::path::absolute(folder(target)).map_err(io)?;
        let file = TemporaryFile::create_in(&folder, private).map_err(io)?;
        let noted = UnfinishedName::new(file.path());
        if let Some(old) = old.filter(|_| !private) {
            file.as_file().set_permissions(plain_mode(&old)).map_err(io)?;
        }
        Ok(OutputFile { target: target.to_owned(), file: BufWriter::with_capacity(1 << 20, file), noted })
    }

    /// The error for a failed write. It names the target.
    pub fn failed(&self, error: io::Error) -> OutputError {
        OutputError::Io { path: self.target.clone(), error }
    }

    /// Appends a hole of `bytes` bytes, which read as zeros. It takes no disk space on file systems
    /// with sparse files.
    pub fn skip(&mut self, bytes: u64) -> io::Result<()> {
        // Buffered bytes belong before the hole.
        self.flush()?;
        let file = self.file.get_ref().as_file();
        file.set_len(file.metadata()?.len() + bytes)?;
        self.file.get_mut().as_file_mut().seek(io::SeekFrom::End(0)).map(|_| ())
    }

    /// Syncs all bytes to disk.
    pub fn complete(self) -> Result<CompleteFile, OutputError> {
        let OutputFile { target, file, noted } = self;
        let io = |error| OutputError::Io { path: target.clone(), error };
        let file = file.into_inner().map_err(|error| io(error.into_error()))?;
        file.as_file().sync_all().map_err(io)?;
        let bytes = file.as_file().metadata().map_err(io)?.len();
        Ok(CompleteFile { temporary: file.close(), bytes, noted, target })
    }

    /// [`complete`](Self::complete) and [`publish`](CompleteFile::publish). Returns the size in
    /// bytes.
    pub fn finish(self) -> Result<u64, OutputError> {
        let complete = self.complete()?;
        let bytes = complete.bytes();
        complete.publish()?;
        Ok(bytes)
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl CompleteFile {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Renames the file to its target, and replaces an older file.
    pub fn publish(self) -> Result<(), OutputError> {
        let CompleteFile { target, temporary, noted, .. } = self;
        // Again: the target may have become a link, or a file of a model, since the file was begun.
        examine(&target)?;
        let io = |error| OutputError::Io { path: target.clone(), error };
        temporary.persist(&target).map_err(io)?;
        // After the rename: until then, an exit without destructors must remove the file.
        drop(noted);
        sync_folder(folder(&target)).map_err(io)
    }

    /// Publishes all files. After a failure, new files that were already published are removed.
    /// Replaced files cannot be restored.
    pub fn publish_all(files: Vec<CompleteFile>) -> Result<(), OutputError> {
        let mut new = Vec::new();
        for file in files {
            let target = file.target.clone();
            let fresh = std::fs::symlink_metadata(&target).is_err();
            if let Err(error) = file.publish() {
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
}

/// Writes a whole file.
pub fn write(target: &Path, bytes: &[u8]) -> Result<(), OutputError> {
    filled(OutputFile::create(target)?, bytes)
}

/// Writes a whole file that only its owner may read.
pub fn write_private(target: &Path, bytes: &[u8]) -> Result<(), OutputError> {
    filled(OutputFile::create_private(target)?, bytes)
}

fn filled(mut file: OutputFile, bytes: &[u8]) -> Result<(), OutputError> {
    file.write_all(bytes).map_err(|error| file.failed(error))?;
    file.finish().map(drop)
}

/// Opens a regular file for reading and writing in place.
///
/// # Errors
/// A rejected target, such as one with several hard links; an error of the system.
pub fn open_in_place(path: &Path) -> Result<File, OutputError> {
    in_place(path, false)
}

/// Like [`open_in_place`], and creates a missing file. For files that several processes use: locks,
/// downloads, resumable output.
pub fn create_in_place(path: &Path) -> Result<File, OutputError> {
    in_place(path, true)
}

fn in_place(path: &Path, create: bool) -> Result<File, OutputError> {
    examine(path)?;
    let io = |error| OutputError::Io { path: path.to_owned(), error };
    let refused = |problem| OutputError::Refused { path: path.to_owned(), problem };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false);
    // If the file was replaced since the check, a link is not followed and a pipe does not block.
    let file = guarded(&mut options, false).open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(refused(format!("it is {}, not a regular file: remove it", kind(metadata.file_type()))));
    }
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::nlink(&metadata) > 1 {
        return Err(refused("it has several hard links, which would all change: remove it".into()));
    }
    Ok(file)
}

/// Creates a folder and its missing parents with access for the owner only.
pub fn make_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Creates a temporary folder in `parent` with access for the owner only. It is removed when it is
/// dropped.
pub fn temporary_folder(parent: &Path) -> io::Result<TemporaryFolder> {
    TemporaryFolder::create_in(parent)
}

/// A folder for output files. Unless it is [kept](Self::keep), created folders are removed when it
/// is dropped.
#[derive(Debug)]
pub struct OutputFolder {
    /// Created folders, the outermost first.
    made: Vec<(PathBuf, UnfinishedName)>,
}

impl OutputFolder {
    /// Creates the folder at `path` and its parents, if they are missing.
    pub fn create(path: &Path) -> Result<OutputFolder, OutputError> {
        let io = |error| OutputError::Io { path: path.to_owned(), error };
        let whole = std::path::absolute(path).map_err(io)?;
        let missing: Vec<&Path> = whole.ancestors().take_while(|path| !path.exists()).collect();
        let mut folder = OutputFolder { made: Vec::new() };
        for path in missing.into_iter().rev() {
            match std::fs::create_dir(path) {
                Ok(()) => folder.made.push((path.to_owned(), UnfinishedName::new(path))),
                // Another process has just created it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                Err(error) => return Err(io(error)),
            }
        }
        if whole.is_dir() { Ok(folder) } else { Err(io(io::ErrorKind::NotADirectory.into())) }
    }

    /// Keeps the folder.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        // `remove_dir` fails on folders that are not empty.
        self.made.iter().rev().for_each(|(path, _)| drop(std::fs::remove_dir(path)));
    }
}

/// The parent folder of a file.
pub(crate) fn folder(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks a target. Returns the metadata of an existing regular file that may be replaced; `None`
/// if it does not exist.
pub(crate) fn examine(target: &Path) -> Result<Option<Metadata>, OutputError> {
    let io = |error| OutputError::Io { path: target.to_owned(), error };
    let refused = |problem: String| Err(OutputError::Refused { path: target.to_owned(), problem });
    if target.as_os_str() == "-" {
        return refused("standard output is not supported here; for a file of this name, use ./-".into());
    }
    let metadata = match std::fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(io)?,
    };
    if metadata.is_symlink() {
        let to = std::fs::read_link(target).map_err(io)?;
        return refused(format!(
            "it is a symbolic link to {}, which is not followed: use the path of the file itself",
            to.display()
        ));
    }
    if !metadata.is_file() {
        return refused(format!("it is {}, expected a regular or a new file", kind(metadata.file_type())));
    }
    if in_use::is_open(&metadata) {
        return refused("it is a file of the model itself; use another name".into());
    }
    // A rename would replace a write-protected file, because it needs only access to the folder.
    guarded(OpenOptions::new().write(true), false).open(target).map_err(io)?;
    Ok(Some(metadata))
}

/// The permissions of an existing file, without setuid, setgid and sticky bits.
fn plain_mode(old: &Metadata) -> Permissions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // A setuid bit must not apply to new contents.
        Permissions::from_mode(old.permissions().mode() & 0o777)
    }
    #[cfg(not(unix))]
    old.permissions()
}

/// Syncs the names in a folder to disk. Without it, a power cut can undo a rename.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(not(unix)) {
        return Ok(());
    }
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // The folder may be writable but not readable, and some file systems lack the call. The
        // rename itself has succeeded.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        done => done,
    }
}
