//! Checked opening of files to read, and writing of files that are whole or absent.
//!
//! * [`input_file`]: plain files up to a limit; pipes, devices and sockets are refused without waiting for them.
//! * [`OutputFile`]: a file that appears when it is whole and on the disk; [`OutputFolder`], a folder for several.
//! * [`ResumableFile`]: output that a later run continues.
//! * [`OpenFileGuard`]: files of the open model, which nothing may overwrite.
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
