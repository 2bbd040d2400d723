//! OpenAI's responses.

use crate::client::Reply;
use crate::support::{config, demo, merge, only, question, start};
use latent_server::Limits;
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";

fn body(more: Value) -> Value {
    let mut body = json!({"model": "demo", "input": "Tell me a story about a fox.", "max_output_tokens": 30, "temperature": 0});
    merge(&mut body, more);
    body
}

fn text_of(response: &Value) -> String {
    let messages = response["output"].as_array().unwrap().iter().filter(|item| item["type"] == "message");
    messages.map(|item| item["content"][0]["text"].as_str().unwrap()).collect()
}

/// The events of a stream. Asserts that their names match and their sequence numbers are
/// consecutive.
fn events(reply: &Reply) -> Vec<Value> {
    let events: Vec<Value> = reply
        .events()
        .into_iter()
        .map(|(name, data)| {
            let value: Value = serde_json::from_str(&data).unwrap();
            assert_eq!(value["type"], name);
            value
        })
        .collect();
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i);
    }
    events
}

#[test]
fn streamed_and_complete_responses_are_equal() {
    let server = demo();
    let whole = server.post(PATH, &body(json!({}))).ok();
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(whole["usage"]["output_tokens"], 30);
    let events = events(&server.post(PATH, &body(json!({"stream": true}))));
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(
        kinds[kinds.len() - 4..],
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete"
        ]
    );
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, text_of(&whole));
    assert_eq!(text_of(&events[events.len() - 1]["response"]), deltas);
    server.assert_idle();
}

#[test]
fn a_stream_reports_progress_and_timings_where_they_are_asked_for() {
    let server = demo();
    let input = "word ".repeat(120);
    let asked = json!({"stream": true, "input": input, "return_progress": true, "timings_per_token": true});
    let reports = events(&server.post(PATH, &body(asked)));
    let progress: Vec<&Value> = reports.iter().filter(|event| !event["prompt_progress"].is_null()).collect();
    assert!(progress.len() >= 2);
    for report in &progress {
        assert_eq!(
            (&report["type"], &report["response"]["status"]),
            (&json!("response.in_progress"), &json!("in_progress"))
        );
    }
    let [first, last] = [progress[0], progress[progress.len() - 1]].map(|report| &report["prompt_progress"]);
    assert_eq!(first["processed"], first["cache"]);
    assert_eq!(last["processed"], last["total"]);
    let deltas: Vec<&Value> =
        reports.iter().filter(|event| event["type"] == "response.output_text.delta").collect();
    assert!(!deltas.is_empty() && deltas.iter().all(|delta| delta["timings"]["predicted_n"].is_u64()));
    let end = &reports[reports.len() - 1];
    assert_eq!(end["timings"]["predicted_n"], end["response"]["usage"]["output_tokens"]);
    // By default only the last event has timings.
    let plain = events(&server.post(PATH, &body(json!({"stream": true}))));
    assert!(plain.iter().all(|event| event["prompt_progress"].is_null()));
    assert_eq!(plain.iter().filter(|event| !event["timings"].is_null()).count(), 1);
    server.assert_idle();
}

