//! The class `Model`.

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

/// A loaded language model.
///
/// Create it with `Model.load`. A model can be used from several threads at the same time;
/// concurrent generations are batched. It is a context manager that closes the model on exit.
#[pyclass(frozen, module = "latent")]
pub(crate) struct Model {
    /// None once it is closed.
    // Calls hold a clone, so that `close` in another thread does not interrupt them.
    /// None after `close`.
    loaded: RwLock<Option<Loaded>>,
    description: Description,
}

impl Model {
    fn loaded(&self, py: Python<'_>) -> PyResult<Loaded> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.clone().ok_or_else(|| argument(py, "this model was closed"))
    }

    /// Starts a generation.
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

/// Wraps a `str` in a list with one message of the user. Returns other objects unchanged.
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
        Err(PyTypeError::new_err("use latent.Model.load(path), or latent.Model.load() for the demo model"))
    }

    /// Load a model from a local file.
    ///
    /// Parameters
    /// ----------
    /// path : str or os.PathLike, optional
    ///     A GGUF file, any shard of a split GGUF file, a directory with safetensors files, or a
    ///     packed file. If None, load the built-in demo model.
    /// ctx_size : int, optional
    ///     Maximum length of a sequence in tokens. By default the model's limit, or less if memory
    ///     does not suffice.
    /// cache_tokens : int, optional
    ///     Capacity of the KV cache for all sequences, in tokens. By default the length of one
    ///     context.
    /// threads : int, optional
    ///     Number of threads. By default one per core that this process may use.
    /// batch_size : int, optional
    ///     Maximum batch size in tokens. By default chosen automatically.
    /// cache_type : {"f32", "f16", "bf16", "int8"}, optional
    ///     Element type of the KV cache.
    /// precision : {"default", "exact"}, optional
    ///     Arithmetic of the model.
    /// device : str, optional
    ///     "cpu" (default), "gpu", "gpu:N", "auto" or "reference".
    /// draft : {"none", "ngram", "mtp", "all"}, optional
    ///     Source of draft tokens for speculative decoding.
    /// mla : {"auto", "absorbed", "naive", "separate"}, optional
    ///     Formulation of Multi-head Latent Attention.
    /// sparse_attention : {"on", "off"}, optional
    ///     Whether models with an indexer attend to selected tokens only.
    /// isa : {"auto", "portable", "avx2", "avx512", "amx"}, optional
    ///     Highest instruction set to use.
    /// pin : {"auto", "off", "cores", "nodes"}, optional
    ///     Binding of threads to CPUs.
    /// force : bool, optional
    ///     Load the model even if memory seems insufficient.
    /// lora : path or list, optional
    ///     LoRA adapters: a path, or a list of paths and of (path, scale) pairs. The default scale
    ///     is 1.
    ///
    /// Returns
    /// -------
    /// Model
    ///
    /// Raises
    /// ------
    /// latent.errors.ModelNotFoundError
    ///     If `path` does not exist.
    /// latent.errors.FileError
    ///     If a file cannot be read or is malformed.
    /// latent.errors.UnsupportedError
    ///     If the architecture or the tokenizer of the model is not supported.
    /// latent.errors.OutOfMemoryError
    ///     If the model does not fit into memory.
    /// latent.errors.ArgumentError
    ///     If an option is unknown or has an invalid value.
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
        // A copy, so that the properties also work after `close`.
        let description = loaded.description().clone();
        for warning in &description.warnings {
            let category = py.get_type::<pyo3::exceptions::PyUserWarning>();
            // A stack level of 2 shows the line that called `Model.load`.
            py.import("warnings")?.call_method1("warn", (warning, category, 2))?;
        }
        Ok(Model { loaded: RwLock::new(Some(loaded)), description })
    }

    /// Generate an answer, and wait until it is complete.
    ///
    /// Parameters
    /// ----------
    /// prompt : str, sequence of int, or list of dict
    ///     Text to continue, token ids, or the messages of a conversation.
    /// variables : dict, optional
    ///     Variables of the chat template, such as `enable_thinking` or `tools`. Only for messages.
    /// max_tokens : int, optional
    ///     Maximum number of tokens to generate. By default, until the model ends or the context is
    ///     full.
    /// stop : str or list of str, optional
    ///     Stop strings. The answer ends before the first of them.
    /// logprobs : int, optional
    ///     Number of alternatives per token to report log-probabilities of.
    /// seed : int, optional
    ///     Seed of the random number generator. By default random.
    /// logit_bias : dict of int to float, optional
    ///     Values to add to the logits of tokens. `-inf` bans a token.
    /// lora : list of float, optional
    ///     Scale for each LoRA adapter of the model, in the order of loading.
    /// **options
    ///     Sampling parameters such as `temperature`, `top_k`, `top_p` and `repeat_penalty`.
    ///     Defaults are those that the model recommends, otherwise those of Latent.
    ///
    /// Returns
    /// -------
    /// Answer
    ///
    /// Raises
    /// ------
    /// latent.errors.TooLongError
    ///     If the prompt does not fit into the context.
    /// latent.errors.ArgumentError
    ///     If an argument is invalid.
    #[pyo3(signature = (prompt, *, variables = None, **options))]
    fn generate(
        &self,
        prompt: &Bound<'_, PyAny>,
        variables: Option<&Bound<'_, PyDict>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Answer>> {
        self.begin(prompt, variables, options)?.finish(prompt.py())
    }

    /// Generate an answer, and return an iterator over its text.
    ///
    /// The arguments are those of `generate`. The model generates tokens ahead of the reader.
    ///
    /// Returns
    /// -------
    /// Stream
    #[pyo3(signature = (prompt, *, variables = None, **options))]
    fn stream(
        &self,
        prompt: &Bound<'_, PyAny>,
        variables: Option<&Bound<'_, PyDict>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Stream> {
        self.begin(prompt, variables, options)
    }

    /// Generate the next message of a conversation with the chat template of the model.
    ///
    /// Parameters
    /// ----------
    /// messages : str or list of dict
    ///     The messages, or the text of a single user message.
    /// variables : dict, optional
    ///     Variables of the chat template, such as `enable_thinking` or `tools`.
    /// **options
    ///     As for `generate`.
    ///
    /// Returns
    /// -------
    /// Answer
    ///     Its `message` can be appended to `messages`.
    ///
    /// Raises
    /// ------
    /// latent.errors.TextError
    ///     If the model has no chat template or the template cannot be rendered.
    /// latent.errors.TooLongError
    ///     If the prompt does not fit into the context.
    #[pyo3(signature = (messages, *, variables = None, **options))]
    fn chat(
        &self,
        messages: &Bound<'_, PyAny>,
        variables: Option<&Bound<'_, PyDict>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Answer>> {
        self.begin(&conversation(messages)?, variables, options)?.finish(messages.py())
    }

    /// Render a conversation with the chat template of the model.
    ///
    /// Parameters
    /// ----------
    /// messages : str or list of dict
    ///     The messages, or the text of a single user message.
    /// variables : dict, optional
    ///     Variables of the chat template.
    ///
    /// Returns
    /// -------
    /// str
    ///     The prompt that the model would be given.
    #[pyo3(signature = (messages, *, variables = None))]
    fn render(&self, messages: &Bound<'_, PyAny>, variables: Option<&Bound<'_, PyDict>>) -> PyResult<String> {
        let py = messages.py();
        let messages = json::from_python(&conversation(messages)?, "messages")?;
        let (loaded, variables) = (self.loaded(py)?, options::chat(py, variables)?);
        let chat = Chat::from_json(messages).map(|chat| chat.options(variables));
        let rendered = chat.and_then(|chat| loaded.text().render(&chat));
        rendered.map(|prompt| prompt.text().to_owned()).map_err(|error| exception(py, &error))
    }

    /// Compute logits for a sequence of tokens.
    ///
    /// Parameters
    /// ----------
    /// tokens : sequence of int or array of integers
    ///     Token ids.
    /// all : bool, default False
    ///     If True, return the logits after each token, otherwise after the last one only.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    ///     float32 array of shape (vocab_size,), or (len(tokens), vocab_size) if `all` is True.
    #[pyo3(signature = (tokens, *, all = false))]
    fn logits<'py>(&self, tokens: &Bound<'py, PyAny>, all: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = tokens.py();
        let ids = self::tokens(tokens, "tokens")?;
        let (rows, vocab) = (ids.len(), self.description.vocab_size);
        let loaded = self.loaded(py)?;
        let logits = waiting(py, |go_on| loaded.logits_while(&ids, all, go_on))?;
        if all { shaped(py, logits, &[rows, vocab]) } else { shaped(py, logits, &[vocab]) }
    }

    /// Compute embeddings: means of the last hidden states, normalized to a Euclidean length of 1.
    ///
    /// Parameters
    /// ----------
    /// texts : str or list of str
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    ///     float32 array of shape (hidden_size,) for a single text, or (len(texts), hidden_size).
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

    /// Return the execution plan of a step.
    ///
    /// Parameters
    /// ----------
    /// rows : int, default 1
    ///     Number of tokens in the step.
    ///
    /// Returns
    /// -------
    /// Plan
    #[pyo3(signature = (rows = 1))]
    fn plan(&self, py: Python<'_>, rows: usize) -> PyResult<Plan> {
        let loaded = self.loaded(py)?;
        let plan = py.detach(|| loaded.plan(rows));
        plan.map(Plan::new).map_err(|error| exception(py, &error))
    }

    /// Measure the time per phase while processing a prompt and decoding.
    ///
    /// Parameters
    /// ----------
    /// prompt : int, default 256
    ///     Number of tokens of the prompt.
    /// decode : int, default 32
    ///     Number of tokens to decode after it.
    ///
    /// Returns
    /// -------
    /// dict
    ///     The data of `latent profile --json`.
    #[pyo3(signature = (prompt = 256, decode = 32))]
    fn profile<'py>(&self, py: Python<'py>, prompt: usize, decode: usize) -> PyResult<Bound<'py, PyAny>> {
        let loaded = self.loaded(py)?;
        let profile = waiting(py, |go_on| loaded.profile_while(prompt, decode, go_on))?;
        json::to_python(py, &profile)
    }

    /// Tokenizer of the model.
    #[getter]
    fn tokenizer(&self, py: Python<'_>) -> PyResult<Tokenizer> {
        self.loaded(py).map(Tokenizer::new)
    }

    /// Source of the chat template, or None if the model has none.
    #[getter]
    fn chat_template(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.loaded(py)?.text().chat_template().map(str::to_owned))
    }

    /// Description of the model and its configuration, as a dict.
    #[getter]
    fn description<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let value = serde_json::to_value(&self.description);
        json::to_python(py, &value.map_err(|error| argument(py, error.to_string()))?)
    }

    /// Name of the model.
    #[getter]
    fn name(&self) -> &str {
        &self.description.name
    }

    /// Maximum length of a sequence in tokens.
    #[getter]
    fn context(&self) -> usize {
        self.description.context
    }

    /// Vocabulary size, which is the number of logits per token.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.description.vocab_size
    }

    /// Number of elements of an embedding.
    #[getter]
    fn hidden_size(&self) -> usize {
        self.description.hidden_size
    }

    /// Release the model.
    ///
    /// Its memory is freed once its streams and tokenizers have been released too. Methods that use
    /// the model then raise `ArgumentError`. Closing a closed model has no effect.
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
