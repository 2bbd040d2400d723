//! Limits on reasoning, and where answers have it.

use crate::parts::{with_defaults, with_template};
use crate::support::{CHAT, TestServer, ask, question};
use latent_server::{ReasoningLimit, RequestDefaults};
use serde_json::{Value, json};

/// A template that opens the reasoning.
const THINKS: &str =
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>{% endif %}";

fn message(server: &TestServer, more: Value) -> (String, String, u64) {
    let whole = server.post(CHAT, &ask(more)).ok();
    let text = |name: &str| whole["choices"][0]["message"][name].as_str().unwrap_or_default().to_owned();
    let tokens = &whole["usage"]["completion_tokens_details"]["reasoning_tokens"];
    (text("reasoning_content"), text("content"), tokens.as_u64().unwrap())
}

#[test]
fn reasoning_ends_after_its_budget() {
    let server = with_template(THINKS);
    let (free, content, _) = message(&server, json!({"max_tokens": 24, "ignore_eos": true}));
    assert!(!free.is_empty() && content.is_empty(), "{free:?} {content:?}");
    for budget in [0, 1, 5, 12] {
        for name in ["reasoning_budget_tokens", "thinking_budget_tokens"] {
            let more = json!({"max_tokens": 40, "ignore_eos": true, name: budget});
            let (reasoning, content, tokens) = message(&server, more.clone());
            // The end marker may have several tokens, which count as reasoning.
            assert!(tokens >= budget && tokens < budget + 8, "{budget}: {tokens} {reasoning:?}");
            assert!(
                free.starts_with(reasoning.trim_end()) && reasoning.is_empty() == (budget == 0),
                "{reasoning:?}"
            );
            assert!(!content.is_empty() && !content.contains("think>"), "{content:?}");
            let mut streamed = ask(more);
            streamed["stream"] = true.into();
            let chunks = server.post(CHAT, &streamed).chunks();
            let joined = |name: &str| -> String {
                chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str()).collect()
            };
            assert_eq!((joined("reasoning_content"), joined("content")), (reasoning, content));
        }
    }
    let unlimited = json!({"max_tokens": 24, "ignore_eos": true, "reasoning_budget_tokens": -1});
    assert_eq!(message(&server, unlimited).0, free);
    let said = json!({"max_tokens": 40, "ignore_eos": true, "reasoning_budget_tokens": 3, "reasoning_budget_message": "... enough."});
    assert!(message(&server, said).0.ends_with("... enough."));
    server.post(CHAT, &ask(json!({"reasoning_budget_tokens": -2}))).error(400);
    server.assert_idle();
}

#[test]
fn a_budget_holds_for_every_answer_and_before_a_grammar() {
    let server = with_template(THINKS);
    let more =
        json!({"n": 3, "temperature": 1, "max_tokens": 40, "ignore_eos": true, "reasoning_budget_tokens": 4});
    let whole = server.post(CHAT, &ask(more)).ok();
    for choice in whole["choices"].as_array().unwrap() {
        assert!(!choice["message"]["content"].as_str().unwrap().is_empty(), "{choice}");
    }
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let (reasoning, content, _) =
        message(&server, json!({"max_tokens": 100, "response_format": format, "reasoning_budget_tokens": 4}));
    assert!(!reasoning.is_empty());
    assert!(serde_json::from_str::<Value>(&content).unwrap()["a"].is_boolean(), "{content}");
    let body = json!({"messages": question(), "max_tokens": 40, "thinking": {"type": "enabled", "budget_tokens": 4}});
    let whole = server.post("/v1/messages", &body).ok();
    let kinds: Vec<&str> =
        whole["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "text"], "{whole}");
}

/// The defaults of `--reasoning-budget` and `--reasoning-format`.
#[test]
fn defaults_of_the_server_apply_to_requests_without_the_field() {
    let limit = ReasoningLimit { tokens: 4, message: "... enough.".into() };
    let limited = RequestDefaults { reasoning_limit: Some(limit), ..RequestDefaults::default() };
    let server = with_defaults(THINKS, limited.clone());
    let plain = json!({"max_tokens": 40, "ignore_eos": true});
    let (reasoning, content, _) = message(&server, plain.clone());
    assert!(reasoning.ends_with("... enough.") && !content.is_empty(), "{reasoning:?} {content:?}");
    let unlimited = json!({"max_tokens": 24, "ignore_eos": true, "reasoning_budget_tokens": -1});
    assert!(!message(&server, unlimited).0.contains("... enough."));
    let raw = with_defaults(THINKS, RequestDefaults { raw_reasoning: true, ..limited });
    let (reasoning, content, _) = message(&raw, plain);
    assert!(reasoning.is_empty() && content.contains("... enough."), "{reasoning:?} {content:?}");
    let apart = json!({"max_tokens": 40, "ignore_eos": true, "reasoning_format": "auto"});
    assert!(!message(&raw, apart).0.is_empty());
}

#[test]
fn raw_reasoning_stays_in_the_content() {
    let server = with_template(THINKS);
    let more = |format: &str| json!({"max_tokens": 40, "ignore_eos": true, "reasoning_budget_tokens": 4, "reasoning_format": format});
    let (reasoning, content, _) = message(&server, more("none"));
    assert!(reasoning.is_empty() && content.contains("</think>"), "{reasoning:?} {content:?}");
    let (reasoning, apart, _) = message(&server, more("auto"));
    assert!(content.starts_with(reasoning.trim_end()) && content.ends_with(&apart), "{content:?} {apart:?}");
    let (_, param) = server.post(CHAT, &ask(more("loud"))).error(400);
    assert_eq!(param, "reasoning_format");
}

#[test]
fn a_verbose_answer_shows_the_prompt() {
    let server = with_template(THINKS);
    let whole = |verbose: bool| server.post(CHAT, &ask(json!({"max_tokens": 2, "verbose": verbose}))).ok();
    let prompt = whole(true)["__verbose"]["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.ends_with("<think>") && prompt.contains("lantern"), "{prompt}");
    assert!(whole(false)["__verbose"].is_null());
}