#[test]
fn reasoning_and_calls_are_items_of_their_own() {
    let server = demo();
    let grammar = only("<think>Foxes are red.</think>Red.");
    let events = events(&server.post(PATH, &body(json!({"text": {"format": {"type": "grammar", "grammar": grammar}}, "stream": true, "max_output_tokens": 90}))));
    let reasoning: String = events
        .iter()
        .filter(|event| event["type"] == "response.reasoning_text.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(reasoning, "Foxes are red.");
    let last = &events[events.len() - 1];
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["output"][0]["type"], "reasoning");
    assert_eq!(last["response"]["output"][1]["content"][0]["text"], "Red.");
    assert!(last["response"]["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);

    let tool = json!({"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}});
    let more = json!({"tools": [tool, {"type": "namespace"}, {"type": "web_search"}], "tool_choice": "required",
        "parallel_tool_calls": false, "max_output_tokens": 250});
    let whole = server.post(PATH, &body(more.clone())).ok();
    let call = &whole["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("clock")), "{whole}");
    assert_eq!(whole["status"], "completed");
    let mut streamed = body(more);
    merge(&mut streamed, json!({"stream": true}));
    let kinds: Vec<String> = self::events(&server.post(PATH, &streamed))
        .iter()
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .collect();
    for kind in [
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.completed",
    ] {
        assert!(kinds.iter().any(|other| other == kind), "{kind} in {kinds:?}");
    }
    // The client sends the call and its result back as items.
    let output = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "noon"});
    let input = json!([{"role": "user", "content": "What time is it?"}, call, output, {"type": "unknown_thing", "x": 1}]);
    server.post(PATH, &body(json!({"input": input}))).ok();
}

#[test]
fn stored_responses_are_continued_and_deleted() {
    let server = demo();
    let first = server.post(PATH, &body(json!({"instructions": "Be brief."}))).ok();
    let id = first["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("{PATH}/{id}")).ok()["id"], first["id"]);
    let items = server.get(&format!("{PATH}/{id}/input_items")).ok();
    assert_eq!(items["data"][0]["content"][0]["text"], "Tell me a story about a fox.");
    let second = server.post(PATH, &body(json!({"input": "And then?", "previous_response_id": id}))).ok();
    assert!(second["usage"]["input_tokens"].as_u64().unwrap() > 30, "{}", second["usage"]);
    assert_eq!(second["previous_response_id"], first["id"]);
    let unknown = server.post(PATH, &body(json!({"previous_response_id": "resp_unknown"})));
    assert_eq!(unknown.error(404).1, "previous_response_id");
    let deleted = crate::client::receive(crate::client::send(
        server.address,
        "DELETE",
        &format!("{PATH}/{id}"),
        &[],
        b"",
    ));
    assert_eq!(deleted.ok()["deleted"], true);
    server.get(&format!("{PATH}/{id}")).error(404);
    let unstored = server.post(PATH, &body(json!({"store": false}))).ok();
    server.get(&format!("{PATH}/{}", unstored["id"].as_str().unwrap())).error(404);
    server.post(&format!("{PATH}/{id}/cancel"), &json!({})).error(400);
}

#[test]
fn the_store_has_a_budget() {
    let server = start(latent_server::ServerConfig {
        limits: Limits { store_bytes: 5_000, ..Limits::default() },
        ..config()
    });
    let ids: Vec<String> = (0..6)
        .map(|_| {
            server.post(PATH, &body(json!({"max_output_tokens": 1}))).ok()["id"].as_str().unwrap().to_owned()
        })
        .collect();
    server.get(&format!("{PATH}/{}", ids[0])).error(404);
    server.get(&format!("{PATH}/{}", ids[5])).ok();
}

#[test]
fn unsupported_features_are_refused_and_probes_are_answered() {
    let server = demo();
    for (more, field) in [
        (json!({"background": true}), "background"),
        (json!({"conversation": "conv_1"}), "conversation"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].type"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
            "input[0].content[0].type",
        ),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"input": 7}), "input"),
    ] {
        assert_eq!(server.post(PATH, &body(more)).error(400).1, field);
    }
    for input in [json!(""), json!([])] {
        let probe = server.post(PATH, &body(json!({"input": input, "max_output_tokens": 1}))).ok();
        assert_eq!(probe["usage"]["output_tokens"], 1);
    }
}

#[test]
fn functions_in_a_namespace_are_called_by_both_names() {
    let server = demo();
    let schema = json!({"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": false});
    let tools = json!([
        {"type": "namespace", "name": "mcp__house", "description": "The house", "tools": [
            {"type": "function", "name": "lamp", "description": "", "strict": false, "parameters": schema},
        ]},
        {"type": "web_search"},
    ]);
    let body = |more: Value| {
        let mut body = json!({"input": question(), "tools": tools, "tool_choice": "required", "parallel_tool_calls": false, "temperature": 0});
        crate::support::merge(&mut body, more);
        body
    };
    let whole = server.post("/v1/responses", &body(json!({}))).ok();
    let items = whole["output"].as_array().unwrap();
    let call = items.iter().find(|item| item["type"] == "function_call").unwrap();
    assert_eq!((&call["namespace"], &call["name"]), (&json!("mcp__house"), &json!("lamp")), "{whole}");
    let events = server.post("/v1/responses", &body(json!({"stream": true}))).events();
    let added: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let added = added.iter().find(|event| event["item"]["type"] == "function_call").unwrap();
    assert_eq!((&added["item"]["namespace"], &added["item"]["name"]), (&json!("mcp__house"), &json!("lamp")));
    // The client sends back its own names. The prompt has those that the model writes.
    let input = json!([
        {"role": "user", "content": "light"}, call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "done"},
    ]);
    server
        .post("/v1/responses", &body(json!({"input": input, "tool_choice": "auto", "max_output_tokens": 3})))
        .ok();
    let named = json!({"type": "function", "namespace": "mcp__house", "name": "lamp"});
    server.post("/v1/responses", &body(json!({"tool_choice": named}))).ok();
    let (_, param) = server
        .post("/v1/responses", &body(json!({"tool_choice": {"type": "function", "name": "lamp"}})))
        .error(400);
    assert_eq!(param, "tool_choice");
}

#[test]
fn tools_of_free_text_are_refused_and_their_history_is_kept() {
    let server = demo();
    let tools = json!([{"type": "custom", "name": "apply_patch", "format": {"type": "text"}}]);
    let (message, param) = server.post("/v1/responses", &json!({"input": "x", "tools": tools})).error(400);
    assert!(param == "tools[0].type" && message.contains("custom"), "{message}");
    let history = json!([
        {"role": "user", "content": "patch"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Success"},
        {"role": "user", "content": "And now?"},
    ]);
    let response = server.post("/v1/responses", &json!({"input": history, "max_output_tokens": 2})).ok();
    let path = format!("/v1/responses/{}/input_items", response["id"].as_str().unwrap());
    let items = server.get(&path).ok();
    let kinds: Vec<&str> =
        items["data"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "function_call_output", "function_call", "message"]);
    let call = &items["data"][2];
    assert_eq!(
        (&call["name"], &call["arguments"]),
        (&json!("apply_patch"), &json!(r#"{"input":"*** Begin Patch"}"#))
    );
}
