//! Tool calls that end within their arguments, by `max_tokens` or a stop string, with and without a
//! stream.

use crate::support::{CHAT, TestServer, demo, merge, question};
use serde_json::{Value, json};

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"days": {"type": "integer", "enum": [12345, 67890]}, "city": {"type": "string", "enum": ["a \"b\", {c}", "d"]}, "now": {"type": "boolean"}},
        "required": ["days", "city", "now"],
        "additionalProperties": false,
    })
}

fn function() -> Value {
    json!({"name": "weather", "parameters": schema()})
}

fn request(dialect: &str, more: Value) -> Value {
    let mut body = match dialect {
        "/v1/messages" => json!({
            "messages": question(), "tools": [{"name": "weather", "input_schema": schema()}],
            "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": true},
        }),
        "/v1/responses" => json!({
            "input": question(), "tools": [{"type": "function", "name": "weather", "parameters": schema()}],
            "tool_choice": {"type": "function", "name": "weather"}, "parallel_tool_calls": false,
        }),
        _ => json!({
            "messages": question(), "tools": [{"type": "function", "function": function()}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}}, "parallel_tool_calls": false,
        }),
    };
    merge(&mut body, json!({"temperature": 0}));
    merge(&mut body, more);
    body
}

/// The arguments of the complete call, and the text that the model writes for it.
fn whole_call(server: &TestServer) -> (Value, String) {
    let whole = server.post(CHAT, &request(CHAT, json!({"max_tokens": 250}))).ok();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
    let text = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap().to_owned();
    (serde_json::from_str(&text).unwrap(), text)
}

fn is_part_of(part: &Value, whole: &Value) -> bool {
    part.as_object().unwrap().iter().all(|(name, value)| &whole[name] == value)
}

/// The data of a stream's events.
fn events(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let events = server.post(path, body).events().into_iter();
    events
        .filter(|(_, data)| data != "[DONE]")
        .map(|(_, data)| serde_json::from_str(&data).unwrap())
        .collect()
}

#[test]
fn anthropic_clients_get_the_complete_members() {
    const PATH: &str = "/v1/messages";
    let server = demo();
    let (call, _) = whole_call(&server);
    let mut sizes = Vec::new();
    for max_tokens in 1..160 {
        let body = request(PATH, json!({"max_tokens": max_tokens}));
        let whole = server.post(PATH, &body).ok();
        let used = whole["content"].as_array().unwrap().iter().find(|block| block["type"] == "tool_use");
        let done = whole["stop_reason"] == "tool_use";
        if !done {
            assert_eq!(whole["stop_reason"], "max_tokens", "{whole}");
        }
        let mut streamed = body;
        merge(&mut streamed, json!({"stream": true}));
        let events = events(&server, PATH, &streamed);
        let json: String =
            events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
        let end = events.iter().find(|event| event["type"] == "message_delta").unwrap();
        assert_eq!(end["delta"]["stop_reason"], whole["stop_reason"]);
        let Some(used) = used else {
            assert_eq!(json, "");
            continue;
        };
        let input = &used["input"];
        assert!(is_part_of(input, &call), "{input}");
        assert!(!done || *input == call, "{input}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), *input, "{max_tokens}: {json}");
        sizes.push(input.as_object().unwrap().len());
        if done {
            break;
        }
    }
    // The limits end the call before its first argument, between arguments, and after the last.
    assert!(sizes.is_sorted() && sizes[0] == 0 && sizes.contains(&1) && sizes.contains(&2), "{sizes:?}");
    assert_eq!(sizes.last(), Some(&3));
}

#[test]
fn responses_mark_the_call_incomplete() {
    const PATH: &str = "/v1/responses";
    let server = demo();
    let (_, text) = whole_call(&server);
    let mut cut = 0;
    for max_tokens in 1..160 {
        let body = request(PATH, json!({"max_output_tokens": max_tokens}));
        let whole = server.post(PATH, &body).ok();
        let mut streamed = body;
        merge(&mut streamed, json!({"stream": true}));
        let last = events(&server, PATH, &streamed).pop().unwrap();
        assert_eq!(last["response"]["status"], whole["status"]);
        let items = whole["output"].as_array().unwrap();
        let Some(item) = items.iter().find(|item| item["type"] == "function_call") else {
            assert_eq!((&whole["status"], &items[0]["status"]), (&json!("incomplete"), &json!("incomplete")));
            continue;
        };
        let streamed = last["response"]["output"].as_array().unwrap();
        let streamed = streamed.iter().find(|item| item["type"] == "function_call").unwrap();
        assert_eq!((&streamed["status"], &streamed["arguments"]), (&item["status"], &item["arguments"]));
        if whole["status"] == "completed" {
            assert_eq!((&item["status"], &item["arguments"]), (&json!("completed"), &json!(text)));
            break;
        }
        let arguments = item["arguments"].as_str().unwrap();
        if arguments.len() < text.len() {
            assert_eq!(item["status"], "incomplete", "{whole}");
            cut += 1;
        }
    }
    assert!(cut > 3, "{cut}");
}

#[test]
fn a_stop_string_inside_the_arguments_is_no_call() {
    let server = demo();
    let (call, text) = whole_call(&server);
    let stop = "\"city\"";
    assert!(text.contains(stop), "{text}");
    let body = request(CHAT, json!({"max_tokens": 250, "stop": [stop]}));
    let whole = server.post(CHAT, &body).ok();
    assert_eq!(whole["choices"][0]["finish_reason"], "stop", "{whole}");
    let mut streamed = body;
    merge(&mut streamed, json!({"stream": true}));
    let finish = events(&server, CHAT, &streamed);
    let finish = finish.iter().find_map(|chunk| chunk["choices"][0]["finish_reason"].as_str());
    assert_eq!(finish, Some("stop"));

    let body = request("/v1/messages", json!({"max_tokens": 250, "stop_sequences": [stop]}));
    let whole = server.post("/v1/messages", &body).ok();
    assert_eq!(
        (&whole["stop_reason"], &whole["stop_sequence"]),
        (&json!("stop_sequence"), &json!(stop)),
        "{whole}"
    );
    let blocks = whole["content"].as_array().unwrap();
    let used = blocks.iter().find(|block| block["type"] == "tool_use").unwrap();
    assert_eq!(used["input"], json!({"days": call["days"]}), "{whole}");
    server.assert_idle();
}
