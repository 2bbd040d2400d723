//! The lightning indexer of sparse attention (DSA): its sizes, and the layers that have one.

use super::error::ConfigError;
use super::keys::{INDEX_HEADS, INDEX_WIDTH, LAYERS};
use super::limits;
use super::model::{AttentionShape, IndexerShape, ModelConfig};
use super::reader::Reader;
use super::rope::RopePairs;
use super::source::MetadataValue;

impl IndexerShape {
    /// Checks the indexer of a model that rotates `rotated` elements of each head. `None` for
    /// models without a low-rank query, because the indexer's query is computed from that latent.
    pub(super) fn checked(
        indexer: Option<IndexerShape>,
        keys: &Reader<'_>,
        (attention, rotated): (&AttentionShape, usize),
    ) -> Result<Option<IndexerShape>, ConfigError> {
        // Not an error: a config may state indexer keys that its attention cannot use.
        match indexer.filter(|_| attention.q_lora_rank.is_some()) {
            Some(indexer) if indexer.width < rotated => Err(keys.wrong(
                keys.key(&INDEX_WIDTH),
                indexer.width,
                format!("at least {rotated}, the elements that are rotated"),
            )),
            indexer => Ok(indexer),
        }
    }
}

/// Epsilon of the LayerNorm of an indexer's keys. The published code fixes it, independent of
/// `rms_norm_eps`.
pub const INDEX_NORM_EPS: f64 = 1e-6;

/// The indexer by the keys of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexer {
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Whether each layer has its own; `None` if all have.
    pub full: Option<Vec<bool>>,
}

impl Indexer {
    /// The indexer of this config, as keys would describe it.
    pub fn of_config(config: &ModelConfig) -> Option<Indexer> {
        let shape = config.attention.indexer?;
        // Keys list decoder layers only. MTP layers always have their own.
        let decoder = config.full_indexers.get(..config.layers).unwrap_or(&config.full_indexers);
        let full = decoder.contains(&false).then(|| decoder.to_vec());
        Some(Indexer { heads: shape.heads, width: shape.width, full })
    }

    /// The indexer that a config.json describes.
    pub(super) fn of_config_json(keys: &Reader<'_>) -> Result<Option<Indexer>, ConfigError> {
        let Some(indexer) = read(keys, "indexer_types")? else { return Ok(None) };
        let full = match indexer.full {
            Some(full) => Some(full),
            None => pattern(keys)?,
        };
        Ok(Some(Indexer { full, ..indexer }))
    }

    /// The indexer that the keys of a GGUF architecture describe.
    pub(super) fn of_gguf(keys: &Reader<'_>) -> Result<Option<Indexer>, ConfigError> {
        read(keys, "attention.indexer.types")
    }

    /// Its shape with this number of selected tokens and this pairing.
    pub(super) fn shape(&self, topk: usize, pairs: RopePairs) -> IndexerShape {
        IndexerShape { heads: self.heads, width: self.width, topk, pairs }
    }

    /// Whether each of `all` layers, of which `layers` are decoder layers, has its own indexer. The
    /// others attend to the selection of the nearest earlier layer with one (GLM-5.2).
    pub(super) fn full_layers(
        &self,
        keys: &Reader<'_>,
        (layers, all): (usize, usize),
    ) -> Result<Vec<bool>, ConfigError> {
        let Some(full) = &self.full else { return Ok(vec![true; all]) };
        let types = ["indexer_types", "index_topk_pattern", "index_topk_freq", "attention.indexer.types"];
        let key = types.into_iter().find(|key| keys.field(key).is_some()).unwrap_or(types[0]);
        if full.len() < layers {
            let value = format!("a list of {}", full.len());
            return Err(keys.wrong(key, value, format!("an entry for each of the {layers} layers")));
        }
        // The first layer has no earlier selection to share.
        if full.first() != Some(&true) {
            let expected = "\"full\": layer 0 has no earlier layer to share selected tokens with";
            return Err(keys.wrong(key, "\"shared\" for layer 0", expected));
        }
        // MTP layers have their own.
        let of = |layer| layer >= layers || full.get(layer).copied().unwrap_or(true);
        Ok((0..all).map(of).collect())
    }
}

/// Whether each layer has an indexer, by the older keys: `index_topk_pattern` ("FSSF…"), or
/// `index_topk_freq` and `index_skip_topk_offset`. `None` if a file has neither.
fn pattern(keys: &Reader<'_>) -> Result<Option<Vec<bool>>, ConfigError> {
    if let Some(pattern) = keys.text("index_topk_pattern")? {
        let full = pattern.chars().map(|letter| match letter {
            'F' => Some(true),
            'S' => Some(false),
            _ => None,
        });
        return match full.collect::<Option<Vec<bool>>>() {
            Some(full) => Ok(Some(full)),
            None => {
                Err(keys.wrong("index_topk_pattern", pattern, "a letter per layer: F (full) or S (shared)"))
            }
        };
    }
    let Some(every) = keys.size("index_topk_freq", limits::LAYERS)? else { return Ok(None) };
    // Every layer has an indexer, as without the key.
    if every == 1 {
        return Ok(None);
    }
    // GLM-5.2: frequency 4 and offset 3 give layers 0, 1, 2, 6, 10, …
    let offset = keys.size("index_skip_topk_offset", 0..=*limits::LAYERS.end())?.unwrap_or(2);
    let layers = keys.get(&LAYERS)?.unwrap_or(0);
    Ok(Some((0..layers).map(|layer| (layer + 1).saturating_sub(offset).is_multiple_of(every)).collect()))
}

fn read(keys: &Reader<'_>, types_key: &str) -> Result<Option<Indexer>, ConfigError> {
    let heads = keys.get(&INDEX_HEADS)?;
    let width = keys.get(&INDEX_WIDTH)?;
    let full =
        match keys.field(types_key) {
            None => None,
            Some(MetadataValue::List(types)) => {
                let full = types.iter().map(|kind| match kind {
                    MetadataValue::Text(kind) if kind == "full" => Some(true),
                    MetadataValue::Text(kind) if kind == "shared" => Some(false),
                    // llama.cpp reads a list of integers or flags; config.json has words.
                    MetadataValue::Integer(kind @ (0 | 1)) => Some(*kind == 1),
                    MetadataValue::Flag(full) => Some(*full),
                    _ => None,
                });
                let full = full.collect::<Option<Vec<bool>>>();
                Some(full.ok_or_else(|| {
                    keys.wrong(types_key, MetadataValue::List(types), "\"full\" or \"shared\"")
                })?)
            }
            Some(field) => return Err(keys.wrong(types_key, field, "a list, an entry per layer")),
        };
    Ok(heads.zip(width).map(|(heads, width)| Indexer { heads, width, full }))
}
