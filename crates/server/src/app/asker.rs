//! The context of a request, and the steps from its body to the submission of its jobs.

use super::{App, ContentCodings, IgnoredFields, body, query};
use crate::answer::{PreparedRequest, RequestAnswers, begin, embed};
use crate::dialect::{Dialect, json_response};
use crate::document::Document;
use crate::error::{ApiError, ErrorKind};
use crate::json::{self, ObjectFields};
use crate::keys::Tenant;
use crate::memory::RequestCharge;
use crate::models::{Lease, ModelStatus};
use crate::spans::RequestSpan;
use axum::Extension;
use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::extract::rejection::ExtensionRejection;
use axum::http::request::Parts;
use axum::response::Response;
use latent_engine::scheduler::JobUsage;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// The context of a request: the server, the tenant, the request ID and accounting.
#[derive(Clone)]
pub(crate) struct RequestContext {
    pub(crate) app: Arc<App>,
    pub(crate) tenant: Tenant,
    pub(crate) id: String,
    /// The model in `?model=`.
    pub(crate) model: Option<String>,
    /// `?autoload=`: whether the request loads its model. Overrides the server's setting.
    pub(crate) autoload: Option<bool>,
    /// The content codings of its body.
    pub(crate) codings: ContentCodings,
    pub(crate) span: RequestSpan,
    /// The memory that the request is charged for.
    pub(crate) charge: Arc<RequestCharge>,
    pub(crate) ignored: Arc<IgnoredFields>,
}

/// A received JSON body and the model that it names.
///
/// It waits for its model as bytes and is parsed when it is prepared. As JSON values, 600 waiting
/// bodies of 64 KB took 2.4 GB.
pub(crate) struct ReceivedBody {
    body: Vec<u8>,
    index: usize,
    stream: Option<bool>,
}

impl ReceivedBody {
    pub(crate) fn model(&self) -> usize {
        self.index
    }

