//! The figures of an answer that is being written.

use super::What;
use super::update::timings;
use latent_engine::scheduler::Usage;
use serde_json::{Value, json};
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

    /// llama.cpp's `prompt_progress` and `timings` after `done` of `total` tokens of the prompt.
    pub(crate) fn progress(&self, done: usize, total: usize) -> [(&'static str, Value); 2] {
        let Usage { cached, prompt_time, .. } = self.usage;
        let progress = json!({
            "total": total, "cache": cached, "processed": done, "time_ms": prompt_time.as_secs_f64() * 1e3,
        });
        [("prompt_progress", progress), ("timings", timings(&Usage { prompt: done, ..self.usage }))]
    }

    /// llama.cpp's `timings`.
    pub(crate) fn timings(&self) -> Value {
        timings(&self.usage)
    }
}
