//! OpenAI's completions of plain prompts.

use super::openai_chat::{FINGERPRINT, finite, usage_of};
use super::prepare;
use super::prepare::{PromptInput, prompts};
use crate::answer::{Finish, Outcome, Piece, Token, Update, What};
use crate::app::{Asker, Received};
use crate::dialect::{Dialect, json_response};
use crate::error::ApiError;
use crate::ids;
use crate::json::Fields;
use crate::limits::Limits;
use crate::model::Served;
use crate::models::Lease;
use crate::params::{self, Params};
use crate::stream::{Encoder, stream_all};
use axum::body::Body;
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// How the answer is to be written.
#[derive(Clone, Debug)]
struct About {
    model: String,
    stream: bool,
    include_usage: bool,
    logprobs: bool,
    echo: bool,
    /// Answers to each prompt.
    n: usize,
}

/// `POST /v1/completions`.
pub(crate) async fn handle(asker: Asker, body: Body) -> Response {
    asker.answer(Dialect::OpenAi, body, answer).await
}

async fn answer(asker: Asker, received: Received) -> Result<Response, ApiError> {
    let (prepared, about) = asker
        .prepare(received, |app, served, fields| {
            let limits = &app.config.limits;
            let (params, about) = read(fields, served, limits)?;
            let prompts = prompts(served, fields, "prompt", limits, PromptInput::Raw)?;
            limits.check("prompt", "inputs", prompts.len() * params.n, limits.inputs)?;
            let mut all = Vec::with_capacity(prompts.len());
            for prompt in prompts {
                let echo = about.echo.then(|| served.tokenizer.decode(&prompt.tokens, false));
                let mut prepared = prepare::text(served, prompt, params.clone(), limits)?;
                prepared.echo = echo.unwrap_or_default();
                all.push(prepared);
            }
            Ok((all, about))
        })
        .await?;
    let (served, answers) = asker.begin_all(prepared).await?;
    if about.stream {
        let encoder = CompletionStream {
            served,
            about,
            id: ids::unique("cmpl-"),
            created: ids::now(),
            finishes: Vec::new(),
            tokens: Vec::new(),
        };
        return Ok(stream_all(answers, Box::new(encoder)));
    }
    let mut outcomes = Vec::new();
    let mut usage = Vec::new();
    for answer in answers {
        let some = answer.collect().await?;
        usage.push(usage_of(&some.iter().map(|outcome| &outcome.finish).collect::<Vec<_>>()));
        outcomes.extend(some);
    }
    Ok(json_response(&whole(&served, &about, &outcomes, &usage)))
}

fn read(fields: &Fields<'_>, served: &Served, limits: &Limits) -> Result<(Params, About), ApiError> {
    let mut params = Params::read(fields, &served.about.sampling, limits)?;
    // OpenAI's default
    let given = fields.any(&["max_tokens", "max_completion_tokens", "n_predict"]).is_some();
    let most = params::max_tokens(fields, &["max_tokens", "max_completion_tokens", "n_predict"])?;
    params.max_tokens = if given { most } else { Some(16) };
    params.shape = params::shape(fields, limits)?;
    params.logprobs = fields.usize("logprobs")?;
    if let Some(top) = params.logprobs {
        limits.check("logprobs", "top_logprobs", top, limits.top_logprobs)?;
    }
    if fields.str("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(fields.error("suffix", "the model does not fill gaps: leave this away"));
    }
    if fields.usize("best_of")?.is_some_and(|best| best != params.n) {
        return Err(fields.error("best_of", "only as many answers as `n` are made"));
    }
    let echo = fields.bool("echo")?.unwrap_or(false);
    if echo && params.logprobs.is_some() {
        return Err(fields.error(
            "echo",
            "the prompt's tokens have no log-probabilities: leave `logprobs` or `echo` away",
        ));
    }
    let options = fields.object("stream_options")?;
    let include_usage = options.as_ref().map(|options| options.bool("include_usage")).transpose()?.flatten();
    let about = About {
        model: fields.str("model")?.unwrap_or(&served.about.id).to_owned(),
        stream: fields.bool("stream")?.unwrap_or(false),
        include_usage: include_usage.unwrap_or(false),
        logprobs: params.logprobs.is_some(),
        echo,
        n: params.n,
    };
    Ok((params, about))
}

