//! Responses of Ollama's `/api/chat` and `/api/generate`.

use super::request::{check_generate, read_chat, read_generate, read_keep_alive, read_params};
use crate::answer::{
    AnswerCall, AnswerDelta, AnswerEvent, AnswerFinish, AnswerOutcome, AnswerUpdate, EndReason,
};
use crate::app::{ReceivedBody, RequestContext};
use crate::dialect::{Dialect, json_response};
use crate::dialects::infill::gap_prompt;
use crate::dialects::prepare;
use crate::dialects::prepare::{PromptInput, prompts};
use crate::error::ApiError;
use crate::ids;
use crate::json::ObjectFields;
use crate::stream::{Encoder, stream};
use axum::body::Body;
use axum::response::Response;
use latent_text::CallEnding;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Settings of the response.
#[derive(Clone, Debug)]
struct OllamaSettings {
    model: String,
    /// `/api/chat`, whose answer is in `message`; otherwise `/api/generate`, with `response`.
    chat: bool,
    stream: bool,
    started: Instant,
}

/// `POST /api/chat`.
pub(crate) async fn chat(asker: RequestContext, body: Body) -> Response {
    asker.answer(Dialect::Ollama, body, |asker, received| answer(asker, received, true)).await
}

/// `POST /api/generate`.
pub(crate) async fn generate(asker: RequestContext, body: Body) -> Response {
    asker.answer(Dialect::Ollama, body, |asker, received| answer(asker, received, false)).await
}

async fn answer(asker: RequestContext, received: ReceivedBody, chat: bool) -> Result<Response, ApiError> {
    let unload = move |fields: &ObjectFields<'_>| {
        // Ollama's way to unload a model is an empty request with `keep_alive` 0. It must not load
        // it first.
        let unload = has_no_prompt(fields, chat)? && read_keep_alive(fields)? == Some(Some(Duration::ZERO));
        Ok((unload, fields.str("model")?.map(str::to_owned)))
    };
    let (received, (unload, model)) = asker.look(received, unload).await?;
    if unload {
        let models = &asker.app.models;
        models.unload(received.model());
        let model = model.unwrap_or_else(|| models.status(received.model()).name);
        let about = OllamaSettings { model, chat, stream: false, started: Instant::now() };
        return Ok(json_response(&about.without_answer("unload")));
    }
    let (prepared, about) = asker
        .prepare(received, move |app, served, fields| {
            let limits = &app.config.limits;
            let params = read_params(fields, served, limits)?;
            let keep = read_keep_alive(fields)?;
            // With a single model, `keep_alive` has no effect except in an empty request.
            if let Some(time) = keep.filter(|_| !app.models.is_single()) {
                served.keep_for(time);
            }
            let about = OllamaSettings {
                model: fields.str("model")?.unwrap_or(&served.about.id).to_owned(),
                chat,
                stream: fields.bool("stream")?.unwrap_or(true),
                started: Instant::now(),
            };
            if has_no_prompt(fields, chat)? {
                return Ok((None, about));
            }
            let prepared = if chat {
                prepare::conversation(served, &read_chat(fields, limits)?, params, limits)?
            } else {
                check_generate(fields)?;
                if let Some(suffix) = suffix(fields)? {
                    let text = fields.str("prompt")?.unwrap_or_default();
                    let prompt = gap_prompt(served, "suffix", text, suffix)?;
                    prepare::texts(served, vec![prompt], params, limits)?.swap_remove(0)
                } else if fields.bool("raw")?.unwrap_or(false) {
                    let mut prompts = prompts(served, fields, "prompt", limits, PromptInput::Raw)?;
                    // Ollama's prompt is a single text.
                    prompts.truncate(1);
                    prepare::texts(served, prompts, params, limits)?.swap_remove(0)
                } else {
                    prepare::conversation(served, &read_generate(fields)?, params, limits)?
                }
            };
            Ok((Some(prepared), about))
        })
        .await?;
    let Some(prepared) = prepared else {
        return Ok(json_response(&about.without_answer("load")));
    };
    let answer = asker.begin(prepared).await?;
    if about.stream {
        return Ok(stream(answer, Box::new(OllamaLines { about, calls: Vec::new() })));
    }
    let outcome = answer.collect().await?.swap_remove(0);
    let AnswerOutcome { reasoning, content, calls, finish, .. } = &outcome;
    let calls: Vec<WholeCall<'_>> = calls.iter().enumerate().filter_map(whole_call).collect();
    let mut value = about.part(content, reasoning, &calls);
    about.end(&mut value, finish);
    Ok(json_response(&value))
}

