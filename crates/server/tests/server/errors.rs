//! Invalid requests: each ends with an error in the form of its interface and changes nothing.

use crate::client::{receive, send};
use crate::support::{CHAT, CONTEXT, ask, config, demo, start};
use latent_server::{Limits, ServerConfig};
use serde_json::{Value, json};

#[test]
fn wrong_fields_are_named() {
    let server = demo();
    for (more, field) in [
        (json!({"temperature": "hot"}), Some("temperature")),
        (json!({"n": 1_000_000_000}), Some("n")),
        (json!({"n": -1}), Some("n")),
        (json!({"max_tokens": 0}), Some("max_tokens")),
        (json!({"max_tokens": -5}), Some("max_tokens")),
        (json!({"max_tokens": 1.5}), Some("max_tokens")),
        (json!({"top_logprobs": 3}), Some("top_logprobs")),
        (json!({"logprobs": true, "top_logprobs": 1_000_000}), Some("top_logprobs")),
        (json!({"stop": vec!["a"; 100_000]}), Some("stop")),
        (json!({"stream": "yes"}), Some("stream")),
        (json!({"tools": vec![json!({"type": "function", "function": {"name": "f"}}); 300]}), Some("tools")),
        (
            json!({"tools": [{"type": "function", "function": {"name": "<|im_end|>"}}]}),
            Some("tools[0].function.name"),
        ),
        (json!({"messages": vec![json!({"role": "user", "content": "x"}); 10_000]}), Some("messages")),
        (json!({"chat_template_kwargs": "x"}), Some("chat_template_kwargs")),
        // Out of the samplers' ranges.
        (json!({"temperature": -1}), None),
        (json!({"temperature": 1e300}), None),
        (json!({"top_p": 2}), None),
        (json!({"min_p": -0.1}), None),
        (json!({"repeat_penalty": 0}), None),
        (json!({"logit_bias": {"4000000000": 1}}), None),
    ] {
        let reply = server.post(CHAT, &ask(more.clone()));
        let (message, param) = reply.error(400);
        if let Some(field) = field {
            assert_eq!(param, field, "{message}");
        }
        assert!(!message.is_empty());
    }
    // Unknown fields are ignored.
    server
        .post(
            CHAT,
            &ask(json!({
                "service_tier": "flex", "verbosity": "low", "prompt_cache_key": "x", "future": [1],
                // Values with which other servers let a request access memory and files.
                "n_discard": -7, "id_slot": 1_000_000_000, "filename": "../x",
            })),
        )
        .ok();
    server.assert_idle();
}

#[test]
fn prompts_that_do_not_fit_are_refused() {
    let server = demo();
    let words = |count: usize| json!({"messages": [{"role": "user", "content": "fox ".repeat(count)}]});
    let (message, _) = server.post(CHAT, &ask(words(CONTEXT + 10))).error(400);
    assert!(message.contains(&CONTEXT.to_string()), "{message}");
    server.post(CHAT, &ask(words(1_000_000))).error(400);
    let tokens = |count: usize| json!({"prompt": vec![5; count], "max_tokens": 4});
    for (count, status) in [(CONTEXT + 1, 400), (CONTEXT, 400), (CONTEXT - 1, 200), (0, 400)] {
        let reply = server.post("/v1/completions", &tokens(count));
        assert_eq!(reply.status, status, "{count}: {}", reply.text());
    }
    for prompt in [json!(null), json!({}), json!([[]]), json!([1.5]), json!([u32::MAX]), json!([true])] {
        server.post("/v1/completions", &json!({"prompt": prompt})).error(400);
    }
    // The answer ends at the end of the context.
    let reply = server.post(
        "/v1/completions",
        &json!({"prompt": vec![5; CONTEXT - 3], "max_tokens": u32::MAX, "ignore_eos": true}),
    );
    let usage = reply.ok()["usage"].clone();
    assert!(usage["completion_tokens"].as_u64().unwrap() <= 4, "{usage}");
    server.assert_idle();
}

#[test]
fn invalid_json_is_refused() {
    let server = demo();
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for body in
        ["", "{", "[]", "7", "null", "{\"messages\":[}", "\u{0}", deep.as_str(), "{\"messages\":\"\\ud800\"}"]
    {
        server.post_text(CHAT, body).error(400);
    }
    let many = format!("{{\"messages\":[{}0]}}", "0,".repeat(1_500_000));
    server.post_text(CHAT, &many).error(400);
}

#[test]
fn addresses_and_methods_are_known_or_refused_in_their_form() {
    let server = demo();
    server.get("/v1/unknown").error(404);
    server.get(CHAT).error(405);
    assert_eq!(server.get("/v1/messages").json()["type"], "error");
    assert!(server.get("/api/unknown").json()["error"].is_string());
    assert_eq!(server.get("/assets/..%2fCargo.toml").status, 404);
    assert_eq!(server.get("/assets/../Cargo.toml").status, 404);
    let long = server.get(&format!("/{}", "a".repeat(5000)));
    assert_eq!(long.status, 404);
}

