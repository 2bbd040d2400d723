//! HTTP client for `chat --url` and `top`.

use crate::exit::UsageError;
use crate::interrupt;
use anyhow::Result;
use latent_formats::input_file;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use ureq::http::{Response, Uri};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

/// Connection timeout, and the default timeout of a whole answer without a stream.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// How often a signal is checked for while waiting for a server.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum bytes of a key file.
const MAX_KEY_FILE_BYTES: u64 = 64 << 10;

/// Maximum bytes of a line of a stream.
// A hostile server must not fill the memory.
const MAX_LINE_BYTES: u64 = 2 << 20;

/// Lines of a stream that are read ahead.
// With a full channel the reading thread waits, and a slow terminal slows the server down through
// TCP. Lines do not pile up here.
const MAX_BUFFERED_LINES: usize = 8;

/// Maximum bytes read of an error's body.
const MAX_ERROR_BYTES: u64 = 64 << 10;

/// Why a request failed, and what the user can do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("cannot reach {url}: {problem}; is the server running there? (`latent serve` starts one)")]
    Unreachable { url: String, problem: String },
    #[error("{url} {problem}: give its key with --api-key-file FILE or in LATENT_API_KEY")]
    Key { url: String, problem: &'static str },
    #[error("{url} is busy: try again {wait}{detail}")]
    Full { url: String, wait: String, detail: String },
    #[error("{url} is not ready (loading its model, or shutting down): try again {wait}{detail}")]
    NotReady { url: String, wait: String, detail: String },
    #[error("{url} has no {path}: is this an OpenAI-compatible server?{detail}")]
    NotFound { url: String, path: String, detail: String },
    #[error("{url} redirects to {to:?}: use that address if you trust it")]
    Moved { url: String, to: String },
    #[error("{url} rejected the request (status {status}){detail}")]
    Refused { url: String, status: u16, detail: String },
    #[error("the connection to {url} was lost: {problem}")]
    Lost { url: String, problem: String },
    #[error("{url} sent no data for {seconds} s (--timeout SECONDS waits longer)")]
    Stalled { url: String, seconds: f64 },
    #[error("{url} sent an invalid answer: {problem}")]
    Response { url: String, problem: String },
    #[error("stopped")]
    Stopped,
}

/// A server's address and key.
pub(crate) struct ServerClient {
    url: String,
    key: Option<String>,
    tls: TlsConfig,
}

/// An item of a stream.
pub(crate) enum StreamLine {
    /// A line, without its end.
    Line(String),
    /// The server closed the stream.
    End,
}

/// A stream of lines. Dropping it closes the connection.
pub(crate) struct LineStream {
    agent: Agent,
    pieces: Receiver<Result<StreamLine, Trouble>>,
}

impl ServerClient {
    pub(crate) fn new(url: &str, key_file: Option<&Path>) -> Result<ServerClient> {
        let url = address(url).map_err(|problem| UsageError(format!("--url {url}: {problem}")))?;
        let key = match key_file {
            Some(path) => {
                // The format is that of the server's key file, so that both may use one file. The
                // first key suffices for a client.
                let text = input_file::read_text(path, MAX_KEY_FILE_BYTES)
                    .map_err(|e| UsageError(format!("--api-key-file: {e}")))?;
                let line =
                    text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
                let problem =
                    || UsageError(format!("--api-key-file {}: the file contains no key", path.display()));
                Some(line.ok_or_else(problem)?.to_owned())
            }
            None => std::env::var("LATENT_API_KEY")
                .ok()
                .filter(|key| !key.trim().is_empty())
                .map(|key| key.trim().to_owned()),
        };
        // Such a key cannot be a header value: `ureq` would fail later with an error that does not
        // name the key.
        if key.as_ref().is_some_and(|key| !key.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(UsageError("the server's key contains spaces or non-ASCII characters".into()).into());
        }
        // Loading the system's certificates takes time and can fail in a minimal container. Plain
        // http needs none of them.
        let tls = if url.starts_with("https:") { latent_hub::tls()? } else { TlsConfig::default() };
        Ok(ServerClient { url, key, tls })
    }

    /// The address, without the `/v1` of OpenAI's protocol.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Whether the key would be sent unencrypted over a network.
    pub(crate) fn exposes_key(&self) -> bool {
        let uri: Option<Uri> = self.url.parse().ok();
        // `Uri::host` keeps the brackets of an IPv6 address.
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default().trim_matches(['[', ']']);
        let loopback =
            host.parse::<IpAddr>().map_or(host.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback());
        let here = loopback || self.url.starts_with("https:");
        self.key.is_some() && !here
    }

