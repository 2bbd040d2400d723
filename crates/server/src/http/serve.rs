//! The server: startup, the accept loop, and shutdown.

use super::connections::{Connections, WatchedBody};
use super::timed::TimedStream;
use super::tls::{self, Acceptor, TlsError};
use super::{address, cors, guard, router, streams};
use crate::app::{App, ContentCodings, Extras, IGNORED_FIELDS_HEADER, IgnoredFields, RequestContext};
use crate::config::ServerConfig;
use crate::dialect::Dialect;
use crate::ids;
use crate::limits::Limits;
use crate::memory::{PREPARE_THREADS, RequestCharge};
use crate::model::{LoadError, ModelSource};
use crate::models::Models;
use crate::pace::ClientPace;
use crate::spans::{OtlpError, RequestSpan, Spans};
use axum::Router;
use axum::body::Body;
use axum::http::header::{HeaderMap, ORIGIN};
use axum::http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

/// Errors of [`Server::start`].
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(
        "{0} is not a loopback address, so other machines could use this server without a key: give --api-key-file FILE (or LATENT_API_KEY), or \
         --allow-unauthenticated if that is intended"
    )]
    Unauthenticated(String),
    /// An entry of `cors` cannot match any browser's origin.
    #[error("--cors {0}: expected an origin such as https://chat.example.org, localhost, or *")]
    Cors(String),
    #[error("cannot listen at {address}: {error}{}", listen_advice(.error))]
    Listen { address: String, error: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("no model is given")]
    NoModel,
    #[error(transparent)]
    Otlp(#[from] OtlpError),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// A running server. Dropping it does not stop it; use [`Server::stop`] and [`Server::join`].
pub struct Server {
    address: SocketAddr,
    secure: bool,
    stop: watch::Sender<bool>,
    loaded: Receiver<Result<(), LoadError>>,
    http: JoinHandle<()>,
    models: Arc<Models>,
}

/// Advice that is appended to a bind error.
fn listen_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            ": use another port with --port (--port 0 selects a free one), or stop the program that uses it"
        }
        io::ErrorKind::PermissionDenied => ": use a port of at least 1024 with --port",
        io::ErrorKind::AddrNotAvailable => ": use an address of this machine with --host",
        _ => "",
    }
}

impl Server {
    /// Binds the sockets and starts the HTTP thread. A single model is loaded immediately, and
    /// requests get 503 until it is loaded. Several models are loaded on demand.
    pub fn start(
        config: ServerConfig,
        models: Vec<ModelSource>,
        extras: Extras,
    ) -> Result<Server, ServeError> {
        if models.is_empty() && !config.router {
            return Err(ServeError::NoModel);
        }
        if config.keys.is_empty() && !config.is_loopback() && !config.allow_unauthenticated {
            return Err(ServeError::Unauthenticated(config.host));
        }
        if let Some(word) = cors::invalid_word(&config) {
            return Err(ServeError::Cors(word.to_owned()));
        }
        let tls = config.tls.as_ref().map(|(chain, key)| tls::acceptor(chain, key)).transpose()?;
        let secure = tls.is_some();
        let spans = Spans::start(config.otlp.as_ref())?;
        // One thread is enough for the sockets. The other cores belong to the engine, whose threads
        // wait for each other at every phase: a preempted one delays them all.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(PREPARE_THREADS)
            .thread_name("prepare")
            .build()
            .map_err(ServeError::Thread)?;
        let (listeners, address) = {
            // Tokio's sockets register with the reactor of the entered runtime.
            let _entered = runtime.enter();
            listen_all(&config)?
        };
        let (stop, stopped) = watch::channel(false);
        let (first, loaded) = channel();
        let app = Arc::new(App::new(config, models, extras, spans));
        let models = Arc::clone(&app.models);
        let run = move || runtime.block_on(run(app, listeners, tls, stopped, first));
        let http = std::thread::Builder::new().name("http".into()).spawn(run).map_err(ServeError::Thread)?;
        Ok(Server { address, secure, stop, loaded, http, models })
    }

