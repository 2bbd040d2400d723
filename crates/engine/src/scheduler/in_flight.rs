//! Several steps at once, where ranks share the model layer by layer: while later ranks run one, the first begins the next, with other jobs or with the
//! next tokens of a prompt. What a step reads and writes of the KV cache happens on every rank in the order in which the steps began, so that a job may end, or
//! give its blocks away, while its tokens are on their way.

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
            self.say_started(&members, now, listener);
            self.take_off(plan, members, now, listener)?;
        }
        let full = self.flights.len() >= self.engine.steps_in_flight();
        if full || nothing { self.land(listener) } else { Ok(()) }
    }

    fn take_off(
        &mut self,
        plan: &StepPlan,
        members: Vec<Member>,
        now: Instant,
        listener: &mut GuardedListener<'_>,
    ) -> Result<(), EngineError> {
        // nothing can be stopped on its way
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
            let Some(result) = result else {
                flying.push(member);
                continue;
            };
            let end = self.follow(member.id, member.share, result, now, listener);
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
        // in the order of the members; none for those that are gone
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
        let since = self.landed.replace(now).map_or(began, |landed| landed.max(began));
        let there = members.into_iter().zip(results).zip(gone).filter(|(_, gone)| !gone);
        let (members, results): (Vec<_>, Vec<_>) = there.map(|(member, _)| member).unzip();
        self.count_step(&members, &results, now.saturating_duration_since(since));
        for (member, result) in members.into_iter().zip(results) {
            let end = self.follow(member.id, member.share, result, now, listener);
            if let Some(end) = listener.take_panic(member.id).map(JobEnding::Failed).or(end) {
                self.end_by_id(member.id, end, listener);
            }
        }
        Ok(())
    }

    /// A step has failed, and with it all that are in flight.
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

    /// Tokens of its prompt that have run.
    pub(super) fn rows_done(&self, task: &ScheduledJob) -> usize {
        let flying: usize = self.in_flight(task).map(|member| member.share).sum();
        (task.sequence.len() - flying.min(task.sequence.len())).min(task.prompt_len)
    }

    /// The names of the blocks that prompts in flight compute, or are about to: others with the same prefix wait for them.
    pub(super) fn computed_in_flight(&self) -> HashSet<BlockHash> {
        let prompts = self.running.iter().filter(|task| !task.embed && task.prompt_done.is_none());
        let flying = prompts.filter(|task| self.in_flight(task).next().is_some());
        flying.flat_map(|task| task.chain.names().iter().skip(task.kept).copied()).collect()
    }
}
