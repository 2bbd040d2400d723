//! What a handler takes beside the body: who asks, and the steps from a body to an answer.

use super::{App, body};
use crate::answer::{Answer, Prepared, begin, embed};
use crate::dialect::{Dialect, json_response};
use crate::error::{ApiError, ErrorKind};
use crate::json::{self, Fields};
use crate::keys::Tenant;
use crate::model::Served;
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
}

impl<S: Send + Sync> FromRequestParts<S> for Asker {
    type Rejection = ExtensionRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Asker, ExtensionRejection> {
        let Extension(asker) = Extension::from_request_parts(parts, state).await?;
        Ok(asker)
    }
}

impl Asker {
    /// The model, once it is loaded and while requests are taken.
    pub(crate) fn served(&self) -> Result<Arc<Served>, ApiError> {
        self.app.engineering.ready()
    }

    /// Reads a JSON body and makes something of it on a thread of its own, where tokenising a long prompt keeps nobody waiting.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        body: Body,
        work: impl FnOnce(&App, &Arc<Served>, &Fields<'_>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let served = self.served()?;
        let body = body::read(body, &self.app).await?;
        let app = Arc::clone(&self.app);
        let work = move || {
            let value = json::parse(&body.bytes, &app.config.limits)?;
            drop(body);
            work(&app, &served, &Fields::of(&value, "")?)
        };
        self.blocking(work).await
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
        begin(&self.app.engineering, self.tenant, prepared, outbound, self.timeout()).await
    }

    /// Gives the prompts of one request to the engine. Also the model that answers them.
    pub(crate) async fn begin_all(
        &self,
        prepared: Vec<Prepared>,
    ) -> Result<(Arc<Served>, Vec<Answer>), ApiError> {
        let served = prepared.first().map(|first| Arc::clone(&first.served));
        let served = served.ok_or_else(|| ApiError::internal("no prompt"))?;
        let mut answers = Vec::with_capacity(prepared.len());
        for prepared in prepared {
            answers.push(self.begin(prepared).await?);
        }
        Ok((served, answers))
    }

    /// The embedding of a prompt.
    pub(crate) async fn embed(&self, prompt: Vec<u32>) -> Result<(Vec<f32>, Usage), ApiError> {
        embed(&self.app.engineering, self.tenant, prompt, self.timeout()).await
    }

    fn timeout(&self) -> Option<Duration> {
        let seconds = self.app.config.limits.request_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Answers with a response, or with the error in the dialect's form.
    pub(crate) fn reply(&self, dialect: Dialect, result: Result<Response, ApiError>) -> Response {
        result.unwrap_or_else(|error| {
            if error.kind == ErrorKind::Internal {
                tracing::error!(request = self.id, "{error}");
            } else {
                tracing::info!(request = self.id, "refused: {error}");
            }
            dialect.error(&error, &self.id)
        })
    }

    /// Answers with a JSON value, or with the error in the dialect's form.
    pub(crate) fn reply_json(&self, dialect: Dialect, result: Result<Value, ApiError>) -> Response {
        self.reply(dialect, result.map(|value| json_response(&value)))
    }
}
