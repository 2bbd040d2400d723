//! One cached block, and the tree of all of them.

use super::CacheSalt;
use crate::cache::block_hash::BlockHash;
use crate::cache::recurrent::Snapshot;
use std::collections::{BTreeSet, HashMap};

/// A block of the prefix cache. Full blocks have a name and may have others behind them; the last block of a sequence may be part full.
#[derive(Debug)]
pub(super) struct Node {
    pub salt: CacheSalt,
    pub parent: Option<usize>,
    pub children: Vec<usize>,
    /// Its name; none where the block is not full.
    pub name: Option<BlockHash>,
    /// The tokens of its rows.
    pub tokens: Box<[u32]>,
    pub block: u32,
    /// Rows that the MTP layer has, from the block's first on.
    pub drafted: usize,
    /// Recurrent states within the block or at its end.
    pub states: Vec<Snapshot>,
    /// When it was used last.
    pub used: u64,
    /// Whether it was read from the disk.
    pub from_disk: bool,
}

/// All cached blocks: a tree per salt, whose leaves are given up first.
#[derive(Debug, Default)]
pub(super) struct PrefixTree {
    nodes: Vec<Option<Node>>,
    spare: Vec<usize>,
    by_name: HashMap<BlockHash, usize>,
    /// The first blocks of each salt.
    roots: HashMap<CacheSalt, Vec<usize>>,
    /// Nodes without children, the least recently used first.
    leaves: BTreeSet<(u64, usize)>,
    /// Counts uses.
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

    /// The full block of this name behind `parent`, if it holds these tokens.
    pub fn full(&self, name: BlockHash, parent: Option<usize>, tokens: &[u32]) -> Option<usize> {
        let id = *self.by_name.get(&name)?;
        let node = self.get(id);
        (node.parent == parent && *node.tokens == *tokens).then_some(id)
    }

    /// The full block of this name.
    pub fn named(&self, name: BlockHash) -> Option<usize> {
        self.by_name.get(&name).copied()
    }

    /// The blocks behind `parent`, or the first ones of a salt.
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
                self.leaves.remove(&(node.used, parent));
            }
            None => self.roots.entry(salt).or_default().push(id),
        }
        if let Some(name) = name {
            self.by_name.insert(name, id);
        }
        id
    }

    /// Takes a node without children out.
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
                if parent_node.children.is_empty() {
                    self.leaves.insert((parent_node.used, parent));
                }
            }
            None => {
                let roots = self.roots.entry(node.salt).or_default();
                roots.retain(|root| *root != id);
                if roots.is_empty() {
                    self.roots.remove(&node.salt);
                }
            }
        }
        node
    }

    /// Notes that a node is used now.
    pub fn touch(&mut self, id: usize) {
        self.now += 1;
        let now = self.now;
        let node = self.get_mut(id);
        let before = std::mem::replace(&mut node.used, now);
        if self.leaves.remove(&(before, id)) {
            self.leaves.insert((now, id));
        }
    }

    /// Nodes without children, the least recently used first.
    pub fn leaves(&self) -> impl Iterator<Item = usize> {
        self.leaves.iter().map(|(_, id)| *id)
    }

    /// All nodes that are there.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(id, node)| Some((id, node.as_ref()?)))
    }

    /// Counts uses: what was touched later has a larger number.
    pub fn now(&self) -> u64 {
        self.now
    }
}
