//! The prefix cache in memory: finds the longest cached beginning of a prompt, and keeps blocks until others need them.
//!
//! A cached block stays in the pool with one user more, the cache itself. Where it is the only one, the block is *idle*: as good as free, since
//! [`PrefixIndex::evict`] gives it up. Rows are never copied: a prompt shares the blocks, the last of them in part, and copies on write.

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

/// A cached beginning of some tokens.
#[derive(Debug, Default)]
struct PrefixMatch {
    /// Its blocks; the last may be wanted in part.
    nodes: Vec<usize>,
    rows: usize,
}

/// What [`PrefixIndex::load`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixLoad {
    /// Blocks that were read.
    pub blocks: usize,
    /// Whether the disk has more of the prompt.
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

    /// Notes from now on what comes and goes, beginning with what is there.
    pub(crate) fn watch(&mut self) {
        self.changes.watch(&self.tree);
    }

    /// What has come and gone since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<PrefixChange> {
        self.changes.take()
    }

    /// The cached beginning of `tokens`.
    fn find(&self, chain: &HashChain, tokens: &[u32]) -> PrefixMatch {
        let mut found = PrefixMatch::default();
        for (name, block) in chain.names().iter().zip(tokens.chunks_exact(KV_BLOCK)) {
            let Some(node) = self.tree.full(*name, found.nodes.last().copied(), block) else { break };
            found.nodes.push(node);
            found.rows += KV_BLOCK;
        }
        // part of a block, of whichever agrees longest
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

    /// How many of the rows that were found can be used: all but that of the last token, whose logits are needed; for drafts, those whose MTP rows
    /// have read the tokens that come here; in a model with recurrent state, those before a state.
    fn usable(&self, found: &PrefixMatch, tokens: usize, drafts: bool) -> usize {
        let mut rows = found.rows.min(tokens.saturating_sub(1));
        if drafts {
            let mut drafted = 0;
            for node in found.nodes.iter().map(|id| self.tree.get(*id)) {
                drafted += node.drafted;
                if node.drafted < KV_BLOCK {
                    break;
                }
            }
            rows = rows.min(found.rows.saturating_sub(1)).min(drafted);
        }
        if self.states.is_none() {
            return rows;
        }
        let states = found.nodes.iter().flat_map(|id| &self.tree.get(*id).states);
        states.map(|state| state.position).filter(|position| *position <= rows).max().unwrap_or(0)
    }

    /// How many rows [`adopt`](Self::adopt) would share.
    pub(crate) fn cached(&self, chain: &HashChain, tokens: &[u32], drafts: bool) -> usize {
        self.usable(&self.find(chain, tokens), tokens.len(), drafts)
    }

    /// A sequence that shares the longest cached beginning of `tokens`, at most all but the last; how many of its rows came from the disk. None where
    /// nothing is cached.
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
        self.pool.blocks().use_again(&blocks);
        let recurrent = self.states.as_ref().map(|pool| RecurrentState::restored(pool, states));
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

    /// Caches the full blocks of a sequence, and its last, partial block if `with_rest`. `chain` holds the names of all blocks.
    pub(crate) fn insert(&mut self, chain: &HashChain, sequence: &Sequence, with_rest: bool) {
        let states: Vec<Snapshot> =
            sequence.recurrent.as_ref().map_or_else(Vec::new, |state| state.states(sequence.len()));
        let tokens = sequence.tokens();
        let len = tokens.len();
        let mut parent = None;
        for (index, name) in chain.names().iter().enumerate().take(len / KV_BLOCK) {
            let first = index * KV_BLOCK;
            let block = &tokens[first..first + KV_BLOCK];
            let node = self.node(chain, parent, Some(*name), block, sequence, first, &states);
            let found = match self.tree.named(*name) {
                // a hash collision: keep the block that is already cached
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
        if with_rest && first < len && first / KV_BLOCK <= chain.names().len() {
            let node = self.node(chain, parent, None, &tokens[first..len], sequence, first, &states);
            self.insert_rest(node);
        }
    }

    /// A block of a sequence as a node.
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

    /// Adds what a new node of the same block has more. (A block that both share may be in use: it is the same then.)
    fn merge(&mut self, id: usize, new: Node) {
        self.tree.touch(id);
        let mut blocks = self.pool.blocks();
        let node = self.tree.get_mut(id);
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

    /// Keeps a block that is part full, unless a longer one is there; shorter ones go.
    fn insert_rest(&mut self, node: Node) {
        let siblings = self.tree.children(node.salt, node.parent).to_vec();
        let longer = |id: &usize| self.tree.get(*id).tokens.starts_with(&node.tokens);
        if let Some(id) = siblings.iter().copied().find(longer) {
            return self.merge_rest(id, node);
        }
        for id in siblings {
            let there = self.tree.get(id);
            if there.name.is_none() && node.tokens.starts_with(&there.tokens) {
                self.remove(id);
            }
        }
        self.keep(node);
    }

    /// Of a part of a block that is cached, only states are new.
    fn merge_rest(&mut self, id: usize, node: Node) {
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
            // an idle block may be behind one that is in use
            let behind = any || self.pool.blocks().idle() > 0;
            self.tree.leaves().next().filter(|_| behind)
        });
        self.give_up(leaf)
    }

    /// The least recently used block that frees one, of those that were not used after `last`.
    fn idle_leaf(&self, last: u64) -> Option<usize> {
        let blocks = self.pool.blocks();
        let mut leaves = self.tree.leaves().take_while(|id| self.tree.get(*id).used <= last);
        leaves.find(|id| blocks.is_idle(self.tree.get(*id).block))
    }

    fn give_up(&mut self, leaf: Option<usize>) -> bool {
        if let Some(leaf) = leaf {
            self.remove(leaf);
            self.stats.evicted += 1;
        }
        leaf.is_some()
    }

    /// Gives up recurrent states until `wanted` slots are free, the least recently used first.
    pub(crate) fn evict_states(&mut self, wanted: usize) {
        let Some(pool) = self.states.clone() else { return };
        if pool.available() >= wanted {
            return;
        }
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
            self.tree.get_mut(id).states.clear();
        }
    }

    /// Gives up the blocks of a text from its end on, as far as no other text continues them. Returns how many of its rows are gone.
    pub(crate) fn forget(&mut self, chain: &HashChain, tokens: &[u32]) -> usize {
        let found = self.find(chain, tokens);
        let mut forgotten = 0;
        for (index, id) in found.nodes.into_iter().enumerate().rev() {
            let rest = tokens.get(index * KV_BLOCK..).unwrap_or_default();
            let block = &self.tree.get(id).tokens;
            if !rest.starts_with(block) {
                // the last one may be of a text that begins alike
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

    /// Gives everything up.
    pub(crate) fn clear(&mut self) {
        loop {
            let leaf = self.tree.leaves().next();
            let Some(leaf) = leaf else { return };
            self.remove(leaf);
        }
    }

    /// Reads blocks from the disk that continue what memory has of a prompt, at most about `budget` bytes of them.
    pub(crate) fn load(
        &mut self,
        cache: &mut KvCache,
        chain: &HashChain,
        tokens: &[u32],
        budget: usize,
    ) -> PrefixLoad {
        let mut loaded = PrefixLoad::default();
        let Some(mut disk) = self.disk.take() else { return loaded };
        let start = self.tree.now();
        let PrefixMatch { mut nodes, rows } = self.find(chain, tokens);
        nodes.truncate(rows / KV_BLOCK);
        nodes.iter().for_each(|id| self.tree.touch(*id));
        let mut bytes = 0;
        // the last token runs, so that a block which ends with it is wanted in part: it counts
        let names = chain.names();
        while nodes.len() < names.len() && disk.has(names[nodes.len()]) {
            if bytes >= budget {
                loaded.more = true;
                break;
            }
            let first = nodes.len();
            let wanted = WantedBlocks { first, names: &names[first..], tokens: &tokens[first * KV_BLOCK..] };
            let stored = disk.read(&wanted, cache);
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

    /// Writes a block from disk into the KV cache. `None` if only blocks used since `start` could
    /// make room for it.
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
            if !self.give_up(leaf) {
                return None;
            }
        }
        let block = self.pool.blocks().take()?;
        // dropped, it gives the block back; the cache has it then
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

    /// Waits until what was handed to the writer is on disk.
    pub(crate) fn flush(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.flush();
        }
    }
}

impl Drop for PrefixIndex {
    fn drop(&mut self) {
        self.clear();
    }
}
