//! The one thread that speaks to MPI.

use crate::office::{AWAKE, End, Kind, Letter, Office, Started};
use latent_backend::RankError;
use mpi::Threading;
use mpi::point_to_point::MatchedReceiveVec;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Source};
use std::sync::PoisonError;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// A rank says that it is there this often.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// A rank of which nothing is heard for so long is gone.
const SILENCE: Duration = Duration::from_secs(3);

/// Bytes of a buffer for what ranks say of themselves, so that it waits neither for them nor behind what they do not take.
const BUFFER: usize = 1 << 20;

/// Bytes of a host's name that are kept.
const NAME: usize = 64;

/// Speaks until it is told to end.
pub(crate) fn run(office: &Office, started: &Sender<Started>) {
    // this thread alone calls MPI
    let Some((mut universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else { return };
    universe.set_buffer_size(BUFFER);
    let world = universe.world();
    let hosts = hosts(&world);
    let (rank, ranks) = (world.rank() as usize, hosts.len());
    let speaker = Speaker { world: &world, office, rank, hosts: hosts.clone() };
    let now = Instant::now();
    let mut lives = Lives { heard: vec![now; ranks], sent: now, checked: now };
    if started.send(Started { rank, hosts }).is_ok() {
        speaker.speak(&mut lives);
    }
}

/// The host of each rank.
fn hosts(world: &SimpleCommunicator) -> Vec<String> {
    let mut own = [0u8; NAME];
    let name = mpi::environment::processor_name().unwrap_or_default();
    let len = name.len().min(NAME);
    own[..len].copy_from_slice(&name.as_bytes()[..len]);
    let mut all = vec![0u8; NAME * world.size() as usize];
    world.all_gather_into(&own[..], &mut all[..]);
    let text = |name: &[u8]| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
    all.chunks_exact(NAME).map(text).collect()
}

/// When each rank was heard last, and when this one last did its part.
struct Lives {
    heard: Vec<Instant>,
    sent: Instant,
    checked: Instant,
}

struct Speaker<'w> {
    world: &'w SimpleCommunicator,
    office: &'w Office,
    rank: usize,
    hosts: Vec<String>,
}

impl Speaker<'_> {
    fn speak(&self, lives: &mut Lives) {
        let mut busy = Instant::now();
        loop {
            let (next, end) = {
                let mut mail = self.office.mail();
                (mail.outgoing.pop_front(), mail.end)
            };
            if let Some(End::Abort(code)) = end {
                self.world.abort(code);
            }
            let mut worked = self.take_in(lives);
            if let Some(letter) = next {
                self.send(&letter, lives);
                worked = true;
            } else if end == Some(End::InOrder) {
                self.others().for_each(|to| self.say(to, Kind::Ended));
                return;
            }
            self.look_after(lives);
            if worked {
                busy = Instant::now();
            } else {
                self.rest(busy.elapsed());
            }
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let rank = self.rank;
        (0..self.hosts.len()).filter(move |to| *to != rank)
    }

    /// Sends a message, and takes in what arrives meanwhile, so that two ranks which send to each other both get on.
    fn send(&self, letter: &Letter, lives: &mut Lives) {
        let process = self.world.process_at_rank(letter.to as i32);
        mpi::request::scope(|scope| {
            let mut request = process.immediate_send_with_tag(scope, &letter.message[..], letter.kind.tag());
            while let Err(pending) = request.test() {
                request = pending;
                if !self.take_in(lives) {
                    std::thread::yield_now();
                }
                self.look_after(lives);
                // a rank that is gone takes nothing
                if let Some(End::Abort(code)) = self.office.mail().end {
                    self.world.abort(code);
                }
            }
        });
    }

    /// Sends a message without content, whatever else is on its way.
    fn say(&self, to: usize, kind: Kind) {
        self.world.process_at_rank(to as i32).buffered_send_with_tag(&[0u8; 0][..], kind.tag());
    }

    /// Takes in whatever has arrived; whether anything had.
    fn take_in(&self, lives: &mut Lives) -> bool {
        let mut any = false;
        while let Some(arrived) = self.world.any_process().immediate_matched_probe() {
            let (from, tag) = (arrived.1.source_rank() as usize, arrived.1.tag());
            let (message, _) = arrived.matched_receive_vec::<u8>();
            if let Some(heard) = lives.heard.get_mut(from) {
                *heard = Instant::now();
            }
            match Kind::of_tag(tag) {
                Some(Kind::On(channel)) => {
                    any = true;
                    self.office.mail().arrived.entry((from, channel)).or_default().push_back(message);
                    self.office.tell();
                }
                Some(Kind::Failed) => {
                    let cause = String::from_utf8_lossy(&message).into_owned();
                    self.office.went_wrong(RankError::Failed {
                        rank: from,
                        host: self.hosts[from].clone(),
                        cause,
                    });
                }
                Some(Kind::Ended) => {
                    self.office.mail().ended.push(from);
                    self.office.tell();
                }
                Some(Kind::Heartbeat) | None => {}
            }
        }
        any
    }

    /// Says that this rank is there, and looks whether the others are.
    fn look_after(&self, lives: &mut Lives) {
        let now = Instant::now();
        if now - lives.checked < HEARTBEAT / 10 {
            return;
        }
        // a process that was itself stopped has heard nobody
        if now - lives.checked > SILENCE / 4 {
            lives.heard.fill(now);
        }
        lives.checked = now;
        let ended = self.office.mail().ended.clone();
        if now - lives.sent >= HEARTBEAT {
            lives.sent = now;
            self.others().filter(|to| !ended.contains(to)).for_each(|to| self.say(to, Kind::Heartbeat));
        }
        // who has been silent longest is the cause
        let silent = self.others().filter(|rank| !ended.contains(rank)).min_by_key(|rank| lives.heard[*rank]);
        if let Some(rank) = silent.filter(|rank| now - lives.heard[*rank] > SILENCE) {
            let cause = format!("nothing was heard of it for {} s", SILENCE.as_secs());
            self.office.went_wrong(RankError::Lost { rank, host: self.hosts[rank].clone(), cause });
        }
    }

    /// Waits for work: awake while somebody waits and something may arrive at any moment, then longer and longer.
    fn rest(&self, idle: Duration) {
        let mail = self.office.mail();
        if !mail.outgoing.is_empty() || mail.end.is_some() {
            return;
        }
        let nap = match (mail.waiting > 0, idle.as_micros()) {
            (true, ..AWAKE) => {
                drop(mail);
                return std::thread::yield_now();
            }
            (true, _) => 200,
            (false, _) => 1000,
        };
        let rested = self.office.work.wait_timeout(mail, Duration::from_micros(nap));
        drop(rested.unwrap_or_else(PoisonError::into_inner));
    }
}
