//! OpenAI's chat completions.

use crate::support::{CHAT, TestServer, ask, demo, merge, only, question};
use serde_json::{Value, json};
use std::time::Duration;

/// The concatenated deltas of a field.
fn joined(chunks: &[Value], field: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect()
}

#[test]
fn streamed_and_complete_answers_are_equal() {
    let server = demo();
    let whole = server.post(CHAT, &ask(json!({"max_tokens": 40}))).ok();
    let choice = &whole["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(text.len() > 20, "{whole}");
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!((&choice["message"]["role"], &choice["index"]), (&json!("assistant"), &json!(0)));
    let usage = &whole["usage"];
    assert_eq!(
        usage["total_tokens"],
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap()
    );
    assert!(whole["timings"]["predicted_per_second"].as_f64().unwrap() > 0.0);

    let options = json!({"max_tokens": 40, "stream": true, "stream_options": {"include_usage": true}});
    let chunks = server.post(CHAT, &ask(options)).chunks();
    assert_eq!(joined(&chunks, "content"), text);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let (last, before) = (&chunks[chunks.len() - 1], &chunks[chunks.len() - 2]);
    assert_eq!(before["choices"][0]["finish_reason"], choice["finish_reason"]);
    assert!(before["timings"]["predicted_n"].is_u64());
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], usage["completion_tokens"]);
    // The prompt of the second request may come from the cache.
    assert!(last["usage"]["prompt_tokens_details"]["cached_tokens"].is_u64());
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["id"] == chunks[0]["id"] && chunk["object"] == "chat.completion.chunk")
    );
    server.assert_idle();
}

