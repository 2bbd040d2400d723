//! Exit codes: 0 success (including a broken pipe), 1 error, 2 unsupported model, 64 wrong usage
//! (EX_USAGE of sysexits.h). After a signal: 128 plus its number, as shells report it (130 Ctrl-C,
//! 143 SIGTERM, 129 SIGHUP).

use crate::{interrupt, job, output};
use latent_backend::BackendError;
use latent_engine::EngineError;
use latent_formats::FormatError;
use latent_graph::{ConfigError, GraphError};
use latent_hub::HubError;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// Wrong usage that clap cannot detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// Converts an error in the engine's options to a usage error: exit code 64.
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

/// A comparison that found and printed differences: exit code 1.
#[derive(Debug, thiserror::Error)]
#[error("the two sides differ")]
pub(crate) struct ReportedDifferences;

/// A child process printed the error and exited with this code.
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
    // `latent --help | head` closes the pipe early: `code` turns that into success.
    ExitCode::from(if error.use_stderr() { USAGE } else { code(printed) })
}

/// Whether the same command would end with this code again, so that a restart is useless.
pub(crate) fn is_final(code: u8) -> bool {
    [UNSUPPORTED, USAGE].contains(&code)
}

/// Restores the type of an error that crossed a thread boundary: the type decides the exit code.
pub(crate) fn from_boxed(error: Box<dyn Error + Send + Sync>) -> anyhow::Error {
    // A boxed error in an anyhow chain can no longer be downcast to its own type, so each type that
    // `code` looks for is unboxed here.
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

/// Prints the error of a finished command and returns the exit code.
pub(crate) fn code(result: anyhow::Result<()>) -> u8 {
    let error = match result {
        // A command that stopped early after Ctrl-C returns Ok, but a script must see that it is
        // incomplete.
        Ok(()) if interrupt::asked() => return interrupt::code(),
        Ok(()) => return SUCCESS,
        Err(error) => error,
    };
    // The reader of the pipe (`head`, a pager) has what it wanted. Rust ignores SIGPIPE, so the
    // closed pipe arrives as an error here.
    if is_broken_pipe(&error) {
        return SUCCESS;
    }
    // An error after Ctrl-C is a consequence of the stop and would only confuse: the code alone
    // reports it.
    if interrupt::asked() || error.chain().any(|e| matches!(e.downcast_ref(), Some(EngineError::Stopped))) {
        return interrupt::code();
    }
    // Such a command has printed its result already. A second line would look like another problem.
    if error.is::<ReportedDifferences>() {
        return FAILURE;
    }
    if let Some(ReportedExit(code)) = error.downcast_ref() {
        return *code;
    }
    // The other ranks get the cause before this rank prints it: they then report the cause and not
    // a lost connection.
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

/// Prints an error in one line. Memory estimates and model choices are tables of several lines.
pub(crate) fn report(error: &anyhow::Error) {
    let choice = |e: &HubError| matches!(e, HubError::Choose { .. });
    let table = error.chain().any(|e| {
        matches!(e.downcast_ref(), Some(EngineError::Memory(_))) || e.downcast_ref().is_some_and(choice)
    });
    let text = format!("error: {}", message(error));
    // `note` escapes line feeds, so a table is printed line by line.
    if table { text.lines().for_each(output::note) } else { output::note(&text) }
}

/// The chain of causes in one line, without those that their predecessor already contains.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Some errors of the libraries already end with the text of their source.
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
    // `EngineError` is transparent: the chain holds it, but not the error inside, so both levels
    // are tested.
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
