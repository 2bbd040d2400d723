//! The latent cache: pages of rows, shared by sequences, one stream of rows a layer.
//!
//! A page holds [`PAGE_ROWS`] tokens in every stream at once, so that a sequence has one page table whatever the number of
//! layers. Memory is reserved when the pool is made and committed by the operating system when a page is first written.

mod file;
mod memory;
mod shift;

pub use file::{CacheFileError, MAX_ATTACHMENT, Restored};
pub use memory::StreamMemory;
pub use shift::ShiftShape;

use base::CacheType;
use graph::ir::Stream;
use std::fmt;

/// Tokens of a page. Attention works in blocks of as many rows.
pub const PAGE_ROWS: usize = 64;

/// Cache memory for all sequences of a session.
pub struct CachePool {
    ty: CacheType,
    streams: Vec<(Stream, StreamMemory)>,
    /// How many sequences use each page.
    users: Vec<u32>,
    free: Vec<u32>,
}

/// The cached rows of one sequence: its pages, in order, and how many rows of them are filled.
///
/// Give it back with [`CachePool::release`]; dropping it alone keeps its pages taken.
#[derive(Debug, Default)]
pub struct Sequence {
    pages: Vec<u32>,
    len: usize,
}

impl Sequence {
    /// Cached rows: the position of the next token.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The page of each block of [`PAGE_ROWS`] rows.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }
}

/// There is no free page left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFull {
    /// Rows that were to be added.
    pub rows: usize,
    /// Rows that the sequence holds.
    pub cached: usize,
    /// Tokens that the whole cache can hold.
    pub capacity: usize,
}

impl fmt::Display for CacheFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the cache is full: {} cached tokens and {} new ones do not fit into a context of {}",
            self.cached, self.rows, self.capacity
        )
    }
}

impl std::error::Error for CacheFull {}

impl CachePool {
    /// A pool for `tokens` tokens (rounded up to whole pages) in these streams.
    ///
    /// # Errors
    /// When the operating system does not reserve the address space.
    pub fn new(streams: &[Stream], ty: CacheType, tokens: usize) -> std::io::Result<CachePool> {
        let pages = tokens.div_ceil(PAGE_ROWS);
        let row_bytes = streams.iter().map(|stream| stream.row(ty).bytes());
        let memory = StreamMemory::reserve(pages * PAGE_ROWS, row_bytes)?;
        let streams = streams.iter().cloned().zip(memory).collect();
        Ok(CachePool { ty, streams, users: vec![0; pages], free: (0..pages as u32).rev().collect() })
    }

    /// How numbers are stored.
    pub fn cache_type(&self) -> CacheType {
        self.ty
    }

    /// Tokens that fit, all sequences together.
    pub fn capacity(&self) -> usize {
        self.users.len() * PAGE_ROWS
    }

    /// Tokens that still fit if they start on new pages.
    pub fn available(&self) -> usize {
        self.free.len() * PAGE_ROWS
    }

    /// Bytes that one token takes, all streams.
    pub fn token_bytes(&self) -> usize {
        self.streams.iter().map(|(_, memory)| memory.row_bytes()).sum()
    }

    /// The streams and their memory, in the order of the plan's streams.
    pub fn streams(&self) -> &[(Stream, StreamMemory)] {
        &self.streams
    }

    /// Makes room for `rows` more rows of `sequence`: takes pages, and copies a half-filled last page that others share.
    ///
    /// # Errors
    /// [`CacheFull`]; the sequence is as it was.
    pub fn reserve(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), CacheFull> {
        let wanted = (sequence.len + rows).div_ceil(PAGE_ROWS);
        let copies = usize::from(rows > 0 && self.last_is_shared(sequence));
        let fresh = wanted.saturating_sub(sequence.pages.len());
        if fresh + copies > self.free.len() {
            return Err(CacheFull { rows, cached: sequence.len, capacity: self.capacity() });
        }
        if copies > 0 {
            self.own_page(sequence, sequence.len / PAGE_ROWS);
        }
        for _ in 0..fresh {
            let page = self.take_page();
            sequence.pages.push(page);
        }
        Ok(())
    }

    /// Whether the page that the next row goes to is used by another sequence too.
    fn last_is_shared(&self, sequence: &Sequence) -> bool {
        sequence.pages.get(sequence.len / PAGE_ROWS).is_some_and(|&page| self.users[page as usize] > 1)
    }

    /// A free page, now used once. Callers have checked that there is one.
    fn take_page(&mut self) -> u32 {
        let page = self.free.pop().unwrap_or_default();
        self.users[page as usize] = 1;
        page
    }

