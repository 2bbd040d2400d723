//! A rank of an MPI job, as other threads see it.

use crate::office::{AWAKE, Letter, MessageKind, MpiMailbox, MpiWorld, SpeakerEnd};
use crate::speaker;
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
    office: Arc<MpiMailbox>,
    speaker: JoinHandle<()>,
}

/// Joins the job that this process was started in, which may take so long; a process that no launcher started is the only rank of its own.
///
/// # Errors
/// [`RankError::Setup`] when MPI is already in use in this process, a thread is refused, or not all ranks come up in time. (An MPI that cannot start ends the
/// process itself.)
pub fn start(patience: Duration) -> Result<MpiRank, RankError> {
    let office = Arc::new(MpiMailbox::default());
    let (tell, told) = mpsc::channel();
    let shared = Arc::clone(&office);
    let speaker = Builder::new().name("latent-mpi".into()).spawn(move || speaker::run(&shared, &tell));
    let speaker = speaker.map_err(|error| RankError::Setup(format!("starting a thread for MPI: {error}")))?;
    let MpiWorld { rank, hosts } = told.recv_timeout(patience).map_err(|error| {
        RankError::Setup(match error {
            RecvTimeoutError::Disconnected => "MPI has been started in this process before".into(),
            RecvTimeoutError::Timeout => format!(
                "MPI has not started within {} s, since it waits for a rank that has not come up: look at that rank's host, and whether its firewall \
                 lets the others in",
                patience.as_secs()
            ),
        })
    })?;
    Ok(MpiRank { rank, hosts, office, speaker })
}

/// How long other ranks have to say what they know of an error before all are ended.
const GRACE: Duration = Duration::from_millis(400);

/// How long MPI may take to end once all ranks have said that they do, and to abort.
const CLOSING: Duration = Duration::from_secs(3);

/// How often is looked whether it has.
const LOOK: Duration = Duration::from_millis(2);

impl MpiRank {
    /// Ends this rank's part in the job together with the others, and returns when they have ended, too. To be called last.
    ///
    /// # Errors
    /// A rank that is gone or failed before it ended, or an MPI that does not end: to be ended by [`MpiRank::abort`].
    pub fn finish(&self) -> Result<(), RankError> {
        self.tell_end(SpeakerEnd::InOrder);
        // MPI's own end waits for all ranks, and hangs where one is gone by then
        while !self.speaker.is_finished() {
            std::thread::sleep(LOOK);
            let mail = self.office.mail();
            if mail.closing.is_some_and(|since| since.elapsed() > CLOSING) {
                return Err(RankError::Setup(format!(
                    "every rank has said that it ends, and MPI has not ended {} s later: one of {} was stopped meanwhile, or its host is gone",
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

    /// Ends all ranks, with this exit code, a moment after what this one has told them. To be called last: it returns only where MPI itself hangs, and the
    /// launcher ends the job when this process ends.
    pub fn abort(&self, code: i32) {
        std::thread::sleep(GRACE);
        self.tell_end(SpeakerEnd::Abort(code));
        let since = Instant::now();
        while !self.speaker.is_finished() && since.elapsed() < CLOSING {
            std::thread::sleep(LOOK);
        }
    }

    /// All ranks with their hosts.
    fn names(&self) -> String {
        let name = |(rank, host)| format!("rank {rank} on host {host}");
        self.hosts.iter().enumerate().map(name).collect::<Vec<_>>().join(", ")
    }

    fn tell_end(&self, end: SpeakerEnd) {
        self.office.mail().end = Some(end);
        self.office.work.notify_all();
    }

    /// Takes ranks that are silent for lost soon, for two seconds from the first call on, since this process was told to end.
    pub fn hurry(&self) {
        self.office.mail().hurried.get_or_insert_with(Instant::now);
    }

    /// What has gone wrong with another rank, if anything has.
    pub fn problem(&self) -> Option<RankError> {
        self.office.mail().error.clone()
    }

    fn post(&self, to: usize, kind: MessageKind, message: &[u8]) {
        self.office.mail().outgoing.push_back(Letter { to, kind, message: message.to_vec() });
        self.office.work.notify_all();
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
        if let Some(error) = self.office.mail().error.clone() {
            return Err(error);
        }
        self.post(to, MessageKind::On(channel), message);
        Ok(())
    }

    fn receive(&self, from: usize, channel: Channel, message: &mut Vec<u8>) -> Result<(), RankError> {
        let _rest = self.office.pulse.rest();
        let began = Instant::now();
        let mut mail = self.office.mail();
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
            mail.waiting += 1;
            self.office.work.notify_all();
            let seen = self.office.news.load(Ordering::Acquire);
            drop(mail);
            while began.elapsed().as_micros() < AWAKE && self.office.news.load(Ordering::Acquire) == seen {
                std::thread::yield_now();
            }
            mail = self.office.mail();
            if self.office.news.load(Ordering::Acquire) == seen {
                mail = self.office.came.wait(mail).unwrap_or_else(PoisonError::into_inner);
            }
            mail.waiting -= 1;
        }
    }

    fn fail(&self, cause: &str) {
        if self.office.mail().error.is_some() {
            // what another rank has said, or did not say, all know already
            return;
        }
        for to in (0..self.ranks()).filter(|to| *to != self.rank) {
            self.post(to, MessageKind::Failed, cause.as_bytes());
        }
        // this process may end at once, and what is not sent by then is not said
        let began = Instant::now();
        let is_left = || {
            let mail = self.office.mail();
            mail.sending || !mail.outgoing.is_empty()
        };
        while !self.speaker.is_finished() && is_left() && began.elapsed() < GRACE {
            std::thread::sleep(LOOK);
        }
    }

    fn pulse(&self) -> Option<Arc<ThreadPulse>> {
        Some(Arc::clone(&self.office.pulse))
    }
}