    /// The first address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL for a browser.
    pub fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Waits up to `patience` for a single model. Returns `None` if it is still loading.
    pub fn wait_loaded(&self, patience: Duration) -> Option<Result<(), LoadError>> {
        match self.loaded.recv_timeout(patience) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err("the server has ended".into())),
        }
    }

    /// Refuses new requests. Running ones have `limits.drain_seconds` to finish.
    pub fn stop(&self) {
        // The receiver is dropped if the server has ended.
        let _ = self.stop.send(true);
    }

    /// Whether the HTTP thread has ended.
    pub fn is_finished(&self) -> bool {
        self.http.is_finished()
    }

    /// Waits until the HTTP thread and all engine threads have ended.
    pub fn join(self) {
        let _ = self.http.join();
        self.models.join();
    }
}

/// File descriptors reserved for model files, the disk cache, and evicted connections that are
/// still closing.
#[cfg(unix)]
const OTHER_FILES: usize = 256;

/// The maximum number of open connections that the file descriptor limit allows.
#[cfg(unix)]
fn max_connections(limits: &Limits) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // Without descriptors `accept` fails, and each new client waits until another one disconnects.
    // Eviction must begin before that.
    let limit = getrlimit(Resource::Nofile);
    // Raising the soft limit can fail in a sandbox. Then fewer connections are allowed.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let Some(files) = getrlimit(Resource::Nofile).current else { return limits.connections };
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    // Half of a very low limit, where the reserve would leave no connections.
    let max = files.saturating_sub(OTHER_FILES).max(files / 2);
    if max < limits.connections {
        let configured = limits.connections;
        tracing::warn!(
            "{files} file descriptors (ulimit -n) allow {max} connections, not {configured} (connections)"
        );
    }
    limits.connections.min(max)
}

/// The configured maximum: other systems have no limit of sockets per process.
#[cfg(not(unix))]
fn max_connections(limits: &Limits) -> usize {
    limits.connections
}

/// Listens on all configured hosts at the same port. Also returns the first address.
fn listen_all(config: &ServerConfig) -> Result<(Vec<TcpListener>, SocketAddr), ServeError> {
    let (mut listeners, mut first) = (Vec::new(), None);
    let alone = config.hosts().count() == 1;
    for host in config.hosts() {
        // With `--port 0` the first socket gets a free port, which the others must use too.
        let port = first.map_or(config.port, |first: SocketAddr| first.port());
        let failed = |error| ServeError::Listen { address: format!("{host}:{port}"), error };
        let listener = listen(host, port, alone, config.limits.socket_send_bytes).map_err(failed)?;
        first = first.or(Some(listener.local_addr().map_err(failed)?));
        listeners.push(listener);
    }
    let nowhere = || io::Error::new(io::ErrorKind::NotFound, "no address is given");
    let first = first.ok_or_else(|| ServeError::Listen { address: config.host.clone(), error: nowhere() })?;
    Ok((listeners, first))
}

