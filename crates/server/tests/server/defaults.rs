//! Settings of the command line apply to requests that do not set them, in every dialect.

use crate::support::{CONTEXT, TestServer, config, loader, merge, question, source, wrap};
use latent_engine::sampling::SamplingParams;
use latent_server::{Extras, LoadAttempt, LoadError, LoadedModel, RequestDefaults, Server};
use serde_json::{Value, json};
use std::time::Duration;

/// A server whose model samples at random, with these defaults.
fn serve(defaults: RequestDefaults) -> TestServer {
    let mut load = loader();
    let with_defaults = move |attempt: &mut LoadAttempt<'_>| -> Result<LoadedModel, LoadError> {
        let mut loaded = load(attempt)?;
        loaded.about.sampling = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
        loaded.about.defaults = defaults.clone();
        Ok(loaded)
    };
    let sources = vec![source("demo", Box::new(with_defaults))];
    let server = Server::start(config(), sources, Extras::default()).unwrap();
    server.wait_loaded(Duration::from_secs(60)).expect("it loads in time").unwrap();
    wrap(server)
}

/// A dialect: its path, a request, and JSON pointers to fields of the request and of the answer.
struct DialectCase {
    path: &'static str,
    request: Value,
    max_tokens: &'static str,
    /// The field of stop strings, if the dialect has one.
    stop: Option<&'static str>,
    seed: Option<&'static str>,
    text: &'static str,
    tokens: &'static str,
    /// Whether `max_tokens` is required.
    needs_max_tokens: bool,
}

fn dialects() -> Vec<DialectCase> {
    let chat = |path, max_tokens, stop, seed, text, tokens| DialectCase {
        path,
        request: json!({"messages": question()}),
        max_tokens,
        stop,
        seed,
        text,
        tokens,
        needs_max_tokens: false,
    };
    let story = "Once upon a time";
    vec![
        chat(
            "/v1/chat/completions",
            "/max_tokens",
            Some("/stop"),
            Some("/seed"),
            "/choices/0/message/content",
            "/usage/completion_tokens",
        ),
        DialectCase {
            request: json!({"prompt": story}),
            ..chat(
                "/v1/completions",
                "/max_tokens",
                Some("/stop"),
                Some("/seed"),
                "/choices/0/text",
                "/usage/completion_tokens",
            )
        },
        DialectCase {
            request: json!({"input": "Tell me a story about a fox and a lantern."}),
            ..chat(
                "/v1/responses",
                "/max_output_tokens",
                None,
                Some("/seed"),
                "/output/0/content/0/text",
                "/usage/output_tokens",
            )
        },
        DialectCase {
            needs_max_tokens: true,
            ..chat(
                "/v1/messages",
                "/max_tokens",
                Some("/stop_sequences"),
                Some("/seed"),
                "/content/0/text",
                "/usage/output_tokens",
            )
        },
        DialectCase {
            request: json!({"prompt": story}),
            ..chat("/completion", "/n_predict", Some("/stop"), Some("/seed"), "/content", "/tokens_predicted")
        },
        DialectCase {
            request: json!({"messages": question(), "stream": false, "options": {}}),
            ..chat(
                "/api/chat",
                "/options/num_predict",
                Some("/options/stop"),
                Some("/options/seed"),
                "/message/content",
                "/eval_count",
            )
        },
        DialectCase {
            request: json!({"prompt": story, "raw": true, "stream": false, "options": {}}),
            ..chat(
                "/api/generate",
                "/options/num_predict",
                Some("/options/stop"),
                Some("/options/seed"),
                "/response",
                "/eval_count",
            )
        },
    ]
}

impl DialectCase {
    /// Sends the request with more fields and `max`, its number of tokens, if it sets one.
    fn ask(&self, server: &TestServer, max: Option<i64>, more: &[(&str, Value)]) -> Value {
        let mut body = self.request.clone();
        let required = self.needs_max_tokens.then_some(400);
        let max = max.or(required).map(|max| (self.max_tokens, json!(max)));
        for (pointer, value) in max.iter().map(|(p, v)| (*p, v)).chain(more.iter().map(|(p, v)| (*p, v))) {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            body.pointer_mut(parent).unwrap()[name] = value.clone();
        }
        server.post(self.path, &body).ok()
    }

