//! Choice of the number of workers while other programs use the CPUs.
//!
//! A phase lasts as long as its slowest worker. If another program takes a third of one worker's
//! time, all workers lose it, and often more: the kernel schedules CPUs for milliseconds, and a
//! phase of a decode step takes a few hundred microseconds. Fewer workers are then faster.
//!
//! Steps are measured in windows. If workers waited for CPUs during a window, the next window runs
//! with as many workers as got CPU time, and the faster of the two teams is kept. From time to time
//! a window runs with one more worker, since the other program may have ended.
// measured: docs/notes/threads-and-placement.md "Sharing cores with another program"

use std::time::Duration;

/// Minimum length of a window: ten time slices of the kernel.
const WINDOW: Duration = Duration::from_millis(30);

/// Share of a window that a worker has to wait for a CPU before a smaller team is tried.
const DELAYED: f64 = 0.08;

/// Minimum speedup for which a smaller team is kept.
const GAIN: f64 = 1.03;

/// Time between trials; it doubles with each trial that fails.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_millis(3200);

/// A trial of another team size.
struct SizeTrial {
    /// The members before the trial.
    before: Vec<usize>,
    /// Rows per second before the trial.
    rate: f64,
    direction: usize,
}

/// Pacing of trials in one direction.
struct TrialPause {
    /// Time before which no trial begins, as `TeamSize::now`.
    next: Duration,
    pause: Duration,
}

/// The team for steps of one kind.
pub(super) struct TeamSize {
    workers: usize,
    /// The members, ascending, with worker 0.
    members: Vec<usize>,
    trial: Option<SizeTrial>,
    /// For smaller and for larger teams.
    pauses: [TrialPause; 2],
    /// Total time of steps of this kind: the clock of pauses.
    now: Duration,
    window: Duration,
    units: f64,
}

const SMALLER: usize = 0;
const LARGER: usize = 1;

impl TeamSize {
    pub(super) fn new(workers: usize) -> TeamSize {
        let pause = || TrialPause { next: Duration::ZERO, pause: FIRST_PAUSE };
        TeamSize {
            workers,
            members: (0..workers).collect(),
            trial: None,
            pauses: [pause(), pause()],
            now: Duration::ZERO,
            window: Duration::ZERO,
            units: 0.0,
        }
    }

    pub(super) fn members(&self) -> &[usize] {
        &self.members
    }

    /// Records a step of `units` rows.
    pub(super) fn record(&mut self, units: usize, took: Duration) {
        self.now += took;
        self.window += took;
        self.units += units as f64;
    }

    pub(super) fn window_is_over(&self) -> bool {
        self.window >= WINDOW
    }

    /// Ends the window and chooses the members for the next one. `delays` is the time that each
    /// member waited for a CPU during the window.
    pub(super) fn end_window(&mut self, delays: &[Duration]) {
        let rate = self.units / self.window.as_secs_f64();
        let share = |delay: &Duration| delay.as_secs_f64() / self.window.as_secs_f64();
        let smaller = smaller_team(&self.members, &Vec::from_iter(delays.iter().map(share)));
        (self.window, self.units) = (Duration::ZERO, 0.0);
        if let Some(trial) = self.trial.take() {
            let better = match trial.direction {
                SMALLER => rate > trial.rate * GAIN,
                // A larger team is kept unless it is slower, so that the pool returns to all
                // workers.
                _ => rate * GAIN > trial.rate,
            };
            let pause = &mut self.pauses[trial.direction];
            if better {
                *pause = TrialPause { next: self.now, pause: FIRST_PAUSE };
                let other = &mut self.pauses[1 - trial.direction];
                other.next = self.now + other.pause;
            } else {
                self.members = trial.before;
                pause.next = self.now + pause.pause;
                pause.pause = (pause.pause * 2).min(LAST_PAUSE);
                // Measure the old team again before the next trial: its rate from before may be out
                // of date.
                return;
            }
        }
        let missing = (0..self.workers).find(|worker| self.members.binary_search(worker).is_err());
        if let Some(smaller) = smaller.filter(|_| self.now >= self.pauses[SMALLER].next) {
            self.begin_trial(rate, SMALLER);
            self.members = smaller;
        } else if let Some(missing) = missing.filter(|_| self.now >= self.pauses[LARGER].next) {
            self.begin_trial(rate, LARGER);
            let at = self.members.partition_point(|&member| member < missing);
            self.members.insert(at, missing);
        }
    }