/// Binds one host. `alone`: this is the only host, so an IPv6 socket may accept IPv4 as well.
fn listen(host: &str, port: u16, alone: bool, send_bytes: usize) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // For `0.0.0.0,::` a dual-stack IPv6 socket would occupy the port of the IPv4 socket.
        if address.is_ipv6() && !alone {
            socket2::SockRef::from(&socket).set_only_v6(true)?;
        }
        // Lets a restarted server bind while old connections are in TIME_WAIT. On Windows the
        // option would let another program take over the port.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        if send_bytes > 0 {
            let bytes = u32::try_from(send_bytes).unwrap_or(u32::MAX);
            socket.set_send_buffer_size(bytes)?;
        }
        // A name can have several addresses. The first that can be bound counts.
        match socket.bind(address).and_then(|()| socket.listen(1024)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Accepts the next connection of any listener. Polling begins with listener `number`.
async fn accept(listeners: &[TcpListener], number: usize) -> io::Result<TcpStream> {
    poll_fn(|context| {
        // Round robin: a flood at one address must not starve the others.
        let in_turn = listeners.iter().cycle().skip(number % listeners.len().max(1)).take(listeners.len());
        for listener in in_turn {
            if let Poll::Ready(accepted) = listener.poll_accept(context) {
                return Poll::Ready(accepted.map(|(stream, _)| stream));
            }
        }
        Poll::Pending
    })
    .await
}

/// The accept loop of the HTTP thread. It ends after a stop signal and the last request.
async fn run(
    app: Arc<App>,
    listeners: Vec<TcpListener>,
    tls: Option<Acceptor>,
    mut stop: watch::Receiver<bool>,
    first: Sender<Result<(), LoadError>>,
) {
    tokio::spawn(Arc::clone(&app.models).run(first));
    tokio::spawn(Arc::clone(&app.memory).trim());
    let connections = Arc::new(Connections::default());
    let router = router::router();
    let max = max_connections(&app.config.limits);
    let mut id: u64 = 0;
    let mut deadline: Option<Instant> = None;
    loop {
        tokio::select! {
            accepted = accept(&listeners, id as usize) => match accepted {
                Ok(stream) => {
                    id += 1;
                    if let Some(connection) = connections.admit(id, max) {
                        let tls = tls.clone();
                        tokio::spawn(connect(Arc::clone(&app), router.clone(), connection, stream, tls, stop.clone()));
                    }
                    // Evicted connections must release their descriptors before more are accepted.
                    // This loop would otherwise run without giving their tasks a turn.
                    tokio::task::yield_now().await;
                }
                Err(error) => {
                    // Most likely out of file descriptors (EMFILE). The pause keeps the loop from
                    // spinning until an evicted connection has closed.
                    tracing::warn!("cannot accept a connection: {error}");
                    connections.evict();
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            },
            // `changed` also returns if the `Server` was dropped, and then at every call. The guard
            // keeps the loop from spinning.
            _ = stop.changed(), if deadline.is_none() => {
                app.models.drain();
                // Bounded, since adding a huge duration to an `Instant` panics.
                let drain = Duration::from_secs(app.config.limits.drain_seconds.min(86_400));
                deadline = Some(Instant::now() + drain);
            }
            // While draining, poll for the end of the last request. New connections are still
            // accepted and get 503.
            () = tokio::time::sleep(Duration::from_millis(20)), if deadline.is_some() => {}
        }
        // Returning drops the runtime, which closes the remaining connections.
        if deadline.is_some_and(|at| connections.busy() == 0 || Instant::now() >= at) {
            return;
        }
    }
}

/// Serves one connection, after the TLS handshake if TLS is configured.
async fn connect(
    app: Arc<App>,
    router: Router,
    connection: super::connections::Connection,
    stream: TcpStream,
    tls: Option<Acceptor>,
    stop: watch::Receiver<bool>,
) {
    // Nagle's algorithm with delayed ACKs would hold each small event of a stream for 40 ms.
    let _ = stream.set_nodelay(true);
    let _counted = app.metrics.connection();
    let limits = &app.config.limits;
    let stream = TimedStream::new(stream, ClientPace::new(limits.write_seconds, limits.slowest_bytes));
    match tls {
        None => serve_requests(Arc::clone(&app), router, connection, stream, stop).await,
        #[cfg(feature = "tls")]
        Some(tls) => {
            let limit = Duration::from_secs(limits.header_seconds);
            let close = Arc::clone(&connection.close);
            let accepted = tokio::select! {
                accepted = tokio::time::timeout(limit, tls.accept(stream)) => accepted,
                () = close.notified() => return,
            };
            match accepted {
                Ok(Ok(stream)) => serve_requests(Arc::clone(&app), router, connection, stream, stop).await,
                Ok(Err(error)) => tracing::info!("a TLS handshake failed: {error}"),
                Err(_) => tracing::info!("a connection sent nothing for {limit:?} and is closed"),
            }
        }
        #[cfg(not(feature = "tls"))]
        Some(never) => match never {},
    }
}

/// Serves the requests of one connection.
async fn serve_requests(
    app: Arc<App>,
    router: Router,
    connection: super::connections::Connection,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    mut stop: watch::Receiver<bool>,
) {
    let limits = &app.config.limits;
    let connection = Arc::new(connection);
    // A handshake must be evictable too: a silent client would hold its connection.
    let close = Arc::clone(&connection.close);
    let service = service_fn(|request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        let (body, busy) = connection.begin(Body::new(body));
        let (app, router) = (Arc::clone(&app), router.clone());
        async move {
            let mut response = answer(&app, router, Request::from_parts(head, body)).await;
            // The span and the memory charge end with the last byte of the body, not with the head.
            let span = response.extensions_mut().remove::<RequestSpan>();
            let charge = response.extensions_mut().remove::<Arc<RequestCharge>>();
            Ok::<_, Infallible>(
                response.map(|body| Body::new(WatchedBody { body, watch: (busy, span, charge) })),
            )
        }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(limits.header_seconds))
        // hyper panics below 8192 bytes.
        .max_buf_size(limits.header_bytes.max(8192))
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    // True if the connection was accepted while draining. Its clone of the receiver may count the
    // change as seen.
    let mut stopping = *stop.borrow();
    loop {
        tokio::select! {
            _ = serving.as_mut() => return,
            () = close.notified() => return,
            _ = stop.changed(), if !stopping => {
                // hyper closes idle keep-alive connections now, and others after their response.
                stopping = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Answers one request: checks access, routes it, and logs the response.
pub(super) async fn answer(app: &Arc<App>, router: Router, mut request: Request<Body>) -> Response<Body> {
    use tower_service::Service;
    let start = Instant::now();
    let id = request_id(&request);
    // Before `enter`, which strips the prefix that this check compares.
    let root = address::to_root(&app.config, request.uri());
    let outside = address::enter(&app.config, &mut request).err();
    router::normalize_path(request.uri_mut());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = router::known(&path);
    let span = app.spans.request(&request, route, &id);
    let trace = span.trace_id();
    let asked = request.headers().clone();
    let charge = app.memory.charge();
    let ignored = Arc::<IgnoredFields>::default();
    // Preflights carry no key, so they must be answered before the key is checked.
    let mut response = if method == Method::OPTIONS && asked.contains_key(ORIGIN) {
        let mut preflight = Response::new(Body::empty());
        // Without --cors, only the server's own page may send requests, and needs no preflight.
        if app.config.cors.is_empty() {
            *preflight.status_mut() = StatusCode::FORBIDDEN;
        }
        preflight
    } else if let Some(root) = root {
        root
    } else {
        match outside.map_or_else(|| guard::admit(app, &request), Err) {
            Ok(tenant) => {
                request.extensions_mut().insert(RequestContext {
                    app: Arc::clone(app),
                    tenant,
                    id: id.clone(),
                    model: None,
                    autoload: None,
                    codings: ContentCodings::default(),
                    span: span.clone(),
                    charge: Arc::clone(&charge),
                    ignored: Arc::clone(&ignored),
                });
                let mut router = router;
                match streams::conversation(&method, &asked) {
                    None => {
                        let Ok(response) = router.call(request).await;
                        response
                    }
                    Some(name) => {
                        let charge = Arc::clone(&charge);
                        let answered = streams::answer(app, tenant, name, charge, router, request).await;
                        answered.unwrap_or_else(|error| Dialect::of_path(&path).error(&error, &id))
                    }
                }
            }
            Err(error) => {
                tracing::info!(request = id, trace, %method, path, "refused: {error}");
                span.failed(&error);
                Dialect::of_path(&path).error(&error, &id)
            }
        }
    };
    if let Some(names) = ignored.header() {
        response.headers_mut().insert(IGNORED_FIELDS_HEADER, names);
    }
    add_headers(app, &mut response, &method, &asked, &id);
    let (status, seconds) = (response.status().as_u16(), start.elapsed().as_secs_f64());
    app.metrics.count(route, status);
    tracing::info!(request = id, trace, %method, path, status, seconds, "answered");
    span.responded(status);
    response.extensions_mut().insert(span);
    response.extensions_mut().insert(charge);
    response
}

/// The client's `x-request-id` if it is well-formed, otherwise a new ID.
fn request_id(request: &Request<Body>) -> String {
    // The ID is written to the log and to headers. The alphabet keeps clients from forging lines.
    let proper = |id: &&str| {
        (1..=128).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    };
    let given = request.headers().get("x-request-id").and_then(|value| value.to_str().ok()).filter(proper);
    given.map_or_else(|| ids::unique("req_"), str::to_owned)
}

fn add_headers(app: &App, response: &mut Response<Body>, method: &Method, asked: &HeaderMap, id: &str) {
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(id) {
        // Anthropic's SDKs read `request-id`, OpenAI's `x-request-id`.
        headers.insert("request-id", id.clone());
        headers.insert("x-request-id", id);
    }
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    cors::add_headers(&app.config, method, asked, headers);
}
