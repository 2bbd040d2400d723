//! The latent cache: pages of rows, shared by sequences, one stream of rows a layer.
//!
//! A page holds [`PAGE_ROWS`] tokens in every stream at once, so that a sequence has one page table whatever the number of
//! layers. Memory is reserved when the pool is made and committed by the operating system when a page is first written.

mod allocator;
mod file;
mod memory;
mod shift;

pub use file::{CacheFileError, MAX_ATTACHMENT, Restored};
pub use memory::KvLayerMemory;
pub use shift::ShiftShape;

use allocator::{Allocator, Pages};
use latent_graph::ir::KvLayer;
use latent_types::CacheType;
use std::fmt;
use std::sync::Arc;

/// Tokens of a page. Attention works in blocks of as many rows.
pub const PAGE_ROWS: usize = 64;

/// Cache memory for all sequences of a session. Sequences take pages of it and give them back through the engine that has it.
pub struct BlockPool {
    ty: CacheType,
    kv_layers: Vec<(KvLayer, KvLayerMemory)>,
    allocator: Arc<Allocator>,
}

/// The cached rows of one sequence: its pages, in order, and how many rows of them are filled.
///
/// A new sequence belongs to the engine that first runs it, and any other refuses it. Its pages go back to that engine's cache when it is
/// dropped. Only steps of the engine add rows: a page may hold what another sequence left there, so that rows which no step has written must
/// never count as cached.
///
/// ```compile_fail
/// fn rows_that_nobody_wrote(engine: &latent_engine::Engine, sequence: &mut latent_engine::cache::Sequence) {
///     engine.pool().advance(sequence, 64);
/// }
/// ```
#[derive(Debug, Default)]
pub struct Sequence {
    pages: Vec<u32>,
    len: usize,
    /// What the pages belong to; none as long as there are none.
    owner: Option<Arc<Allocator>>,
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

    /// Counts `rows` rows, which a step has just written, as cached.
    pub(crate) fn advance(&mut self, rows: usize) {
        self.len += rows;
        assert!(self.len <= self.pages.len() * PAGE_ROWS, "{} rows in {} pages", self.len, self.pages.len());
    }

