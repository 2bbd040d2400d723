//! The thread that writes files of the prefix cache, so that no step waits for the disk.

use super::folder::SegmentFolder;
use super::segment::BlockRun;
use crate::cache::block_hash::BlockHash;
use crate::tracing;
use latent_formats::{OutputError, OutputFile};
use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Maximum number of segments that wait for the disk. Each holds a copy of its blocks. Further
/// blocks wait in the KV cache.
const QUEUE: usize = 4;

/// Time without writes after an error, such as a full disk.
const PAUSE: Duration = Duration::from_secs(10);

/// State that scheduler and writer share.
#[derive(Debug)]
pub(super) struct DiskStatus {
    pub folder: SegmentFolder,
    /// Blocks that are queued for writing, so that other jobs with the same prefix do not queue
    /// them again.
    pub queued: HashSet<BlockHash>,
    pub written: u64,
    pub dropped: u64,
}

impl DiskStatus {
    /// Removes blocks that were written or dropped.
    pub(super) fn forget_queued(&mut self, names: &[BlockHash]) {
        for name in names {
            self.queued.remove(name);
        }
    }
}

/// A command to the writer thread.
enum DiskOrder {
    Write(BlockRun),
    /// Send a message when all earlier orders are done.
    Flush(SyncSender<()>),
}

/// A handle of the writer thread. Dropping it waits until the thread has written all submitted
/// segments.
pub(super) struct Writer {
    /// `None` only while the handle is dropped.
    orders: Option<SyncSender<DiskOrder>>,
    thread: Option<JoinHandle<()>>,
}

pub(super) fn lock(shared: &Mutex<DiskStatus>) -> MutexGuard<'_, DiskStatus> {
    // A poisoned lock is usable: no update of the state can panic halfway.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writer {
    pub(super) fn start(shared: &Arc<Mutex<DiskStatus>>, id: u64) -> io::Result<Writer> {
        let (orders, received) = sync_channel(QUEUE);
        let shared = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name("latent-cache".into())
            .spawn(move || work(&received, &shared, id))?;
        Ok(Writer { orders: Some(orders), thread: Some(thread) })
    }

    /// Submits a segment; returns it if the queue is full or the thread has ended.
    pub(super) fn write(&self, segment: BlockRun, wait: bool) -> Result<(), BlockRun> {
        let back = |order| match order {
            DiskOrder::Write(segment) => Err(segment),
            DiskOrder::Flush(_) => Ok(()),
        };
        let Some(orders) = &self.orders else { return Err(segment) };
        let order = DiskOrder::Write(segment);
        if wait {
            return orders.send(order).or_else(|error| back(error.0));
        }
        orders.try_send(order).or_else(|error| match error {
            TrySendError::Full(order) | TrySendError::Disconnected(order) => back(order),
        })
    }

    /// Waits until every submitted segment is on disk or has failed.
    pub(super) fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.orders.as_ref().is_some_and(|orders| orders.send(DiskOrder::Flush(done)).is_ok()) {
            // An error means that the thread has ended, so there is nothing to wait for.
            let _ = wait.recv();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Closing the channel ends the thread after the queued orders.
        self.orders = None;
        // A panic of the thread was already reported by the panic hook.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(orders: &Receiver<DiskOrder>, shared: &Mutex<DiskStatus>, id: u64) {
    let mut paused: Option<Instant> = None;
    for order in orders {
        let segment = match order {
            DiskOrder::Write(segment) => segment,
            DiskOrder::Flush(done) => {
                // An error means that the scheduler no longer waits.
                let _ = done.send(());
                continue;
            }
        };
        let names: Vec<BlockHash> = segment.blocks.iter().map(|block| block.name).collect();
        // During a pause, segments are dropped: waiting would fill the queue, and block a scheduler
        // that flushes.
        let paused_now = paused.is_some_and(|since| since.elapsed() < PAUSE);
        let written = if paused_now { Ok(false) } else { write(&segment, shared, id) };
        let mut shared = lock(shared);
        shared.forget_queued(&names);
        match written {
            Ok(true) => shared.written += names.len() as u64,
            Ok(false) => shared.dropped += names.len() as u64,
            Err(error) => {
                shared.dropped += names.len() as u64;
                shared.folder.errors += 1;
                tracing::warn!("prefix cache: {error}; writing is paused for {} s", PAUSE.as_secs());
                paused = Some(Instant::now());
            }
        }
    }
}

/// Writes a file. Returns false if it is larger than the whole cache may be.
fn write(segment: &BlockRun, shared: &Mutex<DiskStatus>, id: u64) -> Result<bool, OutputError> {
    let bytes = segment.encode(id);
    let Some(last) = segment.blocks.last() else { return Ok(true) };
    let (name, path) = {
        // Locked only to remove old files: the scheduler must not wait for the write below.
        let mut shared = lock(shared);
        if !shared.folder.make_room(bytes.len() as u64) {
            return Ok(false);
        }
        let name = shared.folder.name(segment.first, last.name);
        let path = shared.folder.path_of(&name);
        (name, path)
    };
    let mut file = OutputFile::create_private(&path)?;
    file.write_all(&bytes).map_err(|error| file.failed(error))?;
    let size = file.finish()?;
    let names = segment.blocks.iter().map(|block| block.name).collect();
    lock(shared).folder.add(name, size, segment.first, SystemTime::now(), names);
    Ok(true)
}
