//! The URL prefix of all routes (`--api-prefix`), and the switch that disables the chat page.

use crate::config::ServerConfig;
use crate::error::{ApiError, ErrorKind};
use axum::body::Body;
use axum::http::header::LOCATION;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Request, Response, StatusCode, Uri};

/// Strips the configured prefix from a request's URI.
///
/// # Errors
/// The path is not below the prefix, or it is part of the page and the page is disabled.
pub(super) fn enter(config: &ServerConfig, request: &mut Request<Body>) -> Result<(), ApiError> {
    if !config.api_prefix.is_empty() {
        *request.uri_mut() = inner(&config.api_prefix, request.uri()).ok_or_else(|| {
            let problem = format!(
                "{} is outside of {}, the prefix of this server's addresses",
                request.uri().path(),
                config.api_prefix
            );
            ApiError::new(ErrorKind::NotFound, problem)
        })?;
    }
    if !config.page && is_page(request.uri().path()) {
        return Err(ApiError::new(
            ErrorKind::NotFound,
            "this server has no page: it was started with --no-ui",
        ));
    }
    Ok(())
}

/// Redirects a request for the prefix itself to the prefix with a slash.
pub(super) fn to_root(config: &ServerConfig, uri: &Uri) -> Option<Response<Body>> {
    // The page refers to its files by relative URLs. Without the slash a browser would resolve
    // them against the parent of the prefix.
    if config.api_prefix.is_empty() || uri.path() != config.api_prefix {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    let root = HeaderValue::try_from(format!("{}/", config.api_prefix)).ok()?;
    response.headers_mut().insert(LOCATION, root);
    Some(response)
}

/// Whether a path is the page or one of its files.
pub(super) fn is_page(path: &str) -> bool {
    matches!(path, "/" | "/favicon.ico") || path.starts_with("/assets/")
}

/// The URI without the prefix, or `None` if the path is not below it.
fn inner(prefix: &str, uri: &Uri) -> Option<Uri> {
    let rest = uri.path_and_query()?.as_str().strip_prefix(prefix)?;
    let path = match rest.chars().next() {
        // The prefix ends at a segment boundary: `/llm` must not match `/llmx/v1`.
        Some('/') => rest.to_owned(),
        None | Some('?') => format!("/{rest}"),
        Some(_) => return None,
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_whole_segments() {
        let inner = |path: &str| inner("/llm", &path.parse().unwrap()).map(|uri| uri.to_string());
        assert_eq!(inner("/llm/v1/models?model=a").as_deref(), Some("/v1/models?model=a"));
        assert_eq!(inner("/llm").as_deref(), Some("/"));
        assert_eq!(inner("/llm?x").as_deref(), Some("/?x"));
        // A longer first segment does not have the prefix.
        assert_eq!((inner("/llmx/v1"), inner("/v1/models"), inner("/")), (None, None, None));
    }
}
