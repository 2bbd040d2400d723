//! Cost of the thread pool's barrier: `cargo run --release -p latent-threads --example barrier -- 2
//! 8`.
//!
//! For each number of threads it prints the time of a barrier without work, and the time that a
//! barrier adds to phases of 50 µs of total work, shared equally.
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use latent_threads::{PinPolicy, Placement, ThreadPool, Topology, parallelism};
use std::time::Instant;

/// Barriers per measurement, and number of measurements, of which the best is reported.
const BARRIERS: usize = 2000;
const ROUNDS: usize = 9;

/// Units of work of a phase.
const WORK: usize = 1 << 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut alone = 0.0;
    for threads in std::iter::once(Ok(1)).chain(std::env::args().skip(1).map(|word| word.parse())) {
        let threads: usize = threads?;
        for pin in [PinPolicy::Off, PinPolicy::Cores] {
            let placement = Placement::new(&Topology::detect(), parallelism(), threads, pin);
            let mut thread_pool = ThreadPool::placed(&placement)?;
            let bare = best(&mut thread_pool, 0);
            let work = best(&mut thread_pool, WORK);
            if threads == 1 {
                alone = work;
                continue;
            }
            let ideal = alone / threads.min(parallelism()) as f64;
            println!(
                "{placement} ({pin}): {bare:.0} ns a barrier, {:.0} ns more than {ideal:.0} ns of work",
                work - ideal
            );
        }
    }
    Ok(())
}

/// Nanoseconds of a phase of `work` units.
fn best(thread_pool: &mut ThreadPool, work: usize) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        thread_pool.run(&|worker| {
            let mut number = 1u64;
            for _ in 0..BARRIERS {
                for unit in worker.share(work, 1) {
                    number = std::hint::black_box(number.wrapping_mul(unit as u64 | 1));
                }
                worker.barrier();
            }
        });
        best = best.min(start.elapsed().as_nanos() as f64 / BARRIERS as f64);
    }
    best
}
