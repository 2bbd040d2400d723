//! Keyword arguments: options of loading and of generating.

use crate::arrays::{strings, tokens};
use crate::errors::{argument, exception};
use crate::json;
use latent::{ChatOptions, GenerateOptions, LoadOptions, Model, SamplingField, SamplingNumber};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::path::PathBuf;

/// Names of the numeric options of `Model.load`.
const NUMBERS: [&str; 4] = ["ctx_size", "cache_tokens", "threads", "batch_size"];

/// Names of the options of `Model.generate`, except numeric sampling parameters.
const GENERATE: [&str; 6] = ["max_tokens", "stop", "logprobs", "seed", "logit_bias", "lora"];

pub(crate) type Keywords<'a, 'py> = Option<&'a Bound<'py, PyDict>>;

/// A keyword argument.
pub(crate) struct KeywordValue<'a, 'py> {
    pub(crate) name: &'a str,
    pub(crate) value: Bound<'py, PyAny>,
}

impl KeywordValue<'_, '_> {
    pub(crate) fn extract<T: for<'x> FromPyObjectOwned<'x>>(&self, expected: &str) -> PyResult<T> {
        self.value.extract().map_err(|_| self.unexpected(expected))
    }

    fn unexpected(&self, expected: &str) -> PyErr {
        let found = self.value.repr().map_or_else(|_| "?".into(), |text| text.to_string());
        argument(self.value.py(), format!("{} is {found}, expected {expected}", self.name))
    }

    pub(crate) fn real(&self) -> PyResult<f32> {
        self.extract::<f64>("a number").map(|value| value as f32)
    }

    fn count(&self) -> PyResult<usize> {
        self.extract("a count")
    }

    pub(crate) fn at_least_one(&self) -> PyResult<usize> {
        match self.count()? {
            0 => Err(argument(self.value.py(), format!("{} is 0, expected at least 1", self.name))),
            count => Ok(count),
        }
    }
}

/// The keyword arguments that are not None.
pub(crate) fn given<'py>(keywords: Keywords<'_, 'py>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
    let Some(keywords) = keywords else { return Ok(Vec::new()) };
    let mut all = Vec::with_capacity(keywords.len());
    for (name, value) in keywords {
        // Wrappers pass None for options that their callers have not set.
        if !value.is_none() {
            all.push((name.extract()?, value));
        }
    }
    Ok(all)
}

pub(crate) fn unknown(py: Python<'_>, name: &str, known: &[&str]) -> PyErr {
    argument(py, format!("unknown option {name:?}; expected one of {}", known.join(", ")))
}

/// Converts the options of `Model.load`. Returns the LoRA adapters and their scales separately.
pub(crate) fn load(
    py: Python<'_>,
    keywords: Keywords<'_, '_>,
) -> PyResult<(LoadOptions, Vec<(PathBuf, f32)>)> {
    let (mut options, mut adapters) = (LoadOptions::default(), Vec::new());
    for (name, value) in given(keywords)? {
        let given = KeywordValue { name: &name, value };
        let engine = &mut options.engine;
        match name.as_str() {
            "ctx_size" => engine.context = Some(given.at_least_one()?),
            "cache_tokens" => engine.cache_tokens = Some(given.at_least_one()?),
            "threads" => engine.threads = Some(given.at_least_one()?),
            "batch_size" => engine.max_batch_tokens = Some(given.at_least_one()?),
            "force" => engine.force = given.extract("True or False")?,
            "lora" => adapters = lora(&given)?,
            word if LoadOptions::WORDS.contains(&word) => {
                let value: String = given.extract("a word")?;
                options.set(word, &value).map_err(|error| exception(py, &error))?;
            }
            other => {
                return Err(unknown(
                    py,
                    other,
                    &[&NUMBERS[..], &LoadOptions::WORDS, &["force", "lora"]].concat(),
                ));
            }
        }
    }
    Ok((options, adapters))
}

