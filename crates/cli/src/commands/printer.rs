//! Prints an answer while it is generated, for `run` and `chat`.

use crate::progress::LateBar;
use crate::{interrupt, output};
use latent_engine::{Listener, TokenEvent};
use serde_json::{Value, json};

/// Streams text to standard output and stops at Ctrl-C.
pub(super) struct AnswerPrinter {
    pub(super) bar: LateBar,
    stream: bool,
    pub(super) logprobs: Vec<Value>,
    /// The error of standard output, if any.
    pub(super) failed: Option<anyhow::Error>,
}

impl AnswerPrinter {
    /// `bar`: whether to show a progress bar for a prompt of `tokens` tokens. `stream`: whether
    /// text is printed.
    pub(super) fn new(bar: bool, tokens: usize, stream: bool) -> AnswerPrinter {
        AnswerPrinter { bar: LateBar::new(bar, "prompt", tokens), stream, logprobs: Vec::new(), failed: None }
    }
}

impl Listener for AnswerPrinter {
    fn prompt(&mut self, done: usize, total: usize) -> bool {
        self.bar.advance(done, total);
        !interrupt::asked()
    }

    fn token(&mut self, event: &TokenEvent<'_>) -> bool {
        if let Some((own, top)) = event.logprob {
            self.logprobs.push(json!({"token": event.token, "logprob": own, "top": top}));
        }
        if self.stream
            && let Err(error) = output::stream(event.text)
        {
            // A listener cannot return an error: it stops the generation, and the caller finds the
            // error here.
            self.failed = Some(error);
            return false;
        }
        !interrupt::asked()
    }

    fn rest(&mut self, text: &str) {
        if self.stream && self.failed.is_none() {
            self.failed = output::stream(text).err();
        }
    }
}

/// Tokens per second; 0 if nothing was timed.
pub(super) fn speed(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

/// Tokens per second of an answer's steps. The first token comes from the prompt's last step, so it
/// is not counted.
pub(super) fn answer_speed(tokens: usize, seconds: f64) -> f64 {
    speed(tokens.saturating_sub(1), seconds)
}
