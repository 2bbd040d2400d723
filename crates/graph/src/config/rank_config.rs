//! The config of one rank, and of the whole model that it belongs to.

use super::model::{ModelConfig, MoeShape};
use super::part::{RankPart, RankShare};
use std::ops::Range;

impl ModelConfig {
    /// The config of one rank, with its own heads, columns and experts. Vocabulary, hidden size,
    /// layers and routing are those of the whole model.
    pub fn of_part(&self, part: RankPart) -> ModelConfig {
        let mut config = self.clone();
        config.attention.heads = part.heads.len;
        config.intermediate_size = part.intermediate.len;
        // `experts` stays the model's: a router on any rank chooses among all of them.
        config.moe = self.moe.map(|moe| MoeShape {
            intermediate: part.moe_intermediate.len,
            shared_intermediate: part.shared_intermediate.len,
            ..moe
        });
        config.part = Some(Box::new(part));
        config
    }

    /// The config of the whole model, which this may be a part of.
    pub fn whole(&self) -> ModelConfig {
        let Some(part) = &self.part else { return self.clone() };
        let mut config = ModelConfig { part: None, ..self.clone() };
        config.attention.heads = part.heads.of;
        config.intermediate_size = part.intermediate.of;
        config.moe = self.moe.map(|moe| MoeShape {
            intermediate: part.moe_intermediate.of,
            shared_intermediate: part.shared_intermediate.of,
            ..moe
        });
        config
    }

    /// The routed experts whose weights this rank has.
    pub fn own_experts(&self) -> RankShare {
        let all = RankShare::all(self.moe.map_or(0, |moe| moe.experts));
        self.part.as_ref().map_or(all, |part| part.experts)
    }

    /// The layers that this rank runs.
    pub fn own_layers(&self) -> Range<usize> {
        self.part.as_ref().map_or(0..self.layers, |part| part.layers.clone())
    }
}
