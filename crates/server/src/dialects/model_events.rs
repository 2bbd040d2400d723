//! `GET /models/sse`: events about the models, in the format of llama.cpp's router.

use crate::app::{App, RequestContext};
use crate::models::{ModelChange, ModelEvent, ModelStatus};
use crate::stream::event_stream;
use crate::worker::ModelState;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::unfold;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// Interval of reports about the progress of loading.
const PROGRESS: Duration = Duration::from_millis(250);

/// Interval of comments in a silent stream, so that proxies keep the connection.
const PING: Duration = Duration::from_secs(10);

struct Watcher {
    app: Arc<App>,
    events: Receiver<ModelEvent>,
    /// The last reported progress: model name and percentage.
    progress: Option<(String, u64)>,
}

/// `GET /models/sse`. The stream begins with the next event.
pub(crate) async fn events(asker: RequestContext) -> Response {
    let watcher = Watcher { events: asker.app.models.events(), app: Arc::clone(&asker.app), progress: None };
    event_stream(Body::from_stream(unfold(watcher, next)), "text/event-stream")
}

async fn next(mut watcher: Watcher) -> Option<(Result<Bytes, Infallible>, Watcher)> {
    let mut silent = Duration::ZERO;
    loop {
        if watcher.app.models.is_draining() {
            return None;
        }
        // Progress of loading is polled: it is a part of the worker's state and sends no events.
        let loading = watcher.app.models.list().into_iter().find(|model| model.state == "loading");
        let pause = if loading.is_some() { PROGRESS } else { PING };
        let text = match tokio::time::timeout(pause, watcher.events.recv()).await {
            Ok(Ok(event)) => watcher.text(&event),
            // Events were lost. The current statuses replace them.
            Ok(Err(RecvError::Lagged(_))) => watcher.statuses(),
            Ok(Err(RecvError::Closed)) => return None,
            Err(_) => {
                silent += pause;
                watcher.loading_progress().or_else(|| (silent >= PING).then(|| ": waiting\n\n".to_owned()))
            }
        };
        if let Some(text) = text {
            return Some((Ok(text.into()), watcher));
        }
    }
}

impl Watcher {
    /// The text of an event. None: llama.cpp has no such event.
    fn text(&self, event: &ModelEvent) -> Option<String> {
        let name = &event.model;
        let (kind, data) = match &event.change {
            ModelChange::Status { state, problem } => {
                let mut data = match problem {
                    Some(problem) => json!({"status": "unloaded", "failed": true, "problem": problem}),
                    None => json!({"status": state}),
                };
                if *state == "loaded" {
                    data["info"] = self.info(name);
                }
                ("model_status", data)
            }
            ModelChange::Removed => ("model_remove", json!({})),
            ModelChange::Reloaded => ("models_reload", json!({})),
            ModelChange::Downloading(progress) => {
                let figures = json!({"done": progress.done, "total": progress.total});
                ("download_progress", json!({progress.source.as_str(): figures}))
            }
            ModelChange::Downloaded => ("download_finished", json!({})),
            ModelChange::DownloadFailed(problem) => ("download_failed", json!({"problem": problem})),
            // `next` sees the flag and ends the stream.
            ModelChange::Draining => return None,
        };
        Some(line(name, kind, &data))
    }

    /// The metadata of a loaded model, as in the list of models.
    fn info(&self, name: &str) -> Value {
        let models = &self.app.models;
        let model = models.list().into_iter().find(|model| model.name == name);
        model.map_or(Value::Null, |model| super::models::entry(&model, models.created)["meta"].take())
    }

    /// The statuses of all models.
    fn statuses(&self) -> Option<String> {
        let event = |model: &ModelStatus| {
            let change = ModelChange::Status { state: model.state, problem: model.problem.clone() };
            self.text(&ModelEvent { model: model.name.clone(), change })
        };
        let text: String = self.app.models.list().iter().filter_map(event).collect();
        (!text.is_empty()).then_some(text)
    }

    /// The progress of the model that is being loaded, if it has changed.
    fn loading_progress(&mut self) -> Option<String> {
        let (name, done, total) = self.app.models.list().into_iter().find_map(|model| {
            match model.worker_handle.as_ref().filter(|_| model.state == "loading")?.state() {
                ModelState::Loading { done, total: total @ 1.. } => Some((model.name, done, total)),
                _ => None,
            }
        })?;
        // u128: `done` times 100 could overflow. Only changes by whole percents are reported.
        let percent = (u128::from(done) * 100 / u128::from(total)) as u64;
        let progress = Some((name, percent));
        if self.progress == progress {
            return None;
        }
        self.progress = progress;
        let (name, percent) = self.progress.as_ref()?;
        // llama.cpp's router has further stages, such as the projector of a vision model.
        let value = *percent as f64 / 100.0;
        let progress = json!({"stages": ["text_model"], "current": "text_model", "value": value});
        Some(line(name, "model_status", &json!({"status": "loading", "progress": progress})))
    }
}

fn line(model: &str, event: &str, data: &Value) -> String {
    format!("data: {}\n\n", json!({"model": model, "event": event, "data": data}))
}
