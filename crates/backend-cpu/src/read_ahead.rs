//! Weights of a packed file, read before the first steps need them.
//!
//! A mapped file comes into memory page by page as it is touched: each first touch waits, and the system
//! reads little ahead, since threads touch it in many places at once. A thread of its own asks for large
//! pieces in the order of the steps. The engine does not start it where weights do not all fit into memory:
//! what it brings would push out what is in use.

use latent_formats::Checkpoint;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// Bytes of a piece: enough for a disk to be busy, little enough to be stopped at once.
const PIECE: usize = 8 << 20;

/// Pieces that are asked for before the one that is waited for.
const PIECES_AHEAD: usize = 4;

/// The thread that reads ahead; it ends when this is dropped.
pub(crate) struct ReadAhead {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ReadAhead {
    /// Begins to read these tensors, one after the other. None where there are none, or where the system
    /// gives no thread: everything works without it.
    pub(crate) fn start(checkpoint: &Arc<Checkpoint>, tensors: Vec<String>) -> Option<ReadAhead> {
        let pieces = pieces(checkpoint, &tensors);
        if pieces.is_empty() {
            return None;
        }
        let (checkpoint, stop) = (Arc::clone(checkpoint), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let work = move || {
            let ask = |i: usize| {
                if let Some((tensor, part)) = pieces.get(i) {
                    checkpoint.prefetch(&tensors[*tensor], part.clone());
                }
            };
            (0..PIECES_AHEAD).for_each(ask);
            for (i, (tensor, part)) in pieces.iter().enumerate() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                ask(i + PIECES_AHEAD);
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

/// The tensors, cut: which of them, and what part.
fn pieces(checkpoint: &Checkpoint, tensors: &[String]) -> Vec<(usize, Range<usize>)> {
    let bytes = |name: &String| checkpoint.tensor(name).map_or(0, |tensor| tensor.info.bytes);
    let cut = |(i, name)| {
        let bytes = bytes(name);
        (0..bytes).step_by(PIECE).map(move |start| (i, start..(start + PIECE).min(bytes)))
    };
    tensors.iter().enumerate().flat_map(cut).collect()
}
