//! Memory accounting for requests: a budget in bytes for what they hold, and lanes for preparing them.

use crate::error::{ApiError, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Bytes of a request up to which it may use the part of the budget that is reserved for small requests.
const SMALL: usize = 65_536;

/// Bytes of a body above which requests are prepared one at a time.
pub(crate) const LARGE: usize = 262_144;

/// Threads that prepare requests: two for small ones, and one for a large one.
pub(crate) const PREPARE_THREADS: usize = 3;

/// Bytes that are released before the heap is trimmed. Parsed, a request takes up to forty times its bytes.
const TRIM_BYTES: usize = 4 << 20;

/// What a closed connection counts for: its buffers.
const CONNECTION: usize = 4096;

/// Time between a release and a trim, in which more is released.
const TRIM_PAUSE: Duration = Duration::from_secs(1);

/// The budget of all requests (`bodies_bytes`).
pub(crate) struct RequestMemory {
    used: AtomicUsize,
    /// Bytes that were released since the heap was trimmed.
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

    /// Bytes that requests hold.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.count_released(bytes);
    }

    fn count_released(&self, bytes: usize) {
        if self.released.fetch_add(bytes, Ordering::Relaxed) + bytes >= TRIM_BYTES {
            self.much_released.notify_one();
        }
    }

    /// A connection has been closed.
    pub(crate) fn connection_closed(&self) {
        self.count_released(CONNECTION);
    }

    /// Returns the memory of requests and connections that have ended to the system, for as long as it is polled.
    pub(crate) async fn trim(self: Arc<RequestMemory>) {
        loop {
            self.much_released.notified().await;
            tokio::time::sleep(TRIM_PAUSE).await;
            self.released.store(0, Ordering::Relaxed);
            // without it the memory is used again by later requests
            let _ = tokio::task::spawn_blocking(latent_heap::trim).await;
        }
    }

    /// A charge of 0 bytes.
    pub(crate) fn charge(self: &Arc<RequestMemory>) -> Arc<RequestCharge> {
        Arc::new(RequestCharge { memory: Arc::clone(self), bytes: AtomicUsize::new(0) })
    }

    /// Waits until a body of this size may be prepared. The permit must be dropped at the end of the preparation: its owner must wait for no
    /// other request.
    pub(crate) async fn lane(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if bytes <= LARGE {
            return None;
        }
        // never closed
        Arc::clone(&self.large).acquire_owned().await.ok()
    }
}

/// Bytes that one request holds, from the first byte of its body to the last byte of its answer.
pub(crate) struct RequestCharge {
    memory: Arc<RequestMemory>,
    bytes: AtomicUsize,
}

impl RequestCharge {
    /// Charges more bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if the budget does not allow them. It never waits: a request that waits for memory would keep its own from others.
    pub(crate) fn grow(&self, more: usize) -> Result<(), ApiError> {
        let limit = self.memory.limit;
        let own = self.bytes.fetch_add(more, Ordering::Relaxed) + more;
        let used = self.memory.used.fetch_add(more, Ordering::Relaxed) + more;
        // large requests leave a quarter to small ones
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

    /// Replaces the charge.
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
    fn large_requests_leave_room_for_small_ones_and_everything_is_returned() {
        let memory = RequestMemory::new(1_000_000);
        let large = memory.charge();
        large.grow(700_000).unwrap();
        assert!(memory.charge().grow(100_000).unwrap_err().message.contains("bodies_bytes"));
        let small: Vec<_> = (0..6).map(|_| memory.charge()).collect();
        assert!(small.iter().take(4).all(|charge| charge.grow(60_000).is_ok()));
        // small ones count too
        assert!(small[4].grow(60_001).is_err() && small[5].grow(60_000).is_ok());
        assert_eq!(memory.used(), 1_000_000);
        large.set(100).unwrap();
        assert_eq!(memory.used(), 300_100);
        drop((large, small));
        assert_eq!(memory.used(), 0);
    }
}
