//! Token counts and times of a conversation.

use super::partner::ReplyFigures;
use crate::commands::speed::speed;

/// Sums over the answers of this run.
#[derive(Default)]
pub(super) struct Stats {
    answers: usize,
    sum: ReplyFigures,
    /// Tokens without the first one of each answer, which the prompt's last step produces.
    stepped: usize,
    slowest_start: f64,
}

impl Stats {
    pub(super) fn add(&mut self, figures: &ReplyFigures) {
        self.answers += 1;
        self.sum.prompt += figures.prompt;
        self.sum.cached += figures.cached;
        self.sum.tokens += figures.tokens;
        self.stepped += figures.tokens.saturating_sub(1);
        self.sum.prompt_seconds += figures.prompt_seconds;
        self.sum.seconds += figures.seconds;
        self.sum.drafted += figures.drafted;
        self.sum.accepted += figures.accepted;
        self.slowest_start = self.slowest_start.max(figures.prompt_seconds);
    }

    /// Lines for `/stats`.
    pub(super) fn text(&self) -> String {
        let ReplyFigures { prompt, cached, tokens, prompt_seconds, seconds, drafted, accepted, .. } =
            self.sum;
        if self.answers == 0 {
            return "no answers yet".into();
        }
        let new = prompt.saturating_sub(cached);
        let share = |part: usize, whole: usize| part as f64 * 100.0 / whole.max(1) as f64;
        let s = if self.answers == 1 { "" } else { "s" };
        let mut lines = vec![
            format!(
                "{} answer{s}: {tokens} tokens in {seconds:.2} s, {:.1} t/s",
                self.answers,
                speed(self.stepped, seconds)
            ),
            format!(
                "prompts: {prompt} tokens, {cached} of them cached ({:.0} %); {new} computed in {prompt_seconds:.2} s, {:.1} t/s",
                share(cached, prompt),
                speed(new, prompt_seconds)
            ),
            format!("slowest start of an answer: {:.2} s", self.slowest_start),
        ];
        if drafted > 0 {
            lines.push(format!(
                "drafts: {accepted} of {drafted} accepted ({:.0} %)",
                share(accepted, drafted)
            ));
        }
        lines.join("\n")
    }
}
