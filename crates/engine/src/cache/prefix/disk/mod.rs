//! The prefix cache on disk: full blocks that outlive the process, and are read back when a prompt
//! contains them.

mod folder;
mod segment;
mod writer;

use super::stats::{DiskCache, DiskStats};
use crate::cache::block_hash::BlockHash;
use crate::cache::kv_cache::KvCache;
use crate::cache::recurrent::Snapshot;
use folder::{SegmentFolder, read_header};
use latent_backend::KV_BLOCK;
use segment::{BlockRun, MAX_BLOCKS, NewBlock, SegmentEntry, checksum};
use std::collections::{HashSet, VecDeque};
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex};
use writer::{DiskStatus, Writer, lock};

/// Approximate size of a file: large enough to be read at the disk's full speed, small enough to be
/// read between two steps.
const SEGMENT_BYTES: usize = 8 << 20;

/// Maximum number of runs of blocks that wait to be written. Older ones are dropped.
const MAX_WANTED: usize = 256;

/// A cached block for the writer: its number in the pool, number of MTP rows, tokens, recurrent
/// states.
pub(super) type MemoryBlock<'a> = (u32, usize, &'a [u32], &'a [Snapshot]);

/// The prefix cache on disk.
pub(crate) struct Disk {
    shared: Arc<Mutex<DiskStatus>>,
    writer: Writer,
    id: u64,
    /// Runs of blocks to write, each with the index of its first block in its text.
    wanted: VecDeque<(usize, Vec<BlockHash>)>,
    blocks_read: u64,
    /// Prompt tokens that were reused from the cache.
    saved: u64,
    dropped: u64,
}

/// Blocks of a text to read.
pub(super) struct WantedBlocks<'a> {
    /// The index of the first block in the text.
    pub first: usize,
    pub names: &'a [BlockHash],
    /// The tokens of the blocks. More may follow.
    pub tokens: &'a [u32],
}

/// A block that was read and checked.
#[derive(Debug)]
pub(super) struct StoredBlock {
    pub payload: Vec<u8>,
    pub drafted: usize,
    states: Vec<usize>,
}

impl Disk {
    /// Opens the folder of a cache. `id` identifies the model, its precision and the layout of
    /// rows.
    ///
    /// # Errors
    /// When the folder cannot be created or read, or the writer thread cannot be started.
    pub(crate) fn open(options: &DiskCache, id: u64) -> io::Result<Disk> {
        let folder = SegmentFolder::open(&options.path, id, options.max_bytes)?;
        let shared = DiskStatus { folder, queued: HashSet::new(), written: 0, dropped: 0 };
        let shared = Arc::new(Mutex::new(shared));
        let writer = Writer::start(&shared, id)?;
        Ok(Disk { shared, writer, id, wanted: VecDeque::new(), blocks_read: 0, saved: 0, dropped: 0 })
    }

    pub(super) fn stats(&self) -> DiskStats {
        let shared = lock(&self.shared);
        DiskStats {
            files: shared.folder.files(),
            bytes: shared.folder.bytes(),
            blocks_read: self.blocks_read,
            tokens_saved: self.saved,
            blocks_written: shared.written,
            blocks_dropped: shared.dropped + self.dropped,
            errors: shared.folder.errors,
            removed: shared.folder.removed,
        }
    }

    pub(super) fn count_read(&mut self, blocks: usize) {
        self.blocks_read += blocks as u64;
    }

    pub(super) fn count_saved(&mut self, tokens: usize) {
        self.saved += tokens as u64;
    }

    /// Whether a block is on disk.
    pub(super) fn has(&self, name: BlockHash) -> bool {
        let mut shared = lock(&self.shared);
        // Another process may have written it since the last scan.
        if shared.folder.find(name).is_none() {
            shared.folder.refresh();
        }
        shared.folder.find(name).is_some()
    }

    /// Reads wanted blocks from the file that holds the first of them, as far as they are
    /// consecutive there. Empty if the file is damaged or was removed.
    pub(super) fn read(&mut self, wanted: &WantedBlocks<'_>, cache: &KvCache) -> Vec<StoredBlock> {
        let mut shared = lock(&self.shared);
        let file = wanted.names.first().and_then(|name| shared.folder.find(*name)).cloned();
        let Some(file) = file else { return Vec::new() };
        let path = shared.folder.path_of(&file);
        let mut stored = Vec::new();
        // Blocks before the damaged one have passed their checks and are used.
        if let Err(error) = read_blocks(&path, self.id, wanted, cache, &mut stored) {
            shared.folder.damaged(&file, &error);
        }
        stored
    }

