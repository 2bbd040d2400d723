//! A communicator that fails on purpose before a message.

use latent_backend::{Channel, Communicator, RankError, ThreadPulse};
use latent_mpi::MpiRank;
use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    Kill,
    Stop,
    /// The system gives the process no more memory.
    Starve,
    /// The process is stopped during a large message.
    Cut,
    /// The computing thread stops, while the MPI thread continues.
    Hang,
    /// The computing thread panics.
    Panic,
    /// The MPI thread panics: it sends to a rank that does not exist.
    Misdirect,
}

impl FaultKind {
    const ALL: [FaultKind; 7] = [
        FaultKind::Kill,
        FaultKind::Stop,
        FaultKind::Starve,
        FaultKind::Cut,
        FaultKind::Hang,
        FaultKind::Panic,
        FaultKind::Misdirect,
    ];
}

/// A fault of a rank before one of its messages, or before it joins the job. As text: `1:17:Kill`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankFault {
    pub rank: usize,
    pub message: Option<usize>,
    pub kind: FaultKind,
}

impl fmt::Display for RankFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.message.map_or("-".into(), |message| message.to_string());
        write!(f, "{}:{message}:{:?}", self.rank, self.kind)
    }
}

impl FromStr for RankFault {
    type Err = String;

    fn from_str(text: &str) -> Result<RankFault, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let [rank, message, kind] = parts[..] else { return Err(text.into()) };
        let kind = FaultKind::ALL.into_iter().find(|known| format!("{known:?}") == kind);
        Ok(RankFault {
            rank: rank.parse().map_err(|_| text)?,
            message: if message == "-" { None } else { Some(message.parse().map_err(|_| text)?) },
            kind: kind.ok_or(text)?,
        })
    }
}

impl RankFault {
    pub fn is_for(&self, rank: &str) -> bool {
        self.rank.to_string() == rank
    }

    /// Executes the fault. The modification time of the file `when` records the time.
    pub fn strike(&self, when: &Path) {
        std::fs::write(when, "").unwrap();
        match self.kind {
            FaultKind::Kill => gone(Signal::KILL),
            FaultKind::Stop | FaultKind::Cut => gone(Signal::STOP),
            FaultKind::Hang => parked(),
            FaultKind::Panic => panic!("on purpose"),
            // The communicator sends the message.
            FaultKind::Misdirect => {}
            FaultKind::Starve => {
                setrlimit(Resource::As, Rlimit { current: Some(1 << 20), maximum: None }).unwrap();
                // The allocator's free memory is used up too.
                let mut held: Vec<Vec<u8>> = Vec::new();
                let mut size = 1 << 24;
                while size > 64 {
                    let mut more = Vec::new();
                    if more.try_reserve_exact(size).is_ok() { held.push(more) } else { size /= 2 }
                }
                std::mem::forget(held);
            }
        }
    }
}

/// Another thread may receive the signal, so this one waits until it takes effect.
fn gone(signal: Signal) -> ! {
    kill_process(getpid(), signal).unwrap();
    parked()
}

fn parked() -> ! {
    loop {
        std::thread::park();
    }
}

/// The rank of this process in the environment of mpirun, before MPI is initialized.
pub fn launched_rank() -> String {
    std::env::var("OMPI_COMM_WORLD_RANK").unwrap_or_default()
}

/// A communicator that counts the messages of a rank and executes its fault.
pub struct FaultyRank {
    inner: Arc<MpiRank>,
    fault: Option<RankFault>,
    when: PathBuf,
    seen: Mutex<SeenMessages>,
}

/// A message's number, and the number of earlier messages of its kind.
type MessageBoundary = (usize, usize);

#[derive(Default)]
struct SeenMessages {
    messages: usize,
    /// Number of the first message after loading.
    loaded: usize,
    /// Number of messages of each kind.
    kinds: HashMap<(bool, usize, String, u8), usize>,
    boundaries: Vec<MessageBoundary>,
}

/// Occurrences of each kind of message that count as boundaries.
const ALIKE: usize = 2;

impl FaultyRank {
    /// Creates a communicator that writes the file `when` as the fault strikes.
    pub fn new(inner: Arc<MpiRank>, fault: Option<RankFault>, when: PathBuf) -> FaultyRank {
        FaultyRank { inner, fault, when, seen: Mutex::default() }
    }

    /// The boundaries as text: `number/earlier` for each.
    pub fn boundaries(&self) -> String {
        let seen = self.seen.lock().unwrap();
        seen.boundaries.iter().map(|(at, before)| format!("{at}/{before}")).collect::<Vec<_>>().join(" ")
    }

    /// Records that the model is loaded.
    pub fn loaded(&self) {
        let mut seen = self.seen.lock().unwrap();
        seen.loaded = seen.messages;
    }

    /// Number of messages of loading.
    pub fn of_loading(&self) -> usize {
        self.seen.lock().unwrap().loaded
    }

    fn strike(&self) {
        let message = self.seen.lock().unwrap().messages;
        if let Some(fault) = self.fault.filter(|f| f.message == Some(message) && f.rank == self.inner.rank())
        {
            fault.strike(&self.when);
            if fault.kind == FaultKind::Misdirect {
                self.inner.send(self.inner.ranks(), Channel::Values, &[]).unwrap();
            }
        }
    }

    /// Counts a message. The first byte of commands is part of their kind.
    fn count(&self, sends: bool, rank: usize, channel: Channel, message: &[u8]) {
        let command =
            if channel == Channel::Commands { message.first().copied().unwrap_or_default() } else { 0 };
        let mut seen = self.seen.lock().unwrap();
        let met = seen.kinds.entry((sends, rank, format!("{channel:?}"), command)).or_default();
        let before = *met;
        *met += 1;
        let at = seen.messages;
        seen.messages += 1;
        if before < ALIKE {
            seen.boundaries.push((at, before));
        }
    }
}

impl Communicator for FaultyRank {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    fn host(&self, rank: usize) -> String {
        self.inner.host(rank)
    }

    fn send(&self, to: usize, channel: Channel, message: &[u8]) -> Result<(), RankError> {
        self.strike();
        self.count(true, to, channel, message);
        self.inner.send(to, channel, message)
    }

    fn receive(&self, from: usize, channel: Channel, message: &mut Vec<u8>) -> Result<(), RankError> {
        self.strike();
        let result = self.inner.receive(from, channel, message);
        self.count(false, from, channel, message);
        result
    }

    fn fail(&self, cause: &str) {
        self.inner.fail(cause);
    }

    fn pulse(&self) -> Option<Arc<ThreadPulse>> {
        self.inner.pulse()
    }
}
