//! Runs a step and processes its results for each job.

use super::Scheduler;
use super::compose::StepPlan;
use super::ending::JobEnding;
use super::event::JobEvent;
use super::fairness::CHOSEN;
use super::flights::Member;
use super::guarded_listener::GuardedListener;
use super::job::JobId;
use super::task::ScheduledJob;
use crate::advance::AnswerProgress;
use crate::error::EngineError;
use crate::generation::ChosenToken;
use crate::request::StopReason;
use crate::seq_error::SeqError;
use std::time::{Duration, Instant};

/// Slots of recurrent state that a job needs to run alone: the state before a step, and the state
/// after it.
const SLOTS_ALONE: usize = 2;

/// A job that finds no slots although it runs alone fails after this number of preemptions.
/// Otherwise a slot that is never released would make the scheduler retry forever.
const MAX_PREEMPTIONS: u32 = 64;

impl Scheduler {
    /// Runs a plan.
    pub(super) fn run(
        &mut self,
        plan: &StepPlan,
        listener: &mut GuardedListener<'_>,
    ) -> Result<(), EngineError> {
        let start = (self.options.clock)();
        let members = self.members(plan);
        if self.engine.steps_in_flight() > 1 {
            return self.run_in_flight(plan, members, listener);
        }
        if members.is_empty() {
            return Ok(());
        }
        self.emit_started(&members, start, listener);
        let stops = self.canceller.begin_step(members.iter().map(|member| member.id).collect());
        let own = self.engine.set_cancel_token(stops);
        let results = self.advance(plan);
        self.canceller.end_step();
        // The step's token may be cancelled by now. It must not stop later work of the engine.
        self.engine.set_cancel_token(own);
        let now = (self.options.clock)();
        let results = match results {
            Ok(results) => results,
            // Either all jobs of the step were cancelled and end next, or `stop_step` was called
            // and the next step runs the same tokens again.
            Err(EngineError::Stopped) => return Ok(()),
            // The jobs stay, for `suspend`.
            Err(error) if self.options.outlives_device && error.is_lost() => return Err(error),
            Err(error) => {
                for Member { id, .. } in members {
                    self.end_by_id(id, JobEnding::Engine(error.to_string()), listener);
                }
                return Err(error);
            }
        };
        self.count_step(&members, &results, now.saturating_duration_since(start));
        for (Member { id, share, .. }, result) in members.into_iter().zip(results) {
            let end = self.handle_result(id, share, result, now, listener);
            if let Some(end) = listener.take_panic(id).map(JobEnding::Failed).or(end) {
                self.end_by_id(id, end, listener);
            }
        }
        Ok(())
    }

    /// Chooses tokens from logits of earlier steps, for jobs whose logits processors were not ready
    /// then. If no other job can run, waits for the first processor, for a bounded time.
    pub(super) fn sample_late(&mut self, listener: &mut GuardedListener<'_>) {
        // Without the wait, the owner's loop would spin until a processor is ready.
        let alone = self.flights.is_empty() && self.running.iter().all(ScheduledJob::is_late);
        let late = self.running.iter_mut().filter(|task| task.is_late());
        let (ids, mut generations): (Vec<JobId>, Vec<_>) =
            late.filter_map(|task| Some((task.id, task.generation.as_mut()?))).unzip();
        if ids.is_empty() {
            return;
        }
        let results = self.engine.sample_late(&mut generations, alone);
        let now = (self.options.clock)();
        for (id, result) in ids.into_iter().zip(results) {
            let end = self.handle_result(id, 1, result, now, listener);
            if let Some(end) = listener.take_panic(id).map(JobEnding::Failed).or(end) {
                self.end_by_id(id, end, listener);
            }
        }
    }

    /// The jobs of a plan, in the order in which they run.
    fn members(&self, plan: &StepPlan) -> Vec<Member> {
        let member = |task: &ScheduledJob| Member {
            id: task.id,
            preemptions: task.usage.preemptions,
            share: plan.share(task.id),
            decodes: task.decodes(),
        };
        self.running.iter().map(member).filter(|member| member.share > 0).collect()
    }

