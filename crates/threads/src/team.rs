//! The workers of a pool that take part in its jobs at present. The others sleep until they are called.

use super::barrier::Barrier;
use super::work_queue::WorkQueues;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What the caller tells the members of a team at its gate. `J` is a job.
pub(super) enum TeamOrder<J> {
    Run(J),
    /// Go over to another team, or to sleep if the worker is not a member of it.
    Regroup(Arc<WorkerTeam<J>>),
    Stop,
}

/// Workers that meet at the same barriers. A member's *position* is its index as jobs see it.
pub(super) struct WorkerTeam<J> {
    /// Indices of pool workers, ascending. The first is 0, the caller.
    pub(super) members: Box<[usize]>,
    /// Positions of the members on each memory node. Nodes without members are left out.
    pub(super) nodes: Box<[Range<usize>]>,
    /// Where members meet before and after a job.
    pub(super) gate: Barrier,
    /// Where members meet inside a job.
    pub(super) inner: Barrier,
    pub(super) work_queues: WorkQueues,
    order: UnsafeCell<TeamOrder<J>>,
}

// SAFETY: `order` is written by the caller alone, before `gate` opens, and read by members after it.
unsafe impl<J: Send + Sync> Sync for WorkerTeam<J> {}

/// Where one worker sleeps while it is not in the team.
pub(super) struct WorkerBench<J> {
    /// The caller (0) and the worker (1).
    door: Barrier,
    /// The team that the worker joins; none when the pool ends.
    called: Mutex<Option<Arc<WorkerTeam<J>>>>,
}

impl<J> WorkerBench<J> {
    pub(super) fn new(cpus: usize) -> WorkerBench<J> {
        WorkerBench { door: Barrier::new(&[0..1, 1..2], Duration::ZERO, cpus), called: Mutex::new(None) }
    }

    /// Wakes the worker. Called when the worker is on its way here or sleeps.
    pub(super) fn call(&self, team: Option<Arc<WorkerTeam<J>>>) {
        *self.called.lock().unwrap_or_else(PoisonError::into_inner) = team;
        self.door.wait(0);
    }

    fn sleep(&self) -> Option<Arc<WorkerTeam<J>>> {
        self.door.wait(1);
        self.called.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<J> WorkerTeam<J> {
    /// A team of these workers, of which `nodes` says who is on which memory node.
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
            order: UnsafeCell::new(TeamOrder::Stop),
        }
    }

    pub(super) fn position(&self, worker: usize) -> Option<usize> {
        self.members.binary_search(&worker).ok()
    }

    /// Gives the order that members find when the gate opens.
    ///
    /// # Safety
    /// The caller is the one that waits at the gate as position 0, and all other members wait at the gate or are on their way to it.
    pub(super) unsafe fn set_order(&self, order: TeamOrder<J>) {
        // SAFETY: no member reads it before the gate opens, which needs the caller
        unsafe { *self.order.get() = order };
    }
}

/// The life of a worker other than the caller. `run` runs a job at a position of a team.
pub(super) fn work<J: Copy>(
    benches: &[WorkerBench<J>],
    index: usize,
    mut team: Arc<WorkerTeam<J>>,
    run: impl Fn(&WorkerTeam<J>, usize, J),
) {
    let Some(mut position) = team.position(index) else { return };
    loop {
        if !team.gate.wait(position) {
            return;
        }
        // SAFETY: the caller has set the order before it opened the gate, and changes it when all members have met at the gate again.
        let next = match unsafe { &*team.order.get() } {
            TeamOrder::Stop => return,
            TeamOrder::Run(job) => {
                run(&team, position, *job);
                None
            }
            TeamOrder::Regroup(next) => Some(Arc::clone(next)),
        };
        if !team.gate.wait(position) {
            return;
        }
        let Some(mut next) = next else { continue };
        if next.position(index).is_none() {
            let Some(called) = benches[index].sleep() else { return };
            next = called;
        }
        team = next;
        let Some(own) = team.position(index) else { return };
        position = own;
    }
}
