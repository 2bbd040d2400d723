//! Readers and writers of model files: GGUF, safetensors and packed files.
//!
//! Weights are not computed with, with one exception: checkpoints that spread a 4-bit weight over
//! several tensors. Its rows are assembled as blocks while they are read.
//!
//! * [`Checkpoint`]: an opened model: metadata and named tensors, memory-mapped. Every range is
//!   checked before it is used.
//! * [`Outline`]: a model's metadata and the names of its tensors, even if their data are missing.
//! * [`gguf::Header`], [`safetensors::Header`]: the header alone, from the first bytes of a file.
//! * [`gguf::Writer`], [`safetensors::Writer`]: streaming writers.
//! * [`pack::Directory`], [`pack::PackWriter`]: packed files, whose weights are used in place.
//! * [`OutputFile`], [`ResumableFile`], [`input_file`]: writing and opening of files, from the
//!   crate `latent-files`.
//! * [`json::parse`]: a strict JSON parser.
//! * [`limits`]: limits on the claims of files.
//! * [`install_sigbus_handler`]: for programs: an error message when a mapped file shrinks. The
//!   library itself installs no signal handler.
//!
//! No input makes this crate panic, and no length in a file is trusted.
//!
//! ```
//! use latent_formats::gguf::{Header, Writer, WriterValue};
//! let mut file = Vec::new();
//! let mut writer = Writer::new();
//! writer.key("general.architecture", WriterValue::String("deepseek2".into()));
//! writer.write(&mut file, |_, _| Ok(()))?;
//! let header = Header::parse(&file, file.len() as u64)?;
//! assert_eq!(header.metadata.str("general.architecture")?, Some("deepseek2"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod absent;
mod adapter;
mod attached;
mod builder;
mod checkpoint;
mod cut;
mod derived;
mod error;
mod family_names;
mod files;
mod folder;
mod four_bit;
mod fp8;
pub mod gguf;
pub mod identity;
mod index;
pub mod json;
pub mod limits;
mod map;
mod mistral;
mod open;
mod other_files;
mod outline;
mod overrides;
pub mod pack;
mod page_cache;
mod parts;
mod rows;
pub mod safetensors;
mod scales;
mod sha256;
mod sigbus;
mod sniff;
mod spelling;
mod tensor;
mod weight_format;
mod with_adapters;
mod with_derived;

pub use adapter::{AdapterFile, LowRankPair, peft_module};
pub use attached::{AdapterNaming, AttachedAdapter, AttachedPair};
pub use checkpoint::{Checkpoint, CheckpointSource, GgufSource, SAMPLED};
pub use cut::{TooManyFiles, cut};
pub use derived::{DerivedRows, DerivedTensor, RowSource};
pub use error::{AdapterError, FormatError, FourBitError};
pub use family_names::{BAILING_NAMES, HF_PREFIXES, KIMI_LINEAR_NAMES, NameReplacements};
pub use files::FileIdentity;
pub use folder::{HfSource, TokenizerFile, TokenizerKind, TokenizerPlace};
pub use latent_files::{CompleteFile, InputError, OutputError, OutputFile, OutputFolder, ResumableFile};
pub use latent_files::{input_file, output_file};
pub use other_files::FileTensors;
pub use outline::{Outline, OutlineData, TensorHead};
pub use overrides::{MetadataOverride, OverrideError};
pub use page_cache::ResidentPages;
pub use parts::TensorPart;
pub use rows::TensorRows;
pub use scales::{ScaleGrid, ScaleTable};
pub use sha256::Sha256;
pub use sigbus::install_sigbus_handler;
pub use tensor::{TensorInfo, TensorRef};
pub use weight_format::announced_type;