    /// Whether the response is a stream.
    pub(super) fn streams(&self, dialect: Dialect) -> bool {
        // Ollama streams unless `stream` is false. All other APIs stream only on request.
        self.stream.unwrap_or(dialect == Dialect::Ollama)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RequestContext {
    type Rejection = ExtensionRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<RequestContext, ExtensionRejection> {
        let Extension(asker): Extension<RequestContext> = Extension::from_request_parts(parts, state).await?;
        let codings = ContentCodings::of(&parts.headers);
        // An empty value counts as missing.
        let autoload = query::parameter(&parts.uri, "autoload").filter(|value| !value.is_empty());
        let autoload = autoload.map(|value| matches!(value.as_str(), "true" | "1"));
        Ok(RequestContext { model: query::parameter(&parts.uri, "model"), autoload, codings, ..asker })
    }
}

impl RequestContext {
    /// The model in `?model=`, loaded or not.
    pub(crate) fn model(&self) -> Result<ModelStatus, ApiError> {
        self.app.models.health()?;
        Ok(self.app.models.status(self.app.models.find(self.model.as_deref())?))
    }

    pub(crate) fn models(&self) -> Result<Vec<ModelStatus>, ApiError> {
        self.app.models.health()?;
        Ok(self.app.models.list())
    }

    /// Reads a JSON body and looks up the model that it names.
    pub(crate) async fn receive(&self, body: Body) -> Result<ReceivedBody, ApiError> {
        // Checked before the body is read: clients must not send megabytes to a server that is
        // loading or draining.
        self.app.models.open()?;
        let body = self.read_body(body).await?;
        let lane = self.app.memory.lane(body.len()).await;
        let (app, fallback, span) = (Arc::clone(&self.app), self.model.clone(), self.span.clone());
        let read = move || {
            let _lane = lane;
            // Only `model` and `stream` are needed here. Skipping lists keeps this pass cheap.
            let value = json::parse_head(&body, &app.config.limits)?;
            let fields = ObjectFields::of(&value, "")?;
            // The body's name wins over `?model=`.
            let name = named(&fields)?.or(fallback.as_deref());
            if let Some(name) = name {
                span.model(name);
            }
            let index = app.models.find(name)?;
            // A value of another type counts as false here. The dialect refuses it when it parses
            // all fields.
            let stream = fields.get("stream").map(|stream| *stream == true);
            Ok(ReceivedBody { body, index, stream })
        };
        self.blocking(read).await
    }

    /// Reads a JSON body that names a model, which may be unknown to the server (a download).
    pub(crate) async fn receive_name(&self, body: Body) -> Result<String, ApiError> {
        self.app.models.open()?;
        let body = self.read_body(body).await?;
        let lane = self.app.memory.lane(body.len()).await;
        let read = move || {
            let _lane = lane;
            let value = json::parse(&body)?;
            let fields = ObjectFields::of(&value, "")?;
            let name = fields.require_str("model")?;
            if name.is_empty() || name.len() > MODEL_NAME {
                return Err(fields.error("model", format!("expected a name of 1 to {MODEL_NAME} bytes")));
            }
            Ok(name.to_owned())
        };
        self.blocking(read).await
    }

    /// Reads a JSON body that is a list.
    pub(crate) async fn read_list(&self, body: Body) -> Result<Vec<Value>, ApiError> {
        self.app.models.open()?;
        let body = self.read_body(body).await?;
        let lane = self.app.memory.lane(body.len()).await;
        let app = Arc::clone(&self.app);
        let read = move || {
            let _lane = lane;
            json::parse_list(&body, &app.config.limits)
        };
        self.blocking(read).await
    }

    /// Reads a body and decodes its content codings.
    async fn read_body(&self, body: Body) -> Result<Vec<u8>, ApiError> {
        self.codings.check()?;
        let body = body::read(body, &self.app.config.limits, &self.charge).await?;
        if self.codings.is_identity() {
            return Ok(body);
        }
        // The lane depends on the decoded size, which is estimated as eight times the encoded one.
        let lane = self.app.memory.lane(body.len().saturating_mul(8)).await;
        let (app, charge, codings) = (Arc::clone(&self.app), Arc::clone(&self.charge), self.codings.clone());
        let decode = move || {
            let _lane = lane;
            codings.decode(body, &app.config.limits, &charge)
        };
        self.blocking(decode).await
    }

    /// Parses a body before it is prepared, for requests that look at it without a loaded model.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        received: ReceivedBody,
        work: impl FnOnce(&ObjectFields<'_>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(ReceivedBody, T), ApiError> {
        let lane = self.app.memory.lane(received.body.len()).await;
        let parse = move || {
            let _lane = lane;
            let value = json::parse(&received.body)?;
            let result = work(&ObjectFields::of(&value, "")?)?;
            Ok((received, result))
        };
        self.blocking(parse).await
    }

    /// Waits until the body's model is loaded, then parses the body and runs `work` on a blocking
    /// thread.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        received: ReceivedBody,
        work: impl FnOnce(&App, &Arc<Lease>, &ObjectFields<'_>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let ReceivedBody { body, index, .. } = received;
        let (app, lease) = (Arc::clone(&self.app), self.app.models.lease(index, self.autoload).await?);
        let ignored = Arc::clone(&self.ignored);
        let lane = self.app.memory.lane(body.len()).await;
        let prepare = move || {
            let _lane = lane;
            let (value, skipped) = json::parse_all(&body)?;
            // Not needed any more, and preparing a large body can take seconds.
            drop(body);
            let fields = ObjectFields::tracked(&value)?;
            let made = work(&app, &lease, &fields)?;
            // A field that no code has read has no effect, so the client and the log are told.
            app.logged_fields.log(&ignored.add(skipped.into_iter().chain(fields.unread())));
            Ok(made)
        };
        // Not on the HTTP thread, which a long prompt would block for all other connections.
        self.blocking(prepare).await
    }

    /// Reads and prepares a JSON body.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        body: Body,
        work: impl FnOnce(&App, &Arc<Lease>, &ObjectFields<'_>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let received = self.receive(body).await?;
        self.prepare(received, work).await
    }

    /// Runs slow work on a blocking thread. A panic in it fails only this request.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        // An error is a panic of `work`. Its text is only logged.
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
            tracing::error!("a request's code failed: {error}");
            Err(ApiError::internal("the server failed on this request"))
        })
    }

    /// Submits a prepared request to the engine.
    pub(crate) async fn begin(&self, prepared: PreparedRequest) -> Result<RequestAnswers, ApiError> {
        let outbound = self.app.config.limits.outbound_bytes;
        self.charge.grow(prepared.retained())?;
        let slots = (self.app.config.scheduler.max_running, self.app.config.slot_save_path.is_some());
        begin(self.tenant, prepared, outbound, self.timeout(), slots, &self.span, &self.charge).await
    }

    /// Submits the prompts of one request. Also returns the lease of their model.
    pub(crate) async fn begin_all(
        &self,
        prepared: Vec<PreparedRequest>,
    ) -> Result<(Arc<Lease>, Vec<RequestAnswers>), ApiError> {
        let served = prepared.first().map(|first| Arc::clone(&first.served));
        let served = served.ok_or_else(|| ApiError::internal("no prompt"))?;
        let mut answers = Vec::with_capacity(prepared.len());
        for prepared in prepared {
            // If one is refused, dropping `answers` cancels the jobs of the earlier prompts.
            answers.push(self.begin(prepared).await?);
        }
        Ok((served, answers))
    }

    /// The embedding of a prompt, and its norm before normalization.
    pub(crate) async fn embed(
        &self,
        model: &Lease,
        prompt: Vec<u32>,
    ) -> Result<(Vec<f32>, f32, JobUsage), ApiError> {
        embed(model, self.tenant, prompt, self.timeout(), &self.span).await
    }

    fn timeout(&self) -> Option<Duration> {
        let seconds = self.app.config.limits.request_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// The response, or the error in the dialect's format.
    pub(crate) fn reply(&self, dialect: Dialect, result: Result<Response, ApiError>) -> Response {
        result.unwrap_or_else(|error| {
            self.note(&error);
            dialect.error(&error, &self.id)
        })
    }

    /// Records an error in the log and in the trace.
    pub(super) fn note(&self, error: &ApiError) {
        self.span.failed(error);
        let trace = self.span.trace_id();
        // Only faults of the server are logged as errors: clients can cause the others at will.
        if error.kind == ErrorKind::Internal {
            tracing::error!(request = self.id, trace, "{error}");
        } else {
            tracing::info!(request = self.id, trace, "refused: {error}");
        }
    }

    /// A document as a response, or the error in the dialect's format.
    pub(crate) fn reply_document(&self, dialect: Dialect, result: Result<Document, ApiError>) -> Response {
        self.reply(dialect, result.map(Document::into_response))
    }

    /// A JSON value as a response, or the error in the dialect's format.
    pub(crate) fn reply_json(&self, dialect: Dialect, result: Result<Value, ApiError>) -> Response {
        self.reply(dialect, result.map(|value| json_response(&value)))
    }
}

/// Maximum length of a model's name in bytes. Responses repeat it, streams in every event.
const MODEL_NAME: usize = 1024;

/// The model that a body names. Ollama's older clients call the field `name`.
fn named<'v>(fields: &ObjectFields<'v>) -> Result<Option<&'v str>, ApiError> {
    let text = |name: &'static str| Some((name, fields.get(name).and_then(Value::as_str)?));
    let Some((field, name)) = text("model").or_else(|| text("name")) else { return Ok(None) };
    if name.len() > MODEL_NAME {
        let problem = format!("the name has {} bytes, more than the limit of {MODEL_NAME}", name.len());
        return Err(fields.error(field, problem));
    }
    Ok(Some(name))
}
