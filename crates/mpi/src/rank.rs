//! A rank of an MPI job: the interface to the MPI thread for all other threads.

use crate::mailbox::{MessageKind, MpiMailbox, MpiThreadEnd, MpiWorld, OutgoingMessage, SPIN_MICROS};
use crate::mpi_thread;
use latent_backend::{Channel, Communicator, RankError, ThreadPulse};
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// This process's rank.
pub struct MpiRank {
    rank: usize,
    hosts: Vec<String>,
    mailbox: Arc<MpiMailbox>,
    thread: JoinHandle<()>,
}

/// Joins the job of this process and waits up to `patience` for the other ranks. A process without
/// a launcher is the only rank of its job.
///
/// # Errors
/// [`RankError::Setup`] if MPI is already in use in this process, the thread cannot be started, or
/// not all ranks start in time. (If MPI itself cannot start, it ends the process.)
pub fn start(patience: Duration) -> Result<MpiRank, RankError> {
    let mailbox = Arc::new(MpiMailbox::default());
    let (tell, told) = mpsc::channel();
    let shared = Arc::clone(&mailbox);
    let thread = Builder::new().name("latent-mpi".into()).spawn(move || mpi_thread::run(&shared, &tell));
    let thread = thread.map_err(|error| RankError::Setup(format!("starting a thread for MPI: {error}")))?;
    let MpiWorld { rank, hosts } = told.recv_timeout(patience).map_err(|error| {
        RankError::Setup(match error {
            RecvTimeoutError::Disconnected => "MPI was already started in this process".into(),
            RecvTimeoutError::Timeout => format!(
                "MPI has not started within {} s because a rank is missing: check that rank's host and its \
                 firewall",
                patience.as_secs()
            ),
        })
    })?;
    Ok(MpiRank { rank, hosts, mailbox, thread })
}

/// Time for other ranks to report an error before all are aborted. Their report may name the cause.
const GRACE: Duration = Duration::from_millis(400);

/// Time limit for MPI_Finalize after all ranks have ended, and for MPI_Abort.
const CLOSING: Duration = Duration::from_secs(3);

/// Polling interval of these waits.
const LOOK: Duration = Duration::from_millis(2);

impl MpiRank {
    /// Ends this rank normally and waits until all ranks have ended. Must be the last call.
    ///
    /// # Errors
    /// A rank was lost or failed before it ended, or MPI does not end. Then call
    /// [`MpiRank::abort`].
    pub fn finish(&self) -> Result<(), RankError> {
        self.tell_end(MpiThreadEnd::InOrder);
        // MPI_Finalize waits for all ranks, and hangs if one is lost.
        while !self.thread.is_finished() {
            std::thread::sleep(LOOK);
            let mail = self.mailbox.mail();
            if mail.closing.is_some_and(|since| since.elapsed() > CLOSING) {
                return Err(RankError::Setup(format!(
                    "MPI has not ended {} s after all ranks finished: one of {} was stopped, or its host is \
                     unreachable",
                    CLOSING.as_secs(),
                    self.names()
                )));
            }
            if let (None, Some(error)) = (mail.closing, &mail.error) {
                return Err(error.clone());
            }
        }
        Ok(())
    }

    /// Aborts all ranks with this exit code. Must be the last call. It returns only if MPI itself
    /// hangs; then the launcher ends the job when this process exits.
    pub fn abort(&self, code: i32) {
        // Other ranks should receive this rank's error before they are killed.
        std::thread::sleep(GRACE);
        self.tell_end(MpiThreadEnd::Abort(code));
        let since = Instant::now();
        while !self.thread.is_finished() && since.elapsed() < CLOSING {
            std::thread::sleep(LOOK);
        }
    }

    /// All ranks with their hosts.
    fn names(&self) -> String {
        let name = |(rank, host)| format!("rank {rank} on host {host}");
        self.hosts.iter().enumerate().map(name).collect::<Vec<_>>().join(", ")
    }

    fn tell_end(&self, end: MpiThreadEnd) {
        self.mailbox.mail().end = Some(end);
        self.mailbox.work.notify_all();
    }

    /// Shortens the time after which silent ranks count as lost, for two seconds from the first
    /// call. Called when this process gets a signal to end.
    pub fn hurry(&self) {
        self.mailbox.mail().hurried.get_or_insert_with(Instant::now);
    }

    /// The first error of any rank.
    pub fn problem(&self) -> Option<RankError> {
        self.mailbox.mail().error.clone()
    }

    fn post(&self, to: usize, kind: MessageKind, message: &[u8]) {
        self.mailbox.mail().outgoing.push_back(OutgoingMessage { to, kind, message: message.to_vec() });
        self.mailbox.work.notify_all();
    }
}

impl Communicator for MpiRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.hosts.len()
    }

    fn host(&self, rank: usize) -> String {
        self.hosts.get(rank).cloned().unwrap_or_else(|| "(no such rank)".into())
    }

    fn send(&self, to: usize, channel: Channel, message: &[u8]) -> Result<(), RankError> {
        if let Some(error) = self.mailbox.mail().error.clone() {
            return Err(error);
        }
        self.post(to, MessageKind::On(channel), message);
        Ok(())
    }

    fn receive(&self, from: usize, channel: Channel, message: &mut Vec<u8>) -> Result<(), RankError> {
        // Waiting for another rank is not hanging.
        let _rest = self.mailbox.pulse.rest();
        let began = Instant::now();
        let mut mail = self.mailbox.mail();
        loop {
            if let Some(next) =
                mail.arrived.get_mut(&(from, channel)).and_then(std::collections::VecDeque::pop_front)
            {
                *message = next;
                return Ok(());
            }
            if let Some(error) = mail.error.clone() {
                return Err(error);
            }
            if mail.ended.contains(&from) {
                return Err(RankError::Ended { rank: from, host: self.host(from) });
            }
            // Tells the MPI thread to poll without sleeping.
            mail.waiting += 1;
            self.mailbox.work.notify_all();
            // Read under the lock: any later event changes the number.
            let seen = self.mailbox.news.load(Ordering::Acquire);
            drop(mail);
            while began.elapsed().as_micros() < SPIN_MICROS
                && self.mailbox.news.load(Ordering::Acquire) == seen
            {
                std::thread::yield_now();
            }
            mail = self.mailbox.mail();
            if self.mailbox.news.load(Ordering::Acquire) == seen {
                mail = self.mailbox.came.wait(mail).unwrap_or_else(PoisonError::into_inner);
            }
            mail.waiting -= 1;
        }
    }

    fn fail(&self, cause: &str) {
        if self.mailbox.mail().error.is_some() {
            // All ranks know of that error already.
            return;
        }
        for to in (0..self.ranks()).filter(|to| *to != self.rank) {
            self.post(to, MessageKind::Failed, cause.as_bytes());
        }
        // The process may exit right after this call, so wait until the messages are sent.
        let began = Instant::now();
        let is_left = || {
            let mail = self.mailbox.mail();
            mail.sending || !mail.outgoing.is_empty()
        };
        while !self.thread.is_finished() && is_left() && began.elapsed() < GRACE {
            std::thread::sleep(LOOK);
        }
    }

    fn pulse(&self) -> Option<Arc<ThreadPulse>> {
        Some(Arc::clone(&self.mailbox.pulse))
    }
}
