//! An answer while it comes.

use crate::answer::Answer;
use crate::errors::{argument, exception};
use crate::waiting::waiting;
use latent::{AnswerStream, GenerationUpdate};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// An iterator over the pieces of an answer's text.
#[pyclass(frozen, module = "latent")]
pub(crate) struct Stream {
    state: Mutex<State>,
}

struct State {
    /// None once the last piece was taken, or it was closed.
    generating: Option<AnswerStream>,
    answer: Option<Py<Answer>>,
}

impl Stream {
    pub(crate) fn new(generating: AnswerStream) -> Stream {
        let state = State { generating: Some(generating), answer: None };
        Stream { state: Mutex::new(state) }
    }

    /// Its state, unless another thread waits for a piece: that one has released the GIL, and must
    /// not be waited for with it.
    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        // Never `lock`: the other thread may need the GIL, which this one holds, to return.
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(PyRuntimeError::new_err("another thread reads this stream: give each thread its own"))
            }
        }
    }

    /// The answer, which is waited for.
    pub(crate) fn finish(&self, py: Python<'_>) -> PyResult<Py<Answer>> {
        let mut state = self.state()?;
        while state.next_text(py)?.is_some() {}
        state.answer(py)
    }
}

impl State {
    /// The next text that is not empty.
    fn next_text(&mut self, py: Python<'_>) -> PyResult<Option<String>> {
        while let Some(generating) = &mut self.generating {
            let piece = waiting(py, |go_on| generating.next_update_while(go_on))
                // After an exception, KeyboardInterrupt included, the stream is closed and its job
                // cancelled.
                .inspect_err(|_| self.generating = None)?;
            let Some(piece) = piece else {
                if let Some(ended) = self.generating.take() {
                    let finished = ended.finish().map_err(|error| exception(py, &error))?;
                    self.answer = Some(Py::new(py, Answer::new(finished))?);
                }
                break;
            };
            match piece {
                GenerationUpdate::Token { text, .. } | GenerationUpdate::Rest(text) if !text.is_empty() => {
                    return Ok(Some(text));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn answer(&self, py: Python<'_>) -> PyResult<Py<Answer>> {
        match &self.answer {
            Some(answer) => Ok(answer.clone_ref(py)),
            None => Err(argument(py, "the answer has not ended: read the stream to its end, or close it")),
        }
    }
}

#[pymethods]
impl Stream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.state()?.next_text(py)
    }

    /// The answer, once the last piece was taken.
    #[getter]
    fn answer(&self, py: Python<'_>) -> PyResult<Py<Answer>> {
        self.state()?.answer(py)
    }

    /// Ends the answer at the current position. The stream yields no more pieces, and its answer is
    /// the text read so far.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.state()?;
        // Tokens computed ahead are discarded. Only text that was held back still follows, and
        // after it the answer.
        if let Some(generating) = &mut state.generating {
            generating.stop();
        }
        while state.next_text(py)?.is_some() {}
        Ok(())
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}
