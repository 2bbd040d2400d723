//! Memory between allocations in use is returned.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(missing_docs, reason = "tests")]

/// Resident KiB of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn free_memory_between_allocations_is_returned() {
    let mut all: Vec<Option<Vec<u8>>> = (0..40_000).map(|_| Some(vec![1; 4000])).collect();
    // the last one stays, so that the end of the heap is in use
    for (i, one) in all.iter_mut().enumerate() {
        if i % 100 != 99 {
            *one = None;
        }
    }
    let before = resident();
    latent_heap::trim();
    let after = resident();
    assert!(before > 150_000 && after < before - 100_000, "{before} kB, then {after} kB");
    assert_eq!(all.iter().flatten().count(), 400);
}
