//! A grammar as a constraint on one answer.

use crate::error::{GrammarError, shorten};
use crate::grammar::Grammar;
use crate::workers::{MaskOutcome, MaskSlot, MaskWork};
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use std::sync::Arc;
use std::time::Duration;

/// The state of one answer in its grammar. It forbids all tokens that the grammar does not allow next, by a logit of −∞; once the grammar is
/// complete, only tokens that end generation remain.
///
/// What precedes the first call of [`accepted`](Constraint::accepted) or [`process`](Constraint::process) is the prompt, which the grammar does not
/// see.
pub struct Constraint {
    grammar: Arc<Grammar>,
    /// Tokens of the context that the grammar has seen or does not see; none before the first call.
    seen: Option<usize>,
    next: NextMask,
    /// Tokens that were chosen, and the CPU time that their masks took.
    chosen: u32,
    spent: Duration,
}

/// What may follow.
enum NextMask {
    /// Nothing has been chosen yet.
    First,
    /// Being computed.
    Pending(Arc<MaskSlot>),
    Ready(Box<Matcher>, SimpleVob),
    Failed(GrammarError),
}

impl Grammar {
    /// A constraint of one answer, at the beginning of it.
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
    /// Begins to compute what may follow, while the caller does something else. `tokens`: the prompt and all that was chosen; the last one has
    /// just been.
    pub fn accepted(&mut self, tokens: &[u32]) {
        // before the first mask, the last token is the only one that can have been chosen
        let seen = *self.seen.get_or_insert(tokens.len().saturating_sub(1));
        let Some(new) = tokens.get(seen..).filter(|new| !new.is_empty()) else { return };
        self.seen = Some(tokens.len());
        let ends = self.grammar.vocabulary.trie().eos_tokens();
        if new.len() == 1 && ends.contains(&new[0]) && self.may_end() {
            return;
        }
        let matcher = match std::mem::replace(&mut self.next, NextMask::First) {
            NextMask::First => Box::new(self.grammar.start.clone()),
            NextMask::Ready(matcher, _) => matcher,
            NextMask::Pending(slot) => match slot.take() {
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

    /// Whether the next call of [`process`](Self::process) returns without waiting for a mask, after waiting for it here up to `limit`.
    pub fn is_ready(&self, limit: Duration) -> bool {
        match &self.next {
            // without threads it is computed where it is needed
            NextMask::Pending(slot) => !self.grammar.workers.is_served() || slot.is_done(limit),
            NextMask::First | NextMask::Ready(..) | NextMask::Failed(_) => true,
        }
    }

    /// Why the masks of this answer took too much time, if they did.
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

    /// Forbids what may not follow. Where the grammar cannot be followed any further, that is everything, and [`problem`](Constraint::problem)
    /// says why.
    pub fn process(&mut self, tokens: &[u32], logits: &mut [f32]) {
        if self.seen.is_none() {
            self.seen = Some(tokens.len());
        } else {
            // what was not announced
            self.accepted(tokens);
        }
        self.wait();
        match &self.next {
            NextMask::First => forbid(&self.grammar.first, logits),
            NextMask::Ready(_, mask) => forbid(mask, logits),
            NextMask::Pending(_) | NextMask::Failed(_) => logits.fill(f32::NEG_INFINITY),
        }
    }

    /// Why no token can follow, if the grammar cannot be followed any further.
    pub fn problem(&self) -> Option<&GrammarError> {
        if let NextMask::Failed(error) = &self.next { Some(error) } else { None }
    }

    /// Whether the output may end here.
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
            Some(MaskOutcome { matcher, mask: Ok(mut mask), spent }) => {
                self.spent = spent;
                if matcher.is_stopped() {
                    self.grammar.vocabulary.allow_ends(&mut mask);
                }
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
        // lexer states are shared by the answers that follow a grammar: others get one that is compiled anew
        self.grammar.spoil();
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

/// Takes the logits of all tokens but those in the mask down to −∞.
fn forbid(mask: &SimpleVob, logits: &mut [f32]) {
    let words = mask.as_slice();
    for (word, logits) in logits.chunks_mut(32).enumerate() {
        let allowed = words.get(word).copied().unwrap_or(0);
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
