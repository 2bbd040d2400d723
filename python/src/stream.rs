//! The class `Stream`.

use crate::answer::Answer;
use crate::errors::{argument, exception};
use crate::waiting::waiting;
use latent::{AnswerStream, GenerationUpdate};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Iterator over the text of an answer while it is generated.
///
/// Each item is a non-empty `str`. A stream can be read by one thread at a time. Closing or
/// deleting it ends the generation. It is a context manager that closes the stream on exit.
#[pyclass(frozen, module = "latent")]
pub(crate) struct Stream {
    state: Mutex<State>,
}

struct State {
    /// None after the last text was read, or after an error.
    generating: Option<AnswerStream>,
    answer: Option<Py<Answer>>,
}

impl Stream {
    pub(crate) fn new(generating: AnswerStream) -> Stream {
        let state = State { generating: Some(generating), answer: None };
        Stream { state: Mutex::new(state) }
    }

    /// Locks the state. Raises RuntimeError if another thread is reading: it has released the GIL,
    /// so waiting for it with the GIL held would deadlock.
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

    /// Waits for the end of the generation, and returns the answer.
    pub(crate) fn finish(&self, py: Python<'_>) -> PyResult<Py<Answer>> {
        let mut state = self.state()?;
        while state.next_text(py)?.is_some() {}
        state.answer(py)
    }
}

impl State {
    /// Returns the next text that is not empty, or `None` at the end of the answer.
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

    /// The finished answer.
    ///
    /// Raises
    /// ------
    /// latent.errors.ArgumentError
    ///     If the stream has neither been read to its end nor closed.
    #[getter]
    fn answer(&self, py: Python<'_>) -> PyResult<Py<Answer>> {
        self.state()?.answer(py)
    }

    /// End the generation.
    ///
    /// The stream yields no more text. Its `answer` has the text that was read so far.
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
