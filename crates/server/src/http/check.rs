//! What the server makes of requests, without an engine and without a socket.

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

/// A server without an engine: it reads requests, prepares prompts, grammars and sampling, and writes answers, all of them empty. For tests.
pub struct RequestCheck {
    app: Arc<App>,
    router: Router,
    runtime: Runtime,
    jobs: Receiver<TakenJob>,
    engine: Option<JoinHandle<()>>,
}

/// What has become of a request.
#[derive(Clone, Debug)]
pub struct CheckedRequest {
    /// The status code of the response.
    pub status: u16,
    /// Its body, of a stream all of it.
    pub body: Vec<u8>,
    /// What the engine would have been given.
    pub jobs: Vec<TakenJob>,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Template(#[from] TextError),
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

impl RequestCheck {
    /// A server of a model of which only this is known.
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

    /// Sends a request, and waits for all of its response. Without a body, the method is GET, else POST.
    pub fn ask(&self, path: &str, body: Option<&[u8]>) -> CheckedRequest {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::new(Body::from(body.unwrap_or_default().to_vec()));
        *request.method_mut() = method;
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
        self.app.models.drain();
        if let Some(engine) = self.engine.take() {
            // it only ends early where a test has failed already
            let _ = engine.join();
        }
    }
}
