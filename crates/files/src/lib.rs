//! Checked reading and atomic writing of files.
//!
//! * [`input_file`]: reading of regular files up to a limit. Pipes, devices and sockets are
//!   rejected without blocking.
//! * [`OutputFile`]: a file that appears under its name when it is complete and on disk.
//!   [`OutputFolder`] is a folder for several.
//! * [`ResumableFile`]: output that a later run continues.
//! * [`OpenFileGuard`]: protects files of the open model from being overwritten.
//!
//! ```
//! use latent_files::{input_file, output_file};
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("notes");
//! output_file::write_private(&path, b"the fox")?;
//! assert_eq!(input_file::read_text(&path, 100)?, "the fox");
//! assert!(input_file::read_text(&path, 3).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod in_use;
pub mod input_file;
pub mod output_file;
mod resumable_file;
mod temporary;
mod unfinished;

pub use in_use::OpenFileGuard;
pub use input_file::InputError;
pub use output_file::{CompleteFile, OutputError, OutputFile, OutputFolder};
pub use resumable_file::ResumableFile;
pub use temporary::TemporaryFolder;
pub use unfinished::unfinished_names;
