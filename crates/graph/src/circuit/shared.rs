//! Blocks shared by several circuits: in `blocks` of a circuit file, a name refers to the shared
//! block of that name.

use super::block::Block;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;

/// The files of `crates/graph/circuits/blocks`.
const FILES: [(&str, &str); 9] = [
    ("dense", include_str!("../../circuits/blocks/dense.json")),
    ("embed", include_str!("../../circuits/blocks/embed.json")),
    ("head", include_str!("../../circuits/blocks/head.json")),
    ("kda", include_str!("../../circuits/blocks/kda.json")),
    ("mla", include_str!("../../circuits/blocks/mla.json")),
    ("moe", include_str!("../../circuits/blocks/moe.json")),
    ("mtp_head", include_str!("../../circuits/blocks/mtp_head.json")),
    ("mtp_in", include_str!("../../circuits/blocks/mtp_in.json")),
    ("relu2", include_str!("../../circuits/blocks/relu2.json")),
];

/// A block definition, or the name of a shared block.
struct BlockDefinition(Block);

impl<'de> Deserialize<'de> for BlockDefinition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BlockDefinition, D::Error> {
        // Not an untagged enum: its error would hide what is wrong with a block.
        struct BlockDefinitionVisitor;
        impl<'de> Visitor<'de> for BlockDefinitionVisitor {
            type Value = BlockDefinition;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a block, or the name of a shared one")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<BlockDefinition, E> {
                let Some((_, text)) = FILES.iter().find(|(known, _)| *known == name) else {
                    let known = FILES.map(|(known, _)| known).join(", ");
                    return Err(E::custom(format!("unknown shared block {name:?}; expected one of {known}")));
                };
                // Parsed per use: a circuit may change its copy (`with_names`).
                serde_json::from_str(text).map(BlockDefinition).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<BlockDefinition, A::Error> {
                Block::deserialize(MapAccessDeserializer::new(map)).map(BlockDefinition)
            }
        }
        deserializer.deserialize_any(BlockDefinitionVisitor)
    }
}

/// The blocks of a circuit file, with shared blocks resolved.
pub(super) fn blocks<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Block>, D::Error> {
    let blocks: BTreeMap<String, BlockDefinition> = Deserialize::deserialize(deserializer)?;
    Ok(blocks.into_iter().map(|(name, block)| (name, block.0)).collect())
}
