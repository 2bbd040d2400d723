//! The read bandwidth of the machine, measured by threads that run where those of a model would: the limit that decoding is held against.

use crate::team::{Placement, Team};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Bytes that are read in one go: far more than any cache holds.
const BYTES: usize = 512 << 20;

/// Rounds, of which the best counts.
const ROUNDS: usize = 5;

/// Bytes a second that threads at these places together read from memory, each what it has written itself, as with a model's weights.
///
/// # Errors
/// When the threads cannot be started.
pub fn read_bandwidth(placement: &Placement) -> std::io::Result<f64> {
    let mut team = Team::placed(placement)?;
    let parts: Vec<Mutex<Vec<u64>>> = (0..team.threads()).map(|_| Mutex::default()).collect();
    let part = |index: usize| parts[index].lock().unwrap_or_else(PoisonError::into_inner);
    // written, so that every page exists; each number differs, so that the sum cannot be guessed
    team.run(&|member| {
        let share = member.share(BYTES / 8, 4096);
        *part(member.index) = (share.start as u64..share.end as u64).collect();
    });
    let sum = AtomicU64::new(0);
    let mut best = 0.0f64;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        team.run(&|member| {
            let mut strands = [0u64; 16];
            for chunk in part(member.index).chunks_exact(16) {
                for (strand, number) in strands.iter_mut().zip(chunk) {
                    *strand = strand.wrapping_add(*number);
                }
            }
            sum.fetch_add(strands.iter().fold(0, |a, b| a.wrapping_add(*b)), Ordering::Relaxed);
        });
        best = best.max(BYTES as f64 / start.elapsed().as_secs_f64());
    }
    std::hint::black_box(sum.load(Ordering::Relaxed));
    Ok(best)
}