#[test]
fn several_answers_have_their_own_seeds_and_indices() {
    let server = demo();
    let body = ask(json!({"n": 3, "temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 5}));
    let first = server.post(CHAT, &body).ok();
    let texts: Vec<&str> = first["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["message"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(texts.len(), 3);
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    let mut streamed = body.clone();
    merge(&mut streamed, json!({"stream": true}));
    let mut joined = vec![String::new(); 3];
    for chunk in server.post(CHAT, &streamed).chunks() {
        for choice in chunk["choices"].as_array().unwrap() {
            let index = choice["index"].as_u64().unwrap() as usize;
            joined[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        }
    }
    assert!(joined.iter().all(|text| !text.is_empty()));
    assert!(first["usage"]["completion_tokens"].as_u64().unwrap() > 12);
    server.assert_idle();
}

#[test]
fn stop_strings_length_and_bias_end_or_change_an_answer() {
    let server = demo();
    let whole = server.post(CHAT, &ask(json!({"max_tokens": 40}))).ok();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let word = text.split_whitespace().nth(4).unwrap();
    let stopped = server.post(CHAT, &ask(json!({"max_tokens": 40, "stop": [word, "never ever"]}))).ok();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped["choices"][0]["message"]["content"], text[..text.find(word).unwrap()]);
    let cut = server.post(CHAT, &ask(json!({"max_completion_tokens": 3}))).ok();
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(cut["usage"]["completion_tokens"], 3);
    let first = server.post(CHAT, &ask(json!({"max_tokens": 1, "logprobs": true}))).ok();
    let id = &first["choices"][0]["logprobs"]["content"][0]["id"];
    let banned = server
        .post(CHAT, &ask(json!({"max_tokens": 1, "logprobs": true, "logit_bias": {id.to_string(): -100}})))
        .ok();
    assert_ne!(&banned["choices"][0]["logprobs"]["content"][0]["id"], id);
}

#[test]
fn log_probabilities_are_those_of_the_text() {
    let server = demo();
    let body = json!({"logprobs": true, "top_logprobs": 3, "max_tokens": 6});
    let whole = server.post(CHAT, &ask(body.clone())).ok();
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 6);
    let text: String = content.iter().map(|entry| entry["token"].as_str().unwrap()).collect();
    assert_eq!(text.trim_start(), whole["choices"][0]["message"]["content"].as_str().unwrap().trim_start());
    for entry in content {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Temperature 0 takes the most likely token.
        assert_eq!(top[0]["token"], entry["token"]);
        assert!(top[0]["logprob"].as_f64().unwrap() >= top[2]["logprob"].as_f64().unwrap());
        let bytes: Vec<u8> =
            entry["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect();
        assert_eq!(String::from_utf8_lossy(&bytes), entry["token"].as_str().unwrap());
    }
    let mut streamed = ask(body);
    merge(&mut streamed, json!({"stream": true}));
    let chunks = server.post(CHAT, &streamed).chunks();
    let count: usize = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .map(Vec::len)
        .sum();
    assert_eq!(count, 6);
}

#[test]
fn an_assistants_last_message_is_continued() {
    let server = demo();
    let whole = server.post(CHAT, &ask(json!({"max_tokens": 24}))).ok();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let cut = text[..text.len() / 2].rfind(' ').unwrap();
    let (begun, rest) = text.split_at(cut);
    let mut messages = crate::support::question();
    messages.as_array_mut().unwrap().push(json!({"role": "assistant", "content": begun}));
    let went_on = server.post(CHAT, &ask(json!({"messages": messages, "max_tokens": 8}))).ok();
    let more = went_on["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(
        rest.starts_with(more.trim_end()) || more.starts_with(rest),
        "{begun:?} + {more:?} against {rest:?}"
    );
    let prompt = |messages: &Value| {
        server.post("/apply-template", &json!({"messages": messages})).ok()["prompt"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(prompt(&messages).ends_with(begun));
}

#[test]
fn answers_follow_schemas_and_grammars() {
    let server = demo();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}, "ok": {"type": "boolean"}},
        "required": ["n", "ok"], "additionalProperties": false});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
    for stream in [false, true] {
        let body = ask(json!({"response_format": format, "stream": stream, "max_tokens": 60}));
        let reply = server.post(CHAT, &body);
        let text = if stream {
            joined(&reply.chunks(), "content")
        } else {
            reply.ok()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
        };
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(value["n"].is_i64() && value["ok"].is_boolean(), "{text}");
    }
    let exact = server.post(CHAT, &ask(json!({"grammar": only("The fox."), "max_tokens": 60}))).ok();
    assert_eq!(exact["choices"][0]["message"]["content"], "The fox.");
    assert_eq!(exact["choices"][0]["finish_reason"], "stop");
    let (message, param) = server.post(CHAT, &ask(json!({"grammar": "root ::= (((("}))).error(400);
    assert!(message.contains("grammar") && param == "response_format", "{message}");
    let nested = format!("root ::= {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000));
    server.post(CHAT, &ask(json!({"grammar": nested}))).error(400);
    let loops = json!({"$ref": "#"});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": loops}});
    server.post(CHAT, &ask(json!({"response_format": format}))).error(400);
    server.assert_idle();
}

/// A grammar whose first mask is cheap. The mask after it exceeds the limit on the work of a mask.
fn costly_after_the_first_token() -> String {
    let rules: String = (0..1400)
        .map(|i| format!("r{i} ::= [a-z] r{} | [a-z] r{}\n", (i * 7 + 1) % 1400, (i * 11 + 5) % 1400))
        .collect();
    let names: Vec<String> = (0..1400).map(|i| format!("r{i}")).collect();
    format!("root ::= \"(\" ({})\n{rules}", names.join(" | "))
}

#[test]
fn a_grammar_that_costs_too_much_is_an_error_of_its_request() {
    let server = demo();
    let body = json!({"grammar": costly_after_the_first_token(), "max_tokens": 400});
    let (message, _) = server.post(CHAT, &ask(body.clone())).error(400);
    assert!(message.contains("GBNF grammar"), "{message}");
    let mut body = ask(body);
    body["stream"] = json!(true);
    let reply = server.post(CHAT, &body);
    let (_, last) = reply.events().into_iter().rfind(|(_, data)| data != "[DONE]").unwrap();
    let last: Value = serde_json::from_str(&last).unwrap();
    let error = &last["error"];
    assert_eq!(error["type"], "invalid_request_error", "{error}");
    assert!(error["message"].as_str().unwrap().contains("GBNF grammar"), "{error}");
    server.assert_idle();
}

#[test]
fn schemas_whose_combinations_cost_too_much_are_refused() {
    let server = demo();
    let letters = |i: u8| char::from(b'a' + i % 26);
    let patterns: Vec<Value> =
        (0..26).map(|i| json!({"type": "string", "pattern": format!(".*{}.{{3}}.*", letters(i))})).collect();
    let multiples = [9973, 9967, 9949, 9941].map(|of| json!({"type": "integer", "multipleOf": of}));
    for bomb in [json!({"allOf": patterns}), json!({"allOf": multiples})] {
        for _ in 0..5 {
            let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": bomb}});
            let body = ask(json!({"response_format": format}));
            // Threads that compile earlier grammars may not have reached their limits yet.
            let answer = (0..200)
                .map(|_| server.post(CHAT, &body))
                .find(|answer| {
                    let busy = answer.status == 429;
                    if busy {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    !busy
                })
                .expect("compiling ends");
            let (message, param) = answer.error(400);
            assert!(message.contains("JSON schema") && param == "response_format", "{message}");
        }
    }
    // These grammars do not block others.
    let format = json!({"type": "json_object"});
    server.post(CHAT, &ask(json!({"response_format": format, "max_tokens": 20}))).ok();
    server.assert_idle();
}

#[test]
fn reasoning_is_separated_from_content() {
    let server = demo();
    let grammar = only("<think>Foxes are red.</think>Red.");
    let whole = server.post(CHAT, &ask(json!({"grammar": grammar, "max_tokens": 80}))).ok();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["reasoning"], "Foxes are red.");
    assert_eq!(message["reasoning_content"], "Foxes are red.");
    assert_eq!(message["content"], "Red.");
    assert!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 2);
    let chunks =
        server.post(CHAT, &ask(json!({"grammar": grammar, "max_tokens": 80, "stream": true}))).chunks();
    assert_eq!(joined(&chunks, "reasoning_content"), "Foxes are red.");
    assert_eq!(joined(&chunks, "reasoning"), "Foxes are red.");
    assert_eq!(joined(&chunks, "content"), "Red.");
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": {
        "type": "object", "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["days"],
        "additionalProperties": false}}},
        {"type": "function", "function": {"name": "clock"}}, {"type": "web_search"}])
}

