//! Access control: API keys, the `Host` header and the `Origin` header.

use super::{address, cors};
use crate::app::{App, percent_decoded};
use crate::error::{ApiError, ErrorKind};
use crate::keys::Tenant;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, HeaderMap, ORIGIN};
use axum::http::{HeaderValue, Method, Request};

/// Whether a path needs no key.
fn is_public(path: &str) -> bool {
    // Load balancers poll /health without keys. A browser cannot send a key before it has loaded
    // the page that asks for it.
    matches!(path, "/health" | "/v1/health") || address::is_page(path)
}

/// Checks the host, the origin and the key of a request. Returns its tenant.
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
    tenant.ok_or_else(|| wrong("invalid API key"))
}

fn key_of(headers: &HeaderMap) -> Option<Vec<u8>> {
    // Anthropic's SDKs send `x-api-key`, the others a bearer token.
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii().to_vec())
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes().to_vec()))
}

/// The key in the page's cookie, for the model's drawing.
fn drawing_key(request: &Request<Body>) -> Option<Vec<u8>> {
    // An `<iframe>` cannot send headers. All other paths ignore the cookie: browsers send cookies
    // by themselves, also with requests that another page has caused.
    if request.uri().path() != "/latent/graph" || request.method() != Method::GET {
        return None;
    }
    let cookies = request.headers().get(COOKIE)?.to_str().ok()?;
    let value = cookies.split(';').find_map(|pair| pair.trim().strip_prefix("latent_key="))?;
    percent_decoded(value)
}

/// Checks that requests to a server on loopback without keys name it by a loopback name.
fn check_host(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    // Against DNS rebinding: a page whose own name suddenly resolves to 127.0.0.1 has the origin of
    // the server and could read its responses. Its requests still have its name in `Host`.
    if !app.config.keys.is_empty() || !app.config.is_loopback() {
        return Ok(());
    }
    let Some(host) = headers.get(HOST) else { return Ok(()) };
    if host.to_str().is_ok_and(|host| cors::is_local_name(cors::host_name(host))) {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorKind::Forbidden,
        "the Host header is not a loopback name, but the server listens at loopback; use 127.0.0.1, or start \
         it with API keys",
    ))
}

/// Refuses requests of pages from origins that `cors` does not name.
fn check_origin(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    // CORS headers alone do not stop "simple" requests: the browser sends them, and only hides the
    // response from the page. Without this check any page could occupy the engine.
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    if cors::is_allowed(&app.config, origin) || is_own(origin, headers) {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorKind::Forbidden,
        "requests from this origin are not allowed; start the server with --cors ORIGIN (or localhost, or *)",
    ))
}

/// Whether an origin is the host that the request was sent to, as for the server's own page.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let Ok(origin) = origin.to_str() else { return false };
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    host.is_some_and(|host| {
        headers.get(HOST).is_some_and(|own| own.as_bytes().eq_ignore_ascii_case(host.as_bytes()))
    })
}
