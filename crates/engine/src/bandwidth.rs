//! The read bandwidth of the machine, measured by the team that will run the model: the limit that decoding is held against.

use crate::team::Team;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes that are read in one go: far more than any cache holds.
const BYTES: usize = 512 << 20;

/// Rounds, of which the best counts.
const ROUNDS: usize = 5;

/// Bytes a second that `threads` threads together read from memory.
///
/// # Errors
/// When the threads cannot be started.
pub fn read_bandwidth(threads: usize) -> std::io::Result<f64> {
    let mut team = Team::new(threads)?;
    // written, so that every page exists; each number differs, so that the sum cannot be guessed
    let data: Vec<u64> = (0..BYTES as u64 / 8).collect();
    let sum = AtomicU64::new(0);
    let mut best = 0.0f64;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        team.run(&|member| {
            let mut strands = [0u64; 16];
            for chunk in data[member.share(data.len(), 4096)].chunks_exact(16) {
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
