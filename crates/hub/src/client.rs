//! HTTP client for the hub, with retries and deadlines.
//!
//! It follows redirects itself instead of leaving them to ureq, so that the token is sent only to
//! the hub's own host. Downloads are redirected to a CDN, whose signed addresses need no token.

use crate::address::ServerOrigin;
use crate::answer::{AttemptError, HubResponse, bad, fault, message, retry_after, shown, unreachable};
use crate::error::HubError;
use crate::paths::escaped;
use crate::settings::{HubSettings, Token};
use latent_files::input_file;
use std::cell::Cell;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use ureq::config::Config;
use ureq::http::Response;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// Maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 8;

/// Maximum wait that a server may ask for (`Retry-After`). A longer one is an error.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Size of the read buffer for small responses.
const BUFFER: usize = 1 << 16;

/// A client of the hub.
pub(crate) struct HubClient {
    config: Config,
    pub(crate) endpoint: String,
    origin: ServerOrigin,
    token: Option<Token>,
    attempts: u32,
    backoff: Duration,
    idle: Duration,
    min_speed: u64,
    // One agent per attempt: shutting an agent down closes all of its connections, and must not end
    // other downloads.
    /// Idle agents, which may have open connections.
    free: Mutex<Vec<Agent>>,
    running: Mutex<Vec<Arc<AttemptDeadline>>>,
    stop: AtomicBool,
}

