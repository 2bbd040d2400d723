//! Measures the machine's read bandwidth with threads placed like those of a model. Decode reads
//! every weight once per token, so this rate is its roofline.
// measured: docs/notes/memory-and-prefetch.md "Measure the limit as carefully as the kernel"
#![allow(unsafe_code, reason = "bytes of a map are read as u64")]

use latent_threads::{Placement, ThreadPool};
use memmap2::MmapMut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Bytes read per round, by all threads together. Larger than the last-level cache.
const BYTES: usize = 512 << 20;

/// Number of rounds. The best one counts, since other programs can only slow a round down.
const ROUNDS: usize = 5;

/// Total bytes per second that threads with this placement read from memory. Each thread reads
/// pages that it wrote itself, as with a model's weights.
///
/// # Errors
/// When the threads cannot be started, or the memory is refused.
pub fn read_bandwidth(placement: &Placement) -> std::io::Result<f64> {
    let mut thread_pool = ThreadPool::placed(placement)?;
    let parts: Vec<Mutex<Option<MmapMut>>> = (0..thread_pool.threads()).map(|_| Mutex::default()).collect();
    let part = |index: usize| parts[index].lock().unwrap_or_else(PoisonError::into_inner);
    // Each worker writes its own part: an untouched anonymous page would be read from the shared
    // zero page, and on NUMA machines the first write decides the node. All elements differ, so
    // that no two pages are equal and can be merged.
    thread_pool.run(&|worker| {
        let share = worker.share(BYTES / 8, 4096);
        let Ok(mut memory) = MmapMut::map_anon((share.len() * 8).max(1)) else { return };
        #[cfg(target_os = "linux")]
        // Huge pages, like those of the weights. Only a hint: the system may have none.
        let _ = memory.advise(memmap2::Advice::HugePage);
        for (number, place) in share.zip(memory.chunks_exact_mut(8)) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        *part(worker.index) = Some(memory);
    });
    let missing = (0..thread_pool.threads()).any(|index| part(index).is_none());
    if missing {
        return Err(std::io::ErrorKind::OutOfMemory.into());
    }
    let sum = AtomicU64::new(0);
    let mut best = 0.0f64;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        thread_pool.run(&|worker| {
            if let Some(memory) = &*part(worker.index) {
                sum.fetch_add(latent_kernels::read_all(words(memory)), Ordering::Relaxed);
            }
        });
        best = best.max(BYTES as f64 / start.elapsed().as_secs_f64());
    }
    // Without a use of the sum, the compiler may remove the reads.
    std::hint::black_box(sum.load(Ordering::Relaxed));
    Ok(best)
}

fn words(memory: &[u8]) -> &[u64] {
    // SAFETY: u64 admits every bit pattern; `align_to` leaves out the unaligned ends.
    unsafe { memory.align_to().1 }
}
