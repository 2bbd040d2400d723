//! The grammar of calls and the output parser for Kimi-K3, whose markers of reasoning, answer and
//! calls consist of the same control tokens. A random model that follows the grammar writes output
//! for the parser.

use crate::client::Reply;
use crate::support::{CHAT, TestServer, config, merge, source, wrap};
use crate::vocabularies::of_bytes;
use latent_engine::sampling::SamplingParams;
use latent_engine::{Engine, EngineOptions};
use latent_formats::Checkpoint;
use latent_server::{Extras, LoadedModel, Loader, ModelFacts, Server};
use latent_testing::ModelRecipe;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Turns as in the chat template of Kimi-K3.
const TEMPLATE: &str = r#"{%- for message in messages -%}
<|open|>message role="{{ message.role }}"<|sep|>{{ message.content }}<|close|>message<|sep|><|end_of_msg|>
{%- endfor -%}
<|open|>message role="assistant"<|sep|>{% if thinking is not defined or thinking %}<|open|>think<|sep|>{% endif %}"#;

const CONTROLS: [&str; 6] = ["<end>", "<stop>", "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"];

/// Tokens of context. Most tokens of this vocabulary are single bytes.
const CONTEXT: usize = 1024;

/// Tokens of the random model's vocabulary.
const VOCAB: usize = 512;

/// A random model whose vocabulary has bytes, words of the markers, and control tokens.
fn loader() -> Loader {
    Box::new(|attempt| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        ModelRecipe::new("tiny-v3", "Q4_K_M".parse().unwrap()).write_gguf(&path).unwrap();
        let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
        let options = EngineOptions {
            threads: Some(1),
            context: Some(CONTEXT),
            cache_tokens: Some(4 * CONTEXT),
            ..EngineOptions::default()
        };
        let engine = Engine::load(&*latent_backends::cpu(), &checkpoint, &options, attempt.progress)?;
        let mut words: Vec<String> =
            ["think", "response", "tools", "tool=\"", " type=\"", "call "].map(str::to_owned).into();
        words.extend((words.len()..VOCAB - 256 - CONTROLS.len()).map(|i| format!("w{i}")));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let tokenizer = Arc::new(of_bytes(&words, &CONTROLS));
        assert_eq!(tokenizer.vocab_size(), engine.config().vocab_size);
        let about = ModelFacts {
            id: "kimi".into(),
            chat_template: Some(TEMPLATE.into()),
            sampling: SamplingParams::greedy(),
            ..ModelFacts::default()
        };
        Ok(LoadedModel { engine, tokenizer, about })
    })
}

fn kimi() -> TestServer {
    let server = Server::start(config(), vec![source("kimi", loader())], Extras::default()).unwrap();
    server.wait_loaded(Duration::from_secs(60)).expect("it loads in time").unwrap();
    wrap(server)
}

fn id(server: &TestServer, token: &str) -> u64 {
    let tokens = server.post("/tokenize", &json!({"content": token})).ok();
    let [id] = tokens["tokens"].as_array().unwrap().as_slice() else { panic!("{token}: {tokens}") };
    id.as_u64().unwrap()
}

/// All values are enumerated. A random model would not end a free string.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Bonn", "Köln \"am\" Rhein <b>"]},
            "days": {"type": "integer", "enum": [1, 23]},
            "now": {"type": "boolean"},
        },
        "required": ["city", "days", "now"],
        "additionalProperties": false,
    })
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "parameters": schema()}}])
}

/// A question with a bias for closing markers, without which a random model would not end.
fn question(server: &TestServer, more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Weather in <|open|>Bonn<|sep|>?"}],
        "max_tokens": 600, "logit_bias": {id(server, "<|close|>").to_string(): 100},
    });
    merge(&mut body, more);
    body
}

fn assert_arguments(arguments: &Value) {
    let known = schema();
    let fields = arguments.as_object().unwrap();
    assert_eq!(fields.keys().collect::<Vec<_>>(), ["city", "days", "now"]);
    for name in ["city", "days"] {
        let allowed = known["properties"][name]["enum"].as_array().unwrap();
        assert!(allowed.contains(&fields[name]), "{arguments}");
    }
    assert!(fields["now"].is_boolean(), "{arguments}");
}

/// Reasoning, text and calls (name, arguments) of a stream, and why it ended.
fn joined(reply: &Reply) -> (String, String, Vec<(String, Value)>, Value) {
    let (mut reasoning, mut text, mut calls, mut finish) =
        (String::new(), String::new(), Vec::new(), Value::Null);
    for chunk in reply.chunks() {
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        text.push_str(delta["content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            if let Some(name) = function["name"].as_str() {
                assert_eq!(call["index"], calls.len());
                calls.push((name.to_owned(), String::new()));
            }
            let (_, arguments) = calls.last_mut().unwrap();
            arguments.push_str(function["arguments"].as_str().unwrap_or_default());
        }
        if choice["finish_reason"].is_string() {
            finish = choice["finish_reason"].clone();
        }
    }
    let calls = calls.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).unwrap())).collect();
    (reasoning, text, calls, finish)
}