// A panic of another thread cannot leave these lists inconsistent, so poisoning is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HubClient {
    pub(crate) fn new(settings: &HubSettings) -> Result<HubClient, HubError> {
        let origin = ServerOrigin::of(&settings.endpoint).ok_or_else(|| HubError::Setting {
            name: "HF_ENDPOINT".into(),
            problem: "it has no host".into(),
        })?;
        let config = Agent::config_builder()
            .tls_config(tls()?)
            // The hub's messages are in the headers of error responses.
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("latent/", env!("CARGO_PKG_VERSION")))
            // Ranges and lengths must be those of the file, not of a compressed form.
            .accept_encoding("identity")
            // Each phase has a timeout, but not the whole request: a download may take hours.
            .timeout_connect(Some(settings.idle))
            .timeout_resolve(Some(settings.idle))
            .timeout_recv_response(Some(settings.idle))
            .timeout_per_read(Some(settings.idle))
            .timeout_per_write(Some(settings.idle))
            .build();
        Ok(HubClient {
            config,
            endpoint: settings.endpoint.clone(),
            origin,
            token: settings.token.clone(),
            attempts: settings.attempts.max(1),
            backoff: settings.backoff,
            idle: settings.idle,
            min_speed: settings.min_speed,
            free: Mutex::default(),
            running: Mutex::default(),
            stop: AtomicBool::new(false),
        })
    }

    /// Ends all requests, including those that wait for a server.
    pub(crate) fn stop(&self) {
        // The flag first: an attempt that is not in the list yet checks it after it has been added.
        self.stop.store(true, Ordering::SeqCst);
        lock(&self.running).iter().for_each(|deadline| deadline.end());
    }

    /// Whether [`stop`](Self::stop) was called.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Ends attempts that are too slow. The thread that reports progress calls this periodically.
    pub(crate) fn enforce_deadlines(&self) {
        lock(&self.running).iter().for_each(|deadline| deadline.enforce());
    }

    /// Maximum number of consecutive attempts without progress.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Bytes that a server must send within the idle timeout. Fewer bytes do not count as progress.
    fn quantum(&self) -> u64 {
        ((self.min_speed as f64 * self.idle.as_secs_f64()) as u64).max(1)
    }

    /// Whether requests carry a token.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some() && self.origin.is_private()
    }

    /// Whether a token is set but not sent, because the connection could be intercepted.
    pub(crate) fn keeps_token(&self) -> bool {
        self.token.is_some() && !self.origin.is_private()
    }

    /// Sleeps for a time, or until the client is stopped.
    pub(crate) fn wait(&self, time: Duration) {
        let start = Instant::now();
        while !self.stopped() {
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            // In short pieces, so that `stop` ends the wait soon.
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Calls `attempt` until it succeeds, fails finally, or has failed
    /// [`attempts`](HubSettings::attempts) times without progress. `progress` is the furthest
    /// position reached. `note` is called with each failure that is followed by another attempt.
    pub(crate) fn persist<T>(
        &self,
        note: &dyn Fn(String),
        progress: &dyn Fn() -> u64,
        mut attempt: impl FnMut(&Exchange<'_>) -> Result<T, AttemptError>,
    ) -> Result<T, HubError> {
        let (mut failures, mut reached) = (0, progress());
        loop {
            let exchange = Exchange::begin(self);
            let (error, asked) = match exchange.judge(attempt(&exchange)) {
                Ok(done) => return Ok(done),
                Err(AttemptError::Final(error)) => return Err(error),
                // Without a network, the first request fails immediately instead of after all
                // retries.
                Err(AttemptError::Unresolved(error)) if progress() == 0 => return Err(error),
                Err(AttemptError::Unresolved(error)) => (error, None),
                Err(AttemptError::Again(error, asked)) => (error, asked),
            };
            drop(exchange);
            // A long download may fail any number of times, if it advances between failures. The
            // furthest position counts, so a server that always sends the file from its start makes
            // no progress.
            if progress() >= reached.saturating_add(self.quantum()) {
                (failures, reached) = (0, progress());
            }
            failures += 1;
            if self.stopped() || asked.is_some_and(|wait| wait > MAX_WAIT) {
                return Err(error);
            }
            if failures >= self.attempts {
                return Err(exhausted(error, failures));
            }
            // Exponential backoff, up to 32 times the first wait.
            let wait = asked.unwrap_or(self.backoff.saturating_mul(1 << (failures - 1).min(5)));
            note(format!("{}; trying again in {} s", reason(&error), wait.as_secs_f32().ceil()));
            self.wait(wait);
        }
    }
}

/// One attempt: its requests and their deadline. Its connections are reused by later attempts,
/// unless the attempt was ended.
pub(crate) struct Exchange<'c> {
    client: &'c HubClient,
    deadline: Arc<AttemptDeadline>,
    /// Bytes of a body received since the deadline was extended.
    recent: Cell<u64>,
}

impl<'c> Exchange<'c> {
    fn begin(client: &'c HubClient) -> Exchange<'c> {
        let agent = lock(&client.free).pop().unwrap_or_else(|| client.config.new_agent());
        let deadline = Arc::new(AttemptDeadline::new(agent, client.idle));
        lock(&client.running).push(Arc::clone(&deadline));
        // `stop` may have run before the deadline was in the list.
        if client.stopped() {
            deadline.end();
        }
        Exchange { client, deadline, recent: Cell::new(0) }
    }

    /// The result of an attempt. If the attempt was ended because it was too slow, that is its
    /// error: the error of the closed connection would say nothing.
    fn judge<T>(&self, result: Result<T, AttemptError>) -> Result<T, AttemptError> {
        match result {
            Err(AttemptError::Final(error) | AttemptError::Again(error, _)) if self.deadline.missed() => {
                let host = match error {
                    HubError::Unreachable { host, .. } => host,
                    HubError::Response { url, .. } => url,
                    _ => self.client.endpoint.clone(),
                };
                let (speed, seconds) = (self.client.min_speed, self.client.idle.as_secs_f32());
                Err(unreachable(
                    host,
                    format!(
                        "it sends less than {speed} bytes per second over {seconds} s (LATENT_MIN_SPEED)"
                    ),
                ))
            }
            result => result,
        }
    }

    /// Sets the deadline of a request up to the end of its headers.
    fn connecting(&self) {
        // ureq limits each of the five steps (resolve, connect, write, response, read) to the idle
        // timeout.
        self.deadline.extend(self.client.idle.saturating_mul(5));
    }

    /// Sets the deadline for the next [`quantum`](HubClient::quantum) of a body.
    fn receiving(&self) {
        self.recent.set(0);
        self.deadline.extend(self.client.idle);
    }

    /// Counts received bytes of a body.
    pub(crate) fn received(&self, bytes: usize) {
        self.recent.set(self.recent.get().saturating_add(bytes as u64));
        if self.recent.get() >= self.client.quantum() {
            self.receiving();
        }
    }

    /// Requests `url` and follows redirects. Responses with status 4xx and 5xx are returned, except
    /// those that ask for another attempt.
    pub(crate) fn get(&self, url: &str, headers: &[(&str, String)]) -> Result<HubResponse, AttemptError> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let origin =
                ServerOrigin::of(&url).ok_or_else(|| bad(&url, "the server redirects to an invalid URL"))?;
            let answer = self.ask(&url, &origin, headers)?;
            let (from, own) = (shown(&url), origin == self.client.origin);
            let status = answer.status().as_u16();
            if matches!(status, 301 | 302 | 303 | 307 | 308) {
                let to = answer.headers().get("location").map_or(&b""[..], |to| to.as_bytes());
                // Some servers do not escape blanks and non-ASCII letters.
                let to = escaped(&String::from_utf8_lossy(to), "!#$%&'()*+,/:;=?@[]");
                url = origin.resolve(&url, &to).ok_or_else(|| {
                    bad(&url, "the server redirects to an invalid URL, or from https to http")
                })?;
                continue;
            }
            let (parts, body) = answer.into_parts();
            let answer = HubResponse { status, headers: parts.headers, body, from, own };
            return self.later(&origin, answer);
        }
        Err(bad(&url, "the server redirects in a loop").into())
    }

    /// Sends one request, without following redirects.
    fn ask(
        &self,
        url: &str,
        origin: &ServerOrigin,
        headers: &[(&str, String)],
    ) -> Result<Response<Body>, AttemptError> {
        self.connecting();
        let mut request = self.deadline.agent.get(url);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        // The same scheme, host and port. A redirect to any other server does not get the token.
        let own = *origin == self.client.origin && origin.is_private();
        if let Some(token) = self.client.token.as_ref().filter(|_| own) {
            request = request.header("authorization", format!("Bearer {}", token.secret()));
        }
        let answer = request.call().map_err(|error| fault(origin, error))?;
        self.receiving();
        Ok(answer)
    }

    /// Turns responses that ask for another attempt into failures.
    fn later(&self, origin: &ServerOrigin, answer: HubResponse) -> Result<HubResponse, AttemptError> {
        let wait = retry_after(&answer.headers);
        match answer.status {
            429 => {
                let advice = if self.client.has_token() {
                    ""
                } else {
                    "; with a token in HF_TOKEN the limit is higher"
                };
                Err(AttemptError::Again(
                    HubError::RateLimited { host: origin.to_string(), wait, advice },
                    wait,
                ))
            }
            408 | 500 | 502 | 503 | 504 => {
                let problem = format!("it returned status {}{}", answer.status, message(&answer));
                Err(AttemptError::Again(HubError::Unreachable { host: origin.to_string(), problem }, wait))
            }
            _ => Ok(answer),
        }
    }

    /// Reads a whole response of at most `limit` bytes.
    pub(crate) fn read(&self, answer: HubResponse, limit: u64) -> Result<Vec<u8>, AttemptError> {
        let mut bytes = Vec::new();
        let mut reader = answer.body.into_with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; BUFFER];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(bytes),
                Ok(n) => {
                    bytes.extend_from_slice(&buffer[..n]);
                    self.received(n);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(unreachable(answer.from, format!("the answer broke off: {error}"))),
            }
            if bytes.len() as u64 > limit {
                return Err(bad(&answer.from, &format!("the answer has more than {limit} bytes")).into());
            }
        }
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        lock(&self.client.running).retain(|other| !Arc::ptr_eq(other, &self.deadline));
        // An agent that was shut down makes no connections.
        if !self.deadline.missed() && !self.client.stopped() {
            lock(&self.client.free).push(self.deadline.agent.clone());
        }
    }
}

