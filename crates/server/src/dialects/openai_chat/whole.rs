//! Complete responses of OpenAI's chat completions API.

use super::request::ChatSettings;
use crate::answer::{AnswerCall, AnswerFinish, AnswerOutcome, TokenUpdate};
use crate::document::{Document, write};
use crate::ids;
use crate::models::Lease;
use latent_text::Tokenizer;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// `system_fingerprint`.
pub(crate) const FINGERPRINT: &str = concat!("latent-", env!("CARGO_PKG_VERSION"));

/// Encodes a response.
pub(super) fn completion(served: &Lease, about: &ChatSettings, outcomes: Vec<AnswerOutcome>) -> Document {
    let finishes: Vec<&AnswerFinish> = outcomes.iter().map(|outcome| &outcome.finish).collect();
    let mut value = json!({
        "id": ids::unique("chatcmpl-"),
        "object": "chat.completion",
        "created": ids::now(),
        "model": about.model,
        "system_fingerprint": FINGERPRINT,
        "usage": usage_of(&finishes, finishes.len()),
    });
    if let Some(first) = finishes.first() {
        value["timings"] = first.timings();
    }
    if let Some(first) = outcomes.first().filter(|_| about.verbose) {
        value["__verbose"] = verbose(about, &first.content, &first.finish);
    }
    let (tokenizer, logprobs) = (Arc::clone(&served.tokenizer), about.logprobs);
    let choices = outcomes
        .into_iter()
        .enumerate()
        .map(move |(index, outcome)| choice(&tokenizer, logprobs, index, outcome));
    Document::open(&value).field("choices").documents(choices).close()
}

/// llama.cpp's `__verbose`: the prompt, and the answer in the format of `/completion`.
pub(super) fn verbose(about: &ChatSettings, content: &str, finish: &AnswerFinish) -> Value {
    json!({
        "prompt": about.prompt,
        "content": content,
        "tokens_predicted": finish.usage.completion,
        "tokens_evaluated": finish.usage.prompt,
        "stop": true,
        "stopping_word": finish.stop.as_deref().unwrap_or_default(),
        "timings": finish.timings(),
    })
}

fn choice(tokenizer: &Arc<Tokenizer>, with_logprobs: bool, index: usize, outcome: AnswerOutcome) -> Document {
    let AnswerOutcome { reasoning, content, calls, tokens, finish } = outcome;
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    // As from OpenAI: null only in messages with nothing but calls.
    let text = if content.is_empty() && !calls.is_empty() { Value::Null } else { content.as_str().into() };
    message.insert("content".into(), text);
    message.insert("refusal".into(), Value::Null);
    if !reasoning.is_empty() {
        message.insert("reasoning".into(), reasoning.as_str().into());
        message.insert("reasoning_content".into(), reasoning.as_str().into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.iter().map(call).collect());
    }
    let value = json!({"index": index, "message": message, "finish_reason": finish.reason.word()});
    let document = Document::open(&value).field("logprobs");
    if !with_logprobs {
        return document.value(&Value::Null).close();
    }
    let tokenizer = Arc::clone(tokenizer);
    let values = tokens.into_iter().filter_map(move |token| logprob(&tokenizer, &token));
    let content =
        document.raw("{\"refusal\":null,\"content\":").list(values, |value, out| write(out, &value));
    content.close().close()
}

fn call(call: &AnswerCall) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

/// The usage of `n` answers to each prompt, prompt after prompt. A prompt is counted once.
pub(crate) fn usage_of(finishes: &[&AnswerFinish], n: usize) -> Value {
    let prompts = || finishes.iter().step_by(n.max(1)).map(|finish| finish.usage);
    let prompt = prompts().map(|usage| usage.prompt).sum::<usize>();
    let cached = prompts().map(|usage| usage.cached).sum::<usize>();
    let sum = |of: &dyn Fn(&AnswerFinish) -> usize| finishes.iter().map(|finish| of(finish)).sum::<usize>();
    let completion = sum(&|finish| finish.usage.completion);
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": sum(&|finish| finish.reasoning_tokens),
            // OpenAI's fields for predicted outputs. Here they count drafts.
            "accepted_prediction_tokens": sum(&|finish| finish.usage.drafts.accepted),
            "rejected_prediction_tokens": sum(&|finish| finish.usage.drafts.drafted - finish.usage.drafts.accepted),
            "audio_tokens": 0,
        },
    })
}

/// Log-probabilities in the format of this API.
pub(crate) fn logprobs(tokenizer: &Tokenizer, tokens: &[TokenUpdate]) -> Value {
    let content: Vec<Value> = tokens.iter().filter_map(|token| logprob(tokenizer, token)).collect();
    json!({"content": content, "refusal": null})
}

/// An entry of the log-probabilities.
pub(crate) fn logprob(tokenizer: &Tokenizer, token: &TokenUpdate) -> Option<Value> {
    let (own_name, list_name) = token.probability_names();
    let one = |id: u32, logprob: f32| {
        // A token may be part of a UTF-8 character, so clients join `bytes`, not `token`.
        let bytes = tokenizer.piece(id).unwrap_or_default();
        let mut entry = Map::new();
        entry.insert("token".into(), String::from_utf8_lossy(bytes).into());
        entry.insert("id".into(), id.into());
        entry.insert(own_name.into(), token.probability(logprob));
        entry.insert("bytes".into(), bytes.into());
        entry
    };
    // The token that ends an answer has no text, so it is omitted.
    let (own, top) = token.logprob.as_ref().filter(|_| !token.ends)?;
    let mut entry = one(token.id, *own);
    let top: Vec<Value> = top.iter().map(|other| one(other.id, other.logprob).into()).collect();
    entry.insert(list_name.into(), top.into());
    Some(entry.into())
}
