//! Read-ahead: the weights of a packed file are read before the first steps need them.
//!
//! A mapped file is read page by page as it is touched. Each first touch waits, and the system's own
//! read-ahead is defeated because workers touch many places at once. A thread of its own reads large pieces
//! in the order of the steps. It is not started where the weights do not all fit into memory: it would evict
//! pages that are in use.
// measured: docs/notes/memory-and-prefetch.md "Packed files and read-ahead"

use latent_formats::Checkpoint;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// Bytes per piece: large enough to keep a disk busy, small enough to stop quickly.
const PIECE: usize = 8 << 20;

/// Pieces that are prefetched ahead of the one that is waited for.
const PIECES_AHEAD: usize = 4;

/// The thread that reads ahead; it ends when this is dropped.
pub(crate) struct ReadAhead {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ReadAhead {
    /// Starts to read these tensors in order. None where there are none, or where the system refuses a
    /// thread: everything works without it.
    pub(crate) fn start(checkpoint: &Arc<Checkpoint>, tensors: Vec<String>) -> Option<ReadAhead> {
        let pieces = pieces(checkpoint, &tensors);
        if pieces.is_empty() {
            return None;
        }
        let (checkpoint, stop) = (Arc::clone(checkpoint), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let work = move || {
            let prefetch = |i: usize| {
                if let Some((tensor, part)) = pieces.get(i) {
                    checkpoint.prefetch(&tensors[*tensor], part.clone());
                }
            };
            (0..PIECES_AHEAD).for_each(prefetch);
            for (i, (tensor, part)) in pieces.iter().enumerate() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                prefetch(i + PIECES_AHEAD);
                checkpoint.populate(&tensors[*tensor], part.clone());
            }
        };
        let thread = Builder::new().name("latent-read-ahead".into()).spawn(work).ok()?;
        Some(ReadAhead { stop, thread: Some(thread) })
    }

    /// Waits until everything is read.
    pub(crate) fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            // it does not panic
            let _ = thread.join();
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wait();
    }
}

/// The tensors cut into pieces: (index of the tensor, range of its bytes).
fn pieces(checkpoint: &Checkpoint, tensors: &[String]) -> Vec<(usize, Range<usize>)> {
    let bytes = |name: &String| checkpoint.tensor(name).map_or(0, |tensor| tensor.info.bytes);
    let cut = |(i, name)| {
        let bytes = bytes(name);
        (0..bytes).step_by(PIECE).map(move |start| (i, start..(start + PIECE).min(bytes)))
    };
    tensors.iter().enumerate().flat_map(cut).collect()
}
