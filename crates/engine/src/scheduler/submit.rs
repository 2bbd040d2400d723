//! Submission: accepts or refuses jobs.

use super::Scheduler;
use super::event::{JobUsage, Refusal};
use super::job::{Job, JobChoice, JobId};
use super::options::RETRY;
use super::task::ScheduledJob;
use crate::cache::{HashChain, Sequence};
use crate::embedding::Embedding;
use crate::error::EngineError;
use crate::sampling::ParamError;
use std::time::Duration;

/// Assumed maximum length of an answer, in tokens, for the estimated waiting time. Most answers end
/// long before their `max_tokens`.
const USUAL_ANSWER: usize = 256;

impl Job {
    /// Checks the prompt and the sampling parameters for a model with `context` tokens of context
    /// and a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// [`Refusal::Parameter`] and [`Refusal::TooLong`].
    pub fn check(&self, context: usize, vocab: usize) -> Result<(), Refusal> {
        let prompt = &self.request.prompt;
        let invalid = |problem: String| Err(Refusal::Parameter(ParamError { name: "prompt", problem }));
        if prompt.is_empty() {
            return invalid("the prompt has no tokens".into());
        }
        // An answer needs room for at least one token. An embedding needs none.
        if prompt.len().saturating_add(usize::from(!self.embed)) > context {
            return Err(Refusal::TooLong { tokens: prompt.len(), context });
        }
        if let Some(token) = prompt.iter().find(|token| **token as usize >= vocab) {
            return invalid(format!("token id {token} is out of range: the vocabulary has {vocab} tokens"));
        }
        Ok(self.request.sampling.check(vocab)?)
    }
}

impl Scheduler {
    /// Submits a job, which runs in later steps.
    ///
    /// # Errors
    /// [`Refusal`]. The scheduler is unchanged.
    pub fn submit(&mut self, job: Job) -> Result<JobId, Refusal> {
        self.submit_choices(job, Vec::new())?.pop().ok_or(Refusal::Closed)
    }

    /// Submits a job and further answers to its prompt, which runs once for all of them. Returns
    /// the ids of the job and of the choices, in order.
    ///
    /// # Errors
    /// [`Refusal`], for the job and its choices together.
    pub fn submit_choices(&mut self, job: Job, choices: Vec<JobChoice>) -> Result<Vec<JobId>, Refusal> {
        self.check(&job)?;
        self.check_queue(job.request.prompt.len(), 1 + choices.len())?;
        // Rows depend on the adapters' scales, so jobs with other scales must not find them.
        let salt = job.salt.with_adapters(job.request.adapter_scales.as_ref());
        let mut chain = HashChain::new(self.cache_id, salt);
        chain.extend_to(&job.request.prompt);
        let Job { mut request, processors, key, priority, deadline, embed, pooling, .. } = job;
        if embed {
            // With a limit of 0 tokens, the generation would be finished before the prompt runs.
            request.max_tokens = None;
        }
        if request.shift.is_some() {
            // A full context does not end such an answer, so without a limit it may never end.
            let limit = self.engine.config().context_length.max(self.engine.context());
            request.max_tokens = request.max_tokens.or(Some(limit));
        }
        let leader = JobId(self.next_id);
        let now = (self.options.clock)();
        let mut ids = Vec::with_capacity(1 + choices.len());
        let others: Vec<_> = choices
            .into_iter()
            .map(|choice| {
                let mut request = request.clone();
                // With the same seed, all answers would be equal.
                request.sampling.seed = choice.seed;
                (request, choice.processors)
            })
            .collect();
        for asked in std::iter::once((request, processors)).chain(others) {
            let id = JobId(self.next_id);
            self.next_id += 1;
            self.fairness.enter(key);
            self.waiting.push(ScheduledJob {
                id,
                key,
                priority,
                deadline,
                drafts: asked.0.wants_drafts(),
                uncached: job.uncached,
                max_prompt_time: asked.0.max_prompt_time,
                prompt_len: asked.0.prompt.len(),
                shift: asked.0.shift,
                shifted: false,
                // Copied out of the request, which is consumed when the job starts.
                max_tokens: asked.0.max_tokens.unwrap_or(usize::MAX),
                adapter_scales: asked.0.adapter_scales.clone(),
                asked: Some(asked),
                generation: None,
                salt,
                // Further choices wait for the prompt of the first, and then share its rows.
                leader: (id != leader).then_some(leader),
                sequence: Sequence::default(),
                // Computed once: all choices have the same prompt.
                chain: chain.clone(),
                kept: 0,
                embedding: embed.then(|| Embedding::new(pooling)),
                embed,
                pooling,
                ran: 0,
                charged: 0,
                from_disk: 0,
                usage: JobUsage::default(),
                submitted: now,
                started: None,
                prompt_done: None,
                last_token: None,
            });
            ids.push(id);
        }
        self.counts.submitted += ids.len() as u64;
        Ok(ids)
    }

    /// Checks that a job can run at all.
    fn check(&self, job: &Job) -> Result<(), Refusal> {
        if self.closed {
            return Err(Refusal::Closed);
        }
        job.check(self.engine.context(), self.engine.config().vocab_size)?;
        self.engine
            .check_adapter_scales(job.request.adapter_scales.as_ref())
            .map_err(|error| Refusal::Invalid(error.to_string()))?;
        if job.embed && !self.engine.embeds() {
            let problem = "embeddings are not supported for this model: its final norm cannot be read";
            return Err(Refusal::Invalid(problem.into()));
        }
        if let Some(shift) = job.request.shift {
            let checked = match self.engine.kv_cache().layout().is_recurrent() {
                true => Err(EngineError::NoContextShift),
                false => shift.check(self.engine.context()),
            };
            checked.map_err(|error| Refusal::Invalid(error.to_string()))?;
        }
        Ok(())
    }

    /// Checks that the queue has room for `jobs` more jobs of one prompt. An empty queue accepts
    /// any job: otherwise a prompt above the limit could never run.
    fn check_queue(&mut self, prompt: usize, jobs: usize) -> Result<(), Refusal> {
        let (waiting, waiting_tokens) = self.queue();
        let full = waiting + jobs > self.options.max_waiting
            || waiting_tokens + prompt > self.options.max_waiting_tokens;
        if waiting == 0 || !full {
            return Ok(());
        }
        self.counts.refused += 1;
        Err(Refusal::Full { waiting, waiting_tokens, retry_after: self.retry_after() })
    }

    /// The number of waiting jobs, and of the tokens that they have to run. A job that waits for
    /// its leader's prompt adds no tokens.
    pub(super) fn queue(&self) -> (usize, usize) {
        let leaders = self.waiting.iter().filter(|task| task.leader.is_none());
        (self.waiting.len(), leaders.map(ScheduledJob::pending).sum())
    }

    /// The estimated time until half of the pending tokens have run, from the measured speed.
    fn retry_after(&self) -> Duration {
        let left = |task: &ScheduledJob| {
            task.pending() + task.max_tokens.saturating_sub(task.completion()).min(USUAL_ANSWER)
        };
        let tokens = self.running.iter().chain(&self.waiting).map(left).sum::<usize>() / 2;
        let seconds = self.pace.seconds(tokens).ceil().min(RETRY.1.as_secs_f64());
        Duration::from_secs(seconds as u64).clamp(RETRY.0, RETRY.1)
    }
}
