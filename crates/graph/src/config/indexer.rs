//! The indexer of sparse attention. Latent does not run it, but keeps its keys in files that it
//! writes.

use super::error::ConfigError;
use super::hf;
use super::limits;
use super::reader::Reader;
use super::source::{JsonKeys, MetadataKeys, MetadataValue};
use latent_formats::{Checkpoint, CheckpointSource};

/// What chooses the tokens that sparse attention reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexer {
    /// Its heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Whether each layer has one of its own; none where all have.
    pub full: Option<Vec<bool>>,
}

/// The keys of a kind of file.
struct IndexerKeys {
    heads: &'static str,
    width: &'static str,
    types: &'static str,
}

impl Indexer {
    /// The indexer of an opened model, where its keys describe one.
    ///
    /// # Errors
    /// A key of another kind or beyond its limits.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<Indexer>, ConfigError> {
        match checkpoint.source() {
            CheckpointSource::Gguf(source) => {
                let file = checkpoint.display_name();
                let keys = super::checkpoint::GgufKeys { file, metadata: &source.metadata };
                let Some(MetadataValue::Text(architecture)) = keys.field("general.architecture") else {
                    return Ok(None);
                };
                let prefix = format!("{architecture}.attention.indexer.");
                let names = IndexerKeys { heads: "head_count", width: "key_length", types: "types" };
                read(&Reader::new(&keys, &prefix), &names)
            }
            CheckpointSource::HuggingFace(source) => {
                let file = format!("{}/config.json", checkpoint.display_name());
                let keys = JsonKeys { file: &file, object: &source.config };
                let names =
                    IndexerKeys { heads: "index_n_heads", width: "index_head_dim", types: "indexer_types" };
                read(&hf::text(&keys)?, &names)
            }
        }
    }
}

fn read(keys: &Reader<'_>, names: &IndexerKeys) -> Result<Option<Indexer>, ConfigError> {
    let heads = keys.size(names.heads, limits::HEADS)?;
    let width = keys.size(names.width, limits::HEAD_WIDTH)?;
    let full = match keys.field(names.types) {
        None => None,
        Some(MetadataValue::List(types)) => {
            let full = types.iter().map(|kind| match kind {
                MetadataValue::Text(kind) if kind == "full" => Some(true),
                MetadataValue::Text(kind) if kind == "shared" => Some(false),
                MetadataValue::Integer(kind @ (0 | 1)) => Some(*kind == 1),
                _ => None,
            });
            let full = full.collect::<Option<Vec<bool>>>();
            Some(full.ok_or_else(|| {
                keys.wrong(names.types, MetadataValue::List(types), "\"full\" or \"shared\"")
            })?)
        }
        Some(field) => return Err(keys.wrong(names.types, field, "a list, an entry per layer")),
    };
    Ok(heads.zip(width).map(|(heads, width)| Indexer { heads, width, full }))
}
