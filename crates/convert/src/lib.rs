//! Model conversion: a folder of safetensors to GGUF, and GGUF to a folder of safetensors.
//!
//! * [`to_gguf`] writes keys, names, tokenizer and template as llama.cpp's converter does. FP8 is
//!   dequantized, and MTP layers are kept.
//! * [`to_folder`] writes config.json, tokenizer and safetensors for transformers. Quantized
//!   tensors are dequantized.
//! * [`small_files`] writes that folder without its tensors.
//! * [`quantize`] writes GGUF files in other types.
//! * [`FolderWeights`] presents a folder's weights as those of a GGUF file, for which [`quantize`]
//!   chooses types in any mix.
//!
//! The circuits map tensors between the two namings ([`latent_graph::Circuit::transfers`]). The
//! writer first reads its own metadata back, and refuses a model that the other kind of file cannot
//! describe. Tensors stream through a few megabytes of memory, regardless of the model's size.
//! Files get their names only when all of them are complete. An interrupted run to GGUF can be
//! resumed.
//!
//! ```
//! use latent_convert::{GgufOptions, to_gguf};
//! use latent_formats::Checkpoint;
//! let temporary = tempfile::tempdir()?;
//! let (folder, file) = (temporary.path().join("model"), temporary.path().join("model.gguf"));
//! latent_testing::ModelRecipe::new("tiny-v3", "BF16".parse()?).write_folder(&folder)?;
//! let report = to_gguf(&Checkpoint::open(&folder)?, &file, &GgufOptions::default(), &mut |_, _| true)?;
//! assert!(Checkpoint::open(&report.files[0])?.tensor("blk.0.attn_k_b.weight").is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod adapter;
mod card;
mod copy;
mod error;
mod exact;
mod folder;
mod folder_weights;
mod gguf;
mod gguf_options;
mod hf_files;
mod metadata;
mod peers;
pub mod quantize;
mod report;
mod rows;
mod scale;
mod target;
mod tensors;

pub use adapter::{AdapterBase, convert_adapter};
pub use error::ConvertError;
pub use exact::matrix_type;
pub use folder::{FolderOptions, SmallFiles, small_files, to_folder};
pub use folder_weights::FolderWeights;
pub use gguf::to_gguf;
pub use gguf_options::GgufOptions;
pub use report::ConversionReport;

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_that_wrap_are_errors_in_this_crate() {
        let sum = std::panic::catch_unwind(|| std::hint::black_box(usize::MAX) + std::hint::black_box(1));
        assert!(
            sum.is_err(),
            "overflow checks are off: see [profile.release.package] in the root Cargo.toml"
        );
    }
}
