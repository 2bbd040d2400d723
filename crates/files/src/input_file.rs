//! Reading whole input files other than models (circuits, profiles, dumps, saved caches). Only
//! regular files up to a given size are read.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    /// It is not a regular file: reading it might block, or never end.
    #[error("{}: it is {what}, but only plain files are read; copy its contents into a file", path.display())]
    NotAFile { path: PathBuf, what: &'static str },
    #[error("{}: {bytes} bytes, more than the limit of {limit} for this kind of file", path.display())]
    TooLarge {
        path: PathBuf,
        /// Its bytes, as far as they were read.
        bytes: u64,
        limit: u64,
    },
    #[error("{}: not UTF-8 text: {error}", path.display())]
    NotText {
        path: PathBuf,
        /// The position of the first invalid byte.
        error: std::str::Utf8Error,
        /// Whether it begins as UTF-16 does.
        utf16: bool,
    },
}

/// The kind of something that is not a regular file.
pub(crate) fn kind(ty: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if ty.is_fifo() {
            return "a pipe";
        } else if ty.is_char_device() || ty.is_block_device() {
            return "a device";
        } else if ty.is_socket() {
            return "a socket";
        }
    }
    if ty.is_dir() { "a folder" } else { "a special file" }
}

/// Options that neither wait for a pipe or device nor, unless `follow`, go through a symbolic link.
pub(crate) fn guarded(options: &mut OpenOptions, follow: bool) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let links = if follow { 0 } else { libc::O_NOFOLLOW };
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | links);
    }
    #[cfg(not(unix))]
    let _ = follow;
    options
}

/// Opens a plain file and returns its metadata too. Other kinds of files are not opened: a pipe or
/// a device may block forever, and opening some devices has effects. If one replaces the file
/// between the check and the opening, the call does not block, and refuses it.
pub fn open(path: &Path) -> Result<(File, Metadata), InputError> {
    let io = |error| InputError::Io { path: path.to_owned(), error };
    let plain = |metadata: &Metadata| {
        let refused = || InputError::NotAFile { path: path.to_owned(), what: kind(metadata.file_type()) };
        metadata.is_file().then_some(()).ok_or_else(refused)
    };
    plain(&std::fs::metadata(path).map_err(io)?)?;
    let file = guarded(OpenOptions::new().read(true), true).open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    plain(&metadata)?;
    Ok((file, metadata))
}

/// Reads a plain file of at most `limit` bytes. Reading stops at the limit if the file grows
/// meanwhile.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, InputError> {
    let too_large = |bytes| InputError::TooLarge { path: path.to_owned(), bytes, limit };
    let (file, metadata) = open(path)?;
    if metadata.len() > limit {
        return Err(too_large(metadata.len()));
    }
    let mut bytes = Vec::new();
    let taken = file.take(limit.saturating_add(1)).read_to_end(&mut bytes);
    taken.map_err(|error| InputError::Io { path: path.to_owned(), error })?;
    if bytes.len() as u64 > limit { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

/// The same for UTF-8 text.
pub fn read_text(path: &Path, limit: u64) -> Result<String, InputError> {
    String::from_utf8(read(path, limit)?).map_err(|error| {
        let utf16 = [[0xff, 0xfe], [0xfe, 0xff]].iter().any(|mark| error.as_bytes().starts_with(mark));
        InputError::NotText { path: path.to_owned(), error: error.utf8_error(), utf16 }
    })
}