/// The text of an error without its advice, for a note about another attempt.
fn reason(error: &HubError) -> String {
    match error {
        HubError::Unreachable { host, problem } => format!("{host}: {problem}"),
        HubError::RateLimited { host, .. } => format!("{host} limits the rate of requests"),
        other => other.to_string(),
    }
}

/// The error after the last attempt.
fn exhausted(error: HubError, failures: u32) -> HubError {
    match error {
        HubError::Unreachable { host, problem } if failures > 1 => HubError::Unreachable {
            host,
            problem: format!("{problem}; {failures} attempts made no progress"),
        },
        other => other,
    }
}

/// The variable with a file of certificates that replaces the system's.
const CERTIFICATES: &str = "SSL_CERT_FILE";

/// TLS with the certificates that the system trusts, or those of `SSL_CERT_FILE` and
/// `SSL_CERT_DIR`. Reading them takes a few milliseconds. Without certificates, TLS rejects every
/// host with an error.
///
/// # Errors
/// A file in `SSL_CERT_FILE` that cannot be read, or that is not a plain file.
pub fn tls() -> Result<TlsConfig, HubError> {
    if let Some(path) = std::env::var_os(CERTIFICATES) {
        // rustls_native_certs would block on a pipe.
        let unusable = |error: latent_files::InputError| HubError::Setting {
            name: CERTIFICATES.into(),
            problem: error.to_string(),
        };
        input_file::open(Path::new(&path)).map_err(unusable)?;
    }
    let found = rustls_native_certs::load_native_certs();
    let certificates: Vec<_> = found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = RootCerts::Specific(Arc::new(certificates));
    Ok(TlsConfig::builder().unversioned_rustls_crypto_provider(provider).root_certs(roots).build())
}

