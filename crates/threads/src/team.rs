//! The team: the workers of a pool that run its jobs. The other workers sleep until they join a
//! team.

use super::barrier::Barrier;
use super::work_queue::WorkQueues;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The caller's command to the members of a team, which they read after its gate has opened. `J` is
/// a job.
pub(super) enum TeamCommand<J> {
    Run(J),
    /// Switch to another team; workers that are not members of it sleep.
    Regroup(Arc<WorkerTeam<J>>),
    Stop,
}

/// Workers that meet at the same barriers. A member's *position* is its index as jobs see it.
pub(super) struct WorkerTeam<J> {
    /// Indices of pool workers, ascending. The first is 0, the caller.
    pub(super) members: Box<[usize]>,
    /// Positions of the members on each memory node. Nodes without members are omitted.
    pub(super) nodes: Box<[Range<usize>]>,
    /// Barrier before and after a job.
    pub(super) gate: Barrier,
    /// Barrier inside a job. Separate, since a panic breaks it open, while members must still meet
    /// at the gate.
    pub(super) inner: Barrier,
    pub(super) work_queues: WorkQueues,
    command: UnsafeCell<TeamCommand<J>>,
}

// SAFETY: `command` is written only by the caller, before `gate` opens, and read by members after
// it.
unsafe impl<J: Send + Sync> Sync for WorkerTeam<J> {}

/// A worker outside the team: what it sleeps on, and the team that it joins next.
pub(super) struct IdleWorker<J> {
    /// Barrier of the caller (0) and the worker (1). Without spinning: a worker may sleep for a
    /// long time.
    wake_up: Barrier,
    /// The team that the worker joins; `None` if the pool ends.
    next_team: Mutex<Option<Arc<WorkerTeam<J>>>>,
}

impl<J> IdleWorker<J> {
    pub(super) fn new(cpus: usize) -> IdleWorker<J> {
        IdleWorker { wake_up: Barrier::new(&[0..1, 1..2], Duration::ZERO, cpus), next_team: Mutex::new(None) }
    }

    /// Wakes the worker, which has left its team and sleeps, or will call [`sleep`](Self::sleep).
    /// Waits until it does.
    pub(super) fn wake(&self, team: Option<Arc<WorkerTeam<J>>>) {
        *self.next_team.lock().unwrap_or_else(PoisonError::into_inner) = team;
        self.wake_up.wait(0);
    }

    fn sleep(&self) -> Option<Arc<WorkerTeam<J>>> {
        self.wake_up.wait(1);
        self.next_team.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<J> WorkerTeam<J> {
    /// A team of these workers. `nodes` has the workers of the pool on each memory node.
    pub(super) fn new(
        members: &[usize],
        nodes: &[Range<usize>],
        spin: Duration,
        cpus: usize,
    ) -> WorkerTeam<J> {
        let positions = |node: &Range<usize>| {
            members.partition_point(|&member| member < node.start)
                ..members.partition_point(|&member| member < node.end)
        };
        let nodes: Box<[Range<usize>]> =
            nodes.iter().map(positions).filter(|node| !node.is_empty()).collect();
        WorkerTeam {
            members: members.into(),
            gate: Barrier::new(&nodes, spin, cpus),
            inner: Barrier::new(&nodes, spin, cpus),
            work_queues: WorkQueues::new(nodes.len()),
            nodes,
            command: UnsafeCell::new(TeamCommand::Stop),
        }
    }

    pub(super) fn position(&self, worker: usize) -> Option<usize> {
        self.members.binary_search(&worker).ok()
    }

    /// Sets the command that members read when the gate opens.
    ///
    /// # Safety
    /// Only the thread that waits at the gate as position 0 calls this, while all other members
    /// wait at the gate or are about to.
    pub(super) unsafe fn set_command(&self, command: TeamCommand<J>) {
        // SAFETY: members read it only after the gate opens, which needs this thread.
        unsafe { *self.command.get() = command };
    }
}

/// Main loop of a worker other than the caller. `run` runs a job at a position of a team.
pub(super) fn work<J: Copy>(
    idle: &[IdleWorker<J>],
    index: usize,
    mut team: Arc<WorkerTeam<J>>,
    run: impl Fn(&WorkerTeam<J>, usize, J),
) {
    let Some(mut position) = team.position(index) else { return };
    loop {
        if !team.gate.wait(position) {
            return;
        }
        // SAFETY: the caller has set the command before it opened the gate, and changes it only
        // after all members have met at the gate again.
        let next = match unsafe { &*team.command.get() } {
            TeamCommand::Stop => return,
            TeamCommand::Run(job) => {
                run(&team, position, *job);
                None
            }
            TeamCommand::Regroup(next) => Some(Arc::clone(next)),
        };
        // For `Run`, the job's borrow ends here. For `Regroup`, the caller may drop the old team
        // after this.
        if !team.gate.wait(position) {
            return;
        }
        let Some(mut next) = next else { continue };
        if next.position(index).is_none() {
            let Some(joined) = idle[index].sleep() else { return };
            next = joined;
        }
        team = next;
        let Some(own) = team.position(index) else { return };
        position = own;
    }
}