    /// GETs a body of at most `limit` bytes within `patience`.
    pub(crate) fn get(&self, path: &str, limit: u64, patience: Duration) -> Result<String, Trouble> {
        let agent = self.agent(Some(patience));
        let mut request = agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = request.call().map_err(|error| self.unreachable(&error))?;
        let mut bytes = Vec::new();
        let response = self.checked(path, response)?;
        let reader = response.into_body().into_with_config().limit(u64::MAX).reader();
        // One byte more than the limit distinguishes a body of exactly that size from a longer one.
        reader.take(limit + 1).read_to_end(&mut bytes).map_err(|error| self.lost(&error))?;
        let problem = |problem: String| Trouble::Response { url: self.url.clone(), problem };
        if bytes.len() as u64 > limit {
            return Err(problem(format!("{path} has more than {limit} bytes")));
        }
        String::from_utf8(bytes).map_err(|_| problem(format!("{path} is not UTF-8 text")))
    }

    /// Sends a request.
    pub(crate) fn post(&self, path: &'static str, body: &Value) -> LineStream {
        // No timeout for the whole answer: a long answer of a slow server is normal. The caller of
        // `next` limits the time without progress.
        let agent = self.agent(None);
        let (sender, pieces) = sync_channel(MAX_BUFFERED_LINES);
        let client = ServerClient { url: self.url.clone(), key: self.key.clone(), tls: self.tls.clone() };
        let (own, body) = (agent.clone(), body.to_string());
        // A thread reads the response, so that a signal can end the wait at any time.
        let read = move || {
            if let Err(trouble) = client.stream(&own, path, &body, &sender) {
                // The receiver was dropped if the answer was stopped.
                let _ = sender.send(Err(trouble));
            }
        };
        // If the thread cannot be spawned, the closure and its sender are dropped: `next` then
        // reports a lost connection.
        let _ = thread::Builder::new().name("server".into()).spawn(read);
        LineStream { agent, pieces }
    }

    fn stream(
        &self,
        agent: &Agent,
        path: &str,
        body: &str,
        sender: &SyncSender<Result<StreamLine, Trouble>>,
    ) -> Result<(), Trouble> {
        let mut request = agent
            .post(format!("{}{path}", self.url))
            .header("content-type", "application/json")
            .header("accept", "text/event-stream");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = request.send(body).map_err(|error| self.unreachable(&error))?;
        let response = self.checked(path, response)?;
        let mut reader = BufReader::new(response.into_body().into_with_config().limit(u64::MAX).reader());
        loop {
            let mut line = Vec::new();
            let read = reader
                .by_ref()
                .take(MAX_LINE_BYTES)
                .read_until(b'\n', &mut line)
                .map_err(|e| self.lost(&e))?;
            if read == 0 {
                let _ = sender.send(Ok(StreamLine::End));
                return Ok(());
            }
            // `take` cut the line here.
            if read as u64 == MAX_LINE_BYTES {
                let problem = format!("a line has more than {MAX_LINE_BYTES} bytes");
                return Err(Trouble::Response { url: self.url.clone(), problem });
            }
            // Invalid UTF-8 becomes replacement characters. JSON outside of strings is ASCII, so
            // the line still parses.
            let line = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
            // The receiver was dropped: the answer is complete, or was stopped.
            if sender.send(Ok(StreamLine::Line(line))).is_err() {
                return Ok(());
            }
        }
    }

    fn agent(&self, patience: Option<Duration>) -> Agent {
        Agent::config_builder()
            .tls_config(self.tls.clone())
            // Bodies of error responses hold the server's message, and `ureq`'s errors would drop
            // them.
            .http_status_as_error(false)
            // A redirect could send the key to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("latent/", env!("CARGO_PKG_VERSION")))
            // A compressing proxy would buffer a stream of events.
            .accept_encoding("identity")
            .timeout_connect(Some(TIMEOUT))
            .timeout_resolve(Some(TIMEOUT))
            .timeout_global(patience)
            .build()
            .new_agent()
    }

    fn unreachable(&self, error: &ureq::Error) -> Trouble {
        Trouble::Unreachable { url: self.url.clone(), problem: error.to_string() }
    }

    fn lost(&self, error: &std::io::Error) -> Trouble {
        Trouble::Lost { url: self.url.clone(), problem: error.to_string() }
    }