/// The deadline of an attempt. Another thread enforces it, because a server can keep the
/// downloading thread inside one read, for example with TLS records or chunks without content.
struct AttemptDeadline {
    agent: Agent,
    /// `None` if the deadline is beyond the range of [`Instant`].
    at: Mutex<Option<Instant>>,
    missed: AtomicBool,
}

impl AttemptDeadline {
    fn new(agent: Agent, time: Duration) -> AttemptDeadline {
        AttemptDeadline {
            agent,
            at: Mutex::new(Instant::now().checked_add(time)),
            missed: AtomicBool::new(false),
        }
    }

    /// Sets the deadline to `time` from now.
    fn extend(&self, time: Duration) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now().checked_add(time);
    }

    /// Closes the connections of an overdue attempt.
    fn enforce(&self) {
        let at = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let overdue = at.is_some_and(|at| at < Instant::now());
        if overdue && !self.missed.swap(true, Ordering::SeqCst) {
            self.end();
        }
    }

    /// Closes the connections. The agent makes no new ones.
    fn end(&self) {
        self.agent.clone().shutdown();
    }

    fn missed(&self) -> bool {
        self.missed.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn client() -> HubClient {
        let mut settings =
            HubSettings::from_variables(&|name| (name == "HOME").then(|| "/tmp".into())).unwrap();
        settings.backoff = Duration::ZERO;
        HubClient::new(&settings).unwrap()
    }

    #[test]
    fn limits_without_end_are_no_panic() {
        let mut settings =
            HubSettings::from_variables(&|name| (name == "HOME").then(|| "/tmp".into())).unwrap();
        (settings.idle, settings.backoff, settings.attempts) = (Duration::MAX, Duration::MAX, 1);
        drop(HubClient::new(&settings).unwrap());
        let agent = ureq::Agent::new_with_defaults();
        let deadline = AttemptDeadline::new(agent, Duration::MAX);
        deadline.extend(Duration::MAX);
        deadline.enforce();
        assert!(!deadline.missed());
        deadline.extend(Duration::ZERO);
        deadline.enforce();
        assert!(deadline.missed());
    }

    /// The number of attempts when each ends with this error after `bytes` bytes.
    fn attempts(error: fn() -> ureq::Error, bytes: u64) -> u32 {
        let (client, tried) = (client(), Cell::new(0));
        let origin = ServerOrigin::of("https://hub.example").unwrap();
        let done: Result<(), HubError> = client.persist(&|_| {}, &|| bytes, |_| {
            tried.set(tried.get() + 1);
            Err(fault(&origin, error()))
        });
        assert!(matches!(done, Err(HubError::Unreachable { .. })), "{done:?}");
        tried.get()
    }

    #[test]
    fn a_name_that_cannot_be_resolved_is_not_tried_again_before_anything_came() {
        let of_system = || {
            let text = "failed to lookup address information: Temporary failure in name resolution";
            ureq::Error::Io(std::io::Error::other(text))
        };
        assert_eq!(attempts(of_system, 0), 1);
        assert_eq!(attempts(|| ureq::Error::HostNotFound, 0), 1);
        // A network that is lost during a download may come back.
        assert_eq!(attempts(of_system, 1), 6);
        assert_eq!(attempts(|| ureq::Error::ConnectionFailed, 0), 6);
    }
}
