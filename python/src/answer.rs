//! A finished answer.

use crate::json;
use latent::{GeneratedAnswer as Finished, TokenLogprob};
use pyo3::prelude::*;

/// ln of a token's probability, and the likeliest tokens with theirs.
type Logprob = (u32, f32, Vec<(u32, f32)>);

/// A finished answer.
#[pyclass(frozen, module = "latent")]
pub(crate) struct Answer {
    finished: Finished,
}

impl Answer {
    pub(crate) fn new(finished: Finished) -> Answer {
        Answer { finished }
    }
}

#[pymethods]
impl Answer {
    /// Its text.
    #[getter]
    fn text(&self) -> &str {
        &self.finished.text
    }

    /// Its tokens, the one that ended it included.
    #[getter]
    fn tokens(&self) -> Vec<u32> {
        self.finished.tokens.clone()
    }

    /// Why it ended: `end`, `stop_string`, `length`, `context` or `interrupted`.
    #[getter]
    fn stop(&self) -> &'static str {
        self.finished.stop_name()
    }

    /// Tokens of the prompt.
    #[getter]
    fn prompt_tokens(&self) -> usize {
        self.finished.usage.prompt
    }

    /// How many of them were in the prefix cache.
    #[getter]
    fn cached_tokens(&self) -> usize {
        self.finished.usage.cached
    }

    /// Seconds for the prompt.
    #[getter]
    fn prompt_seconds(&self) -> f64 {
        self.finished.usage.prompt_time.as_secs_f64()
    }

    /// Seconds for the answer.
    #[getter]
    fn generate_seconds(&self) -> f64 {
        self.finished.usage.generate_time.as_secs_f64()
    }

    /// The message of an answer to a conversation, to append to its messages; None for other
    /// answers.
    #[getter]
    fn message<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.finished.message.as_ref().map(|message| json::to_python(py, &message.to_json())).transpose()
    }

    /// What it says, without reasoning and calls: the whole text if it answers no conversation.
    #[getter]
    fn content(&self) -> &str {
        self.finished.message.as_ref().map_or(&self.finished.text, |message| &message.content)
    }

    /// What the model thought.
    #[getter]
    fn reasoning(&self) -> &str {
        self.finished.message.as_ref().map_or("", |message| &message.reasoning)
    }

    /// Of each token its id, ln of its probability, and the likeliest tokens with theirs; empty
    /// unless asked for.
    #[getter]
    fn logprobs(&self) -> Vec<Logprob> {
        let top = |of: &TokenLogprob| of.top.iter().map(|other| (other.id, other.logprob)).collect();
        self.finished.logprobs.iter().map(|of| (of.token, of.logprob, top(of))).collect()
    }

    fn __str__(&self) -> &str {
        self.content()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        // Python's quotes and escapes, which differ from Rust's `{:?}`.
        let text = self.finished.text.as_str().into_pyobject(py)?.repr()?;
        Ok(format!("Answer({text}, tokens={}, stop={:?})", self.finished.tokens.len(), self.stop()))
    }
}
