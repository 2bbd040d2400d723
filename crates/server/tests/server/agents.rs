//! Requests in the form in which agents and editors send them: their fields and the order of their
//! items, with texts and tools of our own. Those of Claude Code 2.1.197, Codex 0.171.0 and opencode
//! 1.18.33 were recorded from the programs; the others follow the documentation of their clients.

use crate::client::Reply;
use crate::support::{TestServer, demo};
use serde_json::{Value, json};

/// The ignored fields that the server reports.
fn ignored(reply: &Reply) -> Option<&str> {
    reply.header("x-latent-ignored-fields")
}

/// The data of the events of a successful stream.
fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.events().iter().filter_map(|(_, data)| serde_json::from_str(data).ok()).collect()
}

fn claude_code(messages: Value) -> Value {
    let tool = |name: &str, required: &str| {
        json!({"name": name, "description": "A tool.", "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "properties": {required: {"type": "string", "description": "What."}, "timeout": {"type": "number"}},
            "required": [required], "additionalProperties": false,
        }})
    };
    json!({
        "model": "demo",
        "messages": messages,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.123; cc_entrypoint=sdk-cli;"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Do what you are asked for.", "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [tool("Read", "file_path"), tool("Bash", "command")],
        "metadata": {"user_id": "{\"device_id\":\"0\",\"session_id\":\"1\"}"},
        "max_tokens": 16,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": true,
    })
}

#[test]
fn claude_code_conversations_with_tool_calls_work() {
    let server = demo();
    let mut messages = json!([
        {"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>\nBe brief.\n</system-reminder>"},
            {"type": "text", "text": "Say hi", "cache_control": {"type": "ephemeral"}},
        ]},
        {"role": "system", "content": "Agents that can be called: none."},
    ]);
    let path = "/v1/messages?beta=true";
    let first = server.post(path, &claude_code(messages.clone()));
    assert_eq!(ignored(&first), Some("context_management"));
    let first = events(&first);
    assert_eq!(first[0]["type"], "message_start");
    assert_eq!(first[first.len() - 1]["type"], "message_stop");
    // The client answers a call that lacks an argument with an error.
    let more = json!([
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "Read", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "is_error": true,
            "content": "<tool_use_error>file_path is missing</tool_use_error>", "cache_control": {"type": "ephemeral"}}]},
    ]);
    messages.as_array_mut().unwrap().extend(more.as_array().unwrap().iter().cloned());
    let second = events(&server.post(path, &claude_code(messages)));
    // The prompt of the first turn comes from the cache.
    assert!(
        second[0]["message"]["usage"]["cache_read_input_tokens"].as_u64().unwrap() >= 64,
        "{}",
        second[0]
    );
    server.assert_idle();
}

fn codex(input: Value) -> Value {
    let tool = |name: &str| {
        json!({"type": "function", "name": name, "description": "A tool.", "strict": false, "parameters": {
            "type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"], "additionalProperties": false,
        }})
    };
    json!({
        "model": "demo",
        "stream": true,
        "input": input,
        "tools": [
            tool("exec_command"),
            {"type": "namespace", "name": "multi_agent_v1", "description": "Other agents.", "tools": [tool("close_agent")]},
            {"type": "web_search", "external_web_access": false},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": true,
        "reasoning": {},
        "store": false,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a2",
        "client_metadata": {"session_id": "01a2", "turn_id": "01a3"},
        "max_output_tokens": 16,
    })
}