/// Converts `lora`: a path, or a list of paths and of (path, scale) pairs.
fn lora(given: &KeywordValue<'_, '_>) -> PyResult<Vec<(PathBuf, f32)>> {
    let wrong = || given.unexpected("a path, or a list of paths or of pairs (path, scale)");
    // First, since a `str` is also an iterable, of characters that would be taken for paths.
    if let Ok(path) = given.value.extract::<PathBuf>() {
        return Ok(vec![(path, 1.0)]);
    }
    let mut adapters = Vec::new();
    for item in given.value.try_iter().map_err(|_| wrong())? {
        let item = item?;
        let (path, scale) = match item.extract::<PathBuf>() {
            Ok(path) => (path, 1.0),
            Err(_) => item.extract::<(PathBuf, f64)>().map_err(|_| wrong())?,
        };
        if !scale.is_finite() {
            let path = path.display();
            let message = format!("lora: the scale of {path} is {scale}, expected a finite number");
            return Err(argument(item.py(), message));
        }
        adapters.push((path, scale as f32));
    }
    Ok(adapters)
}

/// Converts the options of `Model.generate`.
pub(crate) fn generate(
    py: Python<'_>,
    model: &Model,
    keywords: Keywords<'_, '_>,
) -> PyResult<GenerateOptions> {
    let mut options = model.generate_options();
    for (name, value) in given(keywords)? {
        set(py, &mut options, &KeywordValue { name: &name, value })?;
    }
    Ok(options)
}

fn set(py: Python<'_>, options: &mut GenerateOptions, given: &KeywordValue<'_, '_>) -> PyResult<()> {
    let sampling = &mut options.sampling;
    match given.name {
        "max_tokens" => options.max_tokens = Some(given.count()?),
        "stop" => {
            options.stop = match given.value.cast::<PyString>() {
                Ok(text) => vec![text.extract()?],
                Err(_) => strings(&given.value, given.name)
                    .map_err(|_| given.unexpected("a text or a list of texts"))?,
            }
        }
        "logprobs" => options.logprobs = Some(given.count()?),
        "lora" => {
            let scales: Vec<f64> = given.extract("a list with the scale of each adapter")?;
            options.adapter_scales = Some(scales.into_iter().map(|scale| scale as f32).collect());
        }
        // i128 holds all signed and unsigned 64-bit seeds. A negative seed becomes its two's
        // complement, as in the server's APIs.
        "seed" => sampling.seed = given.extract::<i128>("an integer")? as u64,
        "logit_bias" => {
            let biases: std::collections::BTreeMap<u32, f64> =
                given.extract("a dict of token ids and numbers")?;
            sampling.logit_bias = biases.into_iter().map(|(token, bias)| (token, bias as f32)).collect();
        }
        other => match SamplingField::named(other) {
            Some(field) => match field.number {
                SamplingNumber::Real { set, .. } => set(sampling, given.real()?),
                SamplingNumber::Count { set, .. } => set(sampling, given.count()?),
            },
            None => {
                let numbers: Vec<&str> = SamplingField::all().iter().map(|field| field.name).collect();
                return Err(unknown(py, other, &[&GENERATE[..], &numbers].concat()));
            }
        },
    }
    Ok(())
}

/// Converts the variables of a chat template.
pub(crate) fn chat(py: Python<'_>, variables: Keywords<'_, '_>) -> PyResult<ChatOptions> {
    let Some(variables) = variables else { return Ok(ChatOptions::default()) };
    let variables = json::from_python(variables, "template variables")?;
    ChatOptions::from_json(variables).map_err(|error| exception(py, &error))
}

/// A prompt: token ids or messages.
pub(crate) enum Prompt {
    /// Token ids.
    Tokens(Vec<u32>),
    /// Messages of a conversation, as JSON.
    Messages(serde_json::Value),
}

/// Converts a prompt: a text, which is tokenized, token ids, or the messages of a conversation.
pub(crate) fn prompt(model: &Model, object: &Bound<'_, PyAny>) -> PyResult<Prompt> {
    if let Ok(text) = object.cast::<PyString>() {
        let text: String = text.extract()?;
        let py = object.py();
        // Text like `<|im_end|>` in a prompt stays text. Token ids can name control tokens.
        let encoded = py.detach(|| model.text().encode(&text, true, false));
        return encoded.map(Prompt::Tokens).map_err(|error| exception(py, &error));
    }
    // The type decides, not an iteration, which would consume the first token of an iterator.
    if object.get_item(0).is_ok_and(|first| first.cast::<PyDict>().is_ok()) {
        return json::from_python(object, "messages").map(Prompt::Messages);
    }
    tokens(object, "prompt").map(Prompt::Tokens)
}