    fn text(&self, answer: &Value) -> String {
        answer.pointer(self.text).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    fn tokens(&self, answer: &Value) -> u64 {
        answer.pointer(self.tokens).and_then(Value::as_u64).unwrap_or_else(|| panic!("{answer}"))
    }
}

#[test]
fn the_number_of_tokens_is_a_default_and_a_limit() {
    let server = serve(RequestDefaults { max_tokens: Some(20), ..RequestDefaults::default() });
    let no_end = ("/ignore_eos", json!(true));
    let of_ollama = ("/options/ignore_eos", json!(true));
    for dialect in dialects() {
        let more = [if dialect.path.starts_with("/api") { of_ollama.clone() } else { no_end.clone() }];
        let tokens = |max| dialect.tokens(&dialect.ask(&server, max, &more));
        // Not set, no limit, more than the limit, and less.
        let asked = if dialect.needs_max_tokens {
            [None, Some(400), Some(400), Some(3)]
        } else {
            [None, Some(-1), Some(400), Some(3)]
        };
        assert_eq!(asked.map(tokens), [20, 20, 20, 3], "{}", dialect.path);
    }
    // In Ollama, −2 means to fill the context.
    let body = json!({"prompt": "Once", "raw": true, "stream": false, "options": {"num_predict": -2, "ignore_eos": true}});
    assert_eq!(server.post("/api/generate", &body).ok()["eval_count"], 20);
    assert_eq!(server.get("/props").ok()["default_generation_settings"]["params"]["n_predict"], 20);
}

#[test]
fn the_seed_holds_for_requests_without_one() {
    let server = serve(RequestDefaults { seed: Some(11), ..RequestDefaults::default() });
    for dialect in dialects() {
        let text = |more: &[(&str, Value)]| dialect.text(&dialect.ask(&server, Some(40), more));
        let default = text(&[]);
        assert_eq!(default, text(&[]), "{}", dialect.path);
        if let Some(seed) = dialect.seed {
            assert_eq!(default, text(&[(seed, json!(11))]), "{}", dialect.path);
            assert_ne!(default, text(&[(seed, json!(12))]), "{}", dialect.path);
            assert_ne!(default, text(&[(seed, json!(-1))]), "{}", dialect.path);
        }
    }
    assert_eq!(server.get("/props").ok()["default_generation_settings"]["params"]["seed"], 11);
    let without = serve(RequestDefaults::default());
    assert_eq!(without.get("/props").ok()["default_generation_settings"]["params"]["seed"], -1);
    let dialect = &dialects()[0];
    let text = || dialect.text(&dialect.ask(&without, Some(40), &[]));
    assert_ne!(text(), text());
}

#[test]
fn stop_strings_hold_for_requests_without_any() {
    let defaults = RequestDefaults { seed: Some(11), ..RequestDefaults::default() };
    let server = serve(defaults.clone());
    // A space occurs in every text.
    let stopping = serve(RequestDefaults { stop: vec![" ".into()], ..defaults });
    for dialect in dialects() {
        let whole = dialect.text(&dialect.ask(&server, Some(40), &[]));
        let (first, _) = whole.trim_start().split_once(' ').unwrap();
        let cut = dialect.text(&dialect.ask(&stopping, Some(40), &[]));
        assert!(
            cut.len() < whole.len() && (cut == first || whole.starts_with(&cut)),
            "{}: {cut:?}",
            dialect.path
        );
        if let Some(stop) = dialect.stop {
            let other = dialect.text(&dialect.ask(&stopping, Some(40), &[(stop, json!(["\u{1}"]))]));
            assert_eq!(other, whole, "{}", dialect.path);
        }
    }
}

#[test]
fn log_probabilities_hold_for_requests_that_do_not_turn_them_off() {
    let server =
        serve(RequestDefaults { logprobs: Some(2), max_tokens: Some(4), ..RequestDefaults::default() });
    let chat = |more: Value| {
        let mut body = json!({"messages": question()});
        crate::support::merge(&mut body, more);
        server.post("/v1/chat/completions", &body).ok()["choices"][0]["logprobs"].clone()
    };
    assert_eq!(chat(json!({}))["content"][0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(chat(json!({"top_logprobs": 3}))["content"][0]["top_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(chat(json!({"logprobs": false})), Value::Null);
    let completion = |more: Value| {
        let mut body = json!({"prompt": "Once"});
        crate::support::merge(&mut body, more);
        server.post("/v1/completions", &body).ok()["choices"][0]["logprobs"].clone()
    };
    assert_eq!(completion(json!({}))["top_logprobs"][0].as_object().unwrap().len(), 2);
    assert_eq!(completion(json!({"logprobs": 1}))["top_logprobs"][0].as_object().unwrap().len(), 1);
    // Tokens of an echoed prompt have no log probabilities, so the default does not apply.
    assert_eq!(completion(json!({"echo": true})), Value::Null);
    let response = |more: Value| {
        let mut body = json!({"input": "Once"});
        crate::support::merge(&mut body, more);
        server.post("/v1/responses", &body).ok()["output"][0]["content"][0]["logprobs"].clone()
    };
    assert_eq!(response(json!({}))[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(response(json!({"top_logprobs": 0})), json!([]));
    let own = |more: Value| {
        let mut body = json!({"prompt": "Once"});
        crate::support::merge(&mut body, more);
        server.post("/completion", &body).ok()["completion_probabilities"].clone()
    };
    assert_eq!(own(json!({}))[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(own(json!({"n_probs": 0})), Value::Null);
}

#[test]
fn a_full_context_is_shifted_where_the_server_allows_it() {
    let server =
        serve(RequestDefaults { context_shift: true, keep: 7, ignore_eos: true, ..Default::default() });
    let ask = |more: Value| {
        let mut body = json!({"prompt": "Once upon a time", "n_predict": CONTEXT + 200, "temperature": 0});
        merge(&mut body, more);
        server.post("/completion", &body).ok()
    };
    let long = ask(json!({}));
    assert_eq!((&long["tokens_predicted"], &long["truncated"]), (&json!(CONTEXT + 200), &json!(true)));
    assert_eq!(long["stop_type"], "limit");
    let settings = &long["generation_settings"];
    assert_eq!((&settings["n_keep"], &settings["n_discard"]), (&json!(7), &json!(0)));
    let short = ask(json!({"n_predict": 20}));
    assert_eq!((&short["tokens_predicted"], &short["truncated"]), (&json!(20), &json!(false)));
    // Whatever the request keeps and discards, the context has room for more tokens.
    for (keep, discard) in [(-1, 3), (1_000_000, 1_000_000), (0, -7)] {
        let answer = ask(json!({"n_keep": keep, "n_discard": discard}));
        assert_eq!(
            (&answer["tokens_predicted"], &answer["truncated"]),
            (&long["tokens_predicted"], &json!(true))
        );
    }
    let chat = json!({"messages": question(), "max_tokens": CONTEXT + 50});
    let answer = server.post("/v1/chat/completions", &chat).ok();
    assert_eq!(answer["usage"]["completion_tokens"], CONTEXT + 50);
    // A prompt is never truncated.
    let fox = "fox ".repeat(CONTEXT);
    assert!(server.post("/completion", &json!({"prompt": fox})).error(400).0.contains("context size"));
    server.assert_idle();
}

#[test]
fn prompt_and_answer_fill_the_context_where_nothing_else_ends_the_answer() {
    let server = serve(RequestDefaults { ignore_eos: true, ..Default::default() });
    for length in [1, 100, CONTEXT - 1] {
        let answer = server.post("/completion", &json!({"prompt": vec![30; length], "n_predict": -1})).ok();
        assert_eq!(answer["tokens_predicted"], CONTEXT - length);
        assert_eq!((&answer["truncated"], &answer["stop_type"]), (&json!(true), &json!("limit")));
    }
    // The answer has as many tokens as requested.
    let exact =
        server.post("/completion", &json!({"prompt": vec![30; 100], "n_predict": CONTEXT - 100})).ok();
    assert_eq!((&exact["tokens_predicted"], &exact["truncated"]), (&json!(CONTEXT - 100), &json!(false)));
    server.assert_idle();
}
