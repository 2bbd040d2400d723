//! State of one response in a grammar.

use crate::error::{GrammarError, shorten};
use crate::grammar::Grammar;
use crate::workers::{MaskOutcome, MaskSlot, MaskWork};
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use std::sync::Arc;
use std::time::Duration;

/// State of one response in its grammar. It sets the logits of all tokens that the grammar does not
/// allow next to −∞. Once the grammar is complete, only end-of-generation tokens remain.
///
/// Tokens before the first call of [`accepted`](Constraint::accepted) or
/// [`process`](Constraint::process) are the prompt. The grammar does not apply to them.
pub struct Constraint {
    grammar: Arc<Grammar>,
    /// Number of context tokens that are consumed or belong to the prompt. `None` before the first
    /// call.
    seen: Option<usize>,
    next: NextMask,
    /// Number of sampled tokens.
    chosen: u32,
    /// CPU time of the masks so far.
    spent: Duration,
}

/// The next mask.
enum NextMask {
    /// No token was sampled yet. The mask is that of the grammar.
    First,
    /// Queued or being computed by a worker thread.
    Pending(Arc<MaskSlot>),
    Ready(Box<Matcher>, SimpleVob),
    Failed(GrammarError),
}

impl Grammar {
    /// Creates the constraint of a new response.
    pub fn constraint(self: &Arc<Self>) -> Constraint {
        Constraint {
            grammar: Arc::clone(self),
            seen: None,
            next: NextMask::First,
            chosen: 0,
            spent: Duration::ZERO,
        }
    }
}

impl Constraint {
    /// Starts computing the next mask in the background. `tokens` is the prompt and all sampled
    /// tokens, the last of which was just sampled.
    pub fn accepted(&mut self, tokens: &[u32]) {
        // On the first call, only the last token is sampled; all others are the prompt.
        let seen = *self.seen.get_or_insert(tokens.len().saturating_sub(1));
        let Some(new) = tokens.get(seen..).filter(|new| !new.is_empty()) else { return };
        self.seen = Some(tokens.len());
        let ends = self.grammar.vocabulary.trie().eos_tokens();
        // The response ends with this token, so no further mask is needed.
        if new.len() == 1 && ends.contains(&new[0]) && self.may_end() {
            return;
        }
        // Takes the state out, because the worker thread needs to own it. `First` is a placeholder.
        let matcher = match std::mem::replace(&mut self.next, NextMask::First) {
            NextMask::First => Box::new(self.grammar.start.clone()),
            NextMask::Ready(matcher, _) => matcher,
            NextMask::Pending(slot) => match slot.take() {
                // The mask of the previous token was never used: tokens were accepted without
                // `process`.
                Some(MaskOutcome { matcher, mask: Ok(_), spent }) => {
                    self.spent = spent;
                    matcher
                }
                Some(MaskOutcome { mask: Err(problem), .. }) => return self.fail(&problem),
                None => return self.fail("its state is lost; please report this"),
            },
            failed @ NextMask::Failed(_) => {
                self.next = failed;
                return;
            }
        };
        self.chosen = self.chosen.saturating_add(new.len() as u32);
        if let Some(problem) = self.overspent() {
            return self.fail(&problem);
        }
        let work = MaskWork { matcher, tokens: new.to_vec(), spent: self.spent };
        self.next = NextMask::Pending(self.grammar.workers.submit(work));
    }

    /// Waits for the mask up to `limit`. Returns whether [`process`](Self::process) will not have
    /// to wait for it.
    pub fn is_ready(&self, limit: Duration) -> bool {
        match &self.next {
            // Without worker threads, `process` computes the mask itself. Waiting would never end.
            NextMask::Pending(slot) => !self.grammar.workers.is_served() || slot.is_done(limit),
            NextMask::First | NextMask::Ready(..) | NextMask::Failed(_) => true,
        }
    }

