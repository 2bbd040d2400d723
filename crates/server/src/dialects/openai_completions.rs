//! OpenAI's completions API (`/v1/completions`): plain prompts.

use super::infill::gap_prompt;
use super::openai_chat::{FINGERPRINT, usage_of};
use super::prepare;
use super::prepare::{PromptInput, prompts};
use crate::answer::{
    AnswerDelta, AnswerEvent, AnswerFinish, AnswerOutcome, AnswerTimings, AnswerUpdate, TokenLogprob,
    TokenUpdate, finite,
};
use crate::app::{ReceivedBody, RequestContext};
use crate::dialect::Dialect;
use crate::document::{Document, write};
use crate::error::ApiError;
use crate::ids;
use crate::json::ObjectFields;
use crate::limits::Limits;
use crate::model::{PreparedPrompt, ServedModel};
use crate::models::Lease;
use crate::params::{self, AnswerParams};
use crate::stream::{Encoder, stream_all};
use axum::body::Body;
use axum::response::Response;
use latent_text::Tokenizer;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// Settings of the response.
#[derive(Clone, Debug)]
struct CompletionSettings {
    model: String,
    stream: bool,
    include_usage: bool,
    logprobs: bool,
    echo: bool,
    /// Whether each chunk of a stream has timings (`timings_per_token`).
    timings: bool,
    /// Number of answers per prompt.
    n: usize,
}

/// `POST /v1/completions`.
pub(crate) async fn handle(asker: RequestContext, body: Body) -> Response {
    asker.answer(Dialect::OpenAi, body, answer).await
}

