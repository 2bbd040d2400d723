//! The prefix cache in memory: finds the longest cached prefix of a prompt, and keeps blocks until
//! they are evicted.
//!
//! The cache is one more user of each cached block in the pool. If it is the only one, the block is
//! *idle* and [`PrefixIndex::evict`] can free it. Lookups copy no rows: a prompt shares the blocks,
//! the last of them in part, and copies on write.

use super::changes::{PrefixChange, PrefixChanges};
use super::disk::{Disk, StoredBlock, WantedBlocks};
use super::node::{Node, PrefixTree};
use super::stats::{DiskStats, PrefixStats};
use crate::cache::block_hash::{BlockHash, HashChain};
use crate::cache::block_pool::BlockPool;
use crate::cache::draft_rows::DraftRows;
use crate::cache::kv_cache::KvCache;
use crate::cache::recurrent::{RecurrentState, Snapshot};
use crate::cache::sequence::Sequence;
use crate::cache::state_pool::StatePool;
use latent_backend::KV_BLOCK;
use std::sync::Arc;

/// The prefix cache of one KV cache.
pub(crate) struct PrefixIndex {
    pool: Arc<BlockPool>,
    states: Option<Arc<StatePool>>,
    tree: PrefixTree,
    disk: Option<Disk>,
    stats: PrefixStats,
    changes: PrefixChanges,
}

/// The longest cached prefix of some tokens.
#[derive(Debug, Default)]
struct PrefixMatch {
    /// The blocks of the prefix. The last may match in part.
    nodes: Vec<usize>,
    rows: usize,
}

/// The result of [`PrefixIndex::load`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixLoad {
    /// Number of blocks that were read.
    pub blocks: usize,
    /// Whether the disk has more blocks of the prompt.
    pub more: bool,
}

impl PrefixIndex {
    pub(crate) fn new(cache: &KvCache, disk: Option<Disk>) -> PrefixIndex {
        let (pool, states) = (Arc::clone(&cache.pool), cache.states.clone());
        PrefixIndex {
            pool,
            states,
            tree: PrefixTree::default(),
            disk,
            stats: PrefixStats::default(),
            changes: PrefixChanges::default(),
        }
    }

    pub(crate) fn stats(&self) -> PrefixStats {
        PrefixStats { blocks: self.tree.len(), ..self.stats }
    }

    pub(crate) fn disk_stats(&self) -> DiskStats {
        self.disk.as_ref().map(Disk::stats).unwrap_or_default()
    }

    /// Starts to record changes, beginning with the blocks that are cached already.
    pub(crate) fn watch(&mut self) {
        self.changes.watch(&self.tree);
    }

