//! The figures of an answer that is being written.

use super::What;
use super::update::timings;
use latent_engine::scheduler::Usage;
use serde_json::Value;
use std::time::Instant;

/// What an answer has taken so far, for `timings_per_token`.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    usage: Usage,
    /// When its prompt, then its text began.
    since: Instant,
}

impl Default for Running {
    fn default() -> Running {
        Running { usage: Usage::default(), since: Instant::now() }
    }
}

impl Running {
    /// Follows an update. Tokens are counted where they are shown.
    pub(crate) fn follow(&mut self, what: &What) {
        match what {
            What::Started { prompt, cached, .. } => {
                self.usage = Usage { prompt: *prompt, cached: *cached, ..Usage::default() };
                self.since = Instant::now();
            }
            What::Prompt { .. } => {
                self.usage.prompt_time += self.since.elapsed();
                self.since = Instant::now();
            }
            What::Token(_) => {
                self.usage.completion += 1;
                self.usage.generate_time = self.since.elapsed();
            }
            What::Piece(_) | What::Finished(_) => {}
        }
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Milliseconds that the prompt has taken.
    pub(crate) fn prompt_ms(&self) -> f64 {
        self.usage.prompt_time.as_secs_f64() * 1e3
    }

    /// llama.cpp's `timings` after `done` tokens of the prompt.
    pub(crate) fn timings_of(&self, ran: usize) -> Value {
        timings(&Usage { prompt: self.usage.cached + ran, ..self.usage })
    }

    /// llama.cpp's `timings`.
    pub(crate) fn timings(&self) -> Value {
        timings(&self.usage)
    }
}
