//! The one place that writes files. A file is written under a random name in the folder of its target and takes the target's name when it is whole and
//! on the disk, so that the target is at any time the old file or the new one, also with several writers, a full disk or a power cut.
//!
//! The target is a plain file or does not exist yet. Refused are devices, pipes, sockets, folders, symbolic links (also those to plain files:
//! what stands at the other end is another's choice; links among the parent folders are followed as always), files that the user may
//! not write, and files of a model that this process has open, under whatever name.

use crate::in_use;
use crate::input_file::{guarded, kind};
use crate::temporary::{TemporaryFile, TemporaryFolder, TemporaryPath};
use crate::unfinished::UnfinishedName;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

pub use crate::unfinished::remove_unfinished;

/// Why a file is not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error("{}: {error}", path.display())]
    Io {
        /// The file that was to be written.
        path: PathBuf,
        error: io::Error,
    },
    #[error("{}: {problem}", path.display())]
    Refused {
        /// The file that was to be written.
        path: PathBuf,
        /// The existing object, and what to do.
        problem: String,
    },
}

/// A file that is being written. Dropped before it is finished, it leaves nothing behind.
#[derive(Debug)]
pub struct OutputFile {
    target: PathBuf,
    file: BufWriter<TemporaryFile>,
    noted: UnfinishedName,
}

/// A file that is whole and on the disk, but has not got its name yet. Dropped before that, it leaves nothing behind.
#[derive(Debug)]
pub struct CompleteFile {
    target: PathBuf,
    temporary: TemporaryPath,
    bytes: u64,
    noted: UnfinishedName,
}

impl OutputFile {
    /// Checks in advance, as far as possible, that a file can be written at `target`. Use it before
    /// long work.
    pub fn check(target: &Path) -> Result<(), OutputError> {
        examine(target)?;
        let io = |error| OutputError::Io { path: target.to_owned(), error };
        if std::fs::metadata(folder(target)).map_err(io)?.is_dir() {
            return Ok(());
        }
        Err(io(io::ErrorKind::NotADirectory.into()))
    }

    /// Begins a file that will stand at `target`, with the permissions of the file there, or those of a new file.
    pub fn create(target: &Path) -> Result<OutputFile, OutputError> {
        OutputFile::begin(target, false)
    }

    /// The same for files with conversation contents: only the owner may read the file, regardless
    /// of the umask and the permissions of an existing file.
    pub fn create_private(target: &Path) -> Result<OutputFile, OutputError> {
        OutputFile::begin(target, true)
    }

    fn begin(target: &Path, private: bool) -> Result<OutputFile, OutputError> {
        let old = examine(target)?;
        let io = |error| OutputError::Io { path: target.to_owned(), error };
        // the name must stay valid if the working directory changes
        let folder = std::path::absolute(folder(target)).map_err(io)?;
        let file = TemporaryFile::create_in(&folder, private).map_err(io)?;
        let noted = UnfinishedName::new(file.path());
        if let Some(old) = old.filter(|_| !private) {
            file.as_file().set_permissions(plain_mode(&old)).map_err(io)?;
        }
        Ok(OutputFile { target: target.to_owned(), file: BufWriter::with_capacity(1 << 20, file), noted })
    }

    /// The error of a write that failed.
    pub fn failed(&self, error: io::Error) -> OutputError {
        OutputError::Io { path: self.target.clone(), error }
    }

