//! The MPI thread, which makes all MPI calls.

use crate::office::{AWAKE, Letter, MessageKind, MpiMailbox, MpiWorld, SILENCE, SpeakerEnd};
use latent_backend::{PulseWatch, RankError};
use latent_types::panic_text;
use mpi::Threading;
use mpi::point_to_point::{Message, Status};
use mpi::request::{Request, StaticScope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Equivalence, Source};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// A rank says that it is there this often.
const HEARTBEAT: Duration = Duration::from_millis(250);

/// How long the threads of a rank have to say what has gone wrong with it before this thread ends the job: they may all hang.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A rank that had nothing to do for so long looks less often for something.
const DOZES: Duration = Duration::from_secs(1);

/// Bytes of a host's name that are kept.
const NAME: usize = 64;

/// Speaks until it is told to end.
pub(crate) fn run(office: &MpiMailbox, started: &Sender<MpiWorld>) {
    // this thread alone calls MPI
    let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else { return };
    let world = universe.world();
    let hosts = hosts(&world);
    let (rank, ranks) = (world.rank() as usize, hosts.len());
    let speaker = Speaker { world: &world, office, rank, hosts: hosts.clone() };
    let now = Instant::now();
    let mut lives = RankLiveness {
        heard: vec![now; ranks],
        sent: now,
        checked: now,
        saying: Vec::new(),
        watch: PulseWatch::new(now),
        hung: None,
    };
    if started.send(MpiWorld { rank, hosts }).is_err() {
        return;
    }
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| speaker.speak(&mut lives))) {
        speaker.give_up(&format!("its thread that speaks to MPI panicked: {}", panic_text(&*panic)));
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
struct RankLiveness {
    heard: Vec<Instant>,
    sent: Instant,
    checked: Instant,
    /// What this rank says of itself, and to whom, as long as MPI has not sent it: not even a buffered send returns where a rank takes nothing.
    saying: Vec<(usize, Request<'static, [u8], StaticScope>)>,
    /// Whether this rank computes where it should.
    watch: PulseWatch,
    /// Since when it is known to hang.
    hung: Option<Instant>,
}

impl RankLiveness {
    /// Lets go of what has been sent.
    fn let_go(&mut self) {
        for (to, request) in std::mem::take(&mut self.saying) {
            if let Err(pending) = request.test() {
                self.saying.push((to, pending));
            }
        }
    }
}

struct Speaker<'w> {
    world: &'w SimpleCommunicator,
    office: &'w MpiMailbox,
    rank: usize,
    hosts: Vec<String>,
}

impl Speaker<'_> {
    fn speak(&self, lives: &mut RankLiveness) {
        let mut busy = Instant::now();
        let mut said = false;
        loop {
            self.abort_if_told();
            let (next, end) = {
                let mut mail = self.office.mail();
                let next = mail.outgoing.pop_front();
                mail.sending = next.is_some();
                (next, mail.end)
            };
            if end == Some(SpeakerEnd::InOrder) && next.is_none() && self.is_last(&mut said, lives) {
                return;
            }
            let mut worked = self.take_in(lives);
            if let Some(letter) = next {
                self.send(&letter, lives);
                worked = true;
            }
            self.look_after(lives);
            if worked {
                busy = Instant::now();
            } else {
                self.rest(busy.elapsed());
            }
        }
    }

    /// Says once that this rank has ended; whether all others have said so too. MPI's own end waits for all ranks without looking whether they are there.
    fn is_last(&self, said: &mut bool, lives: &mut RankLiveness) -> bool {
        if !std::mem::replace(said, true) {
            self.others().for_each(|to| self.say(to, MessageKind::Ended, lives));
        }
        lives.let_go();
        let mut mail = self.office.mail();
        let all = self.others().all(|rank| mail.ended.contains(&rank));
        if all {
            mail.closing.get_or_insert_with(Instant::now);
        }
        all && lives.saying.is_empty()
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let rank = self.rank;
        (0..self.hosts.len()).filter(move |to| *to != rank)
    }

    /// Sends a message, and takes in what arrives meanwhile, so that two ranks which send to each other both get on.
    fn send(&self, letter: &Letter, lives: &mut RankLiveness) {
        let process = self.world.process_at_rank(letter.to as i32);
        mpi::request::scope(|scope| {
            let mut request = process.immediate_send_with_tag(scope, &letter.message[..], letter.kind.tag());
            while let Err(pending) = request.test() {
                request = pending;
                self.take_in(lives);
                self.wait_on(lives);
            }
        });
    }

    /// Sends a message without content, whatever else is on its way.
    fn say(&self, to: usize, kind: MessageKind, lives: &mut RankLiveness) {
        let process = self.world.process_at_rank(to as i32);
        lives.saying.push((to, process.immediate_send_with_tag(StaticScope, &[][..], kind.tag())));
    }

    /// Takes in whatever has arrived; whether anything had for other threads.
    fn take_in(&self, lives: &mut RankLiveness) -> bool {
        let mut any = false;
        while let Some(arrived) = self.world.any_process().immediate_matched_probe() {
            any |= self.take(arrived, lives);
        }
        any
    }

    /// The same for what ranks say of themselves, where a message of a channel may not overtake one that is still coming in.
    fn listen(&self, lives: &mut RankLiveness) {
        for kind in [MessageKind::Heartbeat, MessageKind::Failed, MessageKind::Ended] {
            while let Some(arrived) = self.world.any_process().immediate_matched_probe_with_tag(kind.tag()) {
                self.take(arrived, lives);
            }
        }
    }

    /// Takes in one message; whether it is for another thread.
    fn take(&self, (message, status): (Message, Status), lives: &mut RankLiveness) -> bool {
        let (from, kind) = (status.source_rank() as usize, MessageKind::of_tag(status.tag()));
        let bytes = status.count(u8::equivalent_datatype()) as usize;
        let message = self.receive(message, bytes, lives);
        if let Some(heard) = lives.heard.get_mut(from) {
            *heard = Instant::now();
        }
        match kind {
            Some(MessageKind::On(channel)) => {
                self.office.mail().arrived.entry((from, channel)).or_default().push_back(message);
                self.office.tell();
                return true;
            }
            Some(MessageKind::Failed) => {
                let cause = String::from_utf8_lossy(&message).into_owned();
                self.office.went_wrong(RankError::Failed {
                    rank: from,
                    host: self.hosts[from].clone(),
                    cause,
                });
            }
            Some(MessageKind::Ended) => {
                self.office.mail().ended.push(from);
                self.office.tell();
            }
            Some(MessageKind::Heartbeat) | None => {}
        }
        false
    }

    /// The content of a message, which may be long, or never come to its end.
    fn receive(&self, message: Message, bytes: usize, lives: &mut RankLiveness) -> Vec<u8> {
        let mut content = vec![0; bytes];
        mpi::request::scope(|scope| {
            let mut request = message.immediate_matched_receive_into(scope, &mut content[..]);
            while let Err(pending) = request.test() {
                request = pending;
                self.listen(lives);
                self.wait_on(lives);
            }
        });
        content
    }

    /// A moment of waiting for a rank that may be gone, and then takes and gives nothing.
    fn wait_on(&self, lives: &mut RankLiveness) {
        self.look_after(lives);
        self.abort_if_told();
        std::thread::yield_now();
    }

    fn abort_if_told(&self) {
        if let Some(SpeakerEnd::Abort(code)) = self.office.mail().end {
            self.world.abort(code);
        }
    }

    /// Says that this rank is there, and looks whether the others are.
    fn look_after(&self, lives: &mut RankLiveness) {
        let now = Instant::now();
        if now - lives.checked < HEARTBEAT / 10 {
            return;
        }
        // a process that was stopped itself has received no messages
        if now - lives.checked > SILENCE / 4 {
            lives.heard.fill(now);
            lives.watch.forget(now);
        }
        lives.checked = now;
        self.look_at_itself(now, lives);
        let (ended, ending, silence) = {
            let mail = self.office.mail();
            (mail.ended.clone(), mail.end.is_some(), mail.silence(now))
        };
        if now - lives.sent >= HEARTBEAT {
            lives.sent = now;
            lives.let_go();
            let mut not_to: Vec<usize> = lives.saying.iter().map(|(to, _)| *to).collect();
            if ending {
                // one that has ended waits for those that have not
                not_to.extend(&ended);
            }
            self.others()
                .filter(|to| !not_to.contains(to))
                .for_each(|to| self.say(to, MessageKind::Heartbeat, lives));
        }
        // the rank that has been silent longest is the cause
        let silent = self.others().filter(|rank| !ended.contains(rank)).min_by_key(|rank| lives.heard[*rank]);
        if let Some(rank) = silent.filter(|rank| now - lives.heard[*rank] > silence) {
            let cause = format!("nothing was heard of it for {} s", silence.as_secs_f32());
            self.office.went_wrong(RankError::Lost { rank, host: self.hosts[rank].clone(), cause });
        }
    }

    /// Looks whether the threads of this rank compute: this one alone would say for ever that it is there.
    fn look_at_itself(&self, now: Instant, lives: &mut RankLiveness) {
        if let Some(since) = lives.hung {
            if now - since > LAST_WORDS {
                self.office.mail().end.get_or_insert(SpeakerEnd::Abort(1));
            }
            return;
        }
        let Some(limit) = lives.watch.hangs(&self.office.pulse, now) else { return };
        lives.hung = Some(now);
        let cause = format!("it is in a step but has computed nothing for {} s", limit.as_secs_f32());
        let message = |to| Letter { to, kind: MessageKind::Failed, message: cause.clone().into_bytes() };
        self.office.mail().outgoing.extend(self.others().map(message));
        self.went_wrong_here(cause);
    }

    /// Tells the threads of this rank what is wrong with it.
    fn went_wrong_here(&self, cause: String) {
        let (rank, host) = (self.rank, self.hosts[self.rank].clone());
        self.office.went_wrong(RankError::Failed { rank, host, cause });
    }

    /// Ends this thread: sends the cause to the other ranks, and all ranks end.
    fn give_up(&self, cause: &str) {
        self.went_wrong_here(cause.to_owned());
        // sent for as long as this process lives
        let message: &'static [u8] = cause.to_owned().into_bytes().leak();
        let send = |to: usize| {
            let process = self.world.process_at_rank(to as i32);
            process.immediate_send_with_tag(StaticScope, message, MessageKind::Failed.tag())
        };
        let mut pending: Vec<_> = self.others().map(send).collect();
        let since = Instant::now();
        while since.elapsed() < LAST_WORDS {
            self.abort_if_told();
            pending = pending.into_iter().filter_map(|request| request.test().err()).collect();
            std::thread::sleep(HEARTBEAT / 10);
        }
        self.world.abort(1);
    }

    /// Waits for work. It polls while a thread waits for a message that may arrive at any moment,
    /// then sleeps in between, longer after some time without messages. The first message after
    /// that is late by one such sleep.
    fn rest(&self, idle: Duration) {
        let mail = self.office.mail();
        if !mail.outgoing.is_empty() {
            return;
        }
        let nap = match (mail.waiting > 0, idle.as_micros()) {
            (true, ..AWAKE) => {
                drop(mail);
                return std::thread::yield_now();
            }
            _ if idle > DOZES => 2000,
            (true, _) => 200,
            (false, _) => 1000,
        };
        let rested = self.office.work.wait_timeout(mail, Duration::from_micros(nap));
        drop(rested.unwrap_or_else(PoisonError::into_inner));
    }
}