    /// The response if its status is 2xx, else the error.
    fn checked(&self, path: &str, response: Response<Body>) -> Result<Response<Body>, Trouble> {
        let status = response.status().as_u16();
        if response.status().is_success() {
            return Ok(response);
        }
        let (url, path) = (self.url.clone(), path.to_owned());
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        // Retry-After is seconds or a date. A date is not worth a parser: it becomes "in a moment".
        let wait = match header("retry-after").and_then(|wait| wait.trim().parse::<u64>().ok()) {
            Some(seconds) => format!("in {seconds} s"),
            None => "in a moment".into(),
        };
        // The address is printed, and a server may send one of any length.
        let to = header("location").unwrap_or_default().chars().take(300).collect();
        if matches!(status, 301..=308) {
            return Err(Trouble::Moved { url, to });
        }
        let detail = error_detail(response);
        Err(match status {
            401 | 403 if self.key.is_none() => Trouble::Key { url, problem: "requires a key" },
            401 | 403 => Trouble::Key { url, problem: "rejected the key" },
            429 => Trouble::Full { url, wait, detail },
            503 => Trouble::NotReady { url, wait, detail },
            404 | 405 => Trouble::NotFound { url, path, detail },
            status => Trouble::Refused { url, status, detail },
        })
    }
}

impl LineStream {
    /// The next item; `None` at `end`; `Trouble::Stopped` after a signal.
    pub(crate) fn next(&self, end: Instant) -> Result<Option<StreamLine>, Trouble> {
        while Instant::now() < end {
            match self.pieces.recv_timeout(POLL_INTERVAL) {
                // Before the item is looked at: nothing is printed after Ctrl-C.
                _ if interrupt::asked() => return Err(Trouble::Stopped),
                Ok(piece) => return piece.map(Some),
                Err(RecvTimeoutError::Timeout) => {}
                // The thread ended without an item, or could not be spawned.
                Err(RecvTimeoutError::Disconnected) => return Ok(Some(StreamLine::End)),
            }
        }
        Ok(None)
    }
}

impl Drop for LineStream {
    fn drop(&mut self) {
        // Closes the socket under the reading thread, which would otherwise block until the server
        // sends more. The server notices that the client is gone and stops generating.
        self.agent.clone().shutdown();
    }
}

/// Normalizes an address: adds `http://` and removes a final slash or `/v1`.
fn address(url: &str) -> Result<String, &'static str> {
    let url = url.trim();
    let whole = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let uri: Uri = whole.parse().map_err(|_| "not a URL")?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("expected a URL that begins with http:// or https://");
    }
    let authority = uri.authority().filter(|a| !a.host().is_empty()).ok_or("it has no host")?;
    // A password in the address would show in `ps` and in error messages.
    if authority.as_str().contains('@') {
        return Err("it has a user name; set the key with --api-key-file or LATENT_API_KEY");
    }
    if uri.query().is_some() {
        return Err("it has a query");
    }
    // OpenAI's clients take a base URL that ends with /v1. Users paste the same one here.
    let trimmed = whole.trim_end_matches('/');
    Ok(trimmed.strip_suffix("/v1").unwrap_or(trimmed).trim_end_matches('/').to_owned())
}

/// The server's error message after `: `, or an empty text.
fn error_detail(response: Response<Body>) -> String {
    let mut bytes = Vec::new();
    let reader = response.into_body().into_with_config().limit(u64::MAX).reader();
    // A partial body is better than none, so an error of the read is ignored.
    let _ = reader.take(MAX_ERROR_BYTES).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let message = message(&value).unwrap_or_default();
    let message: String = message.chars().take(500).collect();
    if message.is_empty() { message } else { format!(": {message}") }
}

/// The message of a server's error object.
pub(crate) fn message(value: &Value) -> Option<String> {
    let error = value.get("error")?;
    // OpenAI and llama-server send an object with `message`, Ollama and TGI a string.
    let text = error.get("message").unwrap_or(error);
    Some(text.as_str().map_or_else(|| text.to_string(), str::to_owned))
}

/// Adds `?model=NAME`, percent-encoded, to a path.
pub(crate) fn of_model(path: &str, model: Option<&str>) -> String {
    let mut path = path.to_owned();
    for (at, byte) in model.unwrap_or_default().bytes().enumerate() {
        path.push_str(if at == 0 { "?model=" } else { "" });
        match byte {
            // RFC 3986: unreserved characters are not encoded. A model's name may contain `/`, `:`
            // and `&`.
            byte if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) => path.push(char::from(byte)),
            byte => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn addresses_are_normalized() {
        for (written, meant) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("localhost:8080/", "http://localhost:8080"),
            ("https://example.org/v1/", "https://example.org"),
            ("https://example.org/models/v1", "https://example.org/models"),
            (" http://[::1]:80 ", "http://[::1]:80"),
        ] {
            assert_eq!(address(written), Ok(meant.to_owned()), "{written}");
        }
        for wrong in
            ["", "ftp://example.org", "http://", "http://user:key@example.org", "http://a/?x=1", "a b"]
        {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
