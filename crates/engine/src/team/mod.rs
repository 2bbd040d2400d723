//! The team of threads: one persistent set that runs every phase of every step.
//!
//! The caller is member 0 and works too, so that a team of one starts no thread at all. Between phases members meet at a
//! [barrier](Member::barrier). Each member computes its own share of the work from its index, so that nothing is handed out.
#![allow(
    unsafe_code,
    reason = "a job borrowed by the caller is run by threads that outlive the borrow's type"
)]

mod barrier;

use barrier::Barrier;
use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What members run: a borrowed closure with its lifetime erased.
type Job = *const (dyn Fn(&Member<'_>) + Sync);

struct Shared {
    /// Everybody meets here before and after a job.
    gate: Barrier,
    /// Members meet here inside a job.
    inner: Barrier,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    /// The first panic of a member in the present job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written by the caller alone, before `gate` opens, and read by members after it; the pointee is Sync.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it is bound to a thread.
unsafe impl Send for Shared {}

/// A persistent team of threads.
pub struct Team {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    threads: usize,
}

/// One member of a running team, as its job sees it.
pub struct Member<'a> {
    /// 0 ≤ index < count.
    pub index: usize,
    /// Members of the team.
    pub count: usize,
    inner: &'a Barrier,
}

impl Team {
    /// A team of `threads` members (at least one), the caller counted.
    ///
    /// # Errors
    /// When the operating system refuses to start a thread.
    pub fn new(threads: usize) -> std::io::Result<Team> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            gate: Barrier::new(threads),
            inner: Barrier::new(threads),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut team = Team { shared, handles: Vec::new(), threads };
        for index in 1..threads {
            let shared = Arc::clone(&team.shared);
            let builder = std::thread::Builder::new().name(format!("latent-{index}"));
            match builder.spawn(move || worker(&shared, index, threads)) {
                Ok(handle) => team.handles.push(handle),
                Err(error) => {
                    // those already started wait at a gate that would never open
                    team.shared.gate.break_open();
                    return Err(error);
                }
            }
        }
        Ok(team)
    }

    /// Members, the caller counted.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `job` on every member and returns when all are done.
    ///
    /// # Panics
    /// With the panic of a member, after every member has stopped.
    pub fn run(&mut self, job: &(dyn Fn(&Member<'_>) + Sync)) {
        // SAFETY: only the lifetime changes; members use the job between the two gates below, while `job` is borrowed.
        let erased: Job =
            unsafe { std::mem::transmute::<*const (dyn Fn(&Member<'_>) + Sync + '_), Job>(job) };
        // SAFETY: every worker waits at the gate, so that nobody else touches `job`.
        unsafe { *self.shared.job.get() = Some(erased) };
        self.shared.gate.wait();
        let member = Member { index: 0, count: self.threads, inner: &self.shared.inner };
        run_caught(&self.shared, &member, job);
        self.shared.gate.wait();
        let panic = self.shared.panic.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(panic) = panic {
            self.shared.inner.reset();
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if self.handles.len() + 1 == self.threads {
            self.shared.gate.wait();
        }
        for handle in self.handles.drain(..) {
            // a worker catches the panics of its jobs, so that joining cannot fail
            let _ = handle.join();
        }
    }
}

fn worker(shared: &Shared, index: usize, count: usize) {
    let member = Member { index, count, inner: &shared.inner };
    loop {
        if !shared.gate.wait() || shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the caller has set the job before it opened the gate, and keeps it alive until the next gate.
        if let Some(job) = unsafe { *shared.job.get() } {
            // SAFETY: as above.
            run_caught(shared, &member, unsafe { &*job });
        }
        if !shared.gate.wait() {
            return;
        }
    }
}

/// Runs the job; a panic is kept for the caller and frees those who wait inside the job.
fn run_caught(shared: &Shared, member: &Member<'_>, job: &(dyn Fn(&Member<'_>) + Sync)) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(member))) {
        let mut first = shared.panic.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        first.get_or_insert(panic);
        drop(first);
        shared.inner.break_open();
    }
}

impl Member<'_> {
    /// Waits until every member is here.
    ///
    /// # Panics
    /// When another member has panicked: the job cannot go on.
    pub fn barrier(&self) {
        assert!(self.inner.wait(), "another thread of the team has panicked");
    }

    /// This member's share of `n` things that come in units of `unit`: contiguous, in order, and all shares together are all things.
    pub fn share(&self, n: usize, unit: usize) -> Range<usize> {
        let units = n.div_ceil(unit);
        let at = |index: usize| (units * index / self.count * unit).min(n);
        at(self.index)..at(self.index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn every_member_runs_every_phase() {
        for threads in [1, 2, 3, 7] {
            let mut team = Team::new(threads).unwrap();
            let counts: Vec<AtomicUsize> = (0..50).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..20 {
                team.run(&|member| {
                    for count in &counts {
                        count.fetch_add(1, Ordering::Relaxed);
                        member.barrier();
                        assert_eq!(count.load(Ordering::Relaxed) % threads, 0);
                        member.barrier();
                    }
                });
            }
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 20 * threads));
        }
    }

    #[test]
    fn shares_cover_everything_once() {
        let inner = Barrier::new(1);
        for n in [0, 1, 15, 16, 17, 1000] {
            for count in [1, 2, 3, 7, 64] {
                let mut end = 0;
                for index in 0..count {
                    let share = Member { index, count, inner: &inner }.share(n, 16);
                    assert_eq!(share.start, end);
                    assert!(share.start.is_multiple_of(16) || share.is_empty());
                    end = share.end;
                }
                assert_eq!(end, n);
            }
        }
    }

    #[test]
    fn a_panic_of_one_member_reaches_the_caller_and_the_team_lives_on() {
        let mut team = Team::new(3).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            team.run(&|member| {
                assert!(member.index != 1, "member one fails");
                member.barrier();
            });
        }));
        assert!(caught.is_err());
        let count = AtomicUsize::new(0);
        team.run(&|member| {
            member.barrier();
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }
}