#[test]
fn required_tool_calls_are_made() {
    let server = demo();
    let choice = json!({"type": "function", "function": {"name": "weather"}});
    let body = ask(
        json!({"tools": tools(), "tool_choice": choice, "max_tokens": 250, "parallel_tool_calls": false}),
    );
    let whole = server.post(CHAT, &body).ok();
    let call = &whole["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather", "{whole}");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()), "{arguments}");
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(whole["choices"][0]["message"]["content"], Value::Null);

    let mut streamed = body.clone();
    merge(&mut streamed, json!({"stream": true}));
    let chunks = server.post(CHAT, &streamed).chunks();
    let deltas: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].get(0)).collect();
    assert_eq!(deltas[0]["function"]["name"], "weather");
    assert!(deltas[0]["id"].as_str().is_some_and(|id| !id.is_empty()));
    let text: String = deltas.iter().map(|delta| delta["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), arguments);
    assert_eq!(chunks[chunks.len() - 1]["choices"][0]["finish_reason"], "tool_calls");

    // The client sends the call back, with its result.
    let mut messages = crate::support::question();
    let list = messages.as_array_mut().unwrap();
    list.push(whole["choices"][0]["message"].clone());
    list.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "sun"}));
    server.post(CHAT, &ask(json!({"messages": messages, "tools": tools(), "tool_choice": "none"}))).ok();
    let any =
        server.post(CHAT, &ask(json!({"tools": tools(), "tool_choice": "required", "max_tokens": 400}))).ok();
    assert!(any["choices"][0]["message"]["tool_calls"][0]["function"]["name"].is_string());
    let unknown = json!({"type": "function", "function": {"name": "other"}});
    let (_, param) = server.post(CHAT, &ask(json!({"tools": tools(), "tool_choice": unknown}))).error(400);
    assert_eq!(param, "tool_choice");
}

