//! llama.cpp's `POST /completion` and `POST /infill`.

use super::status::settings;
use crate::answer::{
    AnswerDelta, AnswerEvent, AnswerFinish, AnswerOutcome, AnswerTimings, AnswerUpdate, EndReason,
    TokenUpdate,
};
use crate::app::{ReceivedBody, RequestContext};
use crate::dialect::Dialect;
use crate::dialects::prepare::{PromptInput, prompts};
use crate::dialects::{infill, prepare};
use crate::document::{Document, write};
use crate::error::ApiError;
use crate::json::ObjectFields;
use crate::limits::Limits;
use crate::model::{PreparedPrompt, ServedModel};
use crate::models::Lease;
use crate::params::{self, AnswerParams};
use crate::stream::{Encoder, stream_all};
use axum::body::Body;
use axum::response::Response;
use latent_text::Tokenizer;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// Settings of the response.
#[derive(Clone, Debug)]
struct LlamaSettings {
    stream: bool,
    return_tokens: bool,
    n_probs: usize,
    progress: bool,
    timings: bool,
    /// The prompts, which the last event of each answer repeats.
    prompts: Vec<String>,
    /// `generation_settings`, which it repeats too.
    settings: Value,
    n: usize,
    /// Paths of the only fields to return; empty: all fields.
    response_fields: Vec<String>,
}

