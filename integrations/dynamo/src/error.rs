//! Dynamo's errors: their kind decides whether the frontend tells the client or asks another
//! worker.

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};
use latent_engine::scheduler::{JobError, Refusal};
use std::time::Duration;

/// The request asks for what cannot be done: the client is told, and no other worker is asked.
pub(crate) fn invalid(problem: impl Into<String>) -> DynamoError {
    let problem = problem.into();
    DynamoError::builder()
        .error_type(ErrorType::Backend(BackendError::InvalidArgument))
        .message(problem.clone())
        .public_message(problem)
        .build()
}

/// This worker is ending, or its engine has failed: another can answer.
pub(crate) fn shut_down(problem: impl Into<String>) -> DynamoError {
    of(ErrorType::Backend(BackendError::EngineShutdown), problem)
}

/// Neither the request's fault nor the whole engine's.
pub(crate) fn failed(problem: impl Into<String>) -> DynamoError {
    of(ErrorType::Backend(BackendError::Unknown), problem)
}

pub(crate) fn refused(refusal: &Refusal) -> DynamoError {
    match refusal {
        Refusal::Full { .. } => of(ErrorType::WorkerOverloaded, refusal.to_string()),
        Refusal::Closed => shut_down("this worker is shutting down"),
        _ => invalid(refusal.to_string()),
    }
}

pub(crate) fn of_job(error: &JobError) -> DynamoError {
    match error {
        JobError::Engine(_) => shut_down(error.to_string()),
        JobError::Constraint(problem) => invalid(problem),
        _ => failed(error.to_string()),
    }
}

/// What could not be done in time at the end.
pub(crate) fn cut_off(patience: Duration) -> String {
    format!(
        "the worker ended before the answer did: it has {} s for that (DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT)",
        patience.as_secs()
    )
}

fn of(kind: ErrorType, problem: impl Into<String>) -> DynamoError {
    DynamoError::builder().error_type(kind).message(problem).build()
}