    fn begin_trial(&mut self, rate: f64, direction: usize) {
        self.trial = Some(SizeTrial { before: self.members.clone(), rate, direction });
    }
}

/// The members that waited least, as many as got CPU time; `None` unless a member waited for more
/// than [`DELAYED`].
fn smaller_team(members: &[usize], waited: &[f64]) -> Option<Vec<usize>> {
    if members.len() < 2 || members.len() != waited.len() || waited.iter().all(|share| *share <= DELAYED) {
        return None;
    }
    let cpus = waited.iter().map(|share| 1.0 - share.min(1.0)).sum::<f64>();
    let size = ((cpus + DELAYED) as usize).clamp(1, members.len() - 1);
    let mut order = Vec::from_iter(1..members.len());
    order.sort_by(|&one, &other| waited[one].total_cmp(&waited[other]));
    let mut team: Vec<usize> = order.into_iter().take(size - 1).map(|at| members[at]).collect();
    // the caller always takes part
    team.push(members[0]);
    team.sort_unstable();
    Some(team)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates windows on a machine with `cpus`, of which `busy` are shared with another program.
    /// Returns the sizes of the team.
    fn sizes(team: &mut TeamSize, windows: usize, cpus: usize, busy: usize) -> Vec<usize> {
        let mut sizes = Vec::new();
        for _ in 0..windows {
            let members = team.members().len();
            sizes.push(members);
            let crowded = members + busy > cpus;
            // The slowest worker has half of a CPU or less.
            let rate = if crowded { members.min(cpus) as f64 * 0.4 } else { members as f64 };
            while !team.window_is_over() {
                team.record(10, Duration::from_secs_f64(0.01 / rate));
            }
            let cpu_time = cpus as f64 - busy as f64 / 2.0;
            let delay = (1.0 - cpu_time / members as f64).max(0.0);
            let delays = vec![team.window.mul_f64(if crowded { delay } else { 0.0 }); members];
            team.end_window(&delays);
        }
        sizes
    }

    #[test]
    fn a_quiet_machine_keeps_all_workers() {
        let mut team = TeamSize::new(4);
        assert_eq!(sizes(&mut team, 200, 4, 0), vec![4; 200]);
    }

    #[test]
    fn a_busy_cpu_costs_one_worker_until_it_is_free() {
        let mut team = TeamSize::new(4);
        let busy = sizes(&mut team, 400, 4, 1);
        let of = |size| busy.iter().filter(|&&other| other == size).count();
        assert!(of(3) > 360 && of(2) == 0, "{busy:?}");
        assert!(team.members().contains(&0));
        // Trials of the larger team detect that the program has ended.
        let quiet = sizes(&mut team, 400, 4, 0);
        assert!(quiet.iter().rev().take_while(|&&size| size == 4).count() > 200, "{quiet:?}");
    }

    #[test]
    fn the_team_shrinks_to_the_number_of_cpus() {
        let mut team = TeamSize::new(8);
        let busy = sizes(&mut team, 400, 4, 0);
        assert!(busy[200..].iter().filter(|&&size| size == 4).count() > 180, "{busy:?}");
        let mut team = TeamSize::new(2);
        let busy = sizes(&mut team, 400, 2, 2);
        assert!(busy.iter().all(|&size| size >= 1));
    }

    #[test]
    fn a_delayed_worker_stays_if_the_team_is_faster_with_it() {
        let mut team = TeamSize::new(2);
        let mut smaller = 0;
        for _ in 0..1000 {
            let members = team.members().len();
            smaller += usize::from(members == 1);
            while !team.window_is_over() {
                team.record(1, Duration::from_millis(if members == 2 { 6 } else { 9 }));
            }
            team.end_window(&vec![Duration::from_millis(20); members]);
        }
        assert!((1..40).contains(&smaller), "{smaller}");
    }
}
