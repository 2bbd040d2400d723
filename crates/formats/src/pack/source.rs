//! The source's metadata in a packed file: the header of a GGUF file, or the small files of a
//! folder.

use super::directory::{Directory, invalid, wanted};
use super::keys;
use crate::checkpoint::{Checkpoint, CheckpointSource, GgufSource, display};
use crate::error::{FormatError, PackError};
use crate::folder::{FILES, HfSource, TokenizerFile, TokenizerKind, TokenizerPlace};
use crate::gguf::WriterValue;
use crate::{gguf, limits};
use latent_files::{InputError, input_file};
use std::path::Path;

/// The source of a packed file at `path`, in the form of an opened original.
pub(crate) fn packed_source(path: &Path, directory: &Directory) -> Result<CheckpointSource, FormatError> {
    let refused = |error| FormatError::Pack { path: path.to_owned(), error };
    let metadata = &directory.metadata;
    if metadata.get(keys::SOURCE_GGUF).is_some() {
        let bytes = wanted(metadata.bytes(keys::SOURCE_GGUF), keys::SOURCE_GGUF).map_err(refused)?;
        let (version, mut metadata, alignment) =
            gguf::metadata_alone(bytes).map_err(|error| refused(PackError::Gguf(error)))?;
        metadata.name_file(display(path));
        let shards = usize::try_from(directory.from.files).unwrap_or(usize::MAX);
        return Ok(CheckpointSource::Gguf(GgufSource { version, metadata, alignment, shards }));
    }
    let held = |name: &str| -> Result<Option<&[u8]>, FormatError> {
        let key = format!("{}{name}", keys::SOURCE_FILE);
        if metadata.get(&key).is_none() {
            return Ok(None);
        }
        wanted(metadata.bytes(&key), &key).map(Some).map_err(refused)
    };
    let text = |name: &str, limit: u64| {
        let wrong = |problem: String| FormatError::Json { path: path.join(name), problem };
        match held(name)? {
            None => Ok(None),
            Some(bytes) if bytes.len() as u64 > limit => {
                Err(wrong(format!("its {} bytes exceed the limit of {limit}", bytes.len())))
            }
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(error) => Err(wrong(format!("it is not UTF-8 text: {error}"))),
            },
        }
    };
    let mut tokenizer = None;
    for kind in TokenizerKind::ALL {
        // The first kind is used, as in a folder.
        if let Some(bytes) = held(kind.file_name())?
            && tokenizer.is_none()
        {
            tokenizer = Some(TokenizerFile { kind, place: TokenizerPlace::Held(bytes.into()) });
        }
    }
    match HfSource::from_files(path, &text, tokenizer)? {
        Some(source) => Ok(CheckpointSource::HuggingFace(source)),
        None => Err(refused(invalid("the source", "it has neither GGUF metadata nor config.json"))),
    }
}

/// The keys for the metadata of `checkpoint`.
pub(super) fn source_keys(checkpoint: &Checkpoint) -> Result<Vec<(String, WriterValue)>, FormatError> {
    match checkpoint.source() {
        CheckpointSource::Gguf(source) => Ok(vec![(
            keys::SOURCE_GGUF.to_owned(),
            WriterValue::U8s(source.metadata.header_bytes().to_vec()),
        )]),
        CheckpointSource::HuggingFace(_) => {
            let mut held = Vec::new();
            for name in FILES.into_iter().chain(TokenizerKind::ALL.map(TokenizerKind::file_name)) {
                let path = checkpoint.path().join(name);
                match input_file::read(&path, limits::MAX_TOKENIZER_BYTES) {
                    Ok(bytes) => held.push((format!("{}{name}", keys::SOURCE_FILE), WriterValue::U8s(bytes))),
                    Err(InputError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(held)
        }
    }
}