    /// Queues the missing blocks of a text for writing, and marks the existing ones as used.
    pub(super) fn want(&mut self, names: &[BlockHash]) {
        let mut shared = lock(&self.shared);
        // Another process may have written the same prefix.
        shared.folder.refresh();
        let (mut files, mut run) = (HashSet::new(), Vec::new());
        let mut first = 0;
        for (index, name) in names.iter().enumerate() {
            match shared.folder.find(*name).cloned() {
                Some(file) => {
                    files.insert(file);
                }
                None if shared.queued.insert(*name) => {
                    if run.is_empty() {
                        first = index;
                    }
                    run.push(*name);
                    continue;
                }
                // Queued already, for another job.
                None => {}
            }
            // A stored or queued block ends the run: a file has consecutive blocks.
            if !run.is_empty() {
                self.wanted.push_back((first, std::mem::take(&mut run)));
            }
        }
        if !run.is_empty() {
            self.wanted.push_back((first, run));
        }
        shared.folder.touch(&files);
        while self.wanted.len() > MAX_WANTED
            && let Some((_, run)) = self.wanted.pop_front()
        {
            self.dropped += run.len() as u64;
            shared.forget_queued(&run);
        }
    }

    /// Copies queued blocks out of the KV cache for the writer, about `budget` bytes. `in_memory`
    /// looks up a cached block. If `wait`, blocks until the writer accepts them. Returns whether
    /// blocks remain for a later call.
    pub(super) fn write_some<'a>(
        &mut self,
        cache: &KvCache,
        budget: usize,
        wait: bool,
        in_memory: &dyn Fn(BlockHash) -> Option<MemoryBlock<'a>>,
    ) -> bool {
        let mut bytes = 0;
        while bytes < budget
            && let Some((first, mut run)) = self.wanted.pop_front()
        {
            // The blocks may have been evicted from memory since they were queued.
            let there = run.iter().take_while(|name| in_memory(**name).is_some()).count();
            if there == 0 {
                // Evicted from memory before it was written.
                self.drop_queued(&run[..1]);
                run.remove(0);
                if !run.is_empty() {
                    self.wanted.push_front((first + 1, run));
                }
                continue;
            }
            // A model with recurrent layers only has blocks of 0 bytes. A file has at least one
            // block, however large.
            let block = cache.block_bytes().max(1);
            let count = there.min(MAX_BLOCKS).min((SEGMENT_BYTES / block).max(1));
            let copied: Option<Vec<NewBlock>> =
                run[..count].iter().map(|name| copy(cache, *name, in_memory(*name)?)).collect();
            let rest = run.split_off(count);
            if !rest.is_empty() {
                self.wanted.push_front((first + count, rest));
            }
            // The backend cannot read its memory.
            let Some(blocks) = copied else {
                self.drop_queued(&run);
                continue;
            };
            bytes += blocks.iter().map(|block| block.payload.len()).sum::<usize>();
            if self.writer.write(BlockRun { first, blocks }, wait).is_err() {
                if wait {
                    // A write that waits fails only if the writer thread has ended.
                    self.drop_queued(&run);
                } else {
                    // The queue of the writer is full. The next step tries again.
                    self.wanted.push_front((first, run));
                }
                return !self.wanted.is_empty();
            }
        }
        !self.wanted.is_empty()
    }

    fn drop_queued(&mut self, run: &[BlockHash]) {
        self.dropped += run.len() as u64;
        lock(&self.shared).forget_queued(run);
    }

    pub(super) fn flush(&mut self) {
        self.writer.flush();
    }
}

/// The number of valid blocks in a file of the prefix cache. `None` if its header is damaged or has
/// a cache id other than `id`. For tools that inspect such files, and for fuzzing: it trusts no
/// byte of its input.
pub fn whole_blocks(file: &[u8], id: u64) -> Option<usize> {
    let header = segment::Header::parse(file, id, file.len() as u64)?;
    let payload = |entry: &&SegmentEntry| {
        let start = usize::try_from(entry.start).ok()?;
        file.get(start..start.checked_add(entry.bytes)?).filter(|bytes| checksum(bytes) == entry.sum)
    };
    Some(header.entries.iter().filter(|entry| payload(entry).is_some()).count())
}

/// Copies a cached block. `None` if the backend fails.
fn copy(
    cache: &KvCache,
    name: BlockHash,
    (block, drafted, tokens, states): MemoryBlock<'_>,
) -> Option<NewBlock> {
    let mut payload = Vec::with_capacity(cache.block_bytes());
    cache.read_block(block, &mut payload).ok()?;
    // The format needs ascending positions; `merge` appends states in any order.
    let mut states: Vec<&Snapshot> = states.iter().collect();
    states.sort_by_key(|state| state.position);
    for state in &states {
        cache.read_slot(&state.slot, &mut payload).ok()?;
    }
    let states = states.iter().map(|state| state.position).collect();
    Some(NewBlock { name, tokens: tokens.to_vec(), drafted, states, payload })
}