    /// Leaves a hole of `bytes` bytes, which read as zeros. On file systems with sparse files it
    /// takes no disk space.
    pub fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.flush()?;
        let file = self.file.get_ref().as_file();
        file.set_len(file.metadata()?.len() + bytes)?;
        self.file.get_mut().as_file_mut().seek(io::SeekFrom::End(0)).map(|_| ())
    }

    /// Brings all bytes to the disk.
    pub fn complete(self) -> Result<CompleteFile, OutputError> {
        let OutputFile { target, file, noted } = self;
        let io = |error| OutputError::Io { path: target.clone(), error };
        let file = file.into_inner().map_err(|error| io(error.into_error()))?;
        file.as_file().sync_all().map_err(io)?;
        let bytes = file.as_file().metadata().map_err(io)?.len();
        Ok(CompleteFile { temporary: file.close(), bytes, noted, target })
    }

    /// [`complete`](Self::complete) and [`publish`](CompleteFile::publish); how many bytes it has.
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

    /// Gives it its name, in place of an older file of that name.
    pub fn publish(self) -> Result<(), OutputError> {
        let CompleteFile { target, temporary, noted, .. } = self;
        examine(&target)?;
        let io = |error| OutputError::Io { path: target.clone(), error };
        temporary.persist(&target).map_err(io)?;
        drop(noted);
        sync_folder(folder(&target)).map_err(io)
    }

    /// Publishes all files, or none that was not there before: after a failure those already published are removed again.
    pub fn publish_all(files: Vec<CompleteFile>) -> Result<(), OutputError> {
        let mut new = Vec::new();
        for file in files {
            let target = file.target.clone();
            let fresh = std::fs::symlink_metadata(&target).is_err();
            if let Err(error) = file.publish() {
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

/// Opens a plain file to be read and written in place.
///
/// # Errors
/// A target that is refused, one with several names (hard links) among them; an error of the system.
pub fn open_in_place(path: &Path) -> Result<File, OutputError> {
    in_place(path, false)
}

/// The same, and a missing file is created. For files that outlive one process: locks, downloads, output that a later run continues.
pub fn create_in_place(path: &Path) -> Result<File, OutputError> {
    in_place(path, true)
}

fn in_place(path: &Path, create: bool) -> Result<File, OutputError> {
    examine(path)?;
    let io = |error| OutputError::Io { path: path.to_owned(), error };
    let refused = |problem| OutputError::Refused { path: path.to_owned(), problem };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false);
    // whatever took the file's place since then is neither followed nor waited for
    let file = guarded(&mut options, false).open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(refused(format!("it is {}, not a plain file: remove it", kind(metadata.file_type()))));
    }
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::nlink(&metadata) > 1 {
        return Err(refused(
            "it has several names (hard links), and would change under all of them: remove it".into(),
        ));
    }
    Ok(file)
}

/// Makes a folder and its missing parents, for their owner alone.
pub fn make_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Makes a temporary folder in `parent`, for its owner alone. It is removed with the value.
pub fn temporary_folder(parent: &Path) -> io::Result<TemporaryFolder> {
    TemporaryFolder::create_in(parent)
}

/// A folder for output files. What had to be made of it is removed again when this is dropped before it is [kept](Self::keep).
#[derive(Debug)]
pub struct OutputFolder {
    /// Folders that were made, the outermost first.
    made: Vec<(PathBuf, UnfinishedName)>,
}

impl OutputFolder {
    /// Makes the folder at `path` and its parents where they are missing.
    pub fn create(path: &Path) -> Result<OutputFolder, OutputError> {
        let io = |error| OutputError::Io { path: path.to_owned(), error };
        let whole = std::path::absolute(path).map_err(io)?;
        let missing: Vec<&Path> = whole.ancestors().take_while(|path| !path.exists()).collect();
        let mut folder = OutputFolder { made: Vec::new() };
        for path in missing.into_iter().rev() {
            match std::fs::create_dir(path) {
                Ok(()) => folder.made.push((path.to_owned(), UnfinishedName::new(path))),
                // another process was faster
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                Err(error) => return Err(io(error)),
            }
        }
        if whole.is_dir() { Ok(folder) } else { Err(io(io::ErrorKind::NotADirectory.into())) }
    }

    /// Lets the folder stay.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        // a folder that is not empty stays
        self.made.iter().rev().for_each(|(path, _)| drop(std::fs::remove_dir(path)));
    }
}

/// The parent folder of a file.
pub(crate) fn folder(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The metadata of the regular file at `target`, which may be replaced; none if it does not exist.
pub(crate) fn examine(target: &Path) -> Result<Option<Metadata>, OutputError> {
    let io = |error| OutputError::Io { path: target.to_owned(), error };
    let refused = |problem: String| Err(OutputError::Refused { path: target.to_owned(), problem });
    if target.as_os_str() == "-" {
        return refused("this writes a file, not standard output; a file of this name is ./-".into());
    }
    let metadata = match std::fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(io)?,
    };
    if metadata.is_symlink() {
        let to = std::fs::read_link(target).map_err(io)?;
        return refused(format!(
            "it is a symbolic link to {}, and nothing is written through links: give the file itself",
            to.display()
        ));
    }
    if !metadata.is_file() {
        return refused(format!(
            "it is {}; give the name of a plain or a new file",
            kind(metadata.file_type())
        ));
    }
    if in_use::is_open(&metadata) {
        return refused("it is a file of the model itself; give another name".into());
    }
    // a rename does not check that the file itself is writable
    guarded(OpenOptions::new().write(true), false).open(target).map_err(io)?;
    Ok(Some(metadata))
}

/// The permissions of an older file, without the bits that make a program run as another user.
fn plain_mode(old: &Metadata) -> Permissions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        Permissions::from_mode(old.permissions().mode() & 0o777)
    }
    #[cfg(not(unix))]
    old.permissions()
}

/// Brings the names in a folder to the disk.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(not(unix)) {
        return Ok(());
    }
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // a folder may be written but not read, and some file systems know no such call: the file is in place either way
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        done => done,
    }
}
