//! Anthropic's messages.

use crate::support::{demo, merge, question};
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";

fn body(more: Value) -> Value {
    let mut body = json!({"model": "demo", "messages": question(), "max_tokens": 30, "temperature": 0});
    merge(&mut body, more);
    body
}

#[test]
fn streamed_and_complete_messages_are_equal() {
    let server = demo();
    let whole = server.post(PATH, &body(json!({}))).ok();
    assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(whole["stop_reason"], "max_tokens");
    assert_eq!(whole["usage"]["output_tokens"], 30);
    let text = whole["content"][0]["text"].as_str().unwrap();
    let reply = server.post(PATH, &body(json!({"stream": true})));
    let events: Vec<Value> = reply
        .events()
        .into_iter()
        .map(|(name, data)| {
            let value: Value = serde_json::from_str(&data).unwrap();
            assert_eq!(value["type"], name);
            value
        })
        .collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..4], ["message_start", "ping", "content_block_start", "content_block_delta"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let deltas: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(deltas, text);
    let usage = &events[0]["message"]["usage"];
    let input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    let whole_input = whole["usage"]["input_tokens"].as_u64().unwrap()
        + whole["usage"]["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(input, whole_input);
    let counted = server.post("/v1/messages/count_tokens", &json!({"messages": question()})).ok();
    assert_eq!(counted["input_tokens"], whole_input);
    assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "max_tokens");
}

#[test]
fn a_long_prompt_is_read_from_the_cache_the_second_time() {
    let server = demo();
    let long = format!("{} What is this?", "A fox and a lantern in the snow. ".repeat(20));
    let blocks = json!([{"type": "text", "text": long, "cache_control": {"type": "ephemeral"}}]);
    let request = body(json!({"messages": [{"role": "user", "content": blocks}], "max_tokens": 2}));
    let first = server.post(PATH, &request).ok();
    assert_eq!(first["usage"]["cache_read_input_tokens"], 0);
    let second = server.post(PATH, &request).ok();
    assert!(second["usage"]["cache_read_input_tokens"].as_u64().unwrap() >= 64, "{}", second["usage"]);
    assert_eq!(second["content"], first["content"]);
}

#[test]
fn tools_are_used_and_their_results_are_read() {
    let server = demo();
    let schema = json!({"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"], "additionalProperties": false});
    let tools = json!([{"name": "weather", "input_schema": schema}, {"type": "web_search_20250305", "name": "web_search"}]);
    let choice = json!({"type": "tool", "name": "weather", "disable_parallel_tool_use": true});
    let request = body(json!({"tools": tools, "tool_choice": choice, "max_tokens": 250}));
    let whole = server.post(PATH, &request).ok();
    let used = &whole["content"][0];
    assert_eq!(
        (&used["type"], &used["name"], &whole["stop_reason"]),
        (&json!("tool_use"), &json!("weather"), &json!("tool_use")),
        "{whole}"
    );
    assert!(used["input"]["days"].is_i64());
    let mut streamed = request.clone();
    merge(&mut streamed, json!({"stream": true}));
    let events = server.post(PATH, &streamed).events();
    let text: String = events
        .iter()
        .filter_map(|(_, data)| {
            serde_json::from_str::<Value>(data).unwrap()["delta"]["partial_json"].as_str().map(str::to_owned)
        })
        .collect();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), used["input"]);
    let mut messages = question();
    let list = messages.as_array_mut().unwrap();
    list.push(json!({"role": "assistant", "content": whole["content"]}));
    list.push(json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": used["id"], "content": "sun"}]}));
    server.post(PATH, &body(json!({"messages": messages, "tools": tools}))).ok();
}

#[test]
fn stop_sequences_are_named_and_errors_have_their_form() {
    let server = demo();
    let whole = server.post(PATH, &body(json!({}))).ok();
    let word = whole["content"][0]["text"].as_str().unwrap().split_whitespace().nth(5).unwrap().to_owned();
    let stopped = server.post(PATH, &body(json!({"stop_sequences": ["never ever", word]}))).ok();
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(word)));
    for more in [
        json!({"max_tokens": null}),
        json!({"max_tokens": "many"}),
        json!({"messages": []}),
        json!({"thinking": {"type": "deep"}}),
    ] {
        let reply = server.post(PATH, &body(more));
        assert_eq!(reply.status, 400);
        let value = reply.json();
        assert_eq!(
            (&value["type"], &value["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
        assert_eq!(value["request_id"].as_str(), reply.header("request-id"));
    }
    let image = json!([{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}}]);
    let reply = server.post(PATH, &body(json!({"messages": [{"role": "user", "content": image}]})));
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("image"));
}

#[test]
fn the_billing_header_of_claude_code_is_dropped() {
    let server = demo();
    let long = "A fox and a lantern in the snow. ".repeat(20);
    let system = |blocks: &[&str]| -> Value {
        blocks.iter().map(|text| json!({"type": "text", "text": text})).collect()
    };
    let header =
        |cch: &str| format!("x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch={cch};");
    let count = |system: Value| {
        let request = body(json!({"system": system}));
        server.post("/v1/messages/count_tokens", &request).ok()["input_tokens"].as_u64().unwrap()
    };
    let without = count(system(&[&long]));
    assert_eq!(count(system(&[&header("1a2b3"), &long])), without);
    // Only a header at the beginning of the first part of a list is dropped.
    assert!(count(system(&[&long, &header("1a2b3")])) > without);
    assert!(count(system(&["About x-anthropic-billing-header: a header", &long])) > without);
    assert!(count(json!(header("1a2b3"))) > count(json!("")));
    let cached = |cch: &str| {
        let request = body(json!({"system": system(&[&header(cch), &long]), "max_tokens": 1}));
        server.post(PATH, &request).ok()["usage"]["cache_read_input_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached("1a2b3"), 0);
    assert!(cached("4d5e6") >= 64);
}

#[test]
fn messages_without_content_are_named() {
    let server = demo();
    for content in [json!(""), json!([])] {
        let reply = server.post(PATH, &body(json!({"messages": [{"role": "user", "content": content}]})));
        assert_eq!(reply.status, 400);
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("messages[0].content") && message.contains("empty"), "{message}");
    }
    // Messages of the assistant may be empty: clients send back an empty answer.
    for content in [json!(""), json!([])] {
        let mut messages = question();
        messages.as_array_mut().unwrap().extend([
            json!({"role": "assistant", "content": content}),
            json!({"role": "user", "content": "x"}),
        ]);
        server.post(PATH, &body(json!({"messages": messages, "max_tokens": 2}))).ok();
    }
}

#[test]
fn an_image_in_a_tools_result_becomes_a_text() {
    let server = demo();
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let mut messages = question();
    messages.as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]}),
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "seen"}, image]}]}),
    ]);
    server.post(PATH, &body(json!({"messages": messages, "max_tokens": 2}))).ok();
    let output = json!([{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]);
    let input = json!([
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": output},
    ]);
    let response = server.post("/v1/responses", &json!({"input": input, "max_output_tokens": 2})).ok();
    let path = format!("/v1/responses/{}/input_items", response["id"].as_str().unwrap());
    assert!(server.get(&path).text().contains("An image was here"));
}