#[test]
fn progress_is_reported_on_request() {
    let server = demo();
    let long = "word ".repeat(200);
    let body = ask(
        json!({"messages": [{"role": "user", "content": long}], "stream": true, "return_progress": true}),
    );
    let chunks = server.post(CHAT, &body).chunks();
    let progress: Vec<&Value> =
        chunks.iter().map(|chunk| &chunk["prompt_progress"]).filter(|p| p.is_object()).collect();
    assert!(!progress.is_empty());
    let last = progress[progress.len() - 1];
    assert_eq!(last["processed"], last["total"]);
    // Clients that take the first chunk with a role for the first token must not get it before the
    // prompt has run.
    let role = chunks.iter().position(|chunk| chunk["choices"][0]["delta"]["role"] == "assistant").unwrap();
    assert!(chunks[role..].iter().all(|chunk| chunk["prompt_progress"].is_null()));
}

#[test]
fn chunks_have_timings_on_request() {
    let server = demo();
    let body = |more: Value| {
        let mut body = ask(json!({"max_tokens": 20, "ignore_eos": true, "stream": true}));
        merge(&mut body, more);
        body
    };
    let plain = server.post(CHAT, &body(json!({}))).chunks();
    assert_eq!(plain.iter().filter(|chunk| chunk["timings"].is_object()).count(), 1, "only at the end");
    let chunks = server.post(CHAT, &body(json!({"timings_per_token": true}))).chunks();
    let with_text = |chunk: &&Value| {
        chunk["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty())
    };
    let counts: Vec<u64> = chunks
        .iter()
        .filter(with_text)
        .map(|chunk| chunk["timings"]["predicted_n"].as_u64().unwrap())
        .collect();
    assert!(
        counts.len() > 3 && counts.is_sorted() && counts[0] >= 1 && counts[counts.len() - 1] <= 20,
        "{counts:?}"
    );
    let last = &chunks[chunks.len() - 1]["timings"];
    let before = &chunks.iter().rfind(with_text).unwrap()["timings"];
    let prompt =
        |timings: &Value| timings["prompt_n"].as_u64().unwrap() + timings["cache_n"].as_u64().unwrap();
    assert_eq!(prompt(last), prompt(before));
    let path = "/completion";
    let body = json!({"prompt": "a fox", "n_predict": 8, "ignore_eos": true, "stream": true, "timings_per_token": true});
    let events = server.post(path, &body).events();
    let first: Value = serde_json::from_str(&events[0].1).unwrap();
    assert_eq!(first["tokens_predicted"], first["timings"]["predicted_n"]);
    assert_eq!(first["tokens"].as_array().unwrap().len() as u64, first["tokens_predicted"].as_u64().unwrap());
}

fn function(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": false,
    }}})
}

/// The names of the functions that an answer calls.
fn called(server: &TestServer, path: &str, body: &Value) -> Vec<String> {
    let whole = server.post(path, body).ok();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let list = whole["choices"][0]["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let items = whole["output"].as_array().cloned().unwrap_or_default();
    let items = items.iter().filter(|item| item["type"] == "function_call").map(|item| text(&item["name"]));
    list.iter().map(|call| text(&call["function"]["name"])).chain(items).collect()
}

#[test]
fn only_allowed_tools_are_called() {
    let server = demo();
    let tools = json!([function("lamp"), function("door"), function("window")]);
    for name in ["lamp", "door", "window"] {
        let allowed =
            json!({"mode": "required", "tools": [{"type": "function", "function": {"name": name}}]});
        let choice = json!({"type": "allowed_tools", "allowed_tools": allowed});
        let more =
            json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 200});
        assert_eq!(called(&server, CHAT, &ask(more)), [name]);
        let flat: Vec<Value> = ["lamp", "door", "window"]
            .map(|name| {
                let mut tool = function(name)["function"].clone();
                tool["type"] = "function".into();
                tool
            })
            .into();
        let choice = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": name}]});
        let body = json!({"input": question(), "tools": flat, "tool_choice": choice, "parallel_tool_calls": false, "temperature": 0});
        assert_eq!(called(&server, "/v1/responses", &body), [name]);
    }
    let prompt = |choice: Value| {
        let mut body = ask(json!({"tools": tools}));
        if !choice.is_null() {
            body["tool_choice"] = choice;
        }
        server.post("/apply-template", &body).ok()["prompt"].clone()
    };
    let allowed = |mode: &str, tools: Value| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}});
    let lamp = json!([{"type": "function", "function": {"name": "lamp"}}]);
    // The prompt has all tools, also those that are not allowed, so that it stays cached.
    assert_eq!(prompt(Value::Null), prompt(allowed("auto", lamp.clone())));
    for (choice, field) in [
        (allowed("maybe", lamp), "tool_choice.allowed_tools.mode"),
        (allowed("auto", json!([])), "tool_choice.allowed_tools.tools"),
        (
            allowed("auto", json!([{"type": "mcp", "server_label": "x"}])),
            "tool_choice.allowed_tools.tools[0].type",
        ),
        (allowed("auto", json!([{"type": "function", "function": {"name": "other"}}])), "tool_choice"),
        (json!({"type": "allowed_tools"}), "tool_choice.allowed_tools"),
        (json!({"type": "web_search"}), "tool_choice.type"),
    ] {
        let (message, param) =
            server.post(CHAT, &ask(json!({"tools": tools, "tool_choice": choice}))).error(400);
        assert_eq!(param, field, "{message}");
    }
    let search =
        json!({"input": "x", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}});
    assert_eq!(server.post("/v1/responses", &search).error(400).1, "tool_choice.type");
}

