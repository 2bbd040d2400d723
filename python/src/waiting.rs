//! Work without the GIL, during which Ctrl-C is heard.

use crate::errors::exception;
use latent::{Error, WaitCheck};
use pyo3::prelude::*;

/// Runs `work` without the GIL. Where a signal's handler raises meanwhile (Ctrl-C raises
/// KeyboardInterrupt), `work` is told to stop, and that is what is raised. Only Python's main
/// thread runs handlers; nothing is installed.
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