/// Reads the blocks of a file from the first wanted one on, as far as names and tokens are equal.
fn read_blocks(
    path: &std::path::Path,
    id: u64,
    WantedBlocks { first, names, tokens }: &WantedBlocks<'_>,
    cache: &KvCache,
    stored: &mut Vec<StoredBlock>,
) -> io::Result<()> {
    let damaged = |problem: &str| Err(io::Error::new(io::ErrorKind::InvalidData, problem.to_owned()));
    let (header, mut file) = read_header(path, id)?;
    let at = header.entries.iter().position(|entry| Some(&entry.name) == names.first());
    let Some(at) = at else { return damaged("its blocks have changed") };
    if header.first + at != *first {
        // The positions of its recurrent states would be wrong.
        return damaged("a block's position in its text does not match its name");
    }
    let wanted = names.iter().zip(tokens.chunks_exact(KV_BLOCK)).zip(&header.entries[at..]);
    let wanted: Vec<&SegmentEntry> = wanted
        .take_while(|((name, tokens), entry)| **name == entry.name && **tokens == *entry.tokens)
        .map(|(_, entry)| entry)
        .collect();
    let Some(start) = wanted.first().map(|entry| entry.start) else {
        return damaged("a block's tokens do not match its name");
    };
    file.seek(SeekFrom::Start(start))?;
    for entry in wanted {
        // Checked before memory is allocated for the payload.
        let expected = cache.block_bytes() + entry.states.len() * cache.layout().state_bytes();
        if entry.bytes != expected {
            return damaged("a block's size does not match that of the cache");
        }
        let mut payload = vec![0; entry.bytes];
        file.read_exact(&mut payload)?;
        if checksum(&payload) != entry.sum {
            return damaged("the checksum of a block does not match");
        }
        stored.push(StoredBlock { payload, drafted: entry.drafted, states: entry.states.clone() });
    }
    Ok(())
}

impl StoredBlock {
    /// Writes the rows to a block, and states to free slots while there are any. `None` if the
    /// backend fails.
    pub(super) fn restore(&self, cache: &mut KvCache, block: u32) -> Option<Vec<Snapshot>> {
        let (rows, mut states) = self.payload.split_at_checked(cache.block_bytes())?;
        cache.write_block(block, rows).ok()?;
        let bytes = cache.layout().state_bytes();
        let mut restored = Vec::new();
        for position in &self.states {
            let (state, rest) = states.split_at_checked(bytes)?;
            states = rest;
            if let Some(slot) = cache.write_slot(state).ok()? {
                restored.push(Snapshot { position: *position, slot });
            }
        }
        Some(restored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::StateOptions;
    use latent_backend::{KvLayout, LayerState};
    use latent_backend_reference::HostKvStore;
    use latent_graph::ir::{KvLayer, KvLayerKind};
    use latent_types::CacheType;

    /// A cache of four blocks with two elements per row.
    fn cache() -> KvCache {
        let layer = KvLayer::of_rows(KvLayerKind::Latent, 0, 2, 0);
        let layers = vec![LayerState::PerToken(layer)];
        let layout = KvLayout { layers, cache_type: CacheType::F32, blocks: 4, state_slots: 0 };
        KvCache::new(Box::new(HostKvStore::new(layout)), StateOptions::default(), 0)
    }

    /// A damaged header may have the right names with another index of the first block. Recurrent
    /// states would then be used at wrong positions.
    #[test]
    fn a_block_at_a_wrong_index_is_refused() {
        let cache = cache();
        let tokens: Vec<u32> = (0..2 * KV_BLOCK as u32).collect();
        let names = crate::cache::block_hashes(0, &tokens);
        let block = |index: usize| NewBlock {
            name: names[index],
            tokens: tokens[index * KV_BLOCK..][..KV_BLOCK].to_vec(),
            drafted: 0,
            states: Vec::new(),
            payload: vec![index as u8; cache.block_bytes()],
        };
        let folder = tempfile::tempdir().unwrap();
        for (first, expected) in [(0, 2), (1, 0), (7, 0)] {
            let path = folder.path().join(format!("{first}.kv"));
            std::fs::write(&path, BlockRun { first, blocks: vec![block(0), block(1)] }.encode(9)).unwrap();
            let wanted = WantedBlocks { first: 0, names: &names, tokens: &tokens };
            let mut stored = Vec::new();
            let read = read_blocks(&path, 9, &wanted, &cache, &mut stored);
            assert_eq!((read.is_ok(), stored.len()), (expected > 0, expected), "{first}: {read:?}");
            // The second block alone, at the index that the file has.
            let wanted = WantedBlocks { first: first + 1, names: &names[1..], tokens: &tokens[KV_BLOCK..] };
            stored.clear();
            read_blocks(&path, 9, &wanted, &cache, &mut stored).unwrap();
            assert_eq!(stored[0].payload, vec![1; cache.block_bytes()]);
        }
    }
}
