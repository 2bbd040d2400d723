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

/// A prompt yields to others each time that it has run this many tokens more than they, so that a
/// short prompt does not wait for a long one.
const TURN: usize = 512;

/// A job.
pub(super) struct ScheduledJob {
    pub id: JobId,
    pub key: FairnessKey,
    pub priority: i32,
    pub deadline: Option<Instant>,
    /// What was asked, until it runs for the first time.
    pub asked: Option<(Request, Vec<Box<dyn LogitsProcessor>>)>,
    /// The answer, from then on. Before, its buffers would be a waste.
    pub generation: Option<Generation>,
    /// The job whose prompt it waits for, to share its blocks.
    pub leader: Option<JobId>,
    /// Who may share its blocks.
    pub salt: CacheSalt,
    pub sequence: Sequence,
    /// Scales of the model's adapters, if they are its own.
    pub adapter_scales: Option<AdapterScales>,
    /// The names of its full blocks.
    pub chain: HashChain,
    /// Full blocks that the prefix cache has been given.
    pub kept: usize,
    pub embedding: Option<Embedding>,
    pub embed: bool,
    pub pooling: Pooling,
    pub no_drafts: bool,
    pub prompt_len: usize,
    /// Whether it takes nothing from the prefix cache.
    pub uncached: bool,
    /// Time after which its prompt is given up.
    pub max_prompt_time: Option<Duration>,
    /// How it goes on where the context is full; none: it ends there.
    pub shift: Option<ContextShift>,
    /// Whether some of its rows have seen tokens that were discarded since: no other job may share them.
    pub shifted: bool,
    /// Most tokens of its answer, for estimates.
    pub max_tokens: usize,
    /// Tokens that have run since it was admitted last.
    pub ran: usize,
    /// Tokens of its context that its key has paid for.
    pub charged: usize,
    /// Rows that came from the disk when it was admitted.
    pub from_disk: usize,
    pub usage: JobUsage,
    pub submitted: Instant,
    pub started: Option<Instant>,
    pub prompt_done: Option<Instant>,
    pub last_token: Option<Instant>,
}

impl ScheduledJob {
    /// The place of a job among those that run: who comes later gives its blocks to who comes before.
    pub(super) fn rank(&self) -> (Reverse<i32>, JobId) {
        (Reverse(self.priority), self.id)
    }

    /// The tokens that its rows stand for, or will: the prompt and all chosen tokens, without what a context shift has discarded.
    pub(super) fn context(&self) -> &[u32] {
        match (&self.generation, &self.asked) {
            (Some(generation), _) => generation.rows(),
            (None, Some((request, _))) => &request.prompt,
            (None, None) => &[],
        }
    }

    /// Tokens that have to run before one is chosen.
    pub(super) fn pending(&self) -> usize {
        self.context().len() - self.sequence.len().min(self.context().len())
    }

    /// Its part of a step in which `most` of its tokens may run; none where it has no tokens to run.
    pub(super) fn run(&mut self, most: usize) -> Option<RunningAnswer<'_>> {
        let generation = self.generation.as_mut().filter(|_| most > 0)?;
        let (sequence, embedding) = (&mut self.sequence, self.embedding.as_mut());
        sequence.set_adapter_scales(self.adapter_scales.as_ref());
        Some(RunningAnswer { sequence, generation, most, embedding })
    }

    /// Whether its next token is to be chosen from logits of an earlier step.
    pub(super) fn is_late(&self) -> bool {
        self.generation.as_ref().is_some_and(Generation::is_late)
    }

    /// Whether it runs one token after another.
    pub(super) fn decodes(&self) -> bool {
        self.pending() == 1 && self.prompt_done.is_some()
    }

    /// Whether more than its last token is to run, or it has chosen none.
    pub(super) fn in_prompt(&self) -> bool {
        self.prompt_done.is_none() || self.pending() > 1
    }

    /// Chosen tokens.
    pub(super) fn completion(&self) -> usize {
        self.generation.as_ref().map_or(0, |generation| generation.tokens().len())
    }

    /// The order in which prompts get their share of a step; `served` is what the job's key was served, and every few steps `oldest` says that age
    /// alone counts, so that no prompt waits for ever.
    pub(super) fn turn(&self, served: u64, oldest: bool) -> (Reverse<i32>, u64, usize, JobId) {
        let (served, ran) = if oldest { (0, 0) } else { (served, self.ran / TURN) };
        (Reverse(self.priority), served, ran, self.id)
    }

    /// Gives its rows back: its tokens run again.
    pub(super) fn set_back(&mut self) {
        self.sequence = Sequence::default();
        self.ran = 0;
        self.kept = 0;
        self.shifted = false;
        self.embedding = self.embed.then(|| Embedding::new(self.pooling));
        if let Some(generation) = &mut self.generation {
            generation.resume_after(0);
        }
    }

    /// Whether it wants drafts, in an engine that drafts.
    pub(super) fn wants_drafts(&self) -> bool {
        !self.no_drafts && !self.embed
    }

    /// Names its full blocks.
    pub(super) fn name_blocks(&mut self) {
        match (&self.generation, &self.asked) {
            (Some(generation), _) => self.chain.extend_to(generation.rows()),
            (None, Some((request, _))) => self.chain.extend_to(&request.prompt),
            (None, None) => {}
        }
    }
}
