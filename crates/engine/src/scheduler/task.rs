//! A job inside the scheduler, from its submission to its last event.

use super::event::JobUsage;
use super::job::{FairnessKey, JobId};
use crate::advance::RunningAnswer;
use crate::cache::{CacheSalt, HashChain, Sequence};
use crate::context_shift::ContextShift;
use crate::embedding::{Embedding, Pooling};
use crate::generation::{Generation, LogitsProcessor};
use crate::request::Request;
use latent_backend::AdapterScales;
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// A prompt yields when it has run this many tokens more than another, so that a short prompt does
/// not wait for a long one.
const TURN: usize = 512;

pub(super) struct ScheduledJob {
    pub id: JobId,
    pub key: FairnessKey,
    pub priority: i32,
    pub deadline: Option<Instant>,
    /// The request, until the job runs for the first time.
    pub asked: Option<(Request, Vec<Box<dyn LogitsProcessor>>)>,
    /// The answer, once the job has run. A waiting job has none, since its buffers are as large as
    /// the vocabulary.
    pub generation: Option<Generation>,
    /// The job whose prompt this job waits for, to share its blocks.
    pub leader: Option<JobId>,
    pub salt: CacheSalt,
    pub sequence: Sequence,
    /// Scales of the model's adapters. `None` for those that the model was loaded with.
    pub adapter_scales: Option<AdapterScales>,
    /// The names of the job's full blocks.
    pub chain: HashChain,
    /// Number of full blocks that are in the prefix cache.
    pub kept: usize,
    pub embedding: Option<Embedding>,
    pub embed: bool,
    pub pooling: Pooling,
    /// Whether steps of the answer may verify drafts.
    pub drafts: bool,
    pub prompt_len: usize,
    /// Whether the job uses no rows of the prefix cache.
    pub uncached: bool,
    /// Time after which the job stops running its prompt.
    pub max_prompt_time: Option<Duration>,
    /// How the job continues when its context is full. `None`: it ends.
    pub shift: Option<ContextShift>,
    /// Whether a context shift has moved rows. They have attended to discarded tokens, so no other
    /// job may share them.
    pub shifted: bool,
    /// Maximum number of tokens of the answer, for estimates.
    pub max_tokens: usize,
    /// Tokens that have run since the last admission.
    pub ran: usize,
    /// Tokens of the context that the job's key was charged for.
    pub charged: usize,
    /// Rows that came from the disk at admission.
    pub from_disk: usize,
    pub usage: JobUsage,
    pub submitted: Instant,
    pub started: Option<Instant>,
    pub prompt_done: Option<Instant>,
    pub last_token: Option<Instant>,
}

impl ScheduledJob {
    /// The order of running jobs. If blocks run out, the job with the largest rank is preempted.
    pub(super) fn rank(&self) -> (Reverse<i32>, JobId) {
        // Ids ascend with submission, so that of equal priorities the newest job is preempted
        // first.
        (Reverse(self.priority), self.id)
    }

    /// The tokens whose rows are or will be in the KV cache: the prompt and all chosen tokens,
    /// without those that a context shift has discarded.
    pub(super) fn context(&self) -> &[u32] {
        match (&self.generation, &self.asked) {
            (Some(generation), _) => generation.rows(),
            (None, Some((request, _))) => &request.prompt,
            (None, None) => &[],
        }
    }

    /// Tokens that have to run before one is chosen.
    pub(super) fn pending(&self) -> usize {
        self.context().len().saturating_sub(self.sequence.len())
    }

    /// The job's part of a step in which at most `most` of its tokens may run. `None` if it has no
    /// tokens to run.
    pub(super) fn run(&mut self, most: usize) -> Option<RunningAnswer<'_>> {
        let generation = self.generation.as_mut().filter(|_| most > 0)?;
        let (sequence, embedding) = (&mut self.sequence, self.embedding.as_mut());
        // Set for each step, because `reset` replaces the sequence.
        sequence.set_adapter_scales(self.adapter_scales.as_ref());
        Some(RunningAnswer { sequence, generation, most, embedding })
    }

    /// Whether the next token is yet to be chosen from logits of an earlier step.
    pub(super) fn is_late(&self) -> bool {
        self.generation.as_ref().is_some_and(Generation::is_late)
    }

    /// Whether the job decodes: its prompt has run, and one token is pending.
    pub(super) fn decodes(&self) -> bool {
        self.pending() == 1 && self.prompt_done.is_some()
    }

    /// Whether the prompt has not run to its end, or several tokens must run again.
    pub(super) fn in_prompt(&self) -> bool {
        self.prompt_done.is_none() || self.pending() > 1
    }

    /// Number of chosen tokens.
    pub(super) fn completion(&self) -> usize {
        self.generation.as_ref().map_or(0, |generation| generation.tokens().len())
    }

    /// The order in which prompts get their share of a step. `served` is the counter of the job's
    /// key. If `oldest`, only priority and age count.
    pub(super) fn turn(&self, served: u64, oldest: bool) -> (Reverse<i32>, u64, usize, JobId) {
        let (served, ran) = if oldest { (0, 0) } else { (served, self.ran / TURN) };
        (Reverse(self.priority), served, ran, self.id)
    }

    /// Releases the job's rows. Its tokens run again after the next admission.
    pub(super) fn reset(&mut self) {
        self.sequence = Sequence::default();
        self.ran = 0;
        self.kept = 0;
        // The discarded tokens do not run again, so the new rows depend on `context()` alone and
        // may be shared.
        self.shifted = false;
        // Pooling accumulates row by row, so the sum so far must not be counted twice.
        self.embedding = self.embed.then(|| Embedding::new(self.pooling));
        if let Some(generation) = &mut self.generation {
            generation.resume_after(0);
        }
    }

    /// Whether the job's tokens are drafted, in an engine that drafts.
    pub(super) fn wants_drafts(&self) -> bool {
        self.drafts && !self.embed
    }

    /// Computes the names of the full blocks that have none yet.
    pub(super) fn name_blocks(&mut self) {
        // `context()` would borrow all of `self` while `chain` is written.
        match (&self.generation, &self.asked) {
            (Some(generation), _) => self.chain.extend_to(generation.rows()),
            (None, Some((request, _))) => self.chain.extend_to(&request.prompt),
            (None, None) => {}
        }
    }
}