/// Parses the prompts of a request. The last parameter is the limit on tokens of the answer.
type PromptReader =
    fn(&ServedModel, &ObjectFields<'_>, &Limits, Option<usize>) -> Result<Vec<PreparedPrompt>, ApiError>;

pub(crate) async fn completion(asker: RequestContext, body: Body) -> Response {
    let read: PromptReader =
        |served, fields, limits, _| prompts(served, fields, "prompt", limits, PromptInput::Raw);
    asker.answer(Dialect::LlamaCpp, body, move |asker, received| answer(asker, received, read)).await
}

/// `POST /infill`: fills a gap in a text.
pub(crate) async fn infill(asker: RequestContext, body: Body) -> Response {
    let answer = move |asker, received| answer(asker, received, infill::editor_prompt);
    asker.answer(Dialect::LlamaCpp, body, answer).await
}

async fn answer(
    asker: RequestContext,
    received: ReceivedBody,
    read: PromptReader,
) -> Result<Response, ApiError> {
    let (prepared, about) = asker
        .prepare(received, move |app, served, fields| {
            let limits = &app.config.limits;
            let mut params = AnswerParams::read(fields, served, limits)?;
            let asked = params::max_tokens(fields, &["n_predict", "max_tokens"])?;
            params.max_tokens = served.about.defaults.bounded(asked);
            params.shape = params::shape(fields, limits)?;
            let n_probs = fields.usize("n_probs")?.or(served.about.defaults.logprobs).unwrap_or(0);
            // The limit is for clients. The operator's default may be larger.
            if fields.get("n_probs").is_some() {
                limits.check("n_probs", "top_logprobs", n_probs, limits.top_logprobs)?;
            }
            params.logprobs = (n_probs > 0).then_some(n_probs);
            let return_tokens = fields.bool("return_tokens")?.unwrap_or(false);
            let stream = fields.bool("stream")?.unwrap_or(false);
            let prompts = read(served, fields, limits, params.max_tokens)?;
            limits.check("prompt", "inputs", prompts.len() * params.n, limits.inputs)?;
            let text = |prompt: &PreparedPrompt| served.tokenizer.decode(&prompt.tokens, true);
            let progress = fields.bool("return_progress")?.unwrap_or(false);
            let timings = fields.bool("timings_per_token")?.unwrap_or(false);
            let mut settings =
                settings(&params, served.tokenizer.end_of_generation(), Some(params.sampling.seed));
            settings["stream"] = stream.into();
            settings["timings_per_token"] = timings.into();
            let response_fields = params::texts(fields, "response_fields")?;
            limits.check("response_fields", "inputs", response_fields.len(), limits.inputs)?;
            let about = LlamaSettings {
                stream,
                return_tokens,
                n_probs,
                progress,
                timings,
                prompts: prompts.iter().map(text).collect(),
                settings,
                n: params.n,
                response_fields,
            };
            let mut all = prepare::texts(served, prompts, params, limits)?;
            // Chunks of a stream contain token IDs.
            all.iter_mut().for_each(|prepared| prepared.show_tokens |= return_tokens || stream);
            Ok((all, about))
        })
        .await?;
    let (served, answers) = asker.begin_all(prepared).await?;
    if about.stream {
        return Ok(stream_all(answers, Box::new(LlamaStream { served, about, choices: Vec::new() })));
    }
    let mut outcomes = Vec::new();
    for answer in answers {
        outcomes.append(&mut answer.collect().await?);
    }
    // As in llama.cpp, one answer is an object, several are a list.
    if outcomes.len() == 1 {
        return Ok(whole(&served, &about, 0, outcomes.swap_remove(0)).into_response());
    }
    let one = move |(index, outcome)| whole(&served, &about, index, outcome);
    Ok(Document::default().documents(outcomes.into_iter().enumerate().map(one)).into_response())
}

/// `completion_probabilities`.
fn probabilities(tokenizer: &Tokenizer, tokens: &[TokenUpdate]) -> Value {
    tokens.iter().filter_map(|token| probability(tokenizer, token)).collect()
}

fn probability(tokenizer: &Tokenizer, token: &TokenUpdate) -> Option<Value> {
    let (own_name, list_name) = token.probability_names();
    let one = |id: u32, logprob: f32| {
        let bytes = tokenizer.piece(id).unwrap_or_default();
        // A token may end within a character. Clients join `bytes` to get the exact text.
        let text = String::from_utf8_lossy(bytes);
        let mut entry = json!({"id": id, "token": text, "bytes": bytes});
        entry[own_name] = token.probability(logprob);
        entry
    };
    let (own, top) = token.logprob.as_ref()?;
    let mut value = one(token.id, *own);
    value[list_name] = top.iter().map(|other| one(other.id, other.logprob)).collect();
    Some(value)
}

/// Selects `response_fields` of a response. As in llama.cpp, a path such as `timings/predicted_n`
/// becomes the name of a top-level field.
fn selected(value: &Value, paths: &[String]) -> Value {
    let found = |path: &String| {
        let part = path.split('/').try_fold(value, |value, name| value.as_object()?.get(name))?;
        Some((path.clone(), part.clone()))
    };
    Value::Object(paths.iter().filter_map(found).collect())
}

/// The number of a slot, or −1 if the request had none.
fn slot_number(slot: Option<usize>) -> Value {
    slot.map_or_else(|| json!(-1), Value::from)
}

/// Fields of the last event, or of the complete response, in addition to the text.
fn ending(served: &ServedModel, about: &LlamaSettings, index: usize, finish: &AnswerFinish) -> Value {
    // Choices are numbered consecutively over all prompts, `n` per prompt.
    let prompt = about.prompts.get(index / about.n.max(1)).cloned().unwrap_or_default();
    let stop_type = match finish.reason {
        EndReason::End | EndReason::Tools => "eos",
        EndReason::Stop => "word",
        EndReason::Length | EndReason::Context => "limit",
    };
    json!({
        "index": index,
        "content": "",
        "tokens": [],
        "id_slot": slot_number(finish.slot),
        "stop": true,
        "model": served.about.id,
        "tokens_predicted": finish.usage.completion,
        "tokens_evaluated": finish.usage.prompt,
        "generation_settings": about.settings,
        "prompt": prompt,
        // Also after a context shift, in which the oldest tokens were discarded.
        "truncated": finish.reason == EndReason::Context || finish.usage.discarded > 0,
        "stop_type": stop_type,
        "stopping_word": finish.stop.as_deref().unwrap_or_default(),
        "tokens_cached": finish.usage.cached,
        "timings": finish.timings(),
    })
}

fn whole(served: &Lease, about: &LlamaSettings, index: usize, outcome: AnswerOutcome) -> Document {
    let AnswerOutcome { content, tokens, finish, .. } = outcome;
    let mut value = ending(served, about, index, &finish);
    value["has_new_line"] = content.contains('\n').into();
    // Selected fields need the complete value.
    if !about.response_fields.is_empty() {
        value["content"] = content.into();
        value["tokens"] = if about.return_tokens { finish.tokens.into() } else { json!([]) };
        if about.n_probs > 0 {
            value["completion_probabilities"] = probabilities(&served.tokenizer, &tokens);
        }
        return Document::default().value(&selected(&value, &about.response_fields));
    }
    // The two long fields are serialized while the response is sent.
    if let Some(fields) = value.as_object_mut() {
        fields.shift_remove("content");
        fields.shift_remove("tokens");
    }
    let ids = if about.return_tokens { finish.tokens } else { Vec::new() };
    let document = Document::open(&value).field("content").text(content).field("tokens");
    let document = document.list(ids.into_iter(), |id, out| write(out, &id));
    if about.n_probs == 0 {
        return document.close();
    }
    let tokenizer = Arc::clone(&served.tokenizer);
    let values = tokens.into_iter().filter_map(move |token| probability(&tokenizer, &token));
    document.field("completion_probabilities").list(values, |value, out| write(out, &value)).close()
}

/// State of an answer: tokens that have not been sent, and timings.
#[derive(Clone, Default)]
struct LlamaChoice {
    tokens: Vec<TokenUpdate>,
    has_new_line: bool,
    running: AnswerTimings,
    slot: Option<usize>,
}

struct LlamaStream {
    served: Arc<Lease>,
    about: LlamaSettings,
    choices: Vec<LlamaChoice>,
}

impl LlamaStream {
    fn choice(&mut self, index: usize) -> &mut LlamaChoice {
        if self.choices.len() <= index {
            self.choices.resize(index + 1, LlamaChoice::default());
        }
        &mut self.choices[index]
    }

    /// Reports the progress of the prompt. The first report is the number of cached tokens.
    fn progress(&mut self, index: usize, done: usize, total: usize, out: &mut String) {
        let mut value = json!({"index": index, "content": "", "tokens": [], "stop": false});
        for (name, figures) in self.choice(index).running.progress(done, total) {
            value[name] = figures;
        }
        send(out, &value);
    }

    fn text(&mut self, index: usize, text: &str) -> Value {
        // Token IDs are sent with the text that they complete.
        let timed = self.about.timings;
        let choice = self.choice(index);
        let tokens = std::mem::take(&mut choice.tokens);
        let slot = slot_number(choice.slot);
        let (usage, timings) = (*choice.running.usage(), timed.then(|| choice.running.timings()));
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let mut value = json!({
            "index": index, "content": text, "tokens": ids, "stop": false, "id_slot": slot,
            "tokens_predicted": usage.completion, "tokens_evaluated": usage.prompt,
        });
        if let Some(timings) = timings {
            value["timings"] = timings;
        }
        if self.about.n_probs > 0 {
            value["completion_probabilities"] = probabilities(&self.served.tokenizer, &tokens);
        }
        value
    }
}

fn send(out: &mut String, value: &Value) {
    // Writing to a string cannot fail.
    let _ = write!(out, "data: {value}\n\n");
}

impl Encoder for LlamaStream {
    fn update(&mut self, update: AnswerUpdate, out: &mut String) {
        let AnswerUpdate { choice, what } = update;
        self.choice(choice).running.follow(&what);
        match what {
            AnswerEvent::Token(token) => self.choice(choice).tokens.push(token),
            AnswerEvent::Delta(AnswerDelta::Content(text)) => {
                self.choice(choice).has_new_line |= text.contains('\n');
                let value = self.text(choice, &text);
                send(out, &value);
            }
            AnswerEvent::Started { prompt, cached, slot } => {
                self.choice(choice).slot = slot;
                if self.about.progress {
                    self.progress(choice, cached, prompt, out);
                }
            }
            // The report for `done == cached` was sent with `Started`.
            AnswerEvent::Prompt { done, total, cached } if self.about.progress && done > cached => {
                self.progress(choice, done, total, out);
            }
            AnswerEvent::Finished(finish) => {
                let mut value = ending(&self.served, &self.about, choice, &finish);
                value["has_new_line"] = self.choice(choice).has_new_line.into();
                if !self.about.response_fields.is_empty() {
                    value = selected(&value, &self.about.response_fields);
                    // Clients detect the end of the stream by this field.
                    value["stop"] = true.into();
                }
                send(out, &value);
            }
            _ => {}
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut String) {
        out.push_str(&Dialect::LlamaCpp.error_event(error, ""));
    }

    // No `[DONE]` as in OpenAI's API: the last event has `"stop": true`.
    fn end(&mut self, _out: &mut String) {}

    fn ping(&mut self, out: &mut String) {
        out.push_str(": still there\n\n");
    }
}
