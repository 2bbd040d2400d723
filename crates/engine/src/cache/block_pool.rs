//! Bookkeeping of blocks: the free ones, and the number of users of the others. A backend stores
//! their rows.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The blocks of one KV cache. Its sequences share the pool and release their blocks when they are
/// dropped, on any thread.
#[derive(Debug)]
pub(super) struct BlockPool {
    count: usize,
    blocks: Mutex<Blocks>,
}

/// The number of users of each block, and the free blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    users: Vec<u32>,
    free: Vec<u32>,
    /// Whether the prefix cache is one of the users.
    cached: Vec<bool>,
    /// Number of blocks whose only user is the prefix cache.
    idle: usize,
}

impl BlockPool {
    /// `count` blocks, all free.
    pub(super) fn new(count: u32) -> BlockPool {
        let (users, cached) = (vec![0; count as usize], vec![false; count as usize]);
        // Blocks are taken from the end of the list, so that block 0 is the first.
        let blocks = Blocks { users, free: (0..count).rev().collect(), cached, idle: 0 };
        BlockPool { count: count as usize, blocks: Mutex::new(blocks) }
    }

    /// Total number of blocks.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Locks the state of all blocks.
    pub(super) fn blocks(&self) -> MutexGuard<'_, Blocks> {
        // A poisoned lock is usable: no update of the state can panic halfway.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blocks {
    /// Number of free blocks.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Number of blocks that only the prefix cache uses.
    pub(super) fn idle(&self) -> usize {
        self.idle
    }

    /// Number of sequences that share a block. The prefix cache counts as one.
    pub(super) fn users(&self, block: u32) -> u32 {
        self.users[block as usize]
    }

    /// Takes a free block. It has one user then.
    pub(super) fn take(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.users[block as usize] = 1;
        Some(block)
    }

    /// Adds a user to each of these blocks.
    pub(super) fn add_user(&mut self, blocks: &[u32]) {
        for &block in blocks {
            self.idle -= usize::from(self.is_idle(block));
            self.users[block as usize] += 1;
        }
    }

    /// Removes a user of a block. The last one frees it.
    pub(super) fn release(&mut self, block: u32) {
        let users = &mut self.users[block as usize];
        *users -= 1;
        if *users == 0 {
            self.free.push(block);
        }
        self.idle += usize::from(self.is_idle(block));
    }

    /// Makes the prefix cache a user of a block that has other users.
    pub(super) fn keep(&mut self, block: u32) {
        debug_assert!(!self.cached[block as usize], "block {block} is cached twice");
        // Before `cached` is set. Otherwise `is_idle` would see a cached block with one user.
        self.add_user(&[block]);
        self.cached[block as usize] = true;
    }

    /// Removes the prefix cache from the users of a block.
    pub(super) fn forget(&mut self, block: u32) {
        // The count of idle blocks changes before `cached`, which `is_idle` reads.
        self.idle -= usize::from(self.is_idle(block));
        self.cached[block as usize] = false;
        self.release(block);
    }

    /// Whether the prefix cache is a block's only user.
    pub(super) fn is_idle(&self, block: u32) -> bool {
        self.cached[block as usize] && self.users[block as usize] == 1
    }
}
