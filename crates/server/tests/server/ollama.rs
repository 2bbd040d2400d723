//! Ollama's interface.

use crate::client::Reply;
use crate::support::{demo, question};
use serde_json::{Value, json};

fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"), "{}", reply.text());
    reply.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn chats_stream_unless_told_otherwise() {
    let server = demo();
    let options = json!({"num_predict": 20, "temperature": 0});
    let body = json!({"model": "demo", "messages": question(), "options": options});
    let mut whole = body.clone();
    whole["stream"] = false.into();
    let whole = server.post("/api/chat", &whole).ok();
    assert_eq!(
        (&whole["done"], &whole["done_reason"], &whole["eval_count"]),
        (&json!(true), &json!("length"), &json!(20))
    );
    let lines = lines(&server.post("/api/chat", &body));
    let text: String = lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, whole["message"]["content"].as_str().unwrap());
    let last = &lines[lines.len() - 1];
    assert!(last["done"] == true && last["total_duration"].is_u64() && lines[0]["done"] == false);
    assert!(lines[0]["created_at"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn texts_are_generated_with_and_without_the_template() {
    let server = demo();
    let options = json!({"num_predict": 12, "temperature": 0});
    let with = server.post("/api/generate", &json!({"model": "x", "prompt": "Tell me a story about a fox and a lantern.", "stream": false, "options": options})).ok();
    let raw = server
        .post(
            "/api/generate",
            &json!({"prompt": "Once upon a time", "raw": true, "stream": false, "options": options}),
        )
        .ok();
    assert_ne!(with["response"], raw["response"]);
    let plain = server
        .post("/completion", &json!({"prompt": "Once upon a time", "n_predict": 12, "temperature": 0}))
        .ok();
    assert_eq!(plain["content"], raw["response"]);
    let lines = lines(
        &server
            .post("/api/generate", &json!({"prompt": "Once upon a time", "raw": true, "options": options})),
    );
    let text: String = lines.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!(text, raw["response"].as_str().unwrap());
    assert_eq!(server.post("/api/generate", &json!({"model": "x"})).ok()["done_reason"], "load");
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false});
    let shaped = server
        .post(
            "/api/generate",
            &json!({"prompt": "x", "format": schema, "stream": false, "options": {"num_predict": 60}}),
        )
        .ok();
    assert!(serde_json::from_str::<Value>(shaped["response"].as_str().unwrap()).unwrap()["a"].is_boolean());
}

#[test]
fn calls_carry_objects_and_errors_are_plain() {
    let server = demo();
    let call = json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "clock", "arguments": {"a": 1}}}]});
    let mut messages = question();
    messages
        .as_array_mut()
        .unwrap()
        .extend([call, json!({"role": "tool", "tool_name": "clock", "content": "noon"})]);
    server
        .post("/api/chat", &json!({"messages": messages, "stream": false, "options": {"num_predict": 2}}))
        .ok();
    let wrong = server
        .post("/api/chat", &json!({"messages": [{"role": "user", "content": "x", "images": ["AAAA"]}]}));
    assert_eq!(wrong.status, 400);
    assert!(wrong.json()["error"].as_str().unwrap().contains("images"));
    assert_eq!(server.get("/api/tags").ok()["models"][0]["name"], "demo");
    assert_eq!(server.get("/api/ps").ok()["models"][0]["name"], "demo");
    assert!(server.get("/api/version").ok()["version"].is_string());
    let shown = server.post("/api/show", &json!({"model": "demo"})).ok();
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("completion")));
}

#[test]
fn models_have_a_digest_and_texts_an_embedding() {
    let server = demo();
    let of = |path: &str| server.get(path).ok()["models"][0].clone();
    let (model, loaded) = (of("/api/tags"), of("/api/ps"));
    let digest = model["digest"].as_str().unwrap();
    assert!(digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digest}");
    assert_eq!(loaded["digest"], digest);
    assert!(!model["details"]["quantization_level"].as_str().unwrap().is_empty());
    assert!(model["modified_at"].as_str().unwrap().ends_with('Z'));

    let many = server.post("/api/embed", &json!({"model": "demo", "input": ["hello world", "fox"]})).ok();
    let vectors = many["embeddings"].as_array().unwrap();
    assert_eq!((vectors.len(), &many["model"]), (2, &json!("demo")));
    assert!(many["prompt_eval_count"].as_u64().unwrap() > 2 && many["total_duration"].is_u64());
    let one = server.post("/api/embed", &json!({"input": "hello world"})).ok();
    assert_eq!(one["embeddings"][0], vectors[0]);
    let native = server.post("/embedding", &json!({"content": "hello world", "model": "demo"})).ok();
    assert_eq!(
        server.post("/api/embeddings", &json!({"prompt": "hello world"})).ok()["embedding"],
        vectors[0]
    );
    assert_eq!(native[0]["embedding"][0].as_array().unwrap().len(), vectors[0].as_array().unwrap().len());
    assert_eq!(server.post("/api/embeddings", &json!({"model": "demo"})).ok()["embedding"], json!([]));
    // Ollama truncates a text that is too long, unless `truncate` is false.
    let long = "fox ".repeat(20_000);
    server.post("/api/embed", &json!({"input": long})).ok();
    let refused = server.post("/api/embed", &json!({"input": long, "truncate": false}));
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"].as_str().unwrap().contains("exceeds the available context size"));
    for body in
        [json!({}), json!({"input": 7}), json!({"input": ["x", 7]}), json!({"input": "x", "dimensions": 3})]
    {
        assert_eq!(server.post("/api/embed", &body).status, 400, "{body}");
    }
}
