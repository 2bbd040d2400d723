//! Cross-origin requests of browsers: which origins may ask, and the headers that tell the browser.

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

/// Origins of this machine, at any port.
const LOCALHOST: &str = "localhost";

/// What pages without an origin of their own send: files, and frames in a sandbox.
const NULL: &str = "null";

/// Request headers that are allowed if a preflight names none.
const HEADERS: &str = "authorization, content-type, x-api-key, x-request-id, anthropic-version, anthropic-beta, \
                       openai-organization, openai-project";

/// Response headers that pages can read without being told so.
const SAFELISTED: [&str; 7] = [
    "cache-control",
    "content-language",
    "content-length",
    "content-type",
    "expires",
    "last-modified",
    "pragma",
];

/// The words of the setting: each may hold several, separated by commas.
fn words(config: &ServerConfig) -> impl Iterator<Item = &str> {
    config.cors.iter().flat_map(|words| words.split(',')).map(|word| word.trim().trim_end_matches('/'))
}

/// A word of the setting that no browser's origin can match.
pub(super) fn invalid_word(config: &ServerConfig) -> Option<&str> {
    words(config).find(|word| {
        let host = word.split_once("://").filter(|(scheme, _)| !scheme.is_empty()).map(|(_, host)| host);
        let origin = host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ']));
        !origin && ![ANY, LOCALHOST, NULL].contains(word)
    })
}

/// The value of `Access-Control-Allow-Origin` for an origin, and whether its requests may carry the browser's credentials.
fn allowed(config: &ServerConfig, origin: &HeaderValue) -> Option<(HeaderValue, bool)> {
    let text = origin.to_str().ok()?;
    // named by the user: a page of this origin is trusted
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
        // a browser sends no credentials to a server that answers with the asterisk
        false => (HeaderValue::from_static(ANY), false),
    })
}

/// Whether pages of an origin may ask.
pub(super) fn is_allowed(config: &ServerConfig, origin: &HeaderValue) -> bool {
    allowed(config, origin).is_some()
}

/// Whether an origin is one of this machine: `localhost` or a loopback address, at any port.
fn is_local(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    // a user name before the host never belongs to an origin, and would hide the host
    host.is_some_and(|host| !host.contains(['@', '/']) && is_local_name(host_name(host)))
}

/// Whether a host's name is one of this machine.
pub(super) fn is_local_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The name in a host with an optional port: `[::1]:8080` is `::1`.
pub(super) fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// Adds to a response what tells a browser that its page may read it, or that it may send the request that it asks about.
pub(super) fn add_headers(
    config: &ServerConfig,
    method: &Method,
    request: &HeaderMap,
    response: &mut HeaderMap,
) {
    if config.cors.is_empty() {
        return;
    }
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
    let named = HeaderValue::from_static(HEADERS);
    let asked = request.get(ACCESS_CONTROL_REQUEST_HEADERS).filter(|asked| is_list(asked));
    response.insert(
        VARY,
        HeaderValue::from_static("Origin, Access-Control-Request-Method, Access-Control-Request-Headers"),
    );
    response.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
    response.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.cloned().unwrap_or(named));
    response.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    // a page of the internet that asks an address of this network
    if request.get(PRIVATE).is_some_and(|value| value == "true") {
        let allow = HeaderName::from_static("access-control-allow-private-network");
        response.insert(allow, HeaderValue::from_static("true"));
    }
}

/// Whether a value is a list of header names, which browsers accept as they sent it.
fn is_list(value: &HeaderValue) -> bool {
    let name = |name: &str| HeaderName::from_bytes(name.trim().as_bytes()).is_ok();
    value.to_str().is_ok_and(|names| names.split(',').all(name))
}

/// The names of a response's headers that a page can read only if they are listed, such as the id of the request.
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
    fn localhost_is_any_port_of_this_machine_and_nothing_that_looks_like_it() {
        for origin in [
            "http://localhost",
            "https://localhost:8080",
            "http://127.0.0.1:3000",
            "http://[::1]",
            "http://[::1]:3000",
        ] {
            assert_eq!(allowed_by(&["localhost"], origin), Some((origin.to_owned(), true)));
        }
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
    fn named_origins_have_credentials_and_the_asterisk_has_none() {
        let named = Some(("https://a.example".to_owned(), true));
        assert_eq!(allowed_by(&["https://A.example/, https://b.example"], "https://a.example"), named);
        assert_eq!(allowed_by(&["*", "https://a.example"], "https://a.example"), named);
        assert_eq!(allowed_by(&["*"], "https://a.example"), Some(("*".to_owned(), false)));
        let config =
            ServerConfig { cors: vec!["*".into()], cors_credentials: true, ..ServerConfig::default() };
        let origin = HeaderValue::from_static("https://a.example");
        assert_eq!(allowed(&config, &origin), Some((origin.clone(), true)));
    }

    #[test]
    fn words_that_no_origin_matches_are_found() {
        let invalid = |word: &str| {
            let config = ServerConfig { cors: vec![word.into()], ..ServerConfig::default() };
            invalid_word(&config).map(str::to_owned)
        };
        for word in ["*", "localhost", "null", "https://a.example", "http://a:80/", "app://obsidian.md"] {
            assert_eq!(invalid(word), None, "{word}");
        }
        for word in ["a.example", "https://", "https://a.example/path", "://a", ""] {
            assert!(invalid(word).is_some(), "{word}");
        }
        assert_eq!(invalid("https://a.example,b").as_deref(), Some("b"));
    }
}
