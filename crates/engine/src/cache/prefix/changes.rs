//! Changes of the in-memory prefix cache, for an external index of cached prefixes.

use super::node::{Node, PrefixTree};
use super::salt::CacheSalt;
use crate::cache::block_hash::BlockHash;

/// A change of the in-memory prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefixChange {
    /// A full block was added.
    Kept {
        /// The name of the block.
        name: BlockHash,
        /// The name of the block before it. `None` for the first block of a text.
        parent: Option<BlockHash>,
        /// The tokens of the block.
        tokens: Box<[u32]>,
        /// The salt of the jobs that can use the block.
        salt: CacheSalt,
    },
    /// A full block was evicted.
    Dropped {
        /// The name of the block.
        name: BlockHash,
        /// The salt of the jobs that could use the block.
        salt: CacheSalt,
    },
}

/// Changes since the last call of `take`. `None` until `watch` is called, so that schedulers
/// without a router pay nothing.
#[derive(Debug, Default)]
pub(super) struct PrefixChanges(Option<Vec<PrefixChange>>);

impl PrefixChanges {
    /// Starts to record changes. The first ones are the blocks that are cached already.
    pub(super) fn watch(&mut self, tree: &PrefixTree) {
        if self.0.is_some() {
            return;
        }
        self.0 = Some(Vec::new());
        // Parents first, as in later changes. Node ids are reused, so their order does not tell.
        let mut names: Vec<_> = tree.iter().filter_map(|(id, node)| Some((id, node.name?))).collect();
        names.sort_by_key(|(id, _)| depth(tree, *id));
        for (id, _) in names {
            self.kept(tree, tree.get(id));
        }
    }

    pub(super) fn kept(&mut self, tree: &PrefixTree, node: &Node) {
        let (Some(changes), Some(name)) = (&mut self.0, node.name) else { return };
        let parent = node.parent.and_then(|id| tree.get(id).name);
        changes.push(PrefixChange::Kept { name, parent, tokens: node.tokens.clone(), salt: node.salt });
    }

    pub(super) fn dropped(&mut self, node: &Node) {
        let (Some(changes), Some(name)) = (&mut self.0, node.name) else { return };
        changes.push(PrefixChange::Dropped { name, salt: node.salt });
    }

    pub(super) fn take(&mut self) -> Vec<PrefixChange> {
        self.0.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// The number of blocks before this one.
fn depth(tree: &PrefixTree, id: usize) -> usize {
    std::iter::successors(tree.get(id).parent, |parent| tree.get(*parent).parent).count()
}
