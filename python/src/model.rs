//! A loaded model.

use crate::answer::Answer;
use crate::arrays::{shaped, strings, tokens};
use crate::errors::{argument, exception};
use crate::json;
use crate::options::{self, Prompt};
use crate::plan::Plan;
use crate::stream::Stream;
use crate::tokenizer::Tokenizer;
use crate::waiting::waiting;
use latent::engine::Pooling;
use latent::{Chat, Description, Model as Loaded, ModelBuilder};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

/// A loaded model. Any threads may use it at the same time.
#[pyclass(frozen, module = "latent")]
pub(crate) struct Model {
    /// None once it is closed.
    // Calls hold a clone, so that `close` in another thread does not interrupt them.
    loaded: RwLock<Option<Loaded>>,
    description: Description,
}

impl Model {
    fn loaded(&self, py: Python<'_>) -> PyResult<Loaded> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.clone().ok_or_else(|| argument(py, "this model was closed"))
    }

    /// Begins an answer.
    fn begin(
        &self,
        prompt: &Bound<'_, PyAny>,
        variables: Option<&Bound<'_, PyDict>>,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Stream> {
        let py = prompt.py();
        let loaded = self.loaded(py)?;
        let options = options::generate(py, &loaded, keywords)?;
        let generating = match options::prompt(&loaded, prompt)? {
            Prompt::Tokens(_) if variables.is_some() => {
                return Err(argument(
                    py,
                    "variables are for a chat template, but the prompt is not a conversation",
                ));
            }
            Prompt::Tokens(tokens) => loaded.complete(tokens).options(options).start(),
            Prompt::Messages(messages) => {
                let variables = options::chat(py, variables)?;
                // The chat template and the tokenizer may take long on a long conversation.
                py.detach(|| {
                    let chat = Chat::from_json(messages)?.options(variables);
                    loaded.chat(chat).options(options).start()
                })
            }
        };
        generating.map(Stream::new).map_err(|error| exception(py, &error))
    }
}