/// Whether a request has no prompt. Ollama's clients send such requests to load or unload a model.
fn has_no_prompt(fields: &ObjectFields<'_>, chat: bool) -> Result<bool, ApiError> {
    Ok(if chat {
        fields.array("messages")?.is_none_or(Vec::is_empty)
    } else {
        fields.str("prompt")?.is_none_or(str::is_empty) && suffix(fields)?.is_none()
    })
}

/// The text after a gap, for fill-in-the-middle prompts.
fn suffix<'v>(fields: &ObjectFields<'v>) -> Result<Option<&'v str>, ApiError> {
    Ok(fields.str("suffix")?.filter(|suffix| !suffix.is_empty()))
}

impl OllamaSettings {
    fn without_answer(&self, reason: &str) -> Value {
        let mut value = self.part("", "", &[]);
        value["done"] = true.into();
        value["done_reason"] = reason.into();
        value
    }

    fn part(&self, content: &str, thinking: &str, calls: &[WholeCall<'_>]) -> Value {
        let mut value = json!({"model": self.model, "created_at": ids::timestamp()});
        let mut body = Map::new();
        if self.chat {
            body.insert("role".into(), "assistant".into());
        }
        body.insert(if self.chat { "content" } else { "response" }.into(), content.into());
        if !thinking.is_empty() {
            body.insert("thinking".into(), thinking.into());
        }
        if !calls.is_empty() {
            body.insert("tool_calls".into(), calls.iter().map(call).collect());
        }
        if self.chat {
            value["message"] = body.into();
        } else if let Some(map) = value.as_object_mut() {
            map.extend(body);
        }
        value["done"] = false.into();
        value
    }

    fn end(&self, value: &mut Value, finish: &AnswerFinish) {
        let usage = &finish.usage;
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let reason =
            if matches!(finish.reason, EndReason::Length | EndReason::Context) { "length" } else { "stop" };
        value["done"] = true.into();
        value["done_reason"] = reason.into();
        value["total_duration"] = nanos(self.started.elapsed()).into();
        // The model was loaded before `started`.
        value["load_duration"] = 0.into();
        value["prompt_eval_count"] = usage.prompt.into();
        value["prompt_eval_duration"] = nanos(usage.prompt_time).into();
        value["eval_count"] = usage.completion.into();
        value["eval_duration"] = nanos(usage.generate_time).into();
    }
}

/// A complete tool call. Ollama's arguments are an object, not text.
struct WholeCall<'a> {
    index: usize,
    call: &'a AnswerCall,
    arguments: Value,
}

/// Converts a complete call.
fn whole_call((index, call): (usize, &AnswerCall)) -> Option<WholeCall<'_>> {
    // A truncated call is dropped: Ollama's arguments are an object, which cannot be incomplete.
    let arguments: Value = serde_json::from_str(&call.arguments).ok().filter(Value::is_object)?;
    call.complete.then_some(WholeCall { index, call, arguments })
}

fn call(whole: &WholeCall<'_>) -> Value {
    let WholeCall { index, call: AnswerCall { id, name, .. }, arguments } = whole;
    json!({"id": id, "function": {"index": index, "name": name, "arguments": arguments}})
}