#[test]
fn a_required_call_without_functions_says_what_is_missing() {
    let server = demo();
    let refused = |path: &str, body: Value| {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 400, "{}", reply.text());
        reply.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let of = |tools: Value| ask(json!({"tools": tools, "tool_choice": "required"}));
    assert!(refused(CHAT, of(json!([]))).contains("is empty"));
    let search = json!([{"type": "web_search"}, {"type": "mcp", "server_label": "x"}]);
    assert!(refused(CHAT, of(search.clone())).contains("`tools` (2) has no function"));
    assert!(
        refused("/v1/responses", json!({"input": "x", "tools": search, "tool_choice": "required"}))
            .contains("`tools` (2) has no function")
    );
    let tools = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    let body =
        json!({"messages": question(), "max_tokens": 2, "tools": tools, "tool_choice": {"type": "any"}});
    assert!(refused("/v1/messages", body).contains("`tools` (1) has no function"));
    let custom = json!([{"type": "custom", "custom": {"name": "patch"}}]);
    assert!(refused(CHAT, ask(json!({"tools": custom}))).contains("custom"));
}

#[test]
fn zod_record_schemas_are_enforced() {
    let server = demo();
    let record = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
        "propertyNames": {"type": "string"}, "additionalProperties": {"type": "boolean"}, "minProperties": 0,
    });
    let schema = json!({"type": "object", "properties": {"flags": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "boolean"}}}, "required": ["flags"], "additionalProperties": false});
    for schema in [schema, record] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let reply = server.post(CHAT, &ask(json!({"response_format": format, "max_tokens": 20})));
        reply.ok();
    }
}

#[test]
fn applied_templates_have_a_single_bos() {
    let server = demo();
    let props = server.get("/props").ok();
    let bos = props["bos_token"].as_str().unwrap();
    let count = |text: &str| {
        server.post("/completion", &json!({"prompt": text, "n_predict": 1})).ok()["tokens_evaluated"]
            .as_u64()
            .unwrap()
    };
    let body = json!({"messages": question(), "max_tokens": 1});
    let prompt = server.post("/apply-template", &body).ok()["prompt"].as_str().unwrap().to_owned();
    let chat = server.post(CHAT, &body).ok()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(!bos.is_empty() && !prompt.starts_with(bos), "{prompt}");
    assert_eq!(count(&prompt), chat);
    // A prompt that begins with a BOS token does not get a second one.
    assert_eq!(count(&format!("{bos}{prompt}")), chat);
    assert_eq!(count(&format!("{bos}{bos}{prompt}")), chat + 1);
}

#[test]
fn a_prompt_may_end_with_the_last_message() {
    let server = demo();
    let prompt =
        |more: Value| server.post("/apply-template", &ask(more)).ok()["prompt"].as_str().unwrap().to_owned();
    let (with, without) = (prompt(json!({})), prompt(json!({"add_generation_prompt": false})));
    assert!(with.starts_with(&without) && with.len() > without.len(), "{with:?} {without:?}");
    assert_eq!(with, prompt(json!({"add_generation_prompt": true})));
    let tokens = |more: Value| server.post(CHAT, &ask(more)).ok()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(json!({"add_generation_prompt": false})) < tokens(json!({})));
}