async fn answer(asker: RequestContext, received: ReceivedBody) -> Result<Response, ApiError> {
    let (prepared, about) = asker
        .prepare(received, |app, served, fields| {
            let limits = &app.config.limits;
            let (params, about) = read(fields, served, limits)?;
            let prompts = match fields.str("suffix")?.filter(|suffix| !suffix.is_empty()) {
                None => prompts(served, fields, "prompt", limits, PromptInput::Raw)?,
                Some(suffix) => gap_prompts(served, fields, limits, suffix)?,
            };
            limits.check("prompt", "inputs", prompts.len() * params.n, limits.inputs)?;
            let mut all = prepare::texts(served, prompts, params, limits)?;
            all.iter_mut().for_each(|prepared| prepared.show_tokens |= about.timings);
            if about.echo {
                for prepared in &mut all {
                    prepared.echo = served.tokenizer.decode(&prepared.prompt.tokens, false);
                }
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
            running: Vec::new(),
        };
        return Ok(stream_all(answers, Box::new(encoder)));
    }
    let mut outcomes = Vec::new();
    for answer in answers {
        outcomes.extend(answer.collect().await?);
    }
    Ok(whole(&served, &about, outcomes).into_response())
}

fn read(
    fields: &ObjectFields<'_>,
    served: &ServedModel,
    limits: &Limits,
) -> Result<(AnswerParams, CompletionSettings), ApiError> {
    let mut params = AnswerParams::read(fields, served, limits)?;
    // OpenAI's default of this API is 16 tokens. An explicit null or -1 means no limit, so the
    // presence of the field matters.
    let given = fields.any(&["max_tokens", "max_completion_tokens", "n_predict"]).is_some();
    let most = params::max_tokens(fields, &["max_tokens", "max_completion_tokens", "n_predict"])?;
    params.max_tokens = if given { most } else { served.about.defaults.max_tokens.or(Some(16)) };
    params.shape = params::shape(fields, limits)?;
    // llama.cpp's name for `logprobs`.
    let n_probs = fields.usize("n_probs")?.filter(|count| *count > 0);
    params.logprobs = fields.usize("logprobs")?.or(n_probs);
    if let Some(top) = params.logprobs {
        limits.check("logprobs", "top_logprobs", top, limits.top_logprobs)?;
    }
    if fields.usize("best_of")?.is_some_and(|best| best != params.n) {
        return Err(fields.error("best_of", "must equal `n`"));
    }
    let echo = fields.bool("echo")?.unwrap_or(false);
    if echo && params.logprobs.is_some() {
        return Err(fields
            .error("echo", "log-probabilities of the prompt are not supported: omit `logprobs` or `echo`"));
    }
    // The server's default must not make `echo` an error.
    if !echo {
        params.logprobs = params.logprobs.or(served.about.defaults.logprobs);
    }
    let options = fields.object("stream_options")?;
    let include_usage = options.as_ref().map(|options| options.bool("include_usage")).transpose()?.flatten();
    let about = CompletionSettings {
        model: fields.str("model")?.unwrap_or(&served.about.id).to_owned(),
        stream: fields.bool("stream")?.unwrap_or(false),
        include_usage: include_usage.unwrap_or(false),
        logprobs: params.logprobs.is_some(),
        echo,
        timings: fields.bool("timings_per_token")?.unwrap_or(false),
        n: params.n,
    };
    Ok((params, about))
}

/// The prompts of a request with `suffix`.
fn gap_prompts(
    served: &ServedModel,
    fields: &ObjectFields<'_>,
    limits: &Limits,
    suffix: &str,
) -> Result<Vec<PreparedPrompt>, ApiError> {
    if fields.bool("echo")?.unwrap_or(false) {
        return Err(fields.error("echo", "cannot be combined with `suffix`: remove one of the two"));
    }
    let texts = params::texts(fields, "prompt")?;
    if texts.is_empty() {
        return Err(fields.missing("prompt"));
    }
    limits.check("prompt", "inputs", texts.len(), limits.inputs)?;
    texts.iter().map(|text| gap_prompt(served, "suffix", text, suffix)).collect()
}

fn envelope(id: &str, created: u64, about: &CompletionSettings) -> Value {
    json!({
        "id": id, "object": "text_completion", "created": created, "model": about.model,
        "system_fingerprint": FINGERPRINT,
    })
}

fn whole(served: &Lease, about: &CompletionSettings, outcomes: Vec<AnswerOutcome>) -> Document {
    let mut value = envelope(&ids::unique("cmpl-"), ids::now(), about);
    let finishes: Vec<&AnswerFinish> = outcomes.iter().map(|outcome| &outcome.finish).collect();
    value["usage"] = usage_of(&finishes, about.n);
    if let Some(first) = outcomes.first() {
        value["timings"] = first.finish.timings();
    }
    let (tokenizer, with_logprobs) = (Arc::clone(&served.tokenizer), about.logprobs);
    let choice = move |(index, outcome): (usize, AnswerOutcome)| {
        let AnswerOutcome { content, finish, tokens, .. } = outcome;
        let value = json!({"index": index, "finish_reason": finish.reason.word()});
        let document = Document::open(&value).field("text").text(content).field("logprobs");
        if with_logprobs {
            return logprobs(document, &tokenizer, tokens).close();
        }
        document.value(&Value::Null).close()
    };
    Document::open(&value).field("choices").documents(outcomes.into_iter().enumerate().map(choice)).close()
}

/// Appends log-probabilities in the format of this API: parallel lists with an element per token.
fn logprobs(document: Document, tokenizer: &Arc<Tokenizer>, tokens: Vec<TokenUpdate>) -> Document {
    // Each list is an iterator over the shared tokens and is serialized while it is sent. As JSON
    // values, the lists of a long answer would take many times the memory that is charged.
    // The token that ends an answer has no text and is left out.
    let shown =
        tokens.into_iter().filter_map(|token| Some((token.id, token.logprob.filter(|_| !token.ends)?)));
    let shown: Arc<[(u32, TokenLogprob)]> = shown.collect();
    let ids = || {
        let shown = Arc::clone(&shown);
        (0..shown.len()).map(move |at| shown[at].0)
    };
    let texts = || {
        let tokenizer = Arc::clone(tokenizer);
        move |id: u32| String::from_utf8_lossy(tokenizer.piece(id).unwrap_or_default()).into_owned()
    };
    let (text, text_of_offset, text_of_top) = (texts(), texts(), texts());
    let mut offset = 0;
    let (own, tops) = (Arc::clone(&shown), Arc::clone(&shown));
    document
        .raw("{\"tokens\":")
        .list(ids(), move |id, out| write(out, &text(id)))
        .field("token_logprobs")
        .list(0..shown.len(), move |at, out| write(out, &finite(own[at].1.0)))
        .field("top_logprobs")
        .list(0..shown.len(), move |at, out| {
            let top = tops[at].1.1.iter().map(|other| (text_of_top(other.id), finite(other.logprob)));
            write(out, &top.collect::<Map<String, Value>>());
        })
        .field("text_offset")
        .list(ids(), move |id, out| {
            write(out, &offset);
            offset += text_of_offset(id).chars().count();
        })
        .close()
}

struct CompletionStream {
    served: Arc<Lease>,
    about: CompletionSettings,
    id: String,
    created: u64,
    finishes: Vec<(usize, AnswerFinish)>,
    tokens: Vec<(usize, TokenUpdate)>,
    /// Timings of each choice.
    running: Vec<AnswerTimings>,
}

impl CompletionStream {
    fn chunk(&mut self, choice: usize, text: &str, finish: Option<&'static str>) -> Value {
        // Tokens come before the text that they complete. A chunk takes all that have come since
        // the last chunk of its choice.
        let (own, others) = std::mem::take(&mut self.tokens).into_iter().partition(|(at, _)| *at == choice);
        self.tokens = others;
        let own: Vec<(usize, TokenUpdate)> = own;
        let tokens: Vec<TokenUpdate> = own.into_iter().map(|(_, token)| token).collect();
        let logprobs = (self.about.logprobs && !tokens.is_empty())
            .then(|| logprobs(Document::default(), &self.served.tokenizer, tokens).into_value());
        let one = json!({"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish});
        let mut chunk = envelope(&self.id, self.created, &self.about);
        chunk["choices"] = json!([one]);
        // As in OpenAI's API: with `include_usage` all chunks but the last have `usage: null`.
        if self.about.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

fn send(out: &mut String, value: &Value) {
    // Writing to a string cannot fail.
    let _ = write!(out, "data: {value}\n\n");
}

impl Encoder for CompletionStream {
    fn update(&mut self, update: AnswerUpdate, out: &mut String) {
        let AnswerUpdate { choice, what } = update;
        if self.running.len() <= choice {
            self.running.resize(choice + 1, AnswerTimings::default());
        }
        self.running[choice].follow(&what);
        match what {
            AnswerEvent::Token(token) if self.about.logprobs => self.tokens.push((choice, token)),
            AnswerEvent::Delta(AnswerDelta::Content(text)) => {
                let mut chunk = self.chunk(choice, &text, None);
                if self.about.timings {
                    chunk["timings"] = self.running[choice].timings();
                }
                send(out, &chunk);
            }
            AnswerEvent::Finished(finish) => {
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
            // The choices of a prompt have consecutive numbers, but end in any order.
            self.finishes.sort_by_key(|(choice, _)| *choice);
            let finishes: Vec<&AnswerFinish> = self.finishes.iter().map(|(_, finish)| finish).collect();
            let mut chunk = envelope(&self.id, self.created, &self.about);
            chunk["choices"] = json!([]);
            chunk["usage"] = usage_of(&finishes, self.about.n);
            send(out, &chunk);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn ping(&mut self, out: &mut String) {
        out.push_str(": still there\n\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_engine::scheduler::JobUsage;

    #[test]
    fn usage_of_several_prompts_is_summed_with_its_details() {
        let of = |prompt, cached, completion| AnswerFinish {
            usage: JobUsage { prompt, cached, completion, ..JobUsage::default() },
            ..AnswerFinish::default()
        };
        let counts = |finishes: &[AnswerFinish], n| {
            let usage = usage_of(&finishes.iter().collect::<Vec<_>>(), n);
            ["/prompt_tokens", "/completion_tokens", "/total_tokens", "/prompt_tokens_details/cached_tokens"]
                .map(|field| usage.pointer(field).and_then(Value::as_u64).unwrap())
        };
        assert_eq!(counts(&[of(5, 1, 2), of(7, 3, 4), of(1, 0, 8)], 1), [13, 14, 27, 4]);
        assert_eq!(counts(&[of(5, 1, 2)], 1), [5, 2, 7, 1]);
        // Two answers to each of two prompts.
        assert_eq!(counts(&[of(5, 1, 2), of(5, 1, 3), of(7, 3, 4), of(7, 3, 1)], 2), [12, 10, 22, 4]);
    }
}