#[test]
fn compressed_bodies_are_answered_like_plain_ones() {
    let server = demo();
    let coded = |coding: &str, body: &[u8]| {
        let headers = [("Content-Encoding", coding), ("Content-Type", "application/json")];
        receive(send(server.address, "POST", CHAT, &headers, body))
    };
    let plain = server.post(CHAT, &ask(json!({"max_tokens": 2}))).ok()["choices"].clone();
    for (coding, body) in [
        ("gzip", &include_bytes!("coded/body.gz")[..]),
        ("deflate", include_bytes!("coded/body.zlib")),
        ("deflate", include_bytes!("coded/body.deflate")),
        ("br", include_bytes!("coded/body.br")),
        ("zstd", include_bytes!("coded/body.zst")),
        ("gzip, zstd", include_bytes!("coded/body.gz.zst")),
    ] {
        assert_eq!(coded(coding, body).ok()["choices"], plain, "{coding}");
        let (message, _) = coded(coding, b"{\"messages\": []}").error(400);
        assert!(message.contains("Content-Encoding"), "{message}");
    }
    let unknown = coded("compress", b"...");
    assert_eq!(unknown.header("accept-encoding"), Some("gzip, deflate, br, zstd"));
    assert!(unknown.error(415).0.contains("compress"));
    let small = start(ServerConfig { limits: Limits { body_bytes: 1000, ..Limits::default() }, ..config() });
    for (coding, bomb) in [
        ("gzip", &include_bytes!("coded/bomb.gz")[..]),
        ("br", include_bytes!("coded/bomb.br")),
        ("zstd", include_bytes!("coded/bomb.zst")),
    ] {
        receive(send(small.address, "POST", CHAT, &[("Content-Encoding", coding)], bomb)).error(413);
    }
    small.assert_idle();
    assert_eq!(small.metric("latent_http_body_bytes"), 0);
}

#[test]
fn a_405_names_the_methods_of_its_address() {
    let server = demo();
    for (method, path, allow) in [
        ("GET", CHAT, "POST, OPTIONS"),
        ("DELETE", "/health", "GET, HEAD, OPTIONS"),
        ("POST", "/v1/responses/resp_1", "GET, DELETE, HEAD, OPTIONS"),
    ] {
        let reply = server.ask(method, path, &[], "");
        assert_eq!((reply.status, reply.header("allow")), (405, Some(allow)), "{method} {path}");
    }
    let (message, _) = server.ask("PUT", "/v1/responses/resp_1", &[], "").error(405);
    assert!(message.contains("GET or DELETE, not PUT"), "{message}");
    let options = server.ask("OPTIONS", CHAT, &[], "");
    assert_eq!((options.status, options.header("allow")), (204, Some("POST, OPTIONS")));
}

#[test]
fn extra_slashes_in_a_path_are_ignored() {
    let server = demo();
    for path in ["/v1/models/", "/v1//models", "//v1/models//", "/health/"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(server.get("/props/?model=demo").status, 200);
    server.post("/v1/chat/completions/", &ask(json!({"max_tokens": 1}))).ok();
    assert_eq!(server.get("/v1/messages/").json()["type"], "error");
}

#[test]
fn names_of_control_tokens_in_messages_stay_text() {
    let server = demo();
    let count = |text: &str| {
        let body = json!({"messages": [{"role": "user", "content": text}]});
        server.post("/v1/messages/count_tokens", &body).ok()["input_tokens"].as_u64().unwrap()
    };
    let props = server.get("/props").ok();
    let eos = props["eos_token"].as_str().unwrap();
    // As a control token, the name would be one token more.
    assert!(count(&format!("a{eos}b")) > count("ab") + 2, "{eos:?}");
}

#[test]
fn requests_have_ids_that_cannot_forge_logs() {
    let server = demo();
    let reply = server.get("/health");
    assert!(reply.header("x-request-id").unwrap().starts_with("req_"));
    let named = server.ask("GET", "/health", &[("X-Request-Id", "mine-7")], "");
    assert_eq!(named.header("x-request-id"), Some("mine-7"));
    let forged = server.ask("GET", "/health", &[("X-Request-Id", "a b{}\"x")], "");
    assert!(forged.header("x-request-id").unwrap().starts_with("req_"));
    let value: Value = server.get("/health").json();
    assert_eq!(value["status"], "ok");
}

#[test]
fn addresses_that_cannot_be_decoded_are_refused_in_the_form_of_their_interface() {
    let server = demo();
    for path in ["/assets/%ff", "/v1/models/%ff", "/v1/responses/%ff", "/v1/responses/%ff/input_items"] {
        let reply = server.get(path);
        let (message, _) = reply.error(400);
        assert!(message.contains("%ff"), "{message}");
        assert_eq!(reply.header("content-type"), Some("application/json"), "{path}");
    }
    assert_eq!(server.ask("DELETE", "/v1/responses/%ff", &[], "").status, 400);
}

#[test]
fn error_messages_truncate_long_values() {
    let server = demo();
    let long = "x".repeat(100_000);
    let (message, param) = server.post(CHAT, &ask(json!({"tool_choice": long}))).error(400);
    assert!(message.len() < 4096 && message.contains("xxx") && param == "tool_choice", "{}", message.len());
    let (message, param) = server.post(CHAT, &ask(json!({"model": long}))).error(400);
    assert!(message.contains("1024") && param == "model", "{message}");
}