#[test]
fn codex_conversations_with_tool_calls_work() {
    let server = demo();
    let message = |role: &str, texts: &[&str]| {
        let content: Vec<Value> =
            texts.iter().map(|text| json!({"type": "input_text", "text": text})).collect();
        json!({"type": "message", "id": "msg_1", "role": role, "content": content})
    };
    let mut input = json!([
        message("developer", &["You are an agent."]),
        message(
            "developer",
            &["<skills_instructions>none</skills_instructions>", "<permissions instructions>read only"]
        ),
        message("user", &["<environment_context>\n  <cwd>/work</cwd>\n</environment_context>"]),
        message("user", &["Say hi"]),
    ]);
    let first = server.post("/v1/responses", &codex(input.clone()));
    assert_eq!(ignored(&first), None);
    let first = events(&first);
    assert_eq!(first[0]["type"], "response.created");
    let more = json!([
        {"type": "function_call", "id": "fc_1", "status": "completed", "name": "close_agent", "namespace": "multi_agent_v1",
            "arguments": "{\n  \"target\": \"x\" }", "call_id": "call_1"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "{\"goal\":null}"},
    ]);
    input.as_array_mut().unwrap().extend(more.as_array().unwrap().iter().cloned());
    let second = events(&server.post("/v1/responses", &codex(input)));
    let usage = &second[second.len() - 1]["response"]["usage"];
    assert!(usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 64, "{usage}");
    server.assert_idle();
}

/// Sends a streamed chat. Returns the last chunk but one, which has the usage.
fn chat(server: &TestServer, body: &Value) -> Value {
    let reply = server.post("/v1/chat/completions", body);
    let mut chunks = events(&reply);
    assert_eq!(ignored(&reply), None, "{body}");
    let last = chunks.pop().unwrap();
    assert!(chunks.iter().any(|chunk| chunk["choices"][0]["finish_reason"].is_string()), "{body}");
    last
}

#[test]
fn editors_and_chat_programs_are_answered() {
    let server = demo();
    let usage = json!({"include_usage": true});
    let parts = json!([{"type": "text", "text": "Say hi"}, {"type": "text", "text": "<environment_details>none</environment_details>"}]);
    let tool = json!({"type": "function", "function": {"name": "read", "description": "A tool.", "parameters": {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {
            "path": {"type": "string"}, "limit": {"type": "integer", "minimum": -9007199254740991_i64, "exclusiveMinimum": 0,
                "maximum": 9007199254740991_i64}}, "required": ["path"]}}});
    for body in [
        // opencode asks for a title before its turn.
        json!({"model": "demo", "max_tokens": 8, "messages": [
            {"role": "system", "content": "You write titles."},
            {"role": "user", "content": "Generate a title for this conversation:\n"},
            {"role": "user", "content": "Say hi"},
        ], "stream": true, "stream_options": usage}),
        json!({"model": "demo", "max_tokens": 8, "messages": [
            {"role": "system", "content": "You are an agent."},
            {"role": "user", "content": "Say hi"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "invalid", "arguments": "{\"tool\":\"read\",\"error\":\"faulty\"}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "The arguments are invalid."},
        ], "tools": [tool], "tool_choice": "auto", "stream": true, "stream_options": usage}),
        // Cline
        json!({"model": "demo", "temperature": 0, "max_tokens": 8, "messages": [
            {"role": "system", "content": "You are an agent."},
            {"role": "user", "content": parts},
        ], "stream": true, "stream_options": usage}),
        // Continue
        json!({"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": parts}], "stream": true,
            "stream_options": usage, "temperature": 0.01, "parallel_tool_calls": false, "tools": [tool]}),
        // Zed
        json!({"model": "demo", "messages": [{"role": "user", "content": parts}], "stream": true, "stream_options": usage,
            "stop": [], "temperature": 1.0, "max_completion_tokens": 8, "parallel_tool_calls": false, "tool_choice": "auto", "tools": [tool]}),
        // Open WebUI
        json!({"model": "demo", "messages": [{"role": "user", "content": "Say hi"}], "stream": true, "stream_options": usage,
            "max_tokens": 8}),
    ] {
        let last = chat(&server, &body);
        assert!(last["usage"]["prompt_tokens"].as_u64().unwrap() > 0, "{last}");
    }
    let models = server.get("/v1/models").ok();
    assert!(models["data"][0]["id"] == "demo" && models["models"].is_array(), "{models}");
    server.assert_idle();
}
