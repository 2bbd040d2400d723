//! Responses of servers, and transport errors.

use crate::address::ServerOrigin;
use crate::error::HubError;
use std::time::Duration;
use ureq::Body;
use ureq::http::HeaderMap;

/// An answer with its headers.
pub(crate) struct HubResponse {
    pub(crate) status: u16,
    /// Those of the last answer.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
    /// Where it came from, without the query, which may hold a signature.
    pub(crate) from: String,
    /// Whether it came from the hub's own host.
    pub(crate) own: bool,
}

/// Why an attempt failed.
pub(crate) enum AttemptError {
    /// Another attempt would end the same.
    Final(HubError),
    /// Another attempt may succeed, after the wait that the server asked for.
    Again(HubError, Option<Duration>),
    /// The name of the host cannot be resolved. Without a network that stays so; during a download it may pass.
    Unresolved(HubError),
}

impl From<HubError> for AttemptError {
    fn from(error: HubError) -> AttemptError {
        AttemptError::Final(error)
    }
}

/// A host that does not answer, or not as it should: another attempt may succeed.
pub(crate) fn unreachable(host: impl Into<String>, problem: impl Into<String>) -> AttemptError {
    AttemptError::Again(HubError::Unreachable { host: host.into(), problem: problem.into() }, None)
}

/// The fault that an error of a request is.
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

/// Whether an error is that of a name's resolution, for which the standard library has no kind.
fn is_of_name(error: &std::io::Error) -> bool {
    error.to_string().contains("failed to lookup address information")
}

/// How long a server asks to wait.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// `: ` and what the hub says about an error, if it does.
pub(crate) fn message(answer: &HubResponse) -> String {
    let said = answer.headers.get("x-error-message").and_then(|text| text.to_str().ok()).unwrap_or_default();
    let said: String = said.chars().take(300).collect();
    if said.is_empty() { said } else { format!(": {said}") }
}

/// An answer that makes no sense.
pub(crate) fn bad(url: &str, problem: &str) -> HubError {
    HubError::Response { url: shown(url), problem: problem.into() }
}

/// An address without its query.
pub(crate) fn shown(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_owned()
}
