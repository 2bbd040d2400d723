//! Changes of the in-memory prefix cache, for an external index of cached prefixes.

use super::node::{Node, PrefixTree};
use super::salt::CacheSalt;
use crate::cache::block_hash::BlockHash;

/// A full block that came into the prefix cache in memory, or was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefixChange {
    /// It can be used from now on.
    Kept {
        /// Its name.
        name: BlockHash,
        /// The block before it; none where it is the first of its text.
        parent: Option<BlockHash>,
        /// Its tokens.
        tokens: Box<[u32]>,
        /// Who may use it.
        salt: CacheSalt,
    },
    /// It is no longer there.
    Dropped {
        /// Its name.
        name: BlockHash,
        /// Who could use it.
        salt: CacheSalt,
    },
}

/// Changes since the last call, recorded once a watcher is registered.
#[derive(Debug, Default)]
pub(super) struct PrefixChanges(Option<Vec<PrefixChange>>);

impl PrefixChanges {
    /// Begins to note changes, with what is there already.
    pub(super) fn watch(&mut self, tree: &PrefixTree) {
        if self.0.is_some() {
            return;
        }
        self.0 = Some(Vec::new());
        // a block may have a smaller number than the one before it
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

/// Blocks before this one.
fn depth(tree: &PrefixTree, id: usize) -> usize {
    std::iter::successors(tree.get(id).parent, |parent| tree.get(*parent).parent).count()
}
