//! Exit codes: 0 done (a broken pipe too), 1 error, 2 model not supported, 64 wrong usage; ended by a signal: 128 and its number, 130 after
//! Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.

use crate::{interrupt, job, output};
use latent_backend::BackendError;
use latent_engine::EngineError;
use latent_formats::FormatError;
use latent_graph::{ConfigError, GraphError};
use latent_hub::HubError;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// Wrong usage that clap cannot see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// An error of options as one of usage: exit code 64.
pub(crate) fn usage_of(error: EngineError) -> anyhow::Error {
    match error {
        EngineError::Options(problem) => UsageError(problem).into(),
        other => other.into(),
    }
}

/// A command that completed and reported problems: exit code 1.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ReportedProblems(pub(crate) String);

/// A command that completed and reported that a model is not supported: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UnsupportedModel(pub(crate) String);

/// A comparison that found differences, which have been printed: exit code 1.
#[derive(Debug, thiserror::Error)]
#[error("the two sides part")]
pub(crate) struct ReportedDifferences;

/// What went wrong was said by another process, which ended with this code.
#[derive(Debug, thiserror::Error)]
#[error("ended with code {0}")]
pub(crate) struct ReportedExit(pub(crate) u8);

const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;
const UNSUPPORTED: u8 = 2;
const USAGE: u8 = 64;

/// Prints clap's message; help and version exit with 0.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let printed = output::laid_out(&error.render().ansi().to_string(), error.use_stderr());
    ExitCode::from(if error.use_stderr() { USAGE } else { code(printed) })
}

/// Whether a command that ended with this code would end so again.
pub(crate) fn is_final(code: u8) -> bool {
    [UNSUPPORTED, USAGE].contains(&code)
}

/// An error of a thread, as what it is: its kind decides the exit code.
pub(crate) fn from_boxed(error: Box<dyn Error + Send + Sync>) -> anyhow::Error {
    let error = match error.downcast::<EngineError>() {
        Ok(error) => return (*error).into(),
        Err(error) => error,
    };
    let error = match error.downcast::<UsageError>() {
        Ok(error) => return (*error).into(),
        Err(error) => error,
    };
    let error = match error.downcast::<ConfigError>() {
        Ok(error) => return (*error).into(),
        Err(error) => error,
    };
    error.downcast::<FormatError>().map_or_else(anyhow::Error::from_boxed, |error| (*error).into())
}

/// The exit code of a finished command; its error is printed.
pub(crate) fn code(result: anyhow::Result<()>) -> u8 {
    let error = match result {
        Ok(()) if interrupt::asked() => return interrupt::code(),
        Ok(()) => return SUCCESS,
        Err(error) => error,
    };
    if is_broken_pipe(&error) {
        return SUCCESS;
    }
    if interrupt::asked() || error.chain().any(|e| matches!(e.downcast_ref(), Some(EngineError::Stopped))) {
        return interrupt::code();
    }
    if error.is::<ReportedDifferences>() {
        return FAILURE;
    }
    if let Some(ReportedExit(code)) = error.downcast_ref() {
        return *code;
    }
    job::failed(&message(&error));
    report(&error);
    if error.chain().any(|e| is_unsupported(e) || e.is::<UnsupportedModel>()) {
        UNSUPPORTED
    } else if error.chain().any(|e| e.is::<UsageError>()) {
        USAGE
    } else {
        FAILURE
    }
}

/// Prints an error in one line, except for the table of a memory estimate and the models to choose from.
pub(crate) fn report(error: &anyhow::Error) {
    let choice = |e: &HubError| matches!(e, HubError::Choose { .. });
    let table = error.chain().any(|e| {
        matches!(e.downcast_ref(), Some(EngineError::Memory(_))) || e.downcast_ref().is_some_and(choice)
    });
    let text = format!("error: {}", message(error));
    if table { text.lines().for_each(output::note) } else { output::note(&text) }
}

/// The chain of causes in one line, without those that their predecessor already contains.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.ends_with(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    text
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|e| e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

fn is_unsupported(error: &(dyn Error + 'static)) -> bool {
    let config = ConfigError::is_unsupported;
    let graph = |e: &GraphError| matches!(e, GraphError::NoCircuit { .. } | GraphError::NoKernel { .. });
    let format = |e: &FormatError| e.is_unsupported();
    match error.downcast_ref::<EngineError>() {
        Some(EngineError::Format(e)) => format(e),
        Some(EngineError::ModelConfig(e)) => config(e),
        Some(EngineError::Graph(e)) => graph(e),
        Some(EngineError::Backend(BackendError::NotDecodable { .. })) => true,
        _ => {
            matches!(error.downcast_ref(), Some(HubError::Unsupported { .. }))
                || error.downcast_ref::<ConfigError>().is_some_and(config)
                || error.downcast_ref::<FormatError>().is_some_and(format)
                || error.downcast_ref::<GraphError>().is_some_and(graph)
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_that_wrap_are_errors_in_this_crate() {
        let sum = std::panic::catch_unwind(|| std::hint::black_box(usize::MAX) + std::hint::black_box(1));
        assert!(
            sum.is_err(),
            "overflow checks are off: see [profile.release.package] in the root Cargo.toml"
        );
    }
}
