//! Whole chat completions.

use super::request::About;
use crate::answer::{Call, Finish, Outcome, Token};
use crate::ids;
use crate::model::Served;
use serde_json::{Map, Value, json};

/// What identifies the program that answers.
pub(crate) const FINGERPRINT: &str = concat!("latent-", env!("CARGO_PKG_VERSION"));

/// The whole completion.
pub(super) fn completion(served: &Served, about: &About, outcomes: &[Outcome]) -> Value {
    let choices: Vec<Value> =
        outcomes.iter().enumerate().map(|(i, outcome)| choice(served, about, i, outcome)).collect();
    let finishes: Vec<&Finish> = outcomes.iter().map(|outcome| &outcome.finish).collect();
    let mut value = json!({
        "id": ids::unique("chatcmpl-"),
        "object": "chat.completion",
        "created": ids::now(),
        "model": about.model,
        "system_fingerprint": FINGERPRINT,
        "choices": choices,
        "usage": usage_of(&finishes),
    });
    if let Some(first) = finishes.first() {
        value["timings"] = first.timings();
    }
    value
}

fn choice(served: &Served, about: &About, index: usize, outcome: &Outcome) -> Value {
    let Outcome { reasoning, content, calls, tokens, finish } = outcome;
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
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
    json!({
        "index": index,
        "message": message,
        "logprobs": about.logprobs.then(|| logprobs(served, tokens)),
        "finish_reason": finish.reason.word(),
    })
}

fn call(call: &Call) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

/// The usage of all answers to one prompt.
pub(crate) fn usage_of(finishes: &[&Finish]) -> Value {
    let first = finishes.first().map(|finish| finish.usage).unwrap_or_default();
    let sum = |of: &dyn Fn(&Finish) -> usize| finishes.iter().map(|finish| of(finish)).sum::<usize>();
    let completion = sum(&|finish| finish.usage.completion);
    json!({
        "prompt_tokens": first.prompt,
        "completion_tokens": completion,
        "total_tokens": first.prompt + completion,
        "prompt_tokens_details": {"cached_tokens": first.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": sum(&|finish| finish.reasoning_tokens),
            "accepted_prediction_tokens": sum(&|finish| finish.usage.drafts.accepted),
            "rejected_prediction_tokens": sum(&|finish| finish.usage.drafts.drafted - finish.usage.drafts.accepted),
            "audio_tokens": 0,
        },
    })
}

/// Log-probabilities in the form of chat completions. The token that ends an answer has no text and is left out.
pub(crate) fn logprobs(served: &Served, tokens: &[Token]) -> Value {
    let one = |id: u32, logprob: f32| {
        let bytes = served.tokenizer.piece(id).unwrap_or_default();
        let mut entry = Map::new();
        entry.insert("token".into(), served.token_text(id).into());
        entry.insert("id".into(), id.into());
        entry.insert("logprob".into(), finite(logprob));
        entry.insert("bytes".into(), bytes.into());
        entry
    };
    let content: Vec<Value> = tokens
        .iter()
        .filter(|token| !token.ends)
        .filter_map(|token| {
            let (own, top) = token.logprob.as_ref()?;
            let mut entry = one(token.id, *own);
            let top: Vec<Value> = top.iter().map(|other| one(other.id, other.logprob).into()).collect();
            entry.insert("top_logprobs".into(), top.into());
            Some(entry.into())
        })
        .collect();
    json!({"content": content, "refusal": null})
}

/// JSON has no −∞: the least logarithm that OpenAI's interface knows.
pub(crate) fn finite(logprob: f32) -> Value {
    f64::from(logprob.max(-9999.0)).into()
}
