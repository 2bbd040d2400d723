//! What a handler takes beside the body: who asks, and the steps from a body to an answer.

use super::{App, body, query};
use crate::answer::{Answer, Prepared, begin, embed};
use crate::dialect::{Dialect, json_response};
use crate::error::{ApiError, ErrorKind};
use crate::json::{self, Fields};
use crate::keys::Tenant;
use crate::models::{Lease, Status};
use crate::spans::RequestSpan;
use axum::Extension;
use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::extract::rejection::ExtensionRejection;
use axum::http::request::Parts;
use axum::response::Response;
use latent_engine::scheduler::Usage;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Who asks, under which name the request is logged, and the server that is asked.
#[derive(Clone)]
pub(crate) struct Asker {
    pub(crate) app: Arc<App>,
    pub(crate) tenant: Tenant,
    pub(crate) id: String,
    /// The model that the address names (`?model=`).
    pub(crate) model: Option<String>,
    /// What the request leaves in a trace.
    pub(crate) span: RequestSpan,
}

/// A JSON body that has been read, and the model that it names.
pub(crate) struct Received {
    value: Value,
    index: usize,
    bytes: body::Bytes,
}

impl Received {
    pub(crate) fn fields(&self) -> Result<Fields<'_>, ApiError> {
        Fields::of(&self.value, "")
    }

    /// The number of its model.
    pub(crate) fn model(&self) -> usize {
        self.index
    }

    /// Whether the answer is to be sent as it comes.
    pub(super) fn streams(&self, dialect: Dialect) -> bool {
        match &self.value["stream"] {
            Value::Null => dialect == Dialect::Ollama,
            stream => *stream == true,
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Asker {
    type Rejection = ExtensionRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Asker, ExtensionRejection> {
        let Extension(asker): Extension<Asker> = Extension::from_request_parts(parts, state).await?;
        Ok(Asker { model: query::parameter(&parts.uri, "model"), ..asker })
    }
}

impl Asker {
    /// The model that the address names, loaded or not.
    pub(crate) fn model(&self) -> Result<Status, ApiError> {
        self.app.models.health()?;
        Ok(self.app.models.status(self.app.models.find(self.model.as_deref())?))
    }

    /// All models.
    pub(crate) fn models(&self) -> Result<Vec<Status>, ApiError> {
        self.app.models.health()?;
        Ok(self.app.models.list())
    }

    /// Reads a JSON body, and finds the model that it names.
    pub(crate) async fn receive(&self, body: Body) -> Result<Received, ApiError> {
        self.app.models.open()?;
        let mut bytes = body::read(body, &self.app).await?;
        let (app, fallback, span) = (Arc::clone(&self.app), self.model.clone(), self.span.clone());
        let read = move || {
            let value = json::parse(&bytes.bytes, &app.config.limits)?;
            let fields = Fields::of(&value, "")?;
            let name = named(&fields).or(fallback.as_deref());
            if let Some(name) = name {
                span.model(name);
            }
            let index = app.models.find(name)?;
            bytes.bytes = Vec::new();
            Ok(Received { value, index, bytes })
        };
        self.blocking(read).await
    }

    /// Has the model of a body loaded, and makes something of both on a thread of its own, where tokenising a long prompt keeps nobody waiting.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        received: Received,
        work: impl FnOnce(&App, &Arc<Lease>, &Fields<'_>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Received { value, index, bytes } = received;
        let (app, lease) = (Arc::clone(&self.app), self.app.models.lease(index).await?);
        // what waits for its model counts among the bodies
        drop(bytes);
        self.blocking(move || work(&app, &lease, &Fields::of(&value, "")?)).await
    }

    /// Reads a JSON body, and prepares it.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        body: Body,
        work: impl FnOnce(&App, &Arc<Lease>, &Fields<'_>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let received = self.receive(body).await?;
        self.prepare(received, work).await
    }

    /// Runs work that takes time beside the requests' own thread. A panic in it is this request's alone.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
            tracing::error!("a request's code failed: {error}");
            Err(ApiError::internal("the server failed on this request"))
        })
    }

    /// Gives a prepared request to the engine.
    pub(crate) async fn begin(&self, prepared: Prepared) -> Result<Answer, ApiError> {
        let outbound = self.app.config.limits.outbound_bytes;
        begin(self.tenant, prepared, outbound, self.timeout(), &self.span).await
    }

    /// Gives the prompts of one request to the engine. Also the model that answers them.
    pub(crate) async fn begin_all(
        &self,
        prepared: Vec<Prepared>,
    ) -> Result<(Arc<Lease>, Vec<Answer>), ApiError> {
        let served = prepared.first().map(|first| Arc::clone(&first.served));
        let served = served.ok_or_else(|| ApiError::internal("no prompt"))?;
        let mut answers = Vec::with_capacity(prepared.len());
        for prepared in prepared {
            answers.push(self.begin(prepared).await?);
        }
        Ok((served, answers))
    }

    /// The embedding of a prompt.
    pub(crate) async fn embed(&self, model: &Lease, prompt: Vec<u32>) -> Result<(Vec<f32>, Usage), ApiError> {
        embed(model, self.tenant, prompt, self.timeout(), &self.span).await
    }

    fn timeout(&self) -> Option<Duration> {
        let seconds = self.app.config.limits.request_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Answers with a response, or with the error in the dialect's form.
    pub(crate) fn reply(&self, dialect: Dialect, result: Result<Response, ApiError>) -> Response {
        result.unwrap_or_else(|error| {
            self.note(&error);
            dialect.error(&error, &self.id)
        })
    }

    /// Writes an error into log and trace.
    pub(super) fn note(&self, error: &ApiError) {
        self.span.failed(error);
        let trace = self.span.trace_id();
        if error.kind == ErrorKind::Internal {
            tracing::error!(request = self.id, trace, "{error}");
        } else {
            tracing::info!(request = self.id, trace, "refused: {error}");
        }
    }

    /// Answers with a JSON value, or with the error in the dialect's form.
    pub(crate) fn reply_json(&self, dialect: Dialect, result: Result<Value, ApiError>) -> Response {
        self.reply(dialect, result.map(|value| json_response(&value)))
    }
}

/// The model that a body names. Ollama's clients may call the field `name`.
fn named<'v>(fields: &Fields<'v>) -> Option<&'v str> {
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    text("model").or_else(|| text("name"))
}
