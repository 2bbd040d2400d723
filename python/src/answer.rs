//! The class `Answer`.

use crate::json;
use latent::{GeneratedAnswer as Finished, TokenLogprob};
use pyo3::prelude::*;

/// A token id, the logarithm of its probability, and the most probable tokens with theirs.
type Logprob = (u32, f32, Vec<(u32, f32)>);

/// A finished answer. `str(answer)` is its content.
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
    /// Generated text.
    #[getter]
    fn text(&self) -> &str {
        &self.finished.text
    }

    /// Generated token ids, including an end token.
    #[getter]
    fn tokens(&self) -> Vec<u32> {
        self.finished.tokens.clone()
    }

    /// Reason why the generation ended: "end", "stop_string", "length", "context" or "interrupted".
    #[getter]
    fn stop(&self) -> &'static str {
        self.finished.stop_name()
    }

    /// Number of tokens of the prompt.
    #[getter]
    fn prompt_tokens(&self) -> usize {
        self.finished.usage.prompt
    }

    /// Number of prompt tokens that were reused from the prefix cache.
    #[getter]
    fn cached_tokens(&self) -> usize {
        self.finished.usage.cached
    }

    /// Time to process the prompt, in seconds.
    #[getter]
    fn prompt_seconds(&self) -> f64 {
        self.finished.usage.prompt_time.as_secs_f64()
    }

    /// Time to generate the tokens, in seconds.
    #[getter]
    fn generate_seconds(&self) -> f64 {
        self.finished.usage.generate_time.as_secs_f64()
    }

    /// The answer as a message, to append to the messages of the conversation. None if the prompt
    /// was not a conversation.
    #[getter]
    fn message<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.finished.message.as_ref().map(|message| json::to_python(py, &message.to_json())).transpose()
    }

    /// Text without reasoning and tool calls. The whole text if the prompt was not a conversation.
    #[getter]
    fn content(&self) -> &str {
        self.finished.message.as_ref().map_or(&self.finished.text, |message| &message.content)
    }

    /// Reasoning of the model. Empty if the prompt was not a conversation.
    #[getter]
    fn reasoning(&self) -> &str {
        self.finished.message.as_ref().map_or("", |message| &message.reasoning)
    }

    /// Log-probabilities: for each token a tuple (id, logprob, top), where `top` is a list of (id,
    /// logprob) tuples of the most probable tokens. Natural logarithms. Empty unless `logprobs` was
    /// set.
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