    /// The problem, if the masks of this response took too much CPU time.
    fn overspent(&self) -> Option<String> {
        let limits = &self.grammar.limits;
        let limit = limits.answer_time.saturating_add(limits.token_time.saturating_mul(self.chosen));
        (self.spent > limit).then(|| {
            format!(
                "the masks of its first {} tokens took {:.1} s of CPU time, more than {:.1} s: make the grammar less ambiguous",
                self.chosen,
                self.spent.as_secs_f64(),
                limit.as_secs_f64()
            )
        })
    }

    /// Forbids the tokens that may not come next. If the grammar cannot be followed any further,
    /// this is every token, and [`problem`](Constraint::problem) returns the reason.
    pub fn process(&mut self, tokens: &[u32], logits: &mut [f32]) {
        if self.seen.is_none() {
            self.seen = Some(tokens.len());
        } else {
            // Consumes tokens for which the caller did not call `accepted`.
            self.accepted(tokens);
        }
        self.wait();
        match &self.next {
            NextMask::First => forbid(&self.grammar.first, logits),
            NextMask::Ready(_, mask) => forbid(mask, logits),
            // Never sample unconstrained after a failure. The engine ends the response with the
            // error.
            NextMask::Pending(_) | NextMask::Failed(_) => logits.fill(f32::NEG_INFINITY),
        }
    }

    /// The reason why no token can come next, if there was a failure.
    pub fn problem(&self) -> Option<&GrammarError> {
        if let NextMask::Failed(error) = &self.next { Some(error) } else { None }
    }

    /// Whether the response may end here.
    pub fn may_end(&mut self) -> bool {
        self.wait();
        let ends = self.grammar.vocabulary.trie().eos_tokens();
        let allows = |mask: &SimpleVob| ends.iter().any(|end| mask.is_allowed(*end));
        match &self.next {
            NextMask::First => allows(&self.grammar.first),
            NextMask::Ready(_, mask) => allows(mask),
            NextMask::Pending(_) | NextMask::Failed(_) => false,
        }
    }

    fn wait(&mut self) {
        let NextMask::Pending(slot) = &self.next else { return };
        match slot.take() {
            Some(MaskOutcome { matcher, mask: Ok(mask), spent }) => {
                self.spent = spent;
                if mask.is_zero() {
                    return self.fail("no token is allowed");
                }
                self.next = NextMask::Ready(matcher, mask);
            }
            Some(MaskOutcome { mask: Err(problem), .. }) => self.fail(&problem),
            None => self.fail("its state is lost; please report this"),
        }
    }

    fn fail(&mut self, problem: &str) {
        // The failure may come from the shared lexer's limits, so later requests get a fresh
        // compilation.
        self.grammar.spoil();
        // Further lines quote the grammar and internal state.
        let problem = shorten(problem.lines().next().unwrap_or_default());
        self.next = NextMask::Failed(GrammarError::Step { what: self.grammar.what, problem });
    }
}

impl Drop for Constraint {
    fn drop(&mut self) {
        if let NextMask::Pending(slot) = &self.next {
            slot.abandon();
        }
    }
}

/// Sets the logits of all tokens outside of the mask to −∞.
fn forbid(mask: &SimpleVob, logits: &mut [f32]) {
    let words = mask.as_slice();
    for (word, logits) in logits.chunks_mut(32).enumerate() {
        // The logits may have more elements than the vocabulary has tokens (padding). Padding must
        // not be sampled.
        let allowed = words.get(word).copied().unwrap_or(0);
        // Most words are all zeros or all ones: these need no test per bit.
        if allowed == 0 {
            logits.fill(f32::NEG_INFINITY);
        } else if allowed != u32::MAX {
            for (bit, logit) in logits.iter_mut().enumerate() {
                if allowed >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

#[cfg(feature = "engine")]
impl latent_engine::LogitsProcessor for Constraint {
    fn process(&mut self, tokens: &[u32], logits: &mut [f32]) {
        Constraint::process(self, tokens, logits);
    }

    fn accepted(&mut self, tokens: &[u32]) {
        Constraint::accepted(self, tokens);
    }

    fn is_ready(&mut self, limit: Duration) -> bool {
        Constraint::is_ready(self, limit)
    }

    fn failure(&self) -> Option<String> {
        self.problem().map(ToString::to_string)
    }
}
