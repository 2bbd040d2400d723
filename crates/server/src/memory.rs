//! Memory accounting of requests: a budget in bytes, and a lane that limits the preparation of
//! large requests.

use crate::error::{ApiError, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Maximum bytes of a request that may use the last quarter of the budget. Without the reserve, a
/// few large bodies would lock out all other requests.
const SMALL: usize = 65_536;

/// Bytes of a body above which requests are prepared one at a time: parsed, a body of 32 MiB can
/// take forty times its size.
pub(crate) const LARGE: usize = 262_144;

/// Threads that prepare requests. At most one of them has a large request.
pub(crate) const PREPARE_THREADS: usize = 3;

/// Released bytes after which the heap is trimmed. glibc kept 2.3 GB after 600 answered requests.
const TRIM_BYTES: usize = 4 << 20;

/// Bytes that a closed connection counts as: its buffers.
const CONNECTION: usize = 4096;

/// Delay before a trim, so that one trim covers a burst of releases.
const TRIM_PAUSE: Duration = Duration::from_secs(1);

/// The budget of all requests (`bodies_bytes`).
pub(crate) struct RequestMemory {
    used: AtomicUsize,
    /// Bytes that were released since the last trim.
    released: AtomicUsize,
    much_released: Notify,
    limit: usize,
    large: Arc<Semaphore>,
}

impl RequestMemory {
    pub(crate) fn new(limit: usize) -> Arc<RequestMemory> {
        Arc::new(RequestMemory {
            used: AtomicUsize::new(0),
            released: AtomicUsize::new(0),
            much_released: Notify::new(),
            limit,
            large: Arc::new(Semaphore::new(1)),
        })
    }

    /// Bytes that all requests are charged for.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.count_released(bytes);
    }

    fn count_released(&self, bytes: usize) {
        if self.released.fetch_add(bytes, Ordering::Relaxed) + bytes >= TRIM_BYTES {
            // Kept as a permit if `trim` is not waiting now.
            self.much_released.notify_one();
        }
    }

    /// Counts the buffers of a closed connection as released.
    pub(crate) fn connection_closed(&self) {
        self.count_released(CONNECTION);
    }

    /// Trims the heap whenever much memory was released. Runs forever.
    pub(crate) async fn trim(self: Arc<RequestMemory>) {
        loop {
            self.much_released.notified().await;
            tokio::time::sleep(TRIM_PAUSE).await;
            // Reset before the trim: memory that is released during the trim counts towards the
            // next one.
            self.released.store(0, Ordering::Relaxed);
            // A failed trim is harmless: later requests reuse the memory.
            let _ = tokio::task::spawn_blocking(latent_heap::trim).await;
        }
    }

    /// Creates a charge of 0 bytes.
    pub(crate) fn charge(self: &Arc<RequestMemory>) -> Arc<RequestCharge> {
        Arc::new(RequestCharge { memory: Arc::clone(self), bytes: AtomicUsize::new(0) })
    }

    /// Waits until a body of this size may be prepared. The permit must be dropped at the end of
    /// the preparation.
    pub(crate) async fn lane(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        // The owner of a permit must not wait for another request, which may itself wait for the
        // permit. So a lane is taken after the model was loaded, not before.
        if bytes <= LARGE {
            return None;
        }
        // The semaphore is never closed.
        Arc::clone(&self.large).acquire_owned().await.ok()
    }
}

/// The bytes that a request is charged for, from the first byte of its body to the last byte of its
/// response.
pub(crate) struct RequestCharge {
    memory: Arc<RequestMemory>,
    bytes: AtomicUsize,
}

impl RequestCharge {
    /// Charges more bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if the budget is exceeded.
    pub(crate) fn grow(&self, more: usize) -> Result<(), ApiError> {
        // It never waits: requests that hold memory and wait for more would deadlock.
        let limit = self.memory.limit;
        // Relaxed suffices: the counters guard no other memory, and `fetch_add` before the check
        // makes concurrent requests refuse rather than exceed the budget.
        let own = self.bytes.fetch_add(more, Ordering::Relaxed) + more;
        let used = self.memory.used.fetch_add(more, Ordering::Relaxed) + more;
        // Large requests leave a quarter to small ones.
        let allowed = if own > SMALL { limit - limit / 4 } else { limit };
        if used <= allowed {
            return Ok(());
        }
        self.shrink(more);
        let problem =
            format!("all requests together hold more than {limit} bytes (bodies_bytes): try again later");
        Err(ApiError::new(ErrorKind::Busy, problem).retry(Duration::from_secs(1)))
    }

    fn shrink(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.memory.release(bytes);
    }

    /// Sets the charge to `bytes`.
    pub(crate) fn set(&self, bytes: usize) -> Result<(), ApiError> {
        let now = self.bytes.load(Ordering::Relaxed);
        if bytes > now {
            return self.grow(bytes - now);
        }
        self.shrink(now - bytes);
        Ok(())
    }
}

impl Drop for RequestCharge {
    fn drop(&mut self) {
        self.memory.release(self.bytes.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_requests_leave_room_for_small_ones_and_release_everything() {
        let memory = RequestMemory::new(1_000_000);
        let large = memory.charge();
        large.grow(700_000).unwrap();
        // Requests of more than 64 KiB leave a quarter of the memory to smaller ones.
        assert!(memory.charge().grow(100_000).unwrap_err().message.contains("bodies_bytes"));
        let small: Vec<_> = (0..6).map(|_| memory.charge()).collect();
        assert!(small.iter().take(4).all(|charge| charge.grow(60_000).is_ok()));
        // Small ones count too.
        assert!(small[4].grow(60_001).is_err() && small[5].grow(60_000).is_ok());
        assert_eq!(memory.used(), 1_000_000);
        large.set(100).unwrap();
        assert_eq!(memory.used(), 300_100);
        drop((large, small));
        assert_eq!(memory.used(), 0);
    }
}
