//! Cross-origin resource sharing: allowed origins, and the response headers for browsers.

use crate::config::ServerConfig;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, HeaderMap, ORIGIN, VARY,
};
use axum::http::{HeaderName, HeaderValue, Method};
use std::net::IpAddr;

/// Every origin.
const ANY: &str = "*";

/// All loopback origins, at any port.
const LOCALHOST: &str = "localhost";

/// The origin that browsers send for `file:` pages and sandboxed frames.
const NULL: &str = "null";

/// Request headers that are allowed if a preflight names none.
const HEADERS: &str = "authorization, content-type, x-api-key, x-request-id, anthropic-version, anthropic-beta, \
                       openai-organization, openai-project";

/// Response headers that pages can read without `Access-Control-Expose-Headers`: the Fetch
/// standard's CORS-safelisted response-header names.
const SAFELISTED: [&str; 7] = [
    "cache-control",
    "content-language",
    "content-length",
    "content-type",
    "expires",
    "last-modified",
    "pragma",
];

/// The entries of `--cors`, which can be repeated and can contain commas.
fn words(config: &ServerConfig) -> impl Iterator<Item = &str> {
    config.cors.iter().flat_map(|words| words.split(',')).map(|word| word.trim().trim_end_matches('/'))
}

/// The first entry of `--cors` that cannot match any browser's origin.
pub(super) fn invalid_word(config: &ServerConfig) -> Option<&str> {
    words(config).find(|word| {
        let host = word.split_once("://").filter(|(scheme, _)| !scheme.is_empty()).map(|(_, host)| host);
        // Any scheme is allowed: desktop apps have origins such as `app://obsidian.md`.
        let origin = host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ']));
        !origin && ![ANY, LOCALHOST, NULL].contains(word)
    })
}

/// The value of `Access-Control-Allow-Origin` for an origin, and whether its requests may carry the
/// browser's credentials.
fn allowed(config: &ServerConfig, origin: &HeaderValue) -> Option<(HeaderValue, bool)> {
    let text = origin.to_str().ok()?;
    // The operator named this origin, so its pages are trusted with credentials.
    let named = words(config).any(|word| match word {
        ANY => false,
        LOCALHOST => is_local(text),
        word => word.eq_ignore_ascii_case(text),
    });
    if named {
        return Some((origin.clone(), true));
    }
    words(config).any(|word| word == ANY).then(|| match config.cors_credentials {
        true => (origin.clone(), true),
        // Browsers refuse responses to requests with credentials if the value is `*`.
        false => (HeaderValue::from_static(ANY), false),
    })
}

/// Whether pages of an origin may send requests.
pub(super) fn is_allowed(config: &ServerConfig, origin: &HeaderValue) -> bool {
    allowed(config, origin).is_some()
}

/// Whether an origin is `localhost` or a loopback address, at any port.
fn is_local(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    // An origin never has a user name. In `http://localhost:1@evil.com` it would hide the host.
    host.is_some_and(|host| !host.contains(['@', '/']) && is_local_name(host_name(host)))
}

