//! A rank of an MPI job, as other threads see it.

use crate::office::{AWAKE, End, Kind, Letter, Office, Started};
use crate::speaker;
use latent_backend::{Channel, Communicator, RankError};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// This process's rank.
pub struct MpiRank {
    rank: usize,
    /// Of each rank.
    hosts: Vec<String>,
    office: Arc<Office>,
    speaker: Mutex<Option<JoinHandle<()>>>,
}

/// Joins the job that this process was started in; a process that no launcher started is the only rank of its own.
///
/// # Errors
/// [`RankError::Setup`] when MPI is already in use in this process, or a thread is refused. (An MPI that cannot start ends the process itself.)
pub fn start() -> Result<MpiRank, RankError> {
    let office = Arc::new(Office::default());
    let (tell, told) = mpsc::channel();
    let shared = Arc::clone(&office);
    let speaker = Builder::new().name("latent-mpi".into()).spawn(move || speaker::run(&shared, &tell));
    let speaker = speaker.map_err(|error| RankError::Setup(format!("starting a thread for MPI: {error}")))?;
    let Ok(Started { rank, hosts }) = told.recv() else {
        return Err(RankError::Setup("MPI has been started in this process before".into()));
    };
    Ok(MpiRank { rank, hosts, office, speaker: Mutex::new(Some(speaker)) })
}

/// How long other ranks have to say what they know of an error before all are ended.
const GRACE: Duration = Duration::from_millis(400);

impl MpiRank {
    /// Ends this rank's part in the job: with the others, where `failure` is none; else all ranks are ended, with this exit code. To be called last.
    pub fn finish(&self, failure: Option<i32>) {
        let Some(speaker) = self.speaker.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        if failure.is_some() {
            std::thread::sleep(GRACE);
        }
        {
            let mut mail = self.office.mail();
            mail.end = Some(failure.map_or(End::InOrder, End::Abort));
            self.office.work.notify_all();
        }
        // it does not panic; an aborted job does not come back
        let _ = speaker.join();
    }

    fn post(&self, to: usize, kind: Kind, message: &[u8]) {
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
        self.post(to, Kind::On(channel), message);
        Ok(())
    }

    fn receive(&self, from: usize, channel: Channel, message: &mut Vec<u8>) -> Result<(), RankError> {
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
            self.post(to, Kind::Failed, cause.as_bytes());
        }
    }
}
