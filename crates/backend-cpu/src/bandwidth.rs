//! The read bandwidth of the machine, measured by threads that run where those of a model would: the limit
//! that decoding is held against.
#![allow(unsafe_code, reason = "bytes of a map are read as numbers")]

use latent_threads::{Placement, ThreadPool};
use memmap2::MmapMut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Bytes that are read in one go: far more than any cache holds.
const BYTES: usize = 512 << 20;

/// Rounds, of which the best counts.
const ROUNDS: usize = 5;

/// Bytes a second that threads at these places together read from memory, each what it has written itself, as
/// with a model's weights.
///
/// # Errors
/// When the threads cannot be started.
pub fn read_bandwidth(placement: &Placement) -> std::io::Result<f64> {
    let mut thread_pool = ThreadPool::placed(placement)?;
    let parts: Vec<Mutex<Option<MmapMut>>> = (0..thread_pool.threads()).map(|_| Mutex::default()).collect();
    let part = |index: usize| parts[index].lock().unwrap_or_else(PoisonError::into_inner);
    // written, so that every page exists, in large pages as the weights are; each number differs, so that the
    // sum cannot be guessed
    thread_pool.run(&|worker| {
        let share = worker.share(BYTES / 8, 4096);
        let Ok(mut memory) = MmapMut::map_anon((share.len() * 8).max(1)) else { return };
        #[cfg(target_os = "linux")]
        // a wish; the system may have no large pages
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
                sum.fetch_add(latent_kernels::read_all(numbers(memory)), Ordering::Relaxed);
            }
        });
        best = best.max(BYTES as f64 / start.elapsed().as_secs_f64());
    }
    std::hint::black_box(sum.load(Ordering::Relaxed));
    Ok(best)
}

/// The same memory as numbers.
fn numbers(memory: &[u8]) -> &[u64] {
    // SAFETY: any bits are a number; what does not fill one is left out.
    unsafe { memory.align_to().1 }
}
