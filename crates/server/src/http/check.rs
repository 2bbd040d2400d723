//! Request handling without an engine or a socket, for tests and fuzz targets.

use super::{router, serve};
use crate::app::App;
use crate::config::ServerConfig;
use crate::limits::Limits;
use crate::model::{ModelFacts, ModelFigures, ServedModel};
use crate::models::Models;
use crate::spans::Spans;
use crate::worker::{TakenJob, stand_in};
use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request};
use http_body_util::BodyExt;
use latent_text::{TextError, Tokenizer};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Runtime};

/// A server without an engine. It parses requests, prepares prompts, grammars and sampling, and
/// writes responses, whose answers are all empty.
pub struct RequestCheck {
    app: Arc<App>,
    router: Router,
    runtime: Runtime,
    jobs: Receiver<TakenJob>,
    engine: Option<JoinHandle<()>>,
}

/// The response to a request, and the jobs that it submitted.
#[derive(Clone, Debug)]
pub struct CheckedRequest {
    /// The status code of the response.
    pub status: u16,
    /// The body; for a stream, all of its events.
    pub body: Vec<u8>,
    /// The jobs that an engine would have received.
    pub jobs: Vec<TakenJob>,
}

/// Errors of [`RequestCheck::new`].
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Template(#[from] TextError),
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

impl RequestCheck {
    /// Creates a server for a model of which only the tokenizer and `figures` exist.
    pub fn new(
        tokenizer: &Arc<Tokenizer>,
        about: &ModelFacts,
        figures: ModelFigures,
        limits: Limits,
    ) -> Result<RequestCheck, CheckError> {
        let served = Arc::new(ServedModel::without_engine(tokenizer, about, figures)?);
        let (worker_handle, engine, jobs) = stand_in(served)?;
        let config = ServerConfig { limits, ..ServerConfig::default() };
        let models = Models::of(&about.id, worker_handle, &config);
        Ok(RequestCheck {
            app: Arc::new(App::with(config, models, Spans::none())),
            router: router::router(),
            runtime: Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?,
            jobs,
            engine: Some(engine),
        })
    }

    /// Sends a request and waits for the whole response: GET without a body, POST with one.
    pub fn ask(&self, path: &str, body: Option<&[u8]>) -> CheckedRequest {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::new(Body::from(body.unwrap_or_default().to_vec()));
        *request.method_mut() = method;
        // Fuzz targets pass any text. An invalid path becomes `/`.
        *request.uri_mut() = path.parse().unwrap_or_default();
        let (status, body) = self.runtime.block_on(async {
            let response = serve::answer(&self.app, self.router.clone(), request).await;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await;
            (status, body.map(|whole| whole.to_bytes().to_vec()).unwrap_or_default())
        });
        CheckedRequest { status, body, jobs: self.jobs.try_iter().collect() }
    }
}

impl Drop for RequestCheck {
    fn drop(&mut self) {
        // Ends the stand-in's thread, for which `join` waits.
        self.app.models.drain();
        if let Some(engine) = self.engine.take() {
            // A panic of the stand-in has already failed the test.
            let _ = engine.join();
        }
    }
}
