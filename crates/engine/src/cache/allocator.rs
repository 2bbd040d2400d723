//! Which pages are free, and how many sequences use each of the others.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The pages of one pool: shared with its sequences, which give theirs back when they are dropped.
#[derive(Debug)]
pub(super) struct Allocator {
    count: usize,
    pages: Mutex<Pages>,
}

/// The users of each page, and the free ones.
#[derive(Debug)]
pub(super) struct Pages {
    users: Vec<u32>,
    free: Vec<u32>,
}

impl Allocator {
    /// So many pages, all free.
    pub(super) fn new(count: u32) -> Allocator {
        let pages = Pages { users: vec![0; count as usize], free: (0..count).rev().collect() };
        Allocator { count: count as usize, pages: Mutex::new(pages) }
    }

    /// Pages of the pool.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The state of all pages, for this thread alone. Every change of it is whole before anything can panic.
    pub(super) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    /// How many pages are free.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// How many sequences use a page.
    pub(super) fn users(&self, page: u32) -> u32 {
        self.users[page as usize]
    }

    /// A page that was free and is now used once.
    pub(super) fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.users[page as usize] = 1;
        Some(page)
    }

    /// One more user of each of these pages.
    pub(super) fn use_again(&mut self, pages: &[u32]) {
        for page in pages {
            self.users[*page as usize] += 1;
        }
    }

    /// One user less: the last one frees the page.
    pub(super) fn give_back(&mut self, page: u32) {
        let users = &mut self.users[page as usize];
        *users -= 1;
        if *users == 0 {
            self.free.push(page);
        }
    }
}
