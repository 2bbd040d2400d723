//! Runs work without the GIL, and checks for signals meanwhile.

use crate::errors::exception;
use latent::{Error, WaitCheck};
use pyo3::prelude::*;

/// Runs `work` without the GIL. `work` calls its argument regularly, which runs pending signal
/// handlers and returns false if one of them raised (Ctrl-C raises KeyboardInterrupt). Then `work`
/// stops, and the exception is raised. Python runs handlers on its main thread only. No handler is
/// installed.
pub(crate) fn waiting<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(WaitCheck<'_>) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let done = py.detach(|| {
        work(&mut || {
            Python::attach(|py| match py.check_signals() {
                Ok(()) => true,
                Err(error) => {
                    raised = Some(error);
                    false
                }
            })
        })
    });
    // The handler's exception, and not `work`'s error that it was told to stop.
    match raised {
        Some(error) => Err(error),
        None => done.map_err(|error| exception(py, &error)),
    }
}