    /// The changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<PrefixChange> {
        self.changes.take()
    }

    /// The longest cached prefix of `tokens`.
    fn find(&self, chain: &HashChain, tokens: &[u32]) -> PrefixMatch {
        let mut found = PrefixMatch::default();
        for (name, block) in chain.names().iter().zip(tokens.chunks_exact(KV_BLOCK)) {
            // The tokens are compared as well: a hash collision must not give a prompt other rows.
            let Some(node) = self.tree.full(*name, found.nodes.last().copied(), block) else { break };
            found.nodes.push(node);
            found.rows += KV_BLOCK;
        }
        // Part of one more block: the child with the longest common beginning.
        let rest = &tokens[found.rows..];
        let common = |id: usize| {
            let block = &self.tree.get(id).tokens;
            block.iter().zip(rest).take_while(|(a, b)| a == b).count()
        };
        let children = self.tree.children(chain.salt(), found.nodes.last().copied());
        if let Some((rows, id)) = children.iter().map(|id| (common(*id), *id)).max()
            && rows > 0
        {
            found.nodes.push(id);
            found.rows += rows;
        }
        found
    }

    /// How many rows of a match a prompt of `tokens` tokens can use.
    fn usable(&self, found: &PrefixMatch, tokens: usize, drafts: bool) -> usize {
        // The last token must run, since its logits are needed.
        let mut rows = found.rows.min(tokens.saturating_sub(1));
        if drafts {
            let mut drafted = 0;
            for node in found.nodes.iter().map(|id| self.tree.get(*id)) {
                drafted += node.drafted;
                if node.drafted < KV_BLOCK {
                    break;
                }
            }
            // MTP row i reads token i + 1, so the last matching row has read a token of another
            // text.
            rows = rows.min(found.rows.saturating_sub(1)).min(drafted);
        }
        if self.states.is_none() {
            return rows;
        }
        // With recurrent layers, a prompt can continue only where a state is kept.
        let states = found.nodes.iter().flat_map(|id| &self.tree.get(*id).states);
        states.map(|state| state.position).filter(|position| *position <= rows).max().unwrap_or(0)
    }

    /// The number of rows that [`adopt`](Self::adopt) would share.
    pub(crate) fn cached(&self, chain: &HashChain, tokens: &[u32], drafts: bool) -> usize {
        self.usable(&self.find(chain, tokens), tokens.len(), drafts)
    }

    /// A sequence that shares the longest cached prefix of `tokens`, without the last token, and
    /// the number of its rows that came from the disk. `None` if nothing is cached.
    pub(crate) fn adopt(
        &mut self,
        chain: &HashChain,
        tokens: &[u32],
        drafts: bool,
    ) -> Option<(Sequence, usize)> {
        let mut found = self.find(chain, tokens);
        let rows = self.usable(&found, tokens.len(), drafts);
        if rows == 0 {
            return None;
        }
        found.nodes.truncate(rows.div_ceil(KV_BLOCK));
        let (mut blocks, mut states, mut from_disk) = (Vec::new(), Vec::new(), 0);
        for (index, id) in found.nodes.iter().enumerate() {
            self.tree.touch(*id);
            let node = self.tree.get(*id);
            blocks.push(node.block);
            states.extend(node.states.iter().filter(|state| state.position <= rows).cloned());
            if node.from_disk {
                from_disk += KV_BLOCK.min(rows - index * KV_BLOCK);
            }
        }
        self.pool.blocks().add_user(&blocks);
        // `usable` ends the rows at a state, so the last of the states is that after `rows` rows.
        let recurrent = self.states.as_ref().map(|pool| RecurrentState::restored(pool, states));
        // Without drafts for this prompt, blocks may lack MTP rows.
        let draft = DraftRows::of_shared(if drafts { rows } else { 0 });
        let owner = Some(Arc::clone(&self.pool));
        let tokens = tokens[..rows].to_vec();
        Some((
            Sequence {
                blocks,
                len: rows,
                owner,
                recurrent,
                tokens,
                embedded_from: None,
                draft,
                adapters: None,
            },
            from_disk,
        ))
    }

    /// Counts a prompt that was looked up, and how many of its tokens were cached.
    pub(crate) fn count(&mut self, tokens: usize, cached: usize, from_disk: usize) {
        self.stats.lookups += 1;
        self.stats.tokens_asked += tokens as u64;
        self.stats.hits += u64::from(cached > 0);
        self.stats.tokens_saved += cached as u64;
        if let Some(disk) = &mut self.disk {
            disk.count_saved(from_disk);
        }
    }

    /// Caches the full blocks of a sequence, and its last, partial block if `with_partial`. `chain`
    /// holds the names of all full blocks.
    pub(crate) fn insert(&mut self, chain: &HashChain, sequence: &Sequence, with_partial: bool) {
        let states: Vec<Snapshot> =
            sequence.recurrent.as_ref().map_or_else(Vec::new, |state| state.states(sequence.len()));
        let tokens = sequence.tokens();
        // Rows after an embedding or a context shift have no tokens and are not cached.
        let len = tokens.len();
        let mut parent = None;
        for (index, name) in chain.names().iter().enumerate().take(len / KV_BLOCK) {
            let first = index * KV_BLOCK;
            let block = &tokens[first..first + KV_BLOCK];
            let node = self.node(chain, parent, Some(*name), block, sequence, first, &states);
            let found = match self.tree.named(*name) {
                // A hash collision. Keep the cached block, and stop: later names depend on this
                // one.
                Some(_) if self.tree.full(*name, parent, block).is_none() => return,
                Some(id) => {
                    self.merge(id, node);
                    id
                }
                None => self.keep(node),
            };
            parent = Some(found);
        }
        let first = len / KV_BLOCK * KV_BLOCK;
        // A chain that names fewer blocks than the sequence has would give the node a wrong parent.
        if with_partial && first < len && first / KV_BLOCK <= chain.names().len() {
            let node = self.node(chain, parent, None, &tokens[first..len], sequence, first, &states);
            self.insert_partial(node);
        }
    }

    /// Creates the node of a block of a sequence.
    #[allow(clippy::too_many_arguments, reason = "what a node is made of")]
    fn node(
        &self,
        chain: &HashChain,
        parent: Option<usize>,
        name: Option<BlockHash>,
        tokens: &[u32],
        sequence: &Sequence,
        first: usize,
        states: &[Snapshot],
    ) -> Node {
        let end = first + tokens.len();
        let within = |state: &&Snapshot| state.position > first && state.position <= end;
        Node {
            salt: chain.salt(),
            parent,
            children: Vec::new(),
            name,
            tokens: tokens.into(),
            block: sequence.blocks[first / KV_BLOCK],
            drafted: sequence.drafted_rows().saturating_sub(first).min(tokens.len()),
            states: states.iter().filter(within).cloned().collect(),
            used: 0,
            from_disk: false,
        }
    }

    /// Adds the MTP rows and states of a new node with the same tokens to a cached one.
    fn merge(&mut self, id: usize, new: Node) {
        self.tree.touch(id);
        let mut blocks = self.pool.blocks();
        let node = self.tree.get_mut(id);
        // Rows of the model are equal in both blocks. If the new one has more MTP rows, cache it
        // instead.
        if new.drafted > node.drafted {
            if node.block != new.block {
                blocks.keep(new.block);
                blocks.forget(node.block);
            }
            (node.block, node.drafted) = (new.block, new.drafted);
        }
        for state in new.states {
            if node.states.iter().all(|there| there.position != state.position) {
                node.states.push(state);
            }
        }
    }

    fn keep(&mut self, node: Node) -> usize {
        self.pool.blocks().keep(node.block);
        self.changes.kept(&self.tree, &node);
        self.tree.insert(node)
    }

    /// Caches a partial block, unless a longer one with the same beginning is cached. Removes
    /// shorter ones.
    fn insert_partial(&mut self, node: Node) {
        let siblings = self.tree.children(node.salt, node.parent).to_vec();
        let longer = |id: &usize| self.tree.get(*id).tokens.starts_with(&node.tokens);
        if let Some(id) = siblings.iter().copied().find(longer) {
            return self.merge_partial(id, node);
        }
        for id in siblings {
            let there = self.tree.get(id);
            // Full blocks may have children and stay.
            if there.name.is_none() && node.tokens.starts_with(&there.tokens) {
                self.remove(id);
            }
        }
        self.keep(node);
    }

    /// Adds the states of a partial block to a longer cached one.
    fn merge_partial(&mut self, id: usize, node: Node) {
        // With an equal number of MTP rows, `merge` keeps the cached block, which has more rows.
        let drafted = self.tree.get(id).drafted;
        self.merge(id, Node { drafted, ..node });
    }

    fn remove(&mut self, id: usize) {
        let node = self.tree.remove(id);
        self.changes.dropped(&node);
        self.pool.blocks().forget(node.block);
    }

    /// Evicts the least recently used leaf that frees a block. If none does and `any` is set,
    /// evicts any leaf. Returns whether a leaf was evicted.
    pub(crate) fn evict(&mut self, any: bool) -> bool {
        let leaf = self.idle_leaf(u64::MAX).or_else(|| {
            // A leaf that is in use may have an idle block before it, which becomes a leaf.
            let behind = any || self.pool.blocks().idle() > 0;
            self.tree.leaves().next().filter(|_| behind)
        });
        self.evict_leaf(leaf)
    }

    /// The least recently used idle leaf that was not used after `last`.
    fn idle_leaf(&self, last: u64) -> Option<usize> {
        let blocks = self.pool.blocks();
        // Leaves are in the order of their last use.
        let mut leaves = self.tree.leaves().take_while(|id| self.tree.get(*id).used <= last);
        leaves.find(|id| blocks.is_idle(self.tree.get(*id).block))
    }

    fn evict_leaf(&mut self, leaf: Option<usize>) -> bool {
        if let Some(leaf) = leaf {
            self.remove(leaf);
            self.stats.evicted += 1;
        }
        leaf.is_some()
    }

    /// Drops recurrent states of cached blocks until `wanted` slots are free, the least recently
    /// used first. The blocks stay cached.
    pub(crate) fn evict_states(&mut self, wanted: usize) {
        let Some(pool) = self.states.clone() else { return };
        if pool.available() >= wanted {
            return;
        }
        // A scan of all nodes, but only if slots are scarce.
        let mut holders: Vec<(u64, usize)> = self
            .tree
            .iter()
            .filter(|(_, node)| !node.states.is_empty())
            .map(|(id, node)| (node.used, id))
            .collect();
        holders.sort_unstable();
        for (_, id) in holders {
            if pool.available() >= wanted {
                return;
            }
            // A slot that a running sequence shares is not freed, so the loop checks the pool
            // again.
            self.tree.get_mut(id).states.clear();
        }
    }

    /// Removes the blocks of a text, from its end to the first block that another text continues.
    /// Returns the number of removed rows.
    pub(crate) fn forget(&mut self, chain: &HashChain, tokens: &[u32]) -> usize {
        let found = self.find(chain, tokens);
        let mut forgotten = 0;
        for (index, id) in found.nodes.into_iter().enumerate().rev() {
            let rest = tokens.get(index * KV_BLOCK..).unwrap_or_default();
            let block = &self.tree.get(id).tokens;
            if !rest.starts_with(block) {
                // The last match may be partial: a block of another text with the same beginning.
                continue;
            }
            if !self.tree.children(chain.salt(), Some(id)).is_empty() {
                break;
            }
            forgotten += block.len();
            self.remove(id);
        }
        forgotten
    }

    /// Removes all blocks.
    pub(crate) fn clear(&mut self) {
        loop {
            let leaf = self.tree.leaves().next();
            let Some(leaf) = leaf else { return };
            self.remove(leaf);
        }
    }

    /// Reads blocks from the disk that follow the cached prefix of a prompt, at most about `budget`
    /// bytes.
    pub(crate) fn load(
        &mut self,
        cache: &mut KvCache,
        chain: &HashChain,
        tokens: &[u32],
        budget: usize,
    ) -> PrefixLoad {
        let mut loaded = PrefixLoad::default();
        // Taken, because `place` below borrows all of `self`.
        let Some(mut disk) = self.disk.take() else { return loaded };
        // Blocks that are used after `start` belong to this prompt and must not be evicted for its
        // later blocks.
        let start = self.tree.now();
        let PrefixMatch { mut nodes, rows } = self.find(chain, tokens);
        nodes.truncate(rows / KV_BLOCK);
        nodes.iter().for_each(|id| self.tree.touch(*id));
        let mut bytes = 0;
        // Includes a block that ends with the prompt's last token, although that token runs again.
        let names = chain.names();
        while nodes.len() < names.len() && disk.has(names[nodes.len()]) {
            if bytes >= budget {
                loaded.more = true;
                break;
            }
            let first = nodes.len();
            let wanted = WantedBlocks { first, names: &names[first..], tokens: &tokens[first * KV_BLOCK..] };
            let stored = disk.read(&wanted, cache);
            // The file is damaged, or another process has removed it. The prompt runs instead.
            if stored.is_empty() {
                break;
            }
            for block in stored {
                bytes += block.payload.len();
                let tokens = &tokens[nodes.len() * KV_BLOCK..][..KV_BLOCK];
                let name = names[nodes.len()];
                let Some(id) = self.place(cache, chain, nodes.last().copied(), name, tokens, &block, start)
                else {
                    self.disk = Some(disk);
                    return PrefixLoad { more: false, ..loaded };
                };
                nodes.push(id);
                loaded.blocks += 1;
            }
        }
        disk.count_read(loaded.blocks);
        self.disk = Some(disk);
        loaded
    }

    /// Writes a block from disk into the KV cache. `None` if no idle block was used before `start`,
    /// or the backend fails.
    #[allow(clippy::too_many_arguments, reason = "what a node is made of")]
    fn place(
        &mut self,
        cache: &mut KvCache,
        chain: &HashChain,
        parent: Option<usize>,
        name: BlockHash,
        tokens: &[u32],
        stored: &StoredBlock,
        start: u64,
    ) -> Option<usize> {
        while self.pool.blocks().free() == 0 {
            let leaf = self.idle_leaf(start);
            if !self.evict_leaf(leaf) {
                return None;
            }
        }
        let block = self.pool.blocks().take()?;
        // Dropping the sequence releases the block: it is free again after an error, and otherwise
        // the cache is its only user.
        let mut holder = Sequence::default();
        (holder.blocks, holder.owner) = (vec![block], Some(Arc::clone(&self.pool)));
        let states = stored.restore(cache, block)?;
        let node = Node {
            salt: chain.salt(),
            parent,
            children: Vec::new(),
            name: Some(name),
            tokens: tokens.into(),
            block,
            drafted: stored.drafted,
            states,
            used: 0,
            from_disk: true,
        };
        Some(self.keep(node))
    }

    /// Queues blocks for writing to disk, unless they are stored already. `names` are the blocks of
    /// a text from its beginning.
    pub(crate) fn save(&mut self, names: &[BlockHash]) {
        if let Some(disk) = &mut self.disk {
            disk.want(names);
        }
    }

    /// Submits queued blocks to the writer, at most about `budget` bytes. If `wait`, blocks until
    /// the writer accepts them; otherwise leaves the rest to a later call. Returns whether any
    /// blocks remain.
    pub(crate) fn write_some(&mut self, cache: &KvCache, budget: usize, wait: bool) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let tree = &self.tree;
        disk.write_some(cache, budget, wait, &|name| {
            tree.named(name).map(|id| {
                let node = tree.get(id);
                (node.block, node.drafted, &*node.tokens, node.states.as_slice())
            })
        })
    }

    /// Waits until all submitted blocks are on disk.
    pub(crate) fn flush(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.flush();
        }
    }
}

impl Drop for PrefixIndex {
    fn drop(&mut self) {
        // The pool may outlive the index, and counts it as a user of each cached block.
        self.clear();
    }
}