/// One question as a conversation; a conversation as it is.
fn conversation<'py>(messages: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = messages.py();
    if messages.cast::<PyString>().is_ok() {
        let message = PyDict::new(py);
        message.set_item("role", "user")?;
        message.set_item("content", messages)?;
        return Ok(pyo3::types::PyList::new(py, [message])?.into_any());
    }
    Ok(messages.clone())
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (*_arguments, **_options))]
    fn new(_arguments: &Bound<'_, PyTuple>, _options: Option<&Bound<'_, PyDict>>) -> PyResult<Model> {
        // Without a constructor, PyO3's error would not name `load`.
        Err(PyTypeError::new_err(
            "a model is loaded: latent.Model.load(path), or latent.Model.load() for the demo model",
        ))
    }

    /// Loads a model: a GGUF file, any of its shards, a folder of safetensors, a packed file; None
    /// is the demo model that is built in.
    #[staticmethod]
    #[pyo3(signature = (path = None, **options))]
    fn load(py: Python<'_>, path: Option<PathBuf>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Model> {
        let (options, adapters) = options::load(py, options)?;
        let loaded = waiting(py, |go_on| {
            // `opened` never downloads, even if the feature `hub` is enabled.
            let builder = match path {
                Some(path) => Loaded::opened(latent::open(path)?),
                None => Loaded::demo(),
            };
            let add = |builder: ModelBuilder, (path, scale)| builder.adapter(path, scale);
            let builder = adapters.into_iter().fold(builder, add);
            builder.options(options).load_while(go_on)
        })?;
        let description = loaded.description().clone();
        for warning in &description.warnings {
            let category = py.get_type::<pyo3::exceptions::PyUserWarning>();
            // A stack level of 2 shows the line that called `Model.load`.
            py.import("warnings")?.call_method1("warn", (warning, category, 2))?;
        }
        Ok(Model { loaded: RwLock::new(Some(loaded)), description })
    }

    /// Answers a prompt: a text to go on with, token ids, or the messages of a conversation.
    #[pyo3(signature = (prompt, *, variables = None, **options))]
    fn generate(
        &self,
        prompt: &Bound<'_, PyAny>,
        variables: Option<&Bound<'_, PyDict>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Answer>> {
        self.begin(prompt, variables, options)?.finish(prompt.py())
    }

    /// The same as an iterator over the pieces of the text.
    #[pyo3(signature = (prompt, *, variables = None, **options))]
    fn stream(
        &self,
        prompt: &Bound<'_, PyAny>,
        variables: Option<&Bound<'_, PyDict>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Stream> {
        self.begin(prompt, variables, options)
    }

    /// Answers a conversation: a list of messages, or one question.
    #[pyo3(signature = (messages, *, variables = None, **options))]
    fn chat(
        &self,
        messages: &Bound<'_, PyAny>,
        variables: Option<&Bound<'_, PyDict>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Answer>> {
        self.begin(&conversation(messages)?, variables, options)?.finish(messages.py())
    }

    /// A conversation as the model reads it, by its chat template.
    #[pyo3(signature = (messages, *, variables = None))]
    fn render(&self, messages: &Bound<'_, PyAny>, variables: Option<&Bound<'_, PyDict>>) -> PyResult<String> {
        let py = messages.py();
        let messages = json::from_python(&conversation(messages)?, "messages")?;
        let (loaded, variables) = (self.loaded(py)?, options::chat(py, variables)?);
        let chat = Chat::from_json(messages).map(|chat| chat.options(variables));
        let rendered = chat.and_then(|chat| loaded.text().render(&chat));
        rendered.map(|prompt| prompt.text().to_owned()).map_err(|error| exception(py, &error))
    }

    /// Logits after the last of some tokens, or with `all` after each.
    #[pyo3(signature = (tokens, *, all = false))]
    fn logits<'py>(&self, tokens: &Bound<'py, PyAny>, all: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = tokens.py();
        let ids = self::tokens(tokens, "tokens")?;
        let (rows, vocab) = (ids.len(), self.description.vocab_size);
        let loaded = self.loaded(py)?;
        let logits = waiting(py, |go_on| loaded.logits_while(&ids, all, go_on))?;
        if all { shaped(py, logits, &[rows, vocab]) } else { shaped(py, logits, &[vocab]) }
    }

    /// The embedding of a text, or one row for each of several.
    fn embed<'py>(&self, texts: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = texts.py();
        let one = texts.cast::<PyString>().is_ok();
        let texts: Vec<String> = if one { vec![texts.extract()?] } else { strings(texts, "texts")? };
        let loaded = self.loaded(py)?;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let values = waiting(py, |go_on| loaded.embed_while(&texts, Pooling::Mean, go_on))?.concat();
        let hidden = self.description.hidden_size;
        if one { shaped(py, values, &[hidden]) } else { shaped(py, values, &[texts.len(), hidden]) }
    }

    /// The plan of a step of some tokens.
    #[pyo3(signature = (rows = 1))]
    fn plan(&self, py: Python<'_>, rows: usize) -> PyResult<Plan> {
        let loaded = self.loaded(py)?;
        let plan = py.detach(|| loaded.plan(rows));
        plan.map(Plan::new).map_err(|error| exception(py, &error))
    }

    /// Where the time of a prompt and of the tokens after it goes.
    #[pyo3(signature = (prompt = 256, decode = 32))]
    fn profile<'py>(&self, py: Python<'py>, prompt: usize, decode: usize) -> PyResult<Bound<'py, PyAny>> {
        let loaded = self.loaded(py)?;
        let profile = waiting(py, |go_on| loaded.profile_while(prompt, decode, go_on))?;
        json::to_python(py, &profile)
    }

    /// The tokenizer.
    #[getter]
    fn tokenizer(&self, py: Python<'_>) -> PyResult<Tokenizer> {
        self.loaded(py).map(Tokenizer::new)
    }

    /// The source of the chat template, None if the model has none.
    #[getter]
    fn chat_template(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.loaded(py)?.text().chat_template().map(str::to_owned))
    }

    /// What was loaded, and how it runs.
    #[getter]
    fn description<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let value = serde_json::to_value(&self.description);
        json::to_python(py, &value.map_err(|error| argument(py, error.to_string()))?)
    }

    /// The model's name.
    #[getter]
    fn name(&self) -> &str {
        &self.description.name
    }

    /// Tokens of context.
    #[getter]
    fn context(&self) -> usize {
        self.description.context
    }

    /// Logits per token.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.description.vocab_size
    }

    /// Elements of an embedding.
    #[getter]
    fn hidden_size(&self) -> usize {
        self.description.hidden_size
    }

    /// Gives the model's memory back, as soon as its streams and tokenizers have gone, too.
    fn close(&self, py: Python<'_>) {
        let loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner).take();
        // The last drop waits for the engine's thread, which must not happen with the GIL.
        py.detach(|| drop(loaded));
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let Description { name, parameters, context, device, isa, threads, .. } = &self.description;
        format!(
            "<Model {name}: {parameters} parameters, {context} tokens of context, {device} {isa}, {threads} threads>"
        )
    }
}
