//! Blocks and weight slots of a circuit by name.

use super::block::{Block, BlockKind, SlotSpec};
use super::form::Circuit;
use crate::error::{CircuitError, GraphError};
use std::fmt;

impl Circuit {
    pub(crate) fn error(&self, problem: CircuitError) -> GraphError {
        GraphError::Circuit { circuit: self.name.clone(), problem: Box::new(problem) }
    }

    /// The block of this name. `place` is the place that names it, for errors.
    ///
    /// # Errors
    /// [`CircuitError::UnknownBlock`], or [`CircuitError::BlockKind`] if the block is not of an
    /// expected kind.
    pub(crate) fn block(
        &self,
        name: &str,
        kinds: &[BlockKind],
        place: fmt::Arguments<'_>,
    ) -> Result<&Block, GraphError> {
        let Some(block) = self.blocks.get(name) else {
            let known = self.blocks.keys().cloned().collect();
            return Err(self.error(CircuitError::UnknownBlock {
                place: place.to_string(),
                block: name.to_owned(),
                known,
            }));
        };
        if kinds.contains(&block.kind) {
            return Ok(block);
        }
        Err(self.error(CircuitError::BlockKind {
            place: place.to_string(),
            block: name.to_owned(),
            kind: block.kind.name(),
            expected: kinds.first().map_or("none", |kind| kind.name()),
        }))
    }

    /// The blocks outside of layers, with their names.
    pub fn model_blocks(&self) -> impl Iterator<Item = (&str, &Block)> {
        let blocks = self.blocks.iter().filter(|(_, block)| !block.kind.of_layer());
        blocks.map(|(name, block)| (name.as_str(), block))
    }

    /// The slot that operations of `block` call `slot`, and whether it belongs to a layer. It is
    /// the block's own, one of a block of the whole model (the head of a tied model reads the
    /// embedding), or one of the MTP layer.
    pub fn slot(&self, block: &str, slot: &str) -> Option<(&SlotSpec, bool)> {
        let own = self.blocks.get(block).and_then(|b| Some((b.weights.get(slot)?, b.kind.of_layer())));
        // The own block first; `check` guarantees that no name is in both.
        own.or_else(|| self.model_blocks().find_map(|(_, b)| Some((b.weights.get(slot)?, false))))
            .or_else(|| Some((self.mtp_weights.get(slot)?, true)))
    }
}