    /// Makes the page at `index` the sequence's own, copying it where others use it too.
    fn own_page(&mut self, sequence: &mut Sequence, index: usize) {
        let old = sequence.pages[index];
        if self.users[old as usize] == 1 {
            return;
        }
        let new = self.take_page();
        for (_, memory) in &mut self.streams {
            memory.copy_page(old as usize, new as usize);
        }
        self.users[old as usize] -= 1;
        sequence.pages[index] = new;
    }

    /// Counts `rows` rows, which a step has just written, as cached.
    pub fn advance(&self, sequence: &mut Sequence, rows: usize) {
        sequence.len += rows;
        debug_assert!(sequence.len <= sequence.pages.len() * PAGE_ROWS);
    }

    /// Forgets all rows from `len` on.
    pub fn truncate(&mut self, sequence: &mut Sequence, len: usize) {
        sequence.len = sequence.len.min(len);
        let keep = sequence.len.div_ceil(PAGE_ROWS);
        for page in sequence.pages.split_off(keep) {
            self.give_back(page);
        }
    }

    fn give_back(&mut self, page: u32) {
        let users = &mut self.users[page as usize];
        *users -= 1;
        if *users == 0 {
            self.free.push(page);
        }
    }

    /// A sequence that begins with the first `len` rows of `other` and shares their pages until one of them writes.
    pub fn share(&mut self, other: &Sequence, len: usize) -> Sequence {
        let len = len.min(other.len);
        let pages = other.pages[..len.div_ceil(PAGE_ROWS)].to_vec();
        for &page in &pages {
            self.users[page as usize] += 1;
        }
        Sequence { pages, len }
    }

    /// Takes a sequence's pages back.
    pub fn release(&mut self, mut sequence: Sequence) {
        self.truncate(&mut sequence, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::ir::StreamKind;

    fn pool(tokens: usize) -> CachePool {
        let stream = |layer| Stream { kind: StreamKind::Latent, layer, width: 6, rope: 2 };
        CachePool::new(&[stream(0), stream(1)], CacheType::F32, tokens).unwrap()
    }

    fn fill(pool: &mut CachePool, sequence: &mut Sequence, rows: usize, tag: f32) {
        pool.reserve(sequence, rows).unwrap();
        for row in sequence.len()..sequence.len() + rows {
            let page = sequence.pages()[row / PAGE_ROWS] as usize;
            for (_, memory) in &mut pool.streams {
                let bytes = memory.row_mut(page * PAGE_ROWS + row % PAGE_ROWS);
                for (i, number) in bytes.chunks_exact_mut(4).enumerate() {
                    number.copy_from_slice(&(tag + row as f32 + i as f32 / 8.0).to_le_bytes());
                }
            }
        }
        pool.advance(sequence, rows);
    }

    fn first_number(pool: &CachePool, sequence: &Sequence, row: usize) -> f32 {
        let page = sequence.pages()[row / PAGE_ROWS] as usize;
        let bytes = pool.streams[1].1.row(page * PAGE_ROWS + row % PAGE_ROWS);
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[test]
    fn a_shared_prefix_is_copied_when_one_side_writes() {
        let mut pool = pool(512);
        let mut a = Sequence::default();
        fill(&mut pool, &mut a, 100, 0.0);
        let mut b = pool.share(&a, 90);
        assert_eq!((pool.available(), b.len()), (512 - 128, 90));
        fill(&mut pool, &mut b, 20, 1000.0);
        assert_eq!(b.pages()[0], a.pages()[0]);
        assert_ne!(b.pages()[1], a.pages()[1]);
        assert_eq!(first_number(&pool, &b, 89), 89.0);
        assert_eq!(first_number(&pool, &b, 90), 1090.0);
        assert_eq!(first_number(&pool, &a, 90), 90.0);
        pool.release(a);
        assert_eq!(first_number(&pool, &b, 5), 5.0);
        pool.release(b);
        assert_eq!(pool.available(), 512);
    }

    #[test]
    fn a_full_cache_says_so_and_keeps_what_it_has() {
        let mut pool = pool(128);
        let mut a = Sequence::default();
        fill(&mut pool, &mut a, 100, 0.0);
        let full = pool.reserve(&mut a, 29).unwrap_err();
        assert_eq!(full, CacheFull { rows: 29, cached: 100, capacity: 128 });
        assert!(
            full.to_string().contains("100 cached tokens and 29 new ones do not fit into a context of 128")
        );
        fill(&mut pool, &mut a, 28, 0.0);
        pool.truncate(&mut a, 64);
        assert_eq!((a.len(), a.pages().len(), pool.available()), (64, 1, 64));
    }
}
