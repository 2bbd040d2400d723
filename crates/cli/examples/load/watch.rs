//! External view of the server: resident memory, and KV blocks in use.

use anyhow::{Context, Result, ensure};
use std::fmt;
use std::fs;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time for abandoned requests to end.
const ENDING: Duration = Duration::from_secs(30);

/// A thread that samples the memory once per second.
pub struct MemoryWatch {
    thread: JoinHandle<Result<MemorySpread>>,
    stop: Sender<()>,
}

/// Resident bytes after warm-up.
pub struct MemorySpread {
    lowest: u64,
    highest: u64,
    sum: u128,
    count: u64,
}

impl MemoryWatch {
    pub fn watch(pid: u32, from: Instant) -> Self {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let mut spread = MemorySpread { lowest: u64::MAX, highest: 0, sum: 0, count: 0 };
            while stopped.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                if Instant::now() >= from {
                    spread.add(resident(pid)?);
                }
            }
            Ok(spread)
        });
        MemoryWatch { thread, stop }
    }

    pub fn stop(self) -> Result<MemorySpread> {
        drop(self.stop);
        let spread = self.thread.join().expect("the watch does not panic")?;
        ensure!(spread.count > 0, "memory was not looked at: the run was shorter than its warm-up");
        Ok(spread)
    }
}

impl MemorySpread {
    fn add(&mut self, bytes: u64) {
        self.lowest = self.lowest.min(bytes);
        self.highest = self.highest.max(bytes);
        self.sum += u128::from(bytes);
        self.count += 1;
    }

    /// Half the distance of the extremes, relative to the mean: ±.
    pub fn share(&self) -> f64 {
        (self.highest - self.lowest) as f64 / 2.0 / (self.sum as f64 / self.count as f64)
    }
}

impl fmt::Display for MemorySpread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (low, high) = (mib(self.lowest), mib(self.highest));
        write!(
            f,
            "resident memory: {low:.1} to {high:.1} MiB (± {:.2} %), {} looks",
            self.share() * 100.0,
            self.count
        )
    }
}

fn resident(pid: u32) -> Result<u64> {
    memory(pid, "VmRSS:")
}

/// Peak of resident bytes.
pub fn peak(pid: u32) -> Result<u64> {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, name: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("{path}: has the server ended?"))?;
    let line =
        status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

/// KV blocks in use when no request runs or waits; `None` if the server does not report them
/// (llama-server).
pub fn blocks_after_all(url: &str) -> Result<Option<u64>> {
    let until = Instant::now() + ENDING;
    loop {
        let page = ureq::get(&format!("{url}/metrics"))
            .config()
            .http_status_as_error(false)
            .build()
            .call()?
            .body_mut()
            .read_to_string()?;
        let figure =
            |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        let Some(used) = figure("latent_kv_blocks{state=\"used\"}") else { return Ok(None) };
        let busy =
            figure("latent_requests_running").unwrap_or(0) + figure("latent_requests_waiting").unwrap_or(0);
        if busy == 0 && used == 0 || Instant::now() > until {
            return Ok(Some(used));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