struct OllamaLines {
    about: OllamaSettings,
    calls: Vec<AnswerCall>,
}

fn send(out: &mut String, value: &Value) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{value}");
}

impl Encoder for OllamaLines {
    fn update(&mut self, update: AnswerUpdate, out: &mut String) {
        match update.what {
            AnswerEvent::Delta(AnswerDelta::Content(text)) => send(out, &self.about.part(&text, "", &[])),
            AnswerEvent::Delta(AnswerDelta::Reasoning(text)) => send(out, &self.about.part("", &text, &[])),
            AnswerEvent::Delta(AnswerDelta::CallStart { id, name, .. }) => {
                self.calls.push(AnswerCall { id, name, ..AnswerCall::default() });
            }
            AnswerEvent::Delta(AnswerDelta::CallArguments { delta, .. }) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&delta);
                }
            }
            // Ollama's calls are not streamed, so each is sent when it is complete.
            AnswerEvent::Delta(AnswerDelta::CallEnd { ending, .. }) => {
                if let Some(call) = self.calls.last_mut() {
                    call.complete = ending == CallEnding::Complete;
                }
                if let Some(whole) = self.calls.iter().enumerate().next_back().and_then(whole_call) {
                    send(out, &self.about.part("", "", &[whole]));
                }
            }
            AnswerEvent::Finished(finish) => {
                let mut value = self.about.part("", "", &[]);
                self.about.end(&mut value, &finish);
                send(out, &value);
            }
            AnswerEvent::Started { .. } | AnswerEvent::Prompt { .. } | AnswerEvent::Token(_) => {}
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut String) {
        out.push_str(&Dialect::Ollama.error_event(error, ""));
    }

    // The line with `done` is the end of Ollama's streams.
    fn end(&mut self, _out: &mut String) {}

    fn ping(&mut self, out: &mut String) {
        out.push_str(Dialect::Ollama.loading());
    }

    fn content_type(&self) -> &'static str {
        Dialect::Ollama.stream_type()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(piece: AnswerDelta) -> AnswerUpdate {
        AnswerUpdate { choice: 0, what: AnswerEvent::Delta(piece) }
    }

    #[test]
    fn complete_calls_are_numbered_and_truncated_ones_dropped() {
        let about = OllamaSettings { model: "m".into(), chat: true, stream: true, started: Instant::now() };
        let mut lines = OllamaLines { about: about.clone(), calls: Vec::new() };
        let (mut out, mut outcome) = (String::new(), AnswerOutcome::default());
        let calls = [
            (r#"{"a": 1}"#, CallEnding::Complete),
            ("{}", CallEnding::Complete),
            (r#"{"a": "#, CallEnding::Cut),
            (r#"{"a" 1}"#, CallEnding::Malformed),
        ];
        for (index, (arguments, ending)) in calls.into_iter().enumerate() {
            for piece_of_call in [
                AnswerDelta::CallStart { index, id: format!("call_{index}"), name: "f".into() },
                AnswerDelta::CallArguments { index, delta: arguments.into() },
                AnswerDelta::CallEnd { index, ending },
            ] {
                outcome.add(AnswerEvent::Delta(piece_of_call.clone()));
                lines.update(piece(piece_of_call), &mut out);
            }
        }
        let streamed: Vec<Value> = out
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["message"]["tool_calls"][0].clone())
            .collect();
        let expected = json!([
            {"id": "call_0", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}},
            {"id": "call_1", "function": {"index": 1, "name": "f", "arguments": {}}},
        ]);
        // Arguments are objects in Ollama's format, so incomplete ones cannot be sent.
        assert_eq!(Value::from(streamed), expected);
        let whole: Vec<WholeCall<'_>> = outcome.calls.iter().enumerate().filter_map(whole_call).collect();
        assert_eq!(about.part("", "", &whole)["message"]["tool_calls"], expected);
    }
}
