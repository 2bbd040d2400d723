//! The MPI thread, which makes all MPI calls.

use crate::mailbox::{
    MessageKind, MpiMailbox, MpiThreadEnd, MpiWorld, OutgoingMessage, SILENCE, SPIN_MICROS,
};
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

/// Interval of heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(250);

/// Time for the threads of a failed rank to end the job in order, before this thread aborts it.
/// They may all hang.
const FAILURE_GRACE: Duration = Duration::from_secs(2);

/// Time without messages after which the thread polls less often.
const IDLE: Duration = Duration::from_secs(1);

/// Maximum bytes of a host's name, which are exchanged in a fixed size.
const NAME: usize = 64;

/// Runs the MPI thread until it is told to end.
pub(crate) fn run(mailbox: &MpiMailbox, started: &Sender<MpiWorld>) {
    // Funneled: only this thread calls MPI. MPI libraries are slower with more, or do not support
    // it.
    let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else { return };
    let world = universe.world();
    let hosts = hosts(&world);
    let (rank, ranks) = (world.rank() as usize, hosts.len());
    let thread = MpiThread { world: &world, mailbox, rank, hosts: hosts.clone() };
    let now = Instant::now();
    let mut liveness = RankLiveness {
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
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| thread.run(&mut liveness))) {
        thread.give_up(&format!("its MPI thread panicked: {}", panic_text(&*panic)));
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

/// Liveness of all ranks.
struct RankLiveness {
    /// When the last message of each rank arrived.
    heard: Vec<Instant>,
    /// When the last heartbeats were sent.
    sent: Instant,
    /// When liveness was last checked.
    checked: Instant,
    /// Pending messages about this rank, with their receivers. Nonblocking, since even a buffered
    /// send does not return if the receiver is stopped.
    saying: Vec<(usize, Request<'static, [u8], StaticScope>)>,
    /// Detects that this rank's threads hang.
    watch: PulseWatch,
    /// When a hang was detected.
    hung: Option<Instant>,
}

impl RankLiveness {
    /// Drops the requests that have completed.
    fn drop_sent(&mut self) {
        for (to, request) in std::mem::take(&mut self.saying) {
            if let Err(pending) = request.test() {
                self.saying.push((to, pending));
            }
        }
    }
}

struct MpiThread<'w> {
    world: &'w SimpleCommunicator,
    mailbox: &'w MpiMailbox,
    rank: usize,
    hosts: Vec<String>,
}

impl MpiThread<'_> {
    fn run(&self, liveness: &mut RankLiveness) {
        let mut busy = Instant::now();
        let mut said = false;
        loop {
            self.abort_if_told();
            let (next, end) = {
                let mut mail = self.mailbox.mail();
                let next = mail.outgoing.pop_front();
                mail.sending = next.is_some();
                (next, mail.end)
            };
            if end == Some(MpiThreadEnd::InOrder) && next.is_none() && self.has_ended(&mut said, liveness) {
                return;
            }
            let mut worked = self.take_in(liveness);
            if let Some(outgoing) = next {
                self.send(&outgoing, liveness);
                worked = true;
            }
            self.look_after(liveness);
            if worked {
                busy = Instant::now();
            } else {
                self.rest(busy.elapsed());
            }
        }
    }

    /// Tells the other ranks once that this one has ended. Returns whether all ranks have ended.
    fn has_ended(&self, said: &mut bool, liveness: &mut RankLiveness) -> bool {
        // MPI_Finalize waits for all ranks without a time limit, so it is called only when all are
        // ready for it.
        if !std::mem::replace(said, true) {
            self.others().for_each(|to| self.say(to, MessageKind::Ended, liveness));
        }
        liveness.drop_sent();
        let mut mail = self.mailbox.mail();
        let all = self.others().all(|rank| mail.ended.contains(&rank));
        if all {
            mail.closing.get_or_insert_with(Instant::now);
        }
        all && liveness.saying.is_empty()
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let rank = self.rank;
        (0..self.hosts.len()).filter(move |to| *to != rank)
    }

    /// Sends a message.
    fn send(&self, outgoing: &OutgoingMessage, liveness: &mut RankLiveness) {
        let process = self.world.process_at_rank(outgoing.to as i32);
        mpi::request::scope(|scope| {
            let mut request =
                process.immediate_send_with_tag(scope, &outgoing.message[..], outgoing.kind.tag());
            // Receives meanwhile: two ranks that send long messages to each other would deadlock,
            // since each send completes only when it is received.
            while let Err(pending) = request.test() {
                request = pending;
                self.take_in(liveness);
                self.wait_on(liveness);
            }
        });
    }

    /// Starts to send an empty message, without waiting.
    fn say(&self, to: usize, kind: MessageKind, liveness: &mut RankLiveness) {
        let process = self.world.process_at_rank(to as i32);
        liveness.saying.push((to, process.immediate_send_with_tag(StaticScope, &[][..], kind.tag())));
    }

    /// Receives all messages that have arrived. Returns whether any was for another thread.
    fn take_in(&self, liveness: &mut RankLiveness) -> bool {
        let mut any = false;
        while let Some(arrived) = self.world.any_process().immediate_matched_probe() {
            any |= self.take(arrived, liveness);
        }
        any
    }

    /// Receives only messages about ranks. Used while a message of a channel is being received,
    /// which later ones must not overtake.
    fn listen(&self, liveness: &mut RankLiveness) {
        for kind in [MessageKind::Heartbeat, MessageKind::Failed, MessageKind::Ended] {
            while let Some(arrived) = self.world.any_process().immediate_matched_probe_with_tag(kind.tag()) {
                self.take(arrived, liveness);
            }
        }
    }

    /// Receives one message. Returns whether it is for another thread.
    fn take(&self, (message, status): (Message, Status), liveness: &mut RankLiveness) -> bool {
        let (from, kind) = (status.source_rank() as usize, MessageKind::of_tag(status.tag()));
        let bytes = status.count(u8::equivalent_datatype()) as usize;
        let message = self.receive(message, bytes, liveness);
        if let Some(heard) = liveness.heard.get_mut(from) {
            *heard = Instant::now();
        }
        match kind {
            Some(MessageKind::On(channel)) => {
                self.mailbox.mail().arrived.entry((from, channel)).or_default().push_back(message);
                self.mailbox.wake();
                return true;
            }
            Some(MessageKind::Failed) => {
                let cause = String::from_utf8_lossy(&message).into_owned();
                self.mailbox.went_wrong(RankError::Failed {
                    rank: from,
                    host: self.hosts[from].clone(),
                    cause,
                });
            }
            Some(MessageKind::Ended) => {
                self.mailbox.mail().ended.push(from);
                self.mailbox.wake();
            }
            Some(MessageKind::Heartbeat) | None => {}
        }
        false
    }

    /// Receives the content of a message, which may never complete if its sender is lost.
    fn receive(&self, message: Message, bytes: usize, liveness: &mut RankLiveness) -> Vec<u8> {
        let mut content = vec![0; bytes];
        mpi::request::scope(|scope| {
            let mut request = message.immediate_matched_receive_into(scope, &mut content[..]);
            while let Err(pending) = request.test() {
                request = pending;
                self.listen(liveness);
                self.wait_on(liveness);
            }
        });
        content
    }

    /// One iteration of waiting for another rank, which may be lost.
    fn wait_on(&self, liveness: &mut RankLiveness) {
        self.look_after(liveness);
        self.abort_if_told();
        std::thread::yield_now();
    }

    fn abort_if_told(&self) {
        if let Some(MpiThreadEnd::Abort(code)) = self.mailbox.mail().end {
            self.world.abort(code);
        }
    }

    /// Sends heartbeats, and checks for lost ranks.
    fn look_after(&self, liveness: &mut RankLiveness) {
        let now = Instant::now();
        // Callers poll in a loop, and these checks take locks.
        if now - liveness.checked < HEARTBEAT / 10 {
            return;
        }
        // This process was stopped (SIGSTOP, or a suspended machine) and has received nothing
        // meanwhile. That does not mean that the others are lost.
        if now - liveness.checked > SILENCE / 4 {
            liveness.heard.fill(now);
            liveness.watch.forget(now);
        }
        liveness.checked = now;
        self.look_at_itself(now, liveness);
        let (ended, ending, silence) = {
            let mail = self.mailbox.mail();
            (mail.ended.clone(), mail.end.is_some(), mail.silence(now))
        };
        if now - liveness.sent >= HEARTBEAT {
            liveness.sent = now;
            liveness.drop_sent();
            // A receiver that has not taken the last heartbeat gets no other one. Requests would
            // pile up for a stopped rank.
            let mut not_to: Vec<usize> = liveness.saying.iter().map(|(to, _)| *to).collect();
            if ending {
                // Ranks that have ended do not receive any more.
                not_to.extend(&ended);
            }
            self.others()
                .filter(|to| !not_to.contains(to))
                .for_each(|to| self.say(to, MessageKind::Heartbeat, liveness));
        }
        // The rank that has been silent longest is probably the cause of the others' silence.
        let silent =
            self.others().filter(|rank| !ended.contains(rank)).min_by_key(|rank| liveness.heard[*rank]);
        if let Some(rank) = silent.filter(|rank| now - liveness.heard[*rank] > silence) {
            let cause = format!("it has not responded for {} s", silence.as_secs_f32());
            self.mailbox.went_wrong(RankError::Lost { rank, host: self.hosts[rank].clone(), cause });
        }
    }

    /// Checks that the threads of this rank make progress. Without this check, a hanging rank would
    /// send heartbeats forever.
    fn look_at_itself(&self, now: Instant, liveness: &mut RankLiveness) {
        if let Some(since) = liveness.hung {
            if now - since > FAILURE_GRACE {
                self.mailbox.mail().end.get_or_insert(MpiThreadEnd::Abort(1));
            }
            return;
        }
        let Some(limit) = liveness.watch.hangs(&self.mailbox.pulse, now) else { return };
        liveness.hung = Some(now);
        let cause = format!("it is in a step but has computed nothing for {} s", limit.as_secs_f32());
        let message =
            |to| OutgoingMessage { to, kind: MessageKind::Failed, message: cause.clone().into_bytes() };
        self.mailbox.mail().outgoing.extend(self.others().map(message));
        self.went_wrong_here(cause);
    }

    /// Reports a failure of this rank to its own threads.
    fn went_wrong_here(&self, cause: String) {
        let (rank, host) = (self.rank, self.hosts[self.rank].clone());
        self.mailbox.went_wrong(RankError::Failed { rank, host, cause });
    }

    /// Handles a panic of this thread: sends the cause to the other ranks, and aborts the job.
    fn give_up(&self, cause: &str) {
        self.went_wrong_here(cause.to_owned());
        // Leaked: the sends may still be pending when the process ends.
        let message: &'static [u8] = cause.to_owned().into_bytes().leak();
        let send = |to: usize| {
            let process = self.world.process_at_rank(to as i32);
            process.immediate_send_with_tag(StaticScope, message, MessageKind::Failed.tag())
        };
        let mut pending: Vec<_> = self.others().map(send).collect();
        let since = Instant::now();
        while since.elapsed() < FAILURE_GRACE {
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
        let mail = self.mailbox.mail();
        if !mail.outgoing.is_empty() {
            return;
        }
        let nap = match (mail.waiting > 0, idle.as_micros()) {
            (true, ..SPIN_MICROS) => {
                drop(mail);
                return std::thread::yield_now();
            }
            // 500 polls per second take little time of a core that other programs may need.
            _ if idle > IDLE => 2000,
            (true, _) => 200,
            (false, _) => 1000,
        };
        let rested = self.mailbox.work.wait_timeout(mail, Duration::from_micros(nap));
        drop(rested.unwrap_or_else(PoisonError::into_inner));
    }
}
