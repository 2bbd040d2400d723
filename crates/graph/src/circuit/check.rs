//! Checks of a circuit that do not depend on a config: names that exist, kinds that fit, slots and
//! streams with an owner.

use super::block::{Block, BlockKind, OP_WORDS};
use super::form::{Circuit, LayerRule, StagePart};
use crate::error::{CircuitError, GraphError};
use std::collections::BTreeMap;

impl Circuit {
    /// Checks everything that does not depend on a config.
    ///
    /// # Errors
    /// [`GraphError::Circuit`] with the first problem and its place.
    pub fn check(&self) -> Result<(), GraphError> {
        for (name, block) in &self.blocks {
            self.check_words(name, block)?;
            self.check_cache(name, block)?;
        }
        self.check_names()?;
        self.check_slots()
    }

    /// Checks that operations and weight slots exist.
    fn check_words(&self, name: &str, block: &Block) -> Result<(), GraphError> {
        let here = || name.to_owned();
        for spec in &block.ops {
            if !OP_WORDS.contains(&spec.op.as_str()) {
                let (block, op, known) = (here(), spec.op.clone(), OP_WORDS.to_vec());
                return Err(self.error(CircuitError::UnknownOperation { block, op, known }));
            }
            if let Some(slot) = spec.weights.iter().find(|slot| self.slot(name, slot).is_none()) {
                let (block, op, slot) = (here(), spec.op.clone(), slot.clone());
                return Err(self.error(CircuitError::UnknownSlot { block, op, slot }));
            }
        }
        Ok(())
    }

    /// Checks that layers and stages name existing blocks, and that every block is named.
    fn check_names(&self) -> Result<(), GraphError> {
        // Struck out as rules and stages name them.
        let mut unused: Vec<&str> = self.blocks.keys().map(String::as_str).collect();
        let parts: [(BlockKind, &[LayerRule]); 2] = [
            (BlockKind::Attention, &self.layers.attention),
            (BlockKind::FeedForward, &self.layers.feed_forward),
        ];
        for (kind, rules) in parts {
            for rule in rules {
                self.block(&rule.block, &[kind], format_args!("layers, {}", kind.name()))?;
                unused.retain(|name| *name != rule.block);
            }
        }
        for stage in &self.stages {
            for part in &stage.blocks {
                let StagePart::Block(name) = part else { continue };
                let kinds = [BlockKind::Embed, BlockKind::Head];
                self.block(name, &kinds, format_args!("stage {}", stage.name))?;
                unused.retain(|other| other != name);
            }
        }
        // An unused block is most likely a misspelled rule.
        match unused.first() {
            Some(block) => Err(self.error(CircuitError::UnusedBlock { block: (*block).to_owned() })),
            None => Ok(()),
        }
    }

    /// Checks that a slot name means one weight within a layer and within the model, and that
    /// stand-ins exist.
    fn check_slots(&self) -> Result<(), GraphError> {
        let own =
            self.blocks.iter().flat_map(|(name, block)| block.weights.iter().map(move |of| (&**name, of)));
        let mtp = self.mtp_weights.iter().map(|of| ("mtp_weights", of));
        for (block, (slot, spec)) in own.chain(mtp) {
            if let Some(other) = spec.instead.iter().find(|other| self.slot(block, other).is_none()) {
                let (block, slot, other) = (block.to_owned(), slot.clone(), other.clone());
                return Err(self.error(CircuitError::UnknownStandIn { block, slot, other }));
            }
        }
        let mut model: BTreeMap<&str, &str> = BTreeMap::new();
        model.extend(self.mtp_weights.keys().map(|slot| (slot.as_str(), "mtp_weights")));
        for (name, block) in self.model_blocks() {
            self.disjoint(&mut model, name, block)?;
        }
        let of = |kind: BlockKind| self.blocks.iter().filter(move |(_, block)| block.kind == kind);
        for (name, block) in of(BlockKind::Attention) {
            // Operations look up slots in their own block first, then in the model's blocks
            // ([`Circuit::slot`]). A name in both would silently hide the model's.
            let mut taken = model.clone();
            self.disjoint(&mut taken, name, block)?;
            // Two feed-forward blocks may share names, because no layer has both: `dense` and `moe`
            // have an `ffn_norm` each.
            for (name, block) in of(BlockKind::FeedForward) {
                self.disjoint(&mut taken.clone(), name, block)?;
            }
        }
        Ok(())
    }

    /// Adds the slots of a block to `taken`; an error if one is taken already.
    fn disjoint<'c>(
        &self,
        taken: &mut BTreeMap<&'c str, &'c str>,
        name: &'c str,
        block: &'c Block,
    ) -> Result<(), GraphError> {
        for slot in block.weights.keys() {
            if let Some(first) = taken.insert(slot, name) {
                let (slot, first, second) = (slot.clone(), first.to_owned(), name.to_owned());
                return Err(self.error(CircuitError::SlotTwice { slot, first, second }));
            }
        }
        Ok(())
    }
}