    /// Forgets all rows from `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        let keep = self.len.div_ceil(PAGE_ROWS);
        if let Some(owner) = &self.owner
            && keep < self.pages.len()
        {
            let mut pages = owner.pages();
            self.pages.drain(keep..).for_each(|page| pages.give_back(page));
        }
    }

    /// A sequence that begins with the first `len` rows of this one and shares their pages until one of them writes.
    pub(crate) fn share(&self, len: usize) -> Sequence {
        let len = len.min(self.len);
        let pages = self.pages[..len.div_ceil(PAGE_ROWS)].to_vec();
        if let Some(owner) = &self.owner {
            owner.pages().use_again(&pages);
        }
        Sequence { pages, len, owner: self.owner.clone() }
    }

    /// The page that the next row goes to, if the sequence has one already.
    fn next_page(&self) -> Option<u32> {
        self.pages.get(self.len / PAGE_ROWS).copied()
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.truncate(0);
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

impl BlockPool {
    /// A pool for `tokens` tokens (rounded up to whole pages) in these streams.
    ///
    /// # Errors
    /// When the operating system does not reserve the address space.
    pub(crate) fn new(kv_layers: &[KvLayer], ty: CacheType, tokens: usize) -> std::io::Result<BlockPool> {
        let pages = u32::try_from(tokens.div_ceil(PAGE_ROWS)).map_err(|_| {
            let problem = format!("a cache of {tokens} tokens has more pages than can be counted");
            std::io::Error::new(std::io::ErrorKind::OutOfMemory, problem)
        })?;
        let row_bytes = kv_layers.iter().map(|kv_layer| kv_layer.row(ty).bytes());
        let memory = KvLayerMemory::reserve(pages as usize * PAGE_ROWS, row_bytes)?;
        let kv_layers = kv_layers.iter().cloned().zip(memory).collect();
        Ok(BlockPool { ty, kv_layers, allocator: Arc::new(Allocator::new(pages)) })
    }

    /// How numbers are stored.
    pub fn cache_type(&self) -> CacheType {
        self.ty
    }

    /// Tokens that fit, all sequences together.
    pub fn capacity(&self) -> usize {
        self.allocator.count() * PAGE_ROWS
    }

    /// Tokens that still fit if they start on new pages.
    pub fn available(&self) -> usize {
        self.allocator.pages().free() * PAGE_ROWS
    }

    /// Bytes that one token takes, all streams.
    pub fn token_bytes(&self) -> usize {
        self.kv_layers.iter().map(|(_, memory)| memory.row_bytes()).sum()
    }

    /// The streams and their memory, in the order of the plan's streams.
    pub fn kv_layers(&self) -> &[(KvLayer, KvLayerMemory)] {
        &self.kv_layers
    }

    /// Whether this pool has the sequence's pages: also where it has none yet.
    pub(crate) fn owns(&self, sequence: &Sequence) -> bool {
        sequence.owner.as_ref().is_none_or(|owner| Arc::ptr_eq(owner, &self.allocator))
    }

    /// The items of a step that find no room if those before them are admitted: their places among `items` (a sequence, and its new
    /// rows), and what they lack. Nothing is taken.
    pub(crate) fn refused<'s>(
        &self,
        items: impl Iterator<Item = (&'s Sequence, usize)>,
    ) -> Vec<(usize, CacheFull)> {
        let pages = self.allocator.pages();
        let (mut free, mut copied, mut refused) = (pages.free(), Vec::new(), Vec::new());
        for (place, (sequence, rows)) in items.enumerate() {
            let (fresh, copy) = wanted(&pages, sequence, rows, &copied);
            let needed = fresh + usize::from(copy.is_some());
            if needed <= free {
                free -= needed;
                copied.extend(copy);
            } else {
                refused.push((place, self.full(sequence, rows)));
            }
        }
        refused
    }

    /// Counts rows that were read from a file as cached.
    fn advance(&self, sequence: &mut Sequence, rows: usize) {
        sequence.advance(rows);
    }

    /// Takes the pages of a file that proved damaged back.
    fn release(&self, sequence: Sequence) {
        drop(sequence);
    }

    fn full(&self, sequence: &Sequence, rows: usize) -> CacheFull {
        CacheFull { rows, cached: sequence.len, capacity: self.capacity() }
    }

    /// Makes room for `rows` more rows of `sequence`: takes pages, and copies a half-filled last page that others share.
    ///
    /// # Errors
    /// [`CacheFull`]; the sequence is as it was.
    ///
    /// # Panics
    /// When the sequence belongs to another pool.
    pub(crate) fn reserve(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), CacheFull> {
        assert!(self.owns(sequence), "a sequence of another cache");
        let allocator = Arc::clone(&self.allocator);
        let mut pages = allocator.pages();
        let (fresh, copy) = wanted(&pages, sequence, rows, &[]);
        if fresh + usize::from(copy.is_some()) > pages.free() {
            return Err(self.full(sequence, rows));
        }
        if copy.is_some() {
            self.own_page(&mut pages, sequence, sequence.len / PAGE_ROWS);
        }
        sequence.pages.extend((0..fresh).map_while(|_| pages.take()));
        sequence.owner.get_or_insert_with(|| Arc::clone(&allocator));
        Ok(())
    }

    /// Makes the page at `index` the sequence's own, copying it where others use it too. Callers have checked that a page is free for that.
    fn own_page(&mut self, pages: &mut Pages, sequence: &mut Sequence, index: usize) {
        let old = sequence.pages[index];
        if pages.users(old) == 1 {
            return;
        }
        let Some(new) = pages.take() else { return };
        for (_, memory) in &mut self.kv_layers {
            memory.copy_page(old as usize, new as usize);
        }
        pages.give_back(old);
        sequence.pages[index] = new;
    }
}

/// New pages that `rows` more rows need, and the shared page that must be copied first, where `copied` pages have each lost a user already.
fn wanted(pages: &Pages, sequence: &Sequence, rows: usize, copied: &[u32]) -> (usize, Option<u32>) {
    let fresh = (sequence.len + rows).div_ceil(PAGE_ROWS).saturating_sub(sequence.pages.len());
    let shared = |page: &u32| {
        let left = copied.iter().filter(|other| *other == page).count();
        rows > 0 && pages.users(*page) as usize > 1 + left
    };
    (fresh, sequence.next_page().filter(shared))
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_graph::ir::KvLayerKind;

    fn pool(tokens: usize) -> BlockPool {
        let kv_layer = |layer| KvLayer { kind: KvLayerKind::Latent, layer, width: 6, rope: 2 };
        BlockPool::new(&[kv_layer(0), kv_layer(1)], CacheType::F32, tokens).unwrap()
    }

    fn fill(pool: &mut BlockPool, sequence: &mut Sequence, rows: usize, tag: f32) {
        pool.reserve(sequence, rows).unwrap();
        for row in sequence.len()..sequence.len() + rows {
            let page = sequence.pages()[row / PAGE_ROWS] as usize;
            for (_, memory) in &mut pool.kv_layers {
                let bytes = memory.row_mut(page * PAGE_ROWS + row % PAGE_ROWS);
                for (i, number) in bytes.chunks_exact_mut(4).enumerate() {
                    number.copy_from_slice(&(tag + row as f32 + i as f32 / 8.0).to_le_bytes());
                }
            }
        }
        sequence.advance(rows);
    }

    fn first_number(pool: &BlockPool, sequence: &Sequence, row: usize) -> f32 {
        let page = sequence.pages()[row / PAGE_ROWS] as usize;
        let bytes = pool.kv_layers[1].1.row(page * PAGE_ROWS + row % PAGE_ROWS);
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[test]
    fn a_shared_prefix_is_copied_when_one_side_writes() {
        let mut pool = pool(512);
        let mut a = Sequence::default();
        fill(&mut pool, &mut a, 100, 0.0);
        let mut b = a.share(90);
        assert_eq!((pool.available(), b.len()), (512 - 128, 90));
        fill(&mut pool, &mut b, 20, 1000.0);
        assert_eq!(b.pages()[0], a.pages()[0]);
        assert_ne!(b.pages()[1], a.pages()[1]);
        assert_eq!(first_number(&pool, &b, 89), 89.0);
        assert_eq!(first_number(&pool, &b, 90), 1090.0);
        assert_eq!(first_number(&pool, &a, 90), 90.0);
        drop(a);
        assert_eq!(first_number(&pool, &b, 5), 5.0);
        drop(b);
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
        a.truncate(64);
        assert_eq!((a.len(), a.pages().len(), pool.available()), (64, 1, 64));
    }

    #[test]
    fn a_dropped_sequence_gives_its_pages_back() {
        let mut pool = pool(512);
        for _ in 0..20 {
            let mut a = Sequence::default();
            fill(&mut pool, &mut a, 300, 0.0);
            let b = a.share(200);
            // pages that were reserved for a step that never ended count too
            pool.reserve(&mut a, 100).unwrap();
            assert_eq!(pool.available(), 64);
            drop(a);
            assert_eq!(pool.available(), 256);
            drop(b);
            assert_eq!(pool.available(), 512);
        }
        // sequences may outlive their pool
        let mut a = Sequence::default();
        fill(&mut pool, &mut a, 100, 0.0);
        drop(pool);
        drop(a);
    }

    #[test]
    fn a_pool_knows_its_sequences() {
        let (mut one, mut two) = (pool(128), pool(128));
        let mut a = Sequence::default();
        assert!(one.owns(&a) && two.owns(&a));
        fill(&mut one, &mut a, 70, 0.0);
        assert!(one.owns(&a) && !two.owns(&a) && !two.owns(&a.share(3)));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| two.reserve(&mut a, 1)));
        assert!(caught.is_err());
        assert_eq!((a.len(), two.available()), (70, 128));
    }

    #[test]
    #[should_panic(expected = "65 rows in 1 pages")]
    fn rows_without_pages_are_never_cached() {
        let mut a = Sequence::default();
        pool(128).reserve(&mut a, 10).unwrap();
        a.advance(65);
    }

    #[test]
    fn those_that_do_not_fit_are_named_and_the_others_fit_without_them() {
        let mut pool = pool(5 * PAGE_ROWS);
        let mut a = Sequence::default();
        fill(&mut pool, &mut a, 100, 0.0);
        let (b, c, d) = (a.share(100), a.share(80), Sequence::default());
        let refused = |pool: &BlockPool, items: &[(&Sequence, usize)]| -> Vec<usize> {
            pool.refused(items.iter().copied()).into_iter().map(|(place, _)| place).collect()
        };
        // three pages are free; of three users of a page the last one need not copy it
        assert!(refused(&pool, &[(&a, 1), (&b, 1), (&c, 1), (&d, 1)]).is_empty());
        assert_eq!(refused(&pool, &[(&a, 1), (&b, 1), (&c, 1), (&d, 65)]), [3]);
        assert_eq!(refused(&pool, &[(&d, 200), (&a, 1), (&b, 100), (&c, 1)]), [0, 2]);
        let (_, full) = pool.refused([(&d, 200)].into_iter()).remove(0);
        assert_eq!(full, CacheFull { rows: 200, cached: 0, capacity: 5 * PAGE_ROWS });
        assert_eq!(pool.available(), 3 * PAGE_ROWS);
        for mut sequence in [a, b, c, d] {
            pool.reserve(&mut sequence, 1).unwrap();
            std::mem::forget(sequence);
        }
        assert_eq!(pool.available(), 0);
    }
}
