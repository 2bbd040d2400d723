//! Who may ask: keys, and where a browser's page comes from.

use super::{address, cors};
use crate::app::{App, percent_decoded};
use crate::error::{ApiError, ErrorKind};
use crate::keys::Tenant;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, HeaderMap, ORIGIN};
use axum::http::{HeaderValue, Method, Request};

/// Addresses that need no key: the page's own files, and whether the server is there.
fn is_public(path: &str) -> bool {
    matches!(path, "/health" | "/v1/health") || address::is_page(path)
}

/// Lets a request in, and says whose it is.
pub(super) fn admit(app: &App, request: &Request<Body>) -> Result<Tenant, ApiError> {
    let headers = request.headers();
    check_host(app, headers)?;
    check_origin(app, headers)?;
    if app.config.keys.is_empty() || is_public(request.uri().path()) {
        return Ok(Tenant::default());
    }
    let key = key_of(headers).or_else(|| drawing_key(request));
    let wrong = |problem: &str| ApiError::new(ErrorKind::Key, problem).with_code("invalid_api_key");
    let Some(key) = key else {
        return Err(wrong("no API key: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"));
    };
    let tenant = app.config.keys.tenant(&key, app.config.share_prefixes);
    tenant.ok_or_else(|| wrong("the API key is not known"))
}

fn key_of(headers: &HeaderMap) -> Option<Vec<u8>> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii().to_vec())
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes().to_vec()))
}

/// A frame cannot send a header: for the drawing alone, the page sends the key as a cookie.
fn drawing_key(request: &Request<Body>) -> Option<Vec<u8>> {
    if request.uri().path() != "/latent/graph" || request.method() != Method::GET {
        return None;
    }
    let cookies = request.headers().get(COOKIE)?.to_str().ok()?;
    let value = cookies.split(';').find_map(|pair| pair.trim().strip_prefix("latent_key="))?;
    percent_decoded(value)
}

/// Without keys, a server at loopback answers only requests that name it so: a page whose own name was made to point here (DNS rebinding) is refused.
fn check_host(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    if !app.config.keys.is_empty() || !app.config.is_loopback() {
        return Ok(());
    }
    let Some(host) = headers.get(HOST) else { return Ok(()) };
    if host.to_str().is_ok_and(|host| cors::is_local_name(cors::host_name(host))) {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorKind::Forbidden,
        "the server listens at loopback and is asked under another name; give it keys, or name it 127.0.0.1",
    ))
}

/// Pages of other origins may ask only where `cors` names them.
fn check_origin(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    if cors::is_allowed(&app.config, origin) || is_own(origin, headers) {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorKind::Forbidden,
        "pages of this origin may not ask; start the server with --cors ORIGIN (or localhost, or *) to let them",
    ))
}

fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let Ok(origin) = origin.to_str() else { return false };
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    host.is_some_and(|host| {
        headers.get(HOST).is_some_and(|own| own.as_bytes().eq_ignore_ascii_case(host.as_bytes()))
    })
}