    /// Counts a step, and updates the measured speeds.
    pub(super) fn count_step(
        &mut self,
        members: &[Member],
        results: &[Result<AnswerProgress, EngineError>],
        took: Duration,
    ) {
        // Jobs that ran no tokens, such as an answer of no tokens, must not count with their share
        // of the plan. The time per prompt token would be too short, and prompts would then delay
        // decoding jobs for too long.
        let waited = |result: &Result<AnswerProgress, EngineError>| {
            matches!(result, Ok(AnswerProgress::Waited) | Err(EngineError::Sequence { .. }))
        };
        let ran = members.iter().zip(results).filter(|(_, result)| !waited(result)).map(|(member, _)| member);
        let (decoding, prompts): (Vec<&Member>, Vec<&Member>) = ran.partition(|member| member.decodes);
        let (decoding, tokens) = (decoding.len(), prompts.iter().map(|member| member.share).sum::<usize>());
        if decoding + tokens > 0 {
            self.pace.observe(decoding, tokens, took);
        }
        self.counts.steps += 1;
        self.counts.step_time += took;
        self.counts.tokens_in += tokens as u64;
        self.counts.last_decoding = decoding;
        self.counts.last_prompt_tokens = tokens;
        self.counts.last_step_time = took;
    }

    /// Emits [`JobEvent::Started`] for jobs that run for the first time.
    pub(super) fn emit_started(
        &mut self,
        members: &[Member],
        now: Instant,
        listener: &mut GuardedListener<'_>,
    ) {
        let fresh = |task: &&mut ScheduledJob| {
            task.started.is_none() && members.iter().any(|member| member.id == task.id)
        };
        for task in self.running.iter_mut().filter(fresh) {
            let queued = now.saturating_duration_since(task.submitted);
            let cached = task.sequence.len();
            task.started = Some(now);
            // Cached tokens are free of charge for the job's key.
            (task.usage.cached, task.usage.queued, task.charged) = (cached, queued, cached);
            self.counts.queue_time += queued;
            if !task.embed {
                self.prefixes.count(task.prompt_len, cached, task.from_disk);
            }
            listener.tell(
                task.id,
                JobEvent::Started { cached_tokens: cached, from_disk: task.from_disk, queued },
            );
        }
    }

    /// Runs the engine's step; one result for each job of the plan.
    fn advance(&mut self, plan: &StepPlan) -> Result<Vec<Result<AnswerProgress, EngineError>>, EngineError> {
        let mut running: Vec<_> =
            self.running.iter_mut().filter_map(|task| task.run(plan.share(task.id))).collect();
        self.engine.advance_owned(&mut running)
    }

    /// Applies the result of a step to a job. Returns how the job ends, if it does.
    pub(super) fn handle_result(
        &mut self,
        id: JobId,
        share: usize,
        result: Result<AnswerProgress, EngineError>,
        now: Instant,
        listener: &mut GuardedListener<'_>,
    ) -> Option<JobEnding> {
        let at = self.running.iter().position(|task| task.id == id)?;
        match result {
            Ok(AnswerProgress::Waited) => {
                // An answer with a limit of 0 tokens is finished without having run.
                let task = &self.running[at];
                let over = task.generation.as_ref().is_some_and(|generation| generation.is_finished());
                over.then_some(JobEnding::Finished)
            }
            Ok(AnswerProgress::Prompt) => self.handle_prompt(at, share, now, listener),
            Ok(AnswerProgress::Late) => {
                self.handle_rows(at, share, now, listener);
                self.expire_prompt(at).then_some(JobEnding::Finished)
            }
            Ok(AnswerProgress::Token(chosen)) => self.handle_tokens(at, share, vec![chosen], now, listener),
            Ok(AnswerProgress::Tokens(chosen)) => self.handle_tokens(at, share, chosen, now, listener),
            // The tokens before the error were chosen, so the client gets them.
            Ok(AnswerProgress::Stuck(chosen, error)) => {
                self.handle_tokens(at, share, chosen, now, listener);
                Some(JobEnding::Failed(error.into()))
            }
            Err(EngineError::Sequence {
                error: SeqError::CacheFull(_) | SeqError::StatesFull(_), ..
            }) if self.running.len() > 1 => {
                // Another job of the step took the blocks or slots that were free when the step was
                // planned.
                self.preempt(id);
                None
            }
            // The other jobs have just ended and their slots are free now, so the job fits alone.
            Err(EngineError::Sequence { error: SeqError::StatesFull(_), .. })
                if self.engine.kv_cache().state_slots() >= SLOTS_ALONE
                    && self.running[at].usage.preemptions < MAX_PREEMPTIONS =>
            {
                self.preempt(id);
                None
            }
            Err(EngineError::Sequence { error: SeqError::CacheFull(_), .. }) => self.shift_or_end(id),
            Err(error) => {
                // The rows may have run and only the choice of a token failed. They still count,
                // and other choices of the same prompt still share them.
                if self.running[at].sequence.len() >= self.running[at].prompt_len {
                    self.handle_rows(at, share, now, listener);
                }
                Some(JobEnding::Failed(error.into()))
            }
        }
    }

