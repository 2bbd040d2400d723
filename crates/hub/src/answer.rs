//! Responses of servers, and transport errors.

use crate::address::ServerOrigin;
use crate::error::HubError;
use std::time::Duration;
use ureq::Body;
use ureq::http::HeaderMap;

/// A response after all redirects.
pub(crate) struct HubResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
    /// The address without its query, which may contain a signature.
    pub(crate) from: String,
    /// Whether it came from the hub's own host.
    pub(crate) own: bool,
}

/// The error of an attempt.
pub(crate) enum AttemptError {
    /// Another attempt would fail too.
    Final(HubError),
    /// Another attempt may succeed, after the wait that the server asked for.
    Again(HubError, Option<Duration>),
    /// The host's name cannot be resolved. At the start there is probably no network; during a
    /// download, the failure may be temporary.
    Unresolved(HubError),
}

impl From<HubError> for AttemptError {
    fn from(error: HubError) -> AttemptError {
        AttemptError::Final(error)
    }
}

/// The error of a host that does not respond, or not correctly. Another attempt may succeed.
pub(crate) fn unreachable(host: impl Into<String>, problem: impl Into<String>) -> AttemptError {
    AttemptError::Again(HubError::Unreachable { host: host.into(), problem: problem.into() }, None)
}

/// Classifies an error of a request.
pub(crate) fn fault(origin: &ServerOrigin, error: ureq::Error) -> AttemptError {
    let host = origin.to_string();
    let tls = |error: &std::io::Error| error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    let problem = error.to_string();
    match error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => HubError::Tls { host, problem }.into(),
        ureq::Error::Io(error) if tls(&error) => HubError::Tls { host, problem }.into(),
        ureq::Error::Io(error) if is_of_name(&error) => {
            AttemptError::Unresolved(HubError::Unreachable { host, problem })
        }
        ureq::Error::HostNotFound => AttemptError::Unresolved(HubError::Unreachable { host, problem }),
        ureq::Error::Io(_)
        | ureq::Error::Timeout(_)
        | ureq::Error::ConnectionFailed
        | ureq::Error::Protocol(_) => unreachable(host, format!("no answer: {problem}")),
        _ => HubError::Unreachable { host, problem }.into(),
    }
}

/// Whether an error is from name resolution. The standard library has no kind for it, so its text
/// is compared.
fn is_of_name(error: &std::io::Error) -> bool {
    error.to_string().contains("failed to lookup address information")
}

/// The wait in `Retry-After`.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    // A date instead of a number is ignored. Then the usual backoff applies.
    let seconds = headers.get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// `: ` and the hub's message about an error, or empty.
pub(crate) fn message(answer: &HubResponse) -> String {
    let said = answer.headers.get("x-error-message").and_then(|text| text.to_str().ok()).unwrap_or_default();
    // A header may have many kilobytes.
    let said: String = said.chars().take(300).collect();
    if said.is_empty() { said } else { format!(": {said}") }
}

/// The error of an unexpected response.
pub(crate) fn bad(url: &str, problem: &str) -> HubError {
    HubError::Response { url: shown(url), problem: problem.into() }
}

/// An address without its query.
pub(crate) fn shown(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_owned()
}
