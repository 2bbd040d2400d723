//! Prompts that do not fit into the context. The error of each dialect has the words by which its
//! clients recognize this, and the numbers of tokens.

use crate::client::Reply;
use crate::support::{CHAT, CONTEXT, TestServer, demo, merge};
use serde_json::{Value, json};

/// A conversation of about `count` tokens.
fn words(count: usize) -> Value {
    json!([{"role": "user", "content": "fox ".repeat(count)}])
}

/// Path and request of each dialect.
fn dialects(count: usize) -> [(&'static str, Value); 7] {
    let text = "fox ".repeat(count);
    [
        (CHAT, json!({"messages": words(count), "max_tokens": 4})),
        ("/v1/completions", json!({"prompt": text, "max_tokens": 4})),
        ("/v1/responses", json!({"input": text})),
        ("/v1/messages", json!({"messages": words(count), "max_tokens": 4})),
        ("/completion", json!({"prompt": text, "n_predict": 4})),
        ("/api/chat", json!({"messages": words(count)})),
        ("/api/generate", json!({"prompt": text, "raw": true})),
    ]
}

/// The object with the numbers of tokens, and the message.
fn parts(reply: &Reply) -> (Value, String) {
    assert_eq!(reply.status, 400, "{}", reply.text());
    let value = reply.json();
    if value["error"].is_string() {
        return (value.clone(), value["error"].as_str().unwrap().to_owned());
    }
    (value["error"].clone(), value["error"]["message"].as_str().unwrap().to_owned())
}

fn expected(path: &str, tokens: &str) -> String {
    match path {
        "/v1/messages" => format!("prompt is too long: {tokens} tokens > {CONTEXT} maximum"),
        path if path.starts_with("/v1/") => {
            format!(
                "This model's maximum context length is {CONTEXT} tokens. However, your prompt has {tokens} tokens"
            )
        }
        _ => format!("request ({tokens} tokens) exceeds the available context size ({CONTEXT} tokens)"),
    }
}

#[test]
fn each_dialect_uses_the_words_that_its_clients_match() {
    let server = demo();
    for stream in [false, true] {
        for (path, mut body) in dialects(CONTEXT + 50) {
            merge(&mut body, json!({"stream": stream}));
            let (object, message) = parts(&server.post(path, &body));
            let tokens = object["n_prompt_tokens"].as_u64().unwrap_or_else(|| panic!("{path}: {object}"));
            assert!(tokens > CONTEXT as u64, "{path}: {object}");
            assert_eq!(object["n_ctx"], CONTEXT, "{path}: {object}");
            assert!(message.starts_with(&expected(path, &tokens.to_string())), "{path}: {message}");
            if path.starts_with("/v1/") && path != "/v1/messages" {
                assert_eq!(object["code"], "context_length_exceeded", "{path}: {object}");
            }
        }
    }
    let (object, _) = parts(&server.post("/completion", &dialects(CONTEXT + 50)[4].1));
    assert_eq!((&object["type"], &object["code"]), (&json!("exceed_context_size_error"), &json!(400)));
    server.assert_idle();
}

#[test]
fn a_prompt_without_an_answer_needs_no_room_for_one() {
    let server = demo();
    let (object, message) =
        parts(&server.post("/v1/embeddings", &json!({"input": "fox ".repeat(CONTEXT + 50)})));
    assert!(message.contains("too large to embed") && !message.contains("answer"), "{message}");
    assert_eq!(object["code"], "context_length_exceeded");
}

#[test]
fn a_count_that_stops_early_is_a_lower_bound() {
    let server = demo();
    for (path, body) in dialects(200_000) {
        let (object, message) = parts(&server.post(path, &body));
        let tokens = object["n_prompt_tokens"].as_u64().unwrap();
        assert!(tokens > CONTEXT as u64 && tokens <= 400_010, "{path}: {object}");
        assert!(message.starts_with(&expected(path, &format!("at least {tokens}"))), "{path}: {message}");
    }
}

#[test]
fn a_prompt_that_fills_the_context_leaves_no_room_for_an_answer() {
    let server = demo();
    let (object, _) = parts(&server.post("/completion", &json!({"prompt": vec![5; CONTEXT]})));
    assert_eq!((&object["n_prompt_tokens"], &object["n_ctx"]), (&json!(CONTEXT), &json!(CONTEXT)));
    let mixed = json!({"prompt": vec![json!("fox"), json!(5)].into_iter().cycle().take(2 * CONTEXT).collect::<Vec<_>>()});
    let (object, _) = parts(&server.post("/completion", &mixed));
    assert!(object["n_prompt_tokens"].as_u64().unwrap() > CONTEXT as u64, "{object}");
}

/// The number of tokens of a conversation, by each endpoint that counts tokens.
fn counts(server: &TestServer, messages: &Value) -> Vec<u64> {
    let body = json!({"messages": messages});
    let input = json!({"input": messages});
    let addresses = [
        ("/v1/messages/count_tokens", &body),
        ("/v1/chat/completions/input_tokens", &body),
        ("/chat/completions/input_tokens", &body),
        ("/v1/responses/input_tokens", &input),
        ("/responses/input_tokens", &input),
    ];
    let count = |(path, body): (&str, &Value)| {
        let value = server.post(path, body).ok();
        if path != "/v1/messages/count_tokens" {
            assert_eq!(value["object"], "response.input_tokens", "{path}");
        }
        value["input_tokens"].as_u64().unwrap_or_else(|| panic!("{path}: {value}"))
    };
    addresses.into_iter().map(count).collect()
}

#[test]
fn tokens_are_counted_whether_they_fit_or_not() {
    let server = demo();
    let short = counts(&server, &words(10));
    assert!(short.iter().all(|count| *count == short[0]), "{short:?}");
    let usage = server.post(CHAT, &json!({"messages": words(10), "max_tokens": 1})).ok()["usage"].clone();
    assert_eq!(usage["prompt_tokens"], short[0]);
    let long = counts(&server, &words(10 * CONTEXT));
    assert!(long.iter().all(|count| *count == long[0]), "{long:?}");
    // Each further word takes the same number of tokens.
    let (some, more) = (counts(&server, &words(20))[0], counts(&server, &words(30))[0]);
    assert_eq!(long[0], short[0] + (more - some) * (CONTEXT as u64 - 1));
    // The prompt of a continued response includes the stored one.
    let first = server.post("/v1/responses", &json!({"input": "Hello", "max_output_tokens": 4})).ok();
    let counted = |more: Value| {
        let mut body = json!({"input": "And now?"});
        merge(&mut body, more);
        server.post("/v1/responses/input_tokens", &body).ok()["input_tokens"].as_u64().unwrap()
    };
    assert!(counted(json!({"previous_response_id": first["id"]})) > counted(json!({})));
    server.post("/v1/responses/input_tokens", &json!({"input": 7})).error(400);
    server.post("/v1/chat/completions/input_tokens", &json!({})).error(400);
}