/// Whether a host name refers to this machine.
pub(super) fn is_local_name(name: &str) -> bool {
    // RFC 6761 reserves `localhost` and all names below it. A trailing dot marks an absolute name.
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The name in a `HOST[:PORT]`: `::1` for `[::1]:8080`.
pub(super) fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// Adds the CORS headers to a response or to the response of a preflight.
pub(super) fn add_headers(
    config: &ServerConfig,
    method: &Method,
    request: &HeaderMap,
    response: &mut HeaderMap,
) {
    if config.cors.is_empty() {
        return;
    }
    // Caches must not serve one origin's response to another, even if this request has no origin.
    response.insert(VARY, HeaderValue::from_static("Origin"));
    let Some(origin) = request.get(ORIGIN) else { return };
    let Some((allowed, credentials)) = allowed(config, origin) else { return };
    if *method == Method::OPTIONS {
        add_preflight(request, response);
    } else if let Some(exposed) = exposed(response) {
        response.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
    if credentials {
        response.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
}

fn add_preflight(request: &HeaderMap, response: &mut HeaderMap) {
    const PRIVATE: &str = "access-control-request-private-network";
    // The requested headers are echoed. The official JavaScript SDKs send `x-stainless-*` headers,
    // whose names change between versions, so no fixed list is sufficient.
    let named = HeaderValue::from_static(HEADERS);
    let asked = request.get(ACCESS_CONTROL_REQUEST_HEADERS).filter(|asked| is_list(asked));
    response.insert(
        VARY,
        HeaderValue::from_static("Origin, Access-Control-Request-Method, Access-Control-Request-Headers"),
    );
    response.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
    response.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.cloned().unwrap_or(named));
    response.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    // Private Network Access: a public page requests an address of a private network.
    if request.get(PRIVATE).is_some_and(|value| value == "true") {
        let allow = HeaderName::from_static("access-control-allow-private-network");
        response.insert(allow, HeaderValue::from_static("true"));
    }
}

/// Whether a value is a list of valid header names. Only such a value is echoed.
fn is_list(value: &HeaderValue) -> bool {
    let name = |name: &str| HeaderName::from_bytes(name.trim().as_bytes()).is_ok();
    value.to_str().is_ok_and(|names| names.split(',').all(name))
}

/// The response headers that a page can read only if they are listed, such as `x-request-id`.
fn exposed(response: &HeaderMap) -> Option<HeaderValue> {
    let hidden = |name: &&str| !SAFELISTED.contains(name) && *name != "vary";
    let names: Vec<&str> = response.keys().map(HeaderName::as_str).filter(hidden).collect();
    HeaderValue::from_str(&names.join(", ")).ok().filter(|names| !names.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed_by(cors: &[&str], origin: &str) -> Option<(String, bool)> {
        let cors = cors.iter().map(|word| (*word).to_owned()).collect();
        let config = ServerConfig { cors, ..ServerConfig::default() };
        let (value, credentials) = allowed(&config, &HeaderValue::from_str(origin).unwrap())?;
        Some((value.to_str().unwrap().to_owned(), credentials))
    }

    #[test]
    fn hosts_are_read() {
        assert_eq!(host_name("[::1]:80"), "::1");
        assert_eq!(host_name("localhost"), "localhost");
        assert_eq!(host_name("127.0.0.1:8080"), "127.0.0.1");
        assert!(is_local_name("LocalHost") && is_local_name("a.LOCALHOST.") && is_local_name("127.3.2.1"));
        assert!(!is_local_name("localhost.example.org") && !is_local_name(""));
    }

    #[test]
    fn localhost_matches_any_loopback_port_and_no_similar_name() {
        for origin in [
            "http://localhost",
            "https://localhost:8080",
            "http://127.0.0.1:3000",
            "http://[::1]",
            "http://[::1]:3000",
        ] {
            assert_eq!(allowed_by(&["localhost"], origin), Some((origin.to_owned(), true)));
        }
        // Foreign names that contain a loopback one, an opaque origin, and a host without a scheme.
        for origin in [
            "http://evil.com",
            "http://notlocalhost",
            "http://localhost.evil.com",
            "null",
            "localhost",
            "http://localhost:1@evil.com",
        ] {
            assert_eq!(allowed_by(&["localhost"], origin), None, "{origin}");
        }
    }

    #[test]
    fn named_origins_have_credentials_and_the_wildcard_has_none() {
        let named = Some(("https://a.example".to_owned(), true));
        assert_eq!(allowed_by(&["https://A.example/, https://b.example"], "https://a.example"), named);
        // A named origin keeps its credentials if `*` is in the list too.
        assert_eq!(allowed_by(&["*", "https://a.example"], "https://a.example"), named);
        assert_eq!(allowed_by(&["*"], "https://a.example"), Some(("*".to_owned(), false)));
        let config =
            ServerConfig { cors: vec!["*".into()], cors_credentials: true, ..ServerConfig::default() };
        let origin = HeaderValue::from_static("https://a.example");
        assert_eq!(allowed(&config, &origin), Some((origin.clone(), true)));
    }

    #[test]
    fn entries_that_match_no_origin_are_found() {
        let invalid = |word: &str| {
            let config = ServerConfig { cors: vec![word.into()], ..ServerConfig::default() };
            invalid_word(&config).map(str::to_owned)
        };
        for word in ["*", "localhost", "null", "https://a.example", "http://a:80/", "app://obsidian.md"] {
            assert_eq!(invalid(word), None, "{word}");
        }
        // Browsers send scheme and host without a path, so these never match.
        for word in ["a.example", "https://", "https://a.example/path", "://a", ""] {
            assert!(invalid(word).is_some(), "{word}");
        }
        assert_eq!(invalid("https://a.example,b").as_deref(), Some("b"));
    }
}
