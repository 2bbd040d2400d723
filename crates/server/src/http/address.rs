//! Where the server's addresses begin, and whether the page is one of them.

use crate::config::ServerConfig;
use crate::error::{ApiError, ErrorKind};
use axum::body::Body;
use axum::http::header::LOCATION;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Request, Response, StatusCode, Uri};

/// Takes the prefix of all addresses from that of a request.
///
/// # Errors
/// An address without the prefix, or of the page where it is not served.
pub(super) fn enter(config: &ServerConfig, request: &mut Request<Body>) -> Result<(), ApiError> {
    if !config.api_prefix.is_empty() {
        *request.uri_mut() = inner(&config.api_prefix, request.uri()).ok_or_else(|| {
            let problem = format!(
                "{} is not below {}, where this server's addresses are",
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

/// The answer to a request for the prefix itself: the page below it names its files relative to the slash at its end.
pub(super) fn to_root(config: &ServerConfig, uri: &Uri) -> Option<Response<Body>> {
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

/// An address without the prefix.
fn inner(prefix: &str, uri: &Uri) -> Option<Uri> {
    let rest = uri.path_and_query()?.as_str().strip_prefix(prefix)?;
    let path = match rest.chars().next() {
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
        assert_eq!((inner("/llmx/v1"), inner("/v1/models"), inner("/")), (None, None, None));
    }
}
