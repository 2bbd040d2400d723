//! Read-ahead: a thread that reads weights from the file before they are needed.
//!
//! A mapped file is read page by page as it is touched. Each first touch waits for the disk, and
//! the system's own read-ahead fails because workers touch many places concurrently. The thread
//! reads large pieces in order: packed files while the first steps run, other files while they are
//! packed. It is not started for weights that do not fit into memory, since it would evict pages in
//! use.
// measured: docs/notes/memory-and-prefetch.md "Packed files and read-ahead"

use latent_formats::Checkpoint;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Bytes per piece: large enough to keep a disk busy, small enough to stop quickly.
const PIECE: usize = 8 << 20;

/// Pieces that are requested from the system ahead of the piece that the thread waits for.
const PIECES_AHEAD: usize = 4;

/// A part of a tensor that is read in one request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReadPiece {
    pub(crate) tensor: String,
    /// Byte range in the tensor.
    pub(crate) part: Range<usize>,
    /// Total bytes of all earlier pieces in the list of tensors.
    pub(crate) before: u64,
}

/// Cuts tensors into pieces.
pub(crate) fn pieces(checkpoint: &Checkpoint, tensors: &[String]) -> Vec<ReadPiece> {
    let mut before = 0;
    let mut pieces = Vec::new();
    for tensor in tensors {
        let bytes = checkpoint.info(tensor).map_or(0, |info| info.bytes);
        for start in (0..bytes).step_by(PIECE) {
            let part = start..(start + PIECE).min(bytes);
            let len = part.len() as u64;
            pieces.push(ReadPiece { tensor: tensor.clone(), part, before });
            before += len;
        }
    }
    pieces
}

/// Limits how far a reader runs ahead of the workers that use the bytes.
#[derive(Debug)]
pub(crate) struct ReadWindow {
    /// Bytes that workers have used.
    used: Mutex<u64>,
    changed: Condvar,
    /// Maximum bytes that are read and not yet used.
    window: u64,
}

impl ReadWindow {
    pub(crate) fn new(window: u64) -> ReadWindow {
        ReadWindow { used: Mutex::default(), changed: Condvar::new(), window }
    }

    /// Adds `bytes` to the bytes used and wakes the reader.
    pub(crate) fn used(&self, bytes: u64) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) += bytes;
        self.changed.notify_all();
    }

    /// Waits until the piece after the first `before` bytes may be read, or until `stopped` is set.
    fn wait(&self, before: u64, stopped: &AtomicBool) {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead =
            |used: &mut u64| before > used.saturating_add(self.window) && !stopped.load(Ordering::Relaxed);
        drop(self.changed.wait_while(used, ahead));
    }

    /// Wakes the reader, so that it sees the stop flag.
    fn wake(&self) {
        // The reader checks the flag while it holds the lock. Without the lock, the notification
        // could be lost between its check and its sleep.
        drop(self.used.lock());
        self.changed.notify_all();
    }
}

/// Handle of the thread that reads ahead. Dropping it stops the thread.
pub(crate) struct ReadAhead {
    stop: Arc<AtomicBool>,
    pace: Option<Arc<ReadWindow>>,
    thread: Option<JoinHandle<()>>,
}

impl ReadAhead {
    /// Starts to read these pieces in order. None if `pieces` is empty or if the system refuses a
    /// thread, since loading works without read-ahead.
    pub(crate) fn start(
        checkpoint: &Arc<Checkpoint>,
        pieces: Vec<ReadPiece>,
        pace: Option<Arc<ReadWindow>>,
    ) -> Option<ReadAhead> {
        if pieces.is_empty() {
            return None;
        }
        let (checkpoint, stop) = (Arc::clone(checkpoint), Arc::new(AtomicBool::new(false)));
        let (stopped, paced) = (Arc::clone(&stop), pace.clone());
        let work = move || {
            let prefetch = |i: usize| {
                if let Some(piece) = pieces.get(i) {
                    checkpoint.prefetch(&piece.tensor, piece.part.clone());
                }
            };
            // `prefetch` only requests pages, so the disk has several requests in flight while
            // `populate` waits for one piece.
            (0..PIECES_AHEAD).for_each(prefetch);
            for (i, piece) in pieces.iter().enumerate() {
                if let Some(pace) = &paced {
                    pace.wait(piece.before, &stopped);
                }
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                prefetch(i + PIECES_AHEAD);
                checkpoint.populate(&piece.tensor, piece.part.clone());
            }
        };
        let thread = Builder::new().name("latent-read-ahead".into()).spawn(work).ok()?;
        Some(ReadAhead { stop, pace, thread: Some(thread) })
    }

    /// Waits until everything is read.
    pub(crate) fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(pace) = &self.pace {
            pace.wake();
        }
        self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_continues_when_bytes_are_used_and_ends_when_stopped() {
        let (pace, stop) = (Arc::new(ReadWindow::new(10)), Arc::new(AtomicBool::new(false)));
        pace.wait(10, &stop);
        let reader = |before| {
            let (pace, stop) = (Arc::clone(&pace), Arc::clone(&stop));
            std::thread::spawn(move || pace.wait(before, &stop))
        };
        let (near, far) = (reader(15), reader(u64::MAX));
        pace.used(4);
        assert!(!near.is_finished(), "it may read 14 bytes");
        pace.used(1);
        near.join().unwrap();
        assert!(!far.is_finished());
        stop.store(true, Ordering::Relaxed);
        pace.wake();
        far.join().unwrap();
    }
}
