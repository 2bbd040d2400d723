//! The class `Tokenizer`.

use crate::arrays::tokens;
use crate::errors::{argument, exception};
use latent::Model;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Tokenizer of a model. `len(tokenizer)` is the vocabulary size.
#[pyclass(frozen, module = "latent")]
pub(crate) struct Tokenizer {
    model: Model,
}

impl Tokenizer {
    pub(crate) fn new(model: Model) -> Tokenizer {
        Tokenizer { model }
    }
}

#[pymethods]
impl Tokenizer {
    /// Convert text to token ids.
    ///
    /// Parameters
    /// ----------
    /// text : str
    /// add_special : bool, default True
    ///     Add the tokens that begin (and end) a prompt.
    /// parse_special : bool, default False
    ///     Convert names of control tokens to these tokens. Do not use it for untrusted text.
    ///
    /// Returns
    /// -------
    /// list of int
    #[pyo3(signature = (text, *, add_special = true, parse_special = false))]
    fn encode(
        &self,
        py: Python<'_>,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> PyResult<Vec<u32>> {
        let encoded = py.detach(|| self.model.text().encode(text, add_special, parse_special));
        encoded.map_err(|error| exception(py, &error))
    }

    /// Convert token ids to text.
    ///
    /// Parameters
    /// ----------
    /// tokens : sequence of int or array of integers
    /// special : bool, default False
    ///     Include the names of control tokens.
    ///
    /// Returns
    /// -------
    /// str
    ///     Invalid UTF-8 is replaced by U+FFFD.
    #[pyo3(signature = (tokens, *, special = false))]
    fn decode(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = ids)] tokens: Vec<u32>,
        special: bool,
    ) -> PyResult<String> {
        self.model.text().decode(&tokens, special).map_err(|error| exception(py, &error))
    }

    /// Return the bytes of a token.
    fn piece<'py>(&self, py: Python<'py>, token: u32) -> PyResult<Bound<'py, PyBytes>> {
        let piece = self.model.tokenizer().piece(token).ok_or_else(|| self.out_of_range(py, token))?;
        Ok(PyBytes::new(py, piece))
    }

    /// Return the text of a token in the vocabulary.
    fn token_text(&self, py: Python<'_>, token: u32) -> PyResult<&str> {
        self.model.tokenizer().token_text(token).ok_or_else(|| self.out_of_range(py, token))
    }

    /// Return the id of the token with this text in the vocabulary, or None.
    fn token_id(&self, text: &str) -> Option<u32> {
        self.model.tokenizer().token_id(text)
    }

    /// Return whether a token is a control token.
    fn is_control(&self, token: u32) -> bool {
        self.model.tokenizer().is_control(token)
    }

    /// Id of the beginning-of-sequence token, or None.
    #[getter]
    fn bos(&self) -> Option<u32> {
        self.model.tokenizer().bos()
    }

    /// Id of the end-of-sequence token, or None.
    #[getter]
    fn eos(&self) -> Option<u32> {
        self.model.tokenizer().eos()
    }

    /// Ids of the tokens that end an answer.
    #[getter]
    fn end_of_generation(&self) -> Vec<u32> {
        self.model.tokenizer().end_of_generation().to_vec()
    }

    fn __len__(&self) -> usize {
        self.model.tokenizer().vocab_size()
    }
}

impl Tokenizer {
    fn out_of_range(&self, py: Python<'_>, token: u32) -> PyErr {
        let known = self.model.tokenizer().vocab_size();
        argument(py, format!("token id {token} is out of range: the tokenizer has {known} tokens"))
    }
}

fn ids(object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    tokens(object, "tokens")
}