    /// Counts prompt tokens that have run, and caches the blocks that are full.
    fn count_prompt(&mut self, at: usize, share: usize) {
        let done = self.rows_done(&self.running[at]);
        let mut task = self.running.swap_remove(at);
        task.ran += share;
        // Rows that run again after a preemption are not charged twice.
        self.fairness.charge(task.key, done.saturating_sub(task.charged) as u64);
        task.charged = task.charged.max(done);
        self.keep_blocks(&mut task, false);
        self.running.push(task);
        let last = self.running.len() - 1;
        self.running.swap(at, last);
    }

    fn handle_prompt(
        &mut self,
        at: usize,
        share: usize,
        now: Instant,
        listener: &mut GuardedListener<'_>,
    ) -> Option<JobEnding> {
        self.count_prompt(at, share);
        let done = self.rows_done(&self.running[at]);
        let task = &mut self.running[at];
        if task.prompt_done.is_none() {
            listener.tell(task.id, JobEvent::Prompt { done, total: task.prompt_len });
            let spent = now.saturating_duration_since(task.started.unwrap_or(now));
            if task.max_prompt_time.is_some_and(|limit| spent >= limit) && done < task.prompt_len {
                task.usage.prompt_time = spent;
                return Some(JobEnding::Stopped(StopReason::Length));
            }
        }
        if !task.embed || done < task.prompt_len {
            return None;
        }
        // An embedding is complete with its prompt: no token is chosen.
        task.prompt_done = Some(now);
        task.usage.prompt_time = now.saturating_duration_since(task.started.unwrap_or(now));
        self.counts.prompt_time += task.usage.prompt_time;
        Some(JobEnding::Finished)
    }

    /// Counts the rows that the next token depends on, and ends the prompt when its last row has
    /// run.
    fn handle_rows(&mut self, at: usize, share: usize, now: Instant, listener: &mut GuardedListener<'_>) {
        // A single row after the prompt is a decoded token, which `handle_tokens` charges.
        if !(self.running[at].prompt_done.is_some() && share == 1) {
            self.count_prompt(at, share);
        }
        if self.running[at].prompt_done.is_none() {
            self.end_prompt(at, now, listener);
        }
    }

    fn handle_tokens(
        &mut self,
        at: usize,
        share: usize,
        chosen: Vec<ChosenToken>,
        now: Instant,
        listener: &mut GuardedListener<'_>,
    ) -> Option<JobEnding> {
        let first = self.running[at].prompt_done.is_none();
        self.handle_rows(at, share, now, listener);
        if first && self.expire_prompt(at) {
            return Some(JobEnding::Finished);
        }
        let context = self.engine.context();
        let task = &mut self.running[at];
        match task.last_token.replace(now) {
            Some(before) => {
                self.counts.gaps += chosen.len() as u64;
                self.counts.gap_time += now.saturating_duration_since(before);
            }
            None => {
                self.counts.first_tokens += 1;
                self.counts.first_token_time += now.saturating_duration_since(task.submitted);
            }
        }
        self.counts.tokens_out += chosen.len() as u64;
        self.fairness.charge(task.key, CHOSEN * chosen.len() as u64);
        for chosen in chosen {
            listener.tell(task.id, JobEvent::Token(chosen));
        }
        if task.generation.as_ref().is_some_and(|generation| generation.is_finished()) {
            return Some(JobEnding::Finished);
        }
        let id = task.id;
        if task.sequence.len() >= context { self.shift_or_end(id) } else { None }
    }

    /// Ends the answer of a job whose prompt has exceeded its time limit. Returns whether it has.
    fn expire_prompt(&mut self, at: usize) -> bool {
        let task = &mut self.running[at];
        let late = task.max_prompt_time.is_some_and(|limit| task.usage.prompt_time >= limit);
        if let Some(generation) = task.generation.as_mut().filter(|_| late) {
            generation.give_up();
        }
        late
    }

    /// Marks the prompt as complete. Other choices of the same prompt now share its rows.
    fn end_prompt(&mut self, at: usize, now: Instant, listener: &mut GuardedListener<'_>) {
        let task = &mut self.running[at];
        task.prompt_done = Some(now);
        task.usage.prompt_time = now.saturating_duration_since(task.started.unwrap_or(now));
        self.counts.prompt_time += task.usage.prompt_time;
        listener.tell(task.id, JobEvent::Prompt { done: task.prompt_len, total: task.prompt_len });
        let (id, last) = (task.id, task.prompt_len - 1);
        for other in self.waiting.iter_mut().filter(|other| other.leader == Some(id)) {
            other.leader = None;
            // All but the last row: each choice runs the last token itself, for its own logits.
            other.sequence = self.engine.share(&self.running[at].sequence, last);
        }
    }
}
