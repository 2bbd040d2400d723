//! Reading of whole input files other than models: circuits, profiles, dumps, saved caches. Only
//! regular files up to a given size are read.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};

/// An error of reading a file.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    /// Not a regular file. Reading it might block or never end.
    #[error("{}: it is {what}, expected a regular file; copy its contents into a file", path.display())]
    NotAFile { path: PathBuf, what: &'static str },
    #[error("{}: {bytes} bytes, more than the limit of {limit} for this kind of file", path.display())]
    TooLarge {
        path: PathBuf,
        /// Its size, or the bytes that were read.
        bytes: u64,
        limit: u64,
    },
    #[error("{}: not UTF-8 text: {error}", path.display())]
    NotText {
        path: PathBuf,
        /// The position of the first invalid byte.
        error: std::str::Utf8Error,
        /// Whether it begins with the byte order mark of UTF-16.
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

/// Options that do not block on pipes and devices, and do not follow a symbolic link unless
/// `follow`.
pub(crate) fn guarded(options: &mut OpenOptions, follow: bool) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // O_NOCTTY: opening a terminal must not make it the controlling one.
        let links = if follow { 0 } else { libc::O_NOFOLLOW };
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | links);
    }
    #[cfg(not(unix))]
    let _ = follow;
    options
}

/// Opens a regular file and returns its metadata too. Other kinds of files are rejected: a pipe or
/// a device may block forever, and opening some devices has side effects.
pub fn open(path: &Path) -> Result<(File, Metadata), InputError> {
    let io = |error| InputError::Io { path: path.to_owned(), error };
    let plain = |metadata: &Metadata| {
        let refused = || InputError::NotAFile { path: path.to_owned(), what: kind(metadata.file_type()) };
        metadata.is_file().then_some(()).ok_or_else(refused)
    };
    // Checked before opening, because opening has effects, and after, because the file may have
    // been replaced meanwhile. `guarded` keeps the second case from blocking.
    plain(&std::fs::metadata(path).map_err(io)?)?;
    let file = guarded(OpenOptions::new().read(true), true).open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    plain(&metadata)?;
    Ok((file, metadata))
}

/// Reads a regular file of at most `limit` bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, InputError> {
    let too_large = |bytes| InputError::TooLarge { path: path.to_owned(), bytes, limit };
    let (file, metadata) = open(path)?;
    if metadata.len() > limit {
        return Err(too_large(metadata.len()));
    }
    // The file may grow while it is read. One byte more than the limit detects that.
    let mut bytes = Vec::new();
    let taken = file.take(limit.saturating_add(1)).read_to_end(&mut bytes);
    taken.map_err(|error| InputError::Io { path: path.to_owned(), error })?;
    if bytes.len() as u64 > limit { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

/// Like [`read`] for UTF-8 text.
pub fn read_text(path: &Path, limit: u64) -> Result<String, InputError> {
    String::from_utf8(read(path, limit)?).map_err(|error| {
        let utf16 = [[0xff, 0xfe], [0xfe, 0xff]].iter().any(|mark| error.as_bytes().starts_with(mark));
        InputError::NotText { path: path.to_owned(), error: error.utf8_error(), utf16 }
    })
}
