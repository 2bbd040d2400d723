//! Origins of web addresses, and resolution of redirects.

use std::fmt;
use std::net::IpAddr;
use ureq::http::Uri;

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerOrigin {
    https: bool,
    host: String,
    port: u16,
}

impl ServerOrigin {
    /// The origin of an absolute address; `None` for schemes other than http and https, and for
    /// addresses with a user.
    pub(crate) fn of(url: &str) -> Option<ServerOrigin> {
        let uri: Uri = url.parse().ok()?;
        let https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?;
        // A user in an address would be shown in messages, and can disguise the host.
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return None;
        }
        let port = authority.port_u16().unwrap_or(if https { 443 } else { 80 });
        Some(ServerOrigin { https, host: authority.host().to_ascii_lowercase(), port })
    }

    /// Whether connections may carry secrets: https, or a connection to this machine.
    pub(crate) fn is_private(&self) -> bool {
        let bare = self.host.trim_matches(['[', ']']);
        let here = bare.parse::<IpAddr>().map_or(bare == "localhost", |ip| ip.is_loopback());
        self.https || here
    }

    /// Resolves `to` against `url`, which has this origin. `None` if the result is not a web
    /// address, or leads from https to http.
    pub(crate) fn resolve(&self, url: &str, to: &str) -> Option<String> {
        let scheme = if self.https { "https" } else { "http" };
        let rest = url.split_once("://")?.1;
        let host = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        let whole = if to.is_empty() {
            return None;
        // A scheme comes before any slash. Signed addresses contain `://` in their queries.
        } else if to.contains("://") && to.find("://") < to.find(['/', '?', '#']) {
            to.to_owned()
        } else if to.starts_with("//") {
            format!("{scheme}:{to}")
        } else if to.starts_with('/') {
            format!("{scheme}://{host}{to}")
        } else {
            let path = &rest[host.len()..];
            let path = &path[..path.find(['?', '#']).unwrap_or(path.len())];
            let folder = path.rfind('/').map_or("", |at| &path[..at]);
            format!("{scheme}://{host}{folder}/{to}")
        };
        let whole = whole.split('#').next().unwrap_or_default().to_owned();
        // A redirect must not remove encryption.
        let there = ServerOrigin::of(&whole)?;
        (there.https || !self.https).then_some(whole)
    }
}

impl fmt::Display for ServerOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = if self.https { 443 } else { 80 };
        write!(f, "{}://{}", if self.https { "https" } else { "http" }, self.host)?;
        if self.port == usual { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_is_one_origin() {
        let hub = ServerOrigin::of("https://huggingface.co/api?x").unwrap();
        assert_eq!(Some(hub.clone()), ServerOrigin::of("https://HuggingFace.co:443"));
        for other in [
            "http://huggingface.co",
            "https://huggingface.co:8443",
            "https://huggingface.co.evil.org",
            "https://cdn.huggingface.co",
        ] {
            assert_ne!(Some(hub.clone()), ServerOrigin::of(other), "{other}");
        }
        for none in ["ftp://x/", "https://me@x/", "file:///etc/passwd", "/path", "", "https://"] {
            assert_eq!(ServerOrigin::of(none), None, "{none}");
        }
        assert_eq!(ServerOrigin::of("http://LOCALHOST:8080/a").unwrap().to_string(), "http://localhost:8080");
        let private = |url: &str| ServerOrigin::of(url).unwrap().is_private();
        assert!(
            private("https://a")
                && private("http://127.0.0.1:1")
                && private("http://[::1]:1")
                && private("http://localhost")
        );
        assert!(!private("http://a") && !private("http://10.0.0.1") && !private("http://localhost.evil.org"));
    }

    #[test]
    fn redirects_lead_where_they_say_but_never_from_https_to_http() {
        let url = "https://h:1/a/b?q=1";
        let origin = ServerOrigin::of(url).unwrap();
        let to = |to: &str| origin.resolve(url, to);
        assert_eq!(to("https://cdn/x?sig=://").as_deref(), Some("https://cdn/x?sig=://"));
        assert_eq!(to("/c?u=http://x").as_deref(), Some("https://h:1/c?u=http://x"));
        assert_eq!(to("//cdn/x#y").as_deref(), Some("https://cdn/x"));
        assert_eq!(to("c").as_deref(), Some("https://h:1/a/c"));
        for bad in ["http://h:1/", "ftp://h/", "", "file:///x", "https://u:p@h/"] {
            assert_eq!(to(bad), None, "{bad}");
        }
    }
}
