//! Conversion of a folder of safetensors to GGUF.

use crate::error::ConvertError;
use crate::folder_weights::FolderWeights;
use crate::gguf_options::GgufOptions;
use crate::report::ConversionReport;
use latent_formats::Checkpoint;
use std::path::Path;

/// Writes a model folder as a GGUF file, or as shards in one folder (`NAME-00001-of-0000N.gguf`).
/// `tell` receives the written and the total bytes, and returns whether to continue. After an
/// interruption the same call resumes from the partial files and yields the same bytes.
///
/// # Errors
/// [`ConvertError`]. An existing target stays unchanged.
pub fn to_gguf(
    checkpoint: &Checkpoint,
    file: &Path,
    options: &GgufOptions<'_>,
    tell: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<ConversionReport, ConvertError> {
    let weights = FolderWeights::new(checkpoint, options)?;
    let assignment = weights.assignment(options)?;
    let written = weights.write(&assignment, file, options, tell)?;
    let notes = weights.notes().to_vec();
    Ok(ConversionReport { files: written.files, bytes: written.bytes, tensors: written.tensors.len(), notes })
}