fn envelope(id: &str, created: u64, about: &About, choices: Vec<Value>) -> Value {
    json!({
        "id": id, "object": "text_completion", "created": created, "model": about.model,
        "system_fingerprint": FINGERPRINT, "choices": choices,
    })
}

fn whole(served: &Served, about: &About, outcomes: &[Outcome], usage: &[Value]) -> Value {
    let choice = |(index, outcome): (usize, &Outcome)| {
        json!({
            "index": index,
            "text": outcome.content,
            "logprobs": about.logprobs.then(|| logprobs(served, &outcome.tokens)),
            "finish_reason": outcome.finish.reason.word(),
        })
    };
    let choices = outcomes.iter().enumerate().map(choice).collect();
    let mut value = envelope(&ids::unique("cmpl-"), ids::now(), about, choices);
    value["usage"] = sum(usage);
    if let Some(first) = outcomes.first() {
        value["timings"] = first.finish.timings();
    }
    value
}

/// The sum of the usages of several prompts.
fn sum(usage: &[Value]) -> Value {
    let mut total = usage.first().cloned().unwrap_or_default();
    for other in usage.iter().skip(1) {
        for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            total[name] = (total[name].as_u64().unwrap_or(0) + other[name].as_u64().unwrap_or(0)).into();
        }
    }
    total
}

/// Log-probabilities in the form of completions.
fn logprobs(served: &Served, tokens: &[Token]) -> Value {
    let (mut texts, mut own, mut tops, mut offsets, mut offset) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0);
    for token in tokens.iter().filter(|token| !token.ends) {
        let Some((logprob, top)) = &token.logprob else { continue };
        let text = served.token_text(token.id);
        offsets.push(offset);
        offset += text.chars().count();
        texts.push(text);
        own.push(finite(*logprob));
        let top: Map<String, Value> =
            top.iter().map(|other| (served.token_text(other.id), finite(other.logprob))).collect();
        tops.push(top);
    }
    json!({"tokens": texts, "token_logprobs": own, "top_logprobs": tops, "text_offset": offsets})
}

struct CompletionStream {
    served: Arc<Lease>,
    about: About,
    id: String,
    created: u64,
    finishes: Vec<(usize, Finish)>,
    tokens: Vec<(usize, Token)>,
}

impl CompletionStream {
    fn chunk(&mut self, choice: usize, text: &str, finish: Option<&'static str>) -> Value {
        let (own, others) = std::mem::take(&mut self.tokens).into_iter().partition(|(at, _)| *at == choice);
        self.tokens = others;
        let own: Vec<(usize, Token)> = own;
        let tokens: Vec<Token> = own.into_iter().map(|(_, token)| token).collect();
        let logprobs = (self.about.logprobs && !tokens.is_empty()).then(|| logprobs(&self.served, &tokens));
        let one = json!({"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish});
        let mut chunk = envelope(&self.id, self.created, &self.about, vec![one]);
        if self.about.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

fn send(out: &mut String, value: &Value) {
    // writing to a string cannot fail
    let _ = write!(out, "data: {value}\n\n");
}

impl Encoder for CompletionStream {
    fn update(&mut self, update: Update, out: &mut String) {
        let Update { choice, what } = update;
        match what {
            What::Token(token) if self.about.logprobs => self.tokens.push((choice, token)),
            What::Piece(Piece::Content(text)) => send(out, &self.chunk(choice, &text, None)),
            What::Finished(finish) => {
                let mut chunk = self.chunk(choice, "", Some(finish.reason.word()));
                chunk["timings"] = finish.timings();
                send(out, &chunk);
                self.finishes.push((choice, *finish));
            }
            _ => {}
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut String) {
        out.push_str(&Dialect::OpenAi.error_event(error, &self.id));
    }

    fn end(&mut self, out: &mut String) {
        if self.about.include_usage {
            // the answers to one prompt share it
            self.finishes.sort_by_key(|(choice, _)| *choice);
            let of_prompt = |chunk: &[(usize, Finish)]| {
                usage_of(&chunk.iter().map(|(_, finish)| finish).collect::<Vec<_>>())
            };
            let usage: Vec<Value> = self.finishes.chunks(self.about.n).map(of_prompt).collect();
            let mut chunk = envelope(&self.id, self.created, &self.about, Vec::new());
            chunk["usage"] = sum(&usage);
            send(out, &chunk);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn ping(&mut self, out: &mut String) {
        out.push_str(": still there\n\n");
    }
}
