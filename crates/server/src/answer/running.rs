//! Timings of a running answer.

use super::AnswerEvent;
use super::update::timings;
use latent_engine::scheduler::JobUsage;
use serde_json::{Value, json};
use std::time::Instant;

/// Timings of an answer so far, for `timings_per_token`.
#[derive(Clone, Debug)]
pub(crate) struct AnswerTimings {
    usage: JobUsage,
    /// When the prompt, later the text, began.
    since: Instant,
}

impl Default for AnswerTimings {
    fn default() -> AnswerTimings {
        AnswerTimings { usage: JobUsage::default(), since: Instant::now() }
    }
}

impl AnswerTimings {
    /// Counts an update. Requires `show_tokens`, since texts do not tell the number of tokens.
    pub(crate) fn follow(&mut self, what: &AnswerEvent) {
        match what {
            AnswerEvent::Started { prompt, cached, .. } => {
                self.usage = JobUsage { prompt: *prompt, cached: *cached, ..JobUsage::default() };
                self.since = Instant::now();
            }
            AnswerEvent::Prompt { .. } => {
                self.usage.prompt_time += self.since.elapsed();
                self.since = Instant::now();
            }
            AnswerEvent::Token(_) => {
                self.usage.completion += 1;
                self.usage.generate_time = self.since.elapsed();
            }
            AnswerEvent::Delta(_) | AnswerEvent::Finished(_) => {}
        }
    }

    pub(crate) fn usage(&self) -> &JobUsage {
        &self.usage
    }

    /// llama.cpp's `prompt_progress` and `timings` after `done` of `total` tokens of the prompt.
    pub(crate) fn progress(&self, done: usize, total: usize) -> [(&'static str, Value); 2] {
        let JobUsage { cached, prompt_time, .. } = self.usage;
        let progress = json!({
            "total": total, "cache": cached, "processed": done, "time_ms": prompt_time.as_secs_f64() * 1e3,
        });
        [("prompt_progress", progress), ("timings", timings(&JobUsage { prompt: done, ..self.usage }))]
    }

    /// llama.cpp's `timings`.
    pub(crate) fn timings(&self) -> Value {
        timings(&self.usage)
    }
}