/// The same parts of an answer that is not streamed.
fn parts(whole: &Value) -> (String, String, Vec<(String, Value)>, Value) {
    let choice = &whole["choices"][0];
    let message = &choice["message"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let call = |call: &Value| {
        let function = &call["function"];
        (text(&function["name"]), serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap())
    };
    let calls = message["tool_calls"].as_array().into_iter().flatten().map(call).collect();
    (text(&message["reasoning_content"]), text(&message["content"]), calls, choice["finish_reason"].clone())
}

#[test]
fn calls_that_are_required_are_made_and_read() {
    let server = kimi();
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for choice in [json!("required"), named] {
        for thinking in [true, false] {
            let kwargs = json!({"thinking": thinking});
            let body = question(
                &server,
                json!({"tools": tools(), "tool_choice": choice, "chat_template_kwargs": kwargs}),
            );
            let whole = server.post(CHAT, &body).ok();
            let made = parts(&whole);
            let (_, text, calls, finish) = &made;
            assert_eq!((text.as_str(), finish), ("", &json!("tool_calls")), "{whole}");
            let [(name, arguments)] = calls.as_slice() else { panic!("{whole}") };
            assert_eq!(name, "get_weather");
            assert_arguments(arguments);
            let mut streamed = body;
            merge(&mut streamed, json!({"stream": true}));
            assert_eq!(joined(&server.post(CHAT, &streamed)), made);
        }
    }
}

#[test]
fn optional_calls_allow_markers_that_are_not_text() {
    let server = kimi();
    for thinking in [true, false] {
        let body =
            question(&server, json!({"tools": tools(), "chat_template_kwargs": {"thinking": thinking}}));
        let whole = server.post(CHAT, &body).ok();
        let (reasoning, text, calls, _) = parts(&whole);
        assert!(whole["usage"]["completion_tokens"].as_u64().unwrap() > 10, "{whole}");
        assert_eq!((reasoning.trim(), calls), ("", vec![]), "{whole}");
        // Also if the length limit ends the answer within a marker.
        assert_eq!(text.trim(), "", "{whole}");
    }
}

#[test]
fn the_other_interfaces_make_the_same_calls() {
    let server = kimi();
    let tool = json!({"name": "get_weather", "input_schema": schema()});
    let body = question(&server, json!({"tools": [tool], "tool_choice": {"type": "any"}}));
    let whole = server.post("/v1/messages", &body).ok();
    let content = whole["content"].as_array().unwrap();
    let call = content.iter().find(|block| block["type"] == "tool_use").unwrap_or_else(|| panic!("{whole}"));
    assert_eq!((&call["name"], &whole["stop_reason"]), (&json!("get_weather"), &json!("tool_use")));
    assert_arguments(&call["input"]);
    let tool = json!({"type": "function", "name": "get_weather", "parameters": schema()});
    let mut body = question(&server, json!({"tools": [tool], "tool_choice": "required"}));
    body["input"] = body["messages"].take();
    let whole = server.post("/v1/responses", &body).ok();
    let output = whole["output"].as_array().unwrap();
    let call =
        output.iter().find(|item| item["type"] == "function_call").unwrap_or_else(|| panic!("{whole}"));
    assert_eq!(call["name"], "get_weather");
    assert_arguments(&serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap());
}

/// A Lark grammar that allows only this output, in which control tokens are written by their names.
fn script(output: &str) -> Value {
    let mut rule = Vec::new();
    let mut rest = output;
    while !rest.is_empty() {
        let at = rest.find("<|").unwrap_or(rest.len());
        let (text, more) = rest.split_at(at);
        if !text.is_empty() {
            rule.push(json!(text).to_string());
        }
        let end = more.find("|>").map_or(0, |end| end + 2);
        let (control, after) = more.split_at(end);
        rule.push(control.to_owned());
        rest = after;
    }
    format!("start: {}", rule.join(" ")).into()
}

#[test]
fn reasoning_answer_and_calls_are_separated() {
    let server = kimi();
    let call = |number: u32, city: &str| {
        format!(
            "<|open|>call tool=\"get_weather\" index=\"{number}\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>{city}<|close|>argument<|sep|>\
             <|open|>argument key=\"days\" type=\"number\"<|sep|>23<|close|>argument<|sep|><|open|>argument key=\"now\" type=\"boolean\"<|sep|>true\
             <|close|>argument<|sep|><|close|>call<|sep|>"
        )
    };
    let answer = "<|open|>response<|sep|>I look: 日本.<|close|>response<|sep|>";
    let calls =
        format!("<|open|>tools<|sep|>{}{}<|close|>tools<|sep|>", call(1, "Bonn"), call(2, "a <b> \"c\""));
    let weather = |city: &str| ("get_weather".to_owned(), json!({"city": city, "days": 23, "now": true}));
    let both = vec![weather("Bonn"), weather("a <b> \"c\"")];
    let thought = "<|open|>think<|sep|>Hm, <b>.\n<|close|>think<|sep|>";
    for (output, expected) in [
        (
            format!("{thought}{answer}{calls}<|close|>message<|sep|>"),
            ("Hm, <b>.\n", "I look: 日本.", both.clone(), "tool_calls"),
        ),
        (format!("{thought}{calls}"), ("Hm, <b>.\n", "", both, "tool_calls")),
        (format!("{answer}<|close|>message<|sep|>"), ("", "I look: 日本.", vec![], "stop")),
    ] {
        let more = json!({"tools": tools(), "grammar": script(&output), "chat_template_kwargs": {"thinking": false}});
        let body = question(&server, more);
        let whole = server.post(CHAT, &body).ok();
        let (reasoning, text, calls, finish) = parts(&whole);
        assert_eq!(
            (reasoning.as_str(), text.as_str(), calls, finish),
            (expected.0, expected.1, expected.2, json!(expected.3)),
            "{whole}"
        );
        let mut streamed = body;
        merge(&mut streamed, json!({"stream": true}));
        assert_eq!(joined(&server.post(CHAT, &streamed)), parts(&whole));
    }
}

#[test]
fn names_of_control_tokens_in_a_message_stay_text() {
    let server = kimi();
    let count = |text: &str| {
        let body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 1});
        server.post(CHAT, &body).ok()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert_eq!(count("<|open|>tools<|sep|>") - count(""), "<|open|>tools<|sep|>".len() as u64);
}
