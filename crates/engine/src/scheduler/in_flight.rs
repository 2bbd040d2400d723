//! Pipelined steps over ranks that share the model layer by layer. While later ranks run one step,
//! the first rank begins the next, with other jobs or with the next tokens of a prompt.
//!
//! Every rank accesses the KV cache in the order in which the steps began. A job may therefore end,
//! or release its blocks, while its tokens are in flight.

use super::Scheduler;
use super::compose::StepPlan;
use super::ending::JobEnding;
use super::flights::{JobFlight, Member};
use super::guarded_listener::GuardedListener;
use super::task::ScheduledJob;
use crate::cache::BlockHash;
use crate::error::EngineError;
use std::collections::HashSet;
use std::time::Instant;

impl Scheduler {
    /// Submits a step, if the plan has members. Collects the oldest step if the queue is full or
    /// the plan is empty.
    pub(super) fn run_in_flight(
        &mut self,
        plan: &StepPlan,
        members: Vec<Member>,
        listener: &mut GuardedListener<'_>,
    ) -> Result<(), EngineError> {
        let nothing = members.is_empty();
        if !nothing {
            let now = (self.options.clock)();
            self.emit_started(&members, now, listener);
            self.take_off(plan, members, now, listener)?;
        }
        let full = self.flights.len() >= self.engine.steps_in_flight();
        // With an empty plan, all jobs wait for results of steps in flight.
        if full || nothing { self.land(listener) } else { Ok(()) }
    }

    /// Begins a step.
    fn take_off(
        &mut self,
        plan: &StepPlan,
        members: Vec<Member>,
        now: Instant,
        listener: &mut GuardedListener<'_>,
    ) -> Result<(), EngineError> {
        // Other ranks have the step as soon as it is submitted, so it cannot be cancelled. An empty
        // job list means that `Canceller::cancel` stops no step; the token still stops the
        // submission when `stop_step` is called.
        let own = self.engine.set_cancel_token(self.canceller.begin_step(Vec::new()));
        let mut running: Vec<_> =
            self.running.iter_mut().filter_map(|task| task.run(plan.share(task.id))).collect();
        let begun = self.engine.begin_advance(&mut running);
        self.engine.set_cancel_token(own);
        let (advancing, results) = match begun {
            Ok(begun) => begun,
            Err(EngineError::Stopped) => return Ok(()),
            Err(error) => return Err(self.crash(members, error, listener)),
        };
        let mut flying = Vec::new();
        for (member, result) in members.into_iter().zip(results) {
            // Jobs without tokens to run have their result already.
            let Some(result) = result else {
                flying.push(member);
                continue;
            };
            let end = self.handle_result(member.id, member.share, result, now, listener);
            if let Some(end) = listener.take_panic(member.id).map(JobEnding::Failed).or(end) {
                self.end_by_id(member.id, end, listener);
            }
        }
        self.flights.extend(advancing.map(|advancing| JobFlight { members: flying, advancing, began: now }));
        Ok(())
    }

    /// Ends the oldest step.
    fn land(&mut self, listener: &mut GuardedListener<'_>) -> Result<(), EngineError> {
        let Some(JobFlight { members, advancing, began }) = self.flights.pop_front() else { return Ok(()) };
        // In the order of the members. `None` for jobs that have ended or lost their blocks since.
        let mut running: Vec<_> = members.iter().map(|_| None).collect();
        for task in &mut self.running {
            if let Some(at) = members.iter().position(|member| member.is(task)) {
                running[at] = task.run(members[at].share);
            }
        }
        let gone: Vec<bool> = running.iter().map(Option::is_none).collect();
        let results = match self.engine.end_advance(advancing, &mut running) {
            Ok(results) => results,
            Err(error) => return Err(self.crash(members, error, listener)),
        };
        let now = (self.options.clock)();
        // Steps overlap: only the time after the previous one ended counts as the time of this one.
        let since = self.landed.replace(now).map_or(began, |landed| landed.max(began));
        let there = members.into_iter().zip(results).zip(gone).filter(|(_, gone)| !gone);
        let (members, results): (Vec<_>, Vec<_>) = there.map(|(member, _)| member).unzip();
        self.count_step(&members, &results, now.saturating_duration_since(since));
        for (member, result) in members.into_iter().zip(results) {
            let end = self.handle_result(member.id, member.share, result, now, listener);
            if let Some(end) = listener.take_panic(member.id).map(JobEnding::Failed).or(end) {
                self.end_by_id(member.id, end, listener);
            }
        }
        Ok(())
    }

    /// Ends the jobs of a failed step and of all other steps in flight, whose results can no longer
    /// be collected.
    fn crash(
        &mut self,
        members: Vec<Member>,
        error: EngineError,
        listener: &mut GuardedListener<'_>,
    ) -> EngineError {
        let others = std::mem::take(&mut self.flights).into_iter().flat_map(|flight| flight.members);
        for member in members.into_iter().chain(others) {
            if self.running.iter().any(|task| member.is(task)) {
                self.end_by_id(member.id, JobEnding::Engine(error.to_string()), listener);
            }
        }
        error
    }

    fn in_flight(&self, task: &ScheduledJob) -> impl Iterator<Item = &Member> {
        let members = self.flights.iter().flat_map(|flight| &flight.members);
        members.filter(|member| member.is(task))
    }

    /// Number of prompt tokens that have run.
    pub(super) fn rows_done(&self, task: &ScheduledJob) -> usize {
        // A sequence counts its rows when a step is submitted, so those in flight are subtracted.
        let flying: usize = self.in_flight(task).map(|member| member.share).sum();
        (task.sequence.len() - flying.min(task.sequence.len())).min(task.prompt_len)
    }

    /// The names of the blocks that prompts in flight compute or will compute. Prompts with the
    /// same prefix wait for these blocks.
    pub(super) fn computed_in_flight(&self) -> HashSet<BlockHash> {
        let prompts = self.running.iter().filter(|task| !task.embed && task.prompt_done.is_none());
        let flying = prompts.filter(|task| self.in_flight(task).next().is_some());
        flying.flat_map(|task| task.chain.names().iter().skip(task.kept).copied()).collect()
    }
}
