//! Nodes of the prefix cache, and the tree of all nodes.

use super::CacheSalt;
use crate::cache::block_hash::BlockHash;
use crate::cache::recurrent::Snapshot;
use std::collections::{BTreeSet, HashMap};

/// A block of the prefix cache. Full blocks have a name and may have children. The last block of a
/// sequence may be partial.
#[derive(Debug)]
pub(super) struct Node {
    pub salt: CacheSalt,
    pub parent: Option<usize>,
    pub children: Vec<usize>,
    /// The name of a full block. `None` for a partial one.
    pub name: Option<BlockHash>,
    /// The tokens of the block's rows.
    pub tokens: Box<[u32]>,
    /// The number of the block in the pool.
    pub block: u32,
    /// Number of rows that the MTP layer has run.
    pub drafted: usize,
    /// Recurrent states within the block or at its end.
    pub states: Vec<Snapshot>,
    /// Time of the last use, on the clock of [`PrefixTree::now`].
    pub used: u64,
    pub from_disk: bool,
}

/// All cached blocks: a tree per salt. Only leaves are evicted, since a block is useless without
/// those before it.
#[derive(Debug, Default)]
pub(super) struct PrefixTree {
    /// Nodes by id.
    nodes: Vec<Option<Node>>,
    /// Unused ids.
    spare: Vec<usize>,
    by_name: HashMap<BlockHash, usize>,
    /// The first blocks of each salt.
    roots: HashMap<CacheSalt, Vec<usize>>,
    /// The last use and the id of nodes without children, the least recently used first.
    leaves: BTreeSet<(u64, usize)>,
    /// A logical clock, which counts uses.
    now: u64,
}

impl PrefixTree {
    pub fn len(&self) -> usize {
        self.nodes.len() - self.spare.len()
    }

    pub fn get(&self, id: usize) -> &Node {
        self.nodes[id].as_ref().expect("a node in the tree")
    }

    pub fn get_mut(&mut self, id: usize) -> &mut Node {
        self.nodes[id].as_mut().expect("a node in the tree")
    }

    /// The full block with this name, parent and tokens.
    pub fn full(&self, name: BlockHash, parent: Option<usize>, tokens: &[u32]) -> Option<usize> {
        let id = *self.by_name.get(&name)?;
        let node = self.get(id);
        // The name alone is not trusted: after a collision, rows of other tokens would be used.
        (node.parent == parent && *node.tokens == *tokens).then_some(id)
    }

    /// The full block with this name.
    pub fn named(&self, name: BlockHash) -> Option<usize> {
        self.by_name.get(&name).copied()
    }

    /// The children of `parent`, or the first blocks of a salt.
    pub fn children(&self, salt: CacheSalt, parent: Option<usize>) -> &[usize] {
        match parent {
            Some(parent) => &self.get(parent).children,
            None => self.roots.get(&salt).map_or(&[], Vec::as_slice),
        }
    }

    pub fn insert(&mut self, mut node: Node) -> usize {
        self.now += 1;
        node.used = self.now;
        let (salt, parent, name) = (node.salt, node.parent, node.name);
        // Ids are reused, so that the list does not grow with evictions.
        let id = self.spare.pop().unwrap_or(self.nodes.len());
        if id == self.nodes.len() {
            self.nodes.push(None);
        }
        self.nodes[id] = Some(node);
        self.leaves.insert((self.now, id));
        match parent {
            Some(parent) => {
                let node = self.nodes[parent].as_mut().expect("a parent in the tree");
                node.children.push(id);
                // With a child, the parent is not a leaf and cannot be evicted.
                self.leaves.remove(&(node.used, parent));
            }
            None => self.roots.entry(salt).or_default().push(id),
        }
        if let Some(name) = name {
            self.by_name.insert(name, id);
        }
        id
    }

    /// Removes a node without children.
    pub fn remove(&mut self, id: usize) -> Node {
        let node = self.nodes[id].take().expect("a node in the tree");
        debug_assert!(node.children.is_empty(), "a node with children is removed");
        self.spare.push(id);
        self.leaves.remove(&(node.used, id));
        if let Some(name) = node.name {
            self.by_name.remove(&name);
        }
        match node.parent {
            Some(parent) => {
                let parent_node = self.nodes[parent].as_mut().expect("a parent in the tree");
                parent_node.children.retain(|child| *child != id);
                // The parent keeps its own time of last use.
                if parent_node.children.is_empty() {
                    self.leaves.insert((parent_node.used, parent));
                }
            }
            None => {
                let roots = self.roots.entry(node.salt).or_default();
                roots.retain(|root| *root != id);
                // A server has a salt per key, so empty lists must not accumulate.
                if roots.is_empty() {
                    self.roots.remove(&node.salt);
                }
            }
        }
        node
    }

    /// Marks a node as used now.
    pub fn touch(&mut self, id: usize) {
        self.now += 1;
        let now = self.now;
        let node = self.get_mut(id);
        let before = std::mem::replace(&mut node.used, now);
        // The set is ordered by the time of use, so the entry must move.
        if self.leaves.remove(&(before, id)) {
            self.leaves.insert((now, id));
        }
    }

    /// Nodes without children, the least recently used first.
    pub fn leaves(&self) -> impl Iterator<Item = usize> {
        self.leaves.iter().map(|(_, id)| *id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(id, node)| Some((id, node.as_ref()?)))
    }

    /// The logical time. Nodes that are used later get larger times.
    pub fn now(&self) -> u64 {
        self.now
    }
}
