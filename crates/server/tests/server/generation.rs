//! Fields of requests that control generation. Each has an effect in every dialect that has it.

use crate::support::{TestServer, demo, merge, question};
use serde_json::{Value, json};

/// A greedy completion of a story, which ends only at a limit.
fn story(server: &TestServer, more: Value) -> Value {
    let mut body =
        json!({"prompt": "Once upon a time", "n_predict": 24, "temperature": 0, "return_tokens": true});
    merge(&mut body, more);
    server.post("/completion", &body).ok()
}

fn tokens(answer: &Value) -> Vec<u64> {
    answer["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn samplers_of_a_request_change_its_answer() {
    let server = demo();
    let ask = |more: Value| {
        let mut body =
            json!({"temperature": 2, "seed": 3, "top_k": 0, "top_p": 1, "min_p": 0, "n_predict": 60});
        merge(&mut body, more);
        tokens(&story(&server, body))
    };
    let plain = ask(json!({}));
    assert_eq!(plain, ask(json!({})));
    for more in [
        json!({"top_n_sigma": 1}),
        json!({"mirostat": 1}),
        json!({"mirostat": 2}),
        json!({"mirostat": 2, "mirostat_tau": 1}),
        json!({"dynatemp_range": 1.5}),
        json!({"adaptive_target": 0.2}),
        json!({"samplers": ["top_k"], "top_k": 1}),
        json!({"samplers": "k", "top_k": 3}),
        json!({"top_p": 0.01, "min_keep": 2}),
    ] {
        let answer = ask(more.clone());
        assert_ne!(answer, plain, "{more}");
        assert_eq!(answer, ask(more.clone()), "{more}");
    }
    let of = |more: Value| ask(more);
    assert_ne!(of(json!({"mirostat": 2})), of(json!({"mirostat": 2, "mirostat_tau": 1})));
    assert_ne!(of(json!({"mirostat": 2})), of(json!({"mirostat": 2, "mirostat_eta": 1})));
    let dynamic = json!({"dynatemp_range": 1.5, "dynatemp_exponent": 4});
    assert_ne!(of(json!({"dynatemp_range": 1.5})), of(dynamic));
    let adaptive = json!({"adaptive_target": 0.2, "adaptive_decay": 0.1});
    assert_ne!(of(json!({"adaptive_target": 0.2})), of(adaptive));
    // Samplers that the list does not name are off.
    assert_eq!(of(json!({"samplers": ["temperature"], "top_k": 1, "min_p": 0.9})), plain);
    let narrow = json!({"top_p": 0.01});
    assert_eq!(tokens(&story(&server, json!({"n_predict": 60}))), ask(narrow));
}

#[test]
fn dry_respects_its_window() {
    let server = demo();
    let mut ids = tokens(&story(&server, json!({})));
    ids.sort_unstable();
    ids.dedup();
    let [a, b, c, d, e] = ids[..5] else { panic!("{ids:?}") };
    let text = server.post("/detokenize", &json!({"tokens": [c]})).ok()["content"].clone();
    // `d` continues a repetition. Without DRY it would be chosen.
    let choose = |more: Value| {
        let mut body = json!({"prompt": [a, b, c, d, a, b, c], "allowed_token_ids": [d, e], "logit_bias": [[d, 50]],
            "dry_multiplier": 100, "n_predict": 1});
        merge(&mut body, more);
        tokens(&story(&server, body))[0]
    };
    assert_eq!(choose(json!({"dry_multiplier": 0})), d);
    assert_eq!(choose(json!({})), e);
    assert_eq!(choose(json!({"dry_sequence_breakers": [text]})), d);
    assert_eq!(choose(json!({"dry_sequence_breakers": []})), e);
    assert_eq!(choose(json!({"dry_penalty_last_n": 0})), d);
    assert_eq!(choose(json!({"dry_penalty_last_n": 4})), d);
    assert_eq!(choose(json!({"dry_penalty_last_n": -1})), e);
    assert_eq!(choose(json!({"samplers": ["temperature"]})), d);
}

#[test]
fn tokens_end_an_answer_or_are_banned() {
    let server = demo();
    let plain = story(&server, json!({}));
    let (ids, text) = (tokens(&plain), plain["content"].as_str().unwrap());
    let at = (4..ids.len()).find(|at| !ids[..*at].contains(&ids[*at])).unwrap();
    let last = ids[at];
    let ended = story(&server, json!({"stop_token_ids": [last]}));
    assert_eq!(tokens(&ended), ids[..=at]);
    assert_eq!((&ended["stop_type"], &ended["tokens_predicted"]), (&json!("eos"), &json!(at + 1)));
    let shorter = ended["content"].as_str().unwrap();
    assert!(text.starts_with(shorter) && shorter.len() < text.len(), "{shorter:?} of {text:?}");
    // The stop token does not end the answer before the minimum.
    let minimum = story(&server, json!({"stop_token_ids": [last], "min_tokens": at + 1}));
    assert!(tokens(&minimum).len() > at && tokens(&minimum)[..at] == ids[..at]);
    assert_ne!(tokens(&minimum)[at], last);
    let word = text.split_whitespace().next().unwrap();
    let stopped = story(&server, json!({"stop": word}));
    let kept = story(&server, json!({"stop": word, "min_tokens": 8}));
    assert_eq!(stopped["stop_type"], "word");
    assert!(kept["tokens_predicted"].as_u64() > stopped["tokens_predicted"].as_u64());
    assert!(kept["content"].as_str().unwrap().contains(word));
    // Banned tokens and words do not occur.
    let without = story(&server, json!({"logit_bias": [[last, false]]}));
    assert!(!tokens(&without).contains(&last));
    let banned = story(&server, json!({"bad_words": [word]}));
    assert!(!banned["content"].as_str().unwrap().split_whitespace().any(|other| other == word), "{banned}");
    let allowed: Vec<u64> = ids.iter().copied().take(3).collect();
    let only = story(&server, json!({"allowed_token_ids": allowed, "temperature": 5}));
    assert!(tokens(&only).iter().all(|id| allowed.contains(id)), "{only}");
}

#[test]
fn a_bias_is_given_to_a_text() {
    let server = demo();
    let text = story(&server, json!({}))["content"].as_str().unwrap().to_owned();
    let word = text.split_whitespace().find(|word| word.len() > 2).unwrap().to_owned();
    let pieces = server.post("/tokenize", &json!({"content": format!(" {word}")})).ok()["tokens"].clone();
    for bias in [
        json!([[format!(" {word}"), -100], [word, false]]),
        json!({format!(" {word}"): -100, word.clone(): false}),
    ] {
        let answer = story(&server, json!({"logit_bias": bias}));
        for id in pieces.as_array().unwrap() {
            assert!(!tokens(&answer).contains(&id.as_u64().unwrap()), "{answer}");
        }
        let biases = answer["generation_settings"]["logit_bias"].as_array().unwrap();
        assert!(biases.iter().any(|entry| entry["bias"].is_null()), "{biases:?}");
        assert!(biases.iter().any(|entry| entry["bias"] == -100.0), "{biases:?}");
    }
    let none = story(&server, json!({"ignore_eos": false}));
    assert_eq!(none["generation_settings"]["logit_bias"], json!([]));
    let banned = story(&server, json!({"ignore_eos": true}));
    let list = banned["generation_settings"]["logit_bias"].as_array().unwrap();
    assert!(!list.is_empty() && list.iter().all(|entry| entry["bias"].is_null()), "{list:?}");
}

#[test]
fn a_grammar_ends_an_answer_whose_end_is_banned() {
    let server = demo();
    for more in [json!({"ignore_eos": true}), json!({"min_tokens": 20})] {
        let mut body = json!({"grammar": "root ::= \"yes\" | \"no\""});
        merge(&mut body, more);
        let answer = story(&server, body);
        assert!(["yes", "no"].contains(&answer["content"].as_str().unwrap()), "{answer}");
        assert_eq!(answer["stop_type"], "eos");
    }
}

#[test]
fn answers_end_at_limits_of_time_and_indentation() {
    let server = demo();
    let lines = |more: Value| {
        let mut body = json!({"grammar": "root ::= (\"  one\\n\" | \"  two\\n\") root | \"x\"", "logit_bias": {"x": -100},
            "n_predict": 200});
        merge(&mut body, more);
        story(&server, body)
    };
    let whole = lines(json!({}));
    let count = |answer: &Value| answer["content"].as_str().unwrap().lines().count();
    assert!(count(&whole) > 10, "{whole}");
    // The time is over after the first token. The answer still ends with a whole line.
    let timed = lines(json!({"t_max_predict_ms": 1}));
    assert!(timed["content"].as_str().unwrap().ends_with('\n'), "{timed}");
    assert!(count(&timed) < count(&whole), "{timed}");
    assert_eq!(timed["stop_type"], "limit");
    assert_eq!(lines(json!({"t_max_predict_ms": -1}))["content"], whole["content"]);
    let deep = lines(json!({"n_indent": 3}));
    let text = deep["content"].as_str().unwrap();
    assert_eq!((text.lines().count(), text.ends_with("\n  ")), (2, true), "{deep}");
    assert_eq!(deep["stop_type"], "limit");
    assert_eq!(lines(json!({"n_indent": 2}))["content"], whole["content"]);
    // A prompt that takes longer than its limit ends without a token.
    let long = "word ".repeat(300);
    let late = story(&server, json!({"prompt": long, "t_max_prompt_ms": 1, "cache_prompt": false}));
    assert_eq!((&late["tokens_predicted"], &late["stop_type"]), (&json!(0), &json!("limit")), "{late}");
}

#[test]
fn cache_prompt_false_bypasses_the_prefix_cache() {
    let server = demo();
    let prompt = "The fox and the drum. ".repeat(12);
    let cached = |more: Value| {
        let mut body = json!({"prompt": prompt, "n_predict": 2});
        merge(&mut body, more);
        let answer = story(&server, body);
        assert_eq!(answer["tokens_cached"], answer["timings"]["cache_n"]);
        answer["timings"]["cache_n"].as_u64().unwrap()
    };
    assert_eq!(cached(json!({})), 0);
    assert!(cached(json!({})) > 20);
    assert_eq!(cached(json!({"cache_prompt": false})), 0);
    assert!(cached(json!({"cache_prompt": true})) > 20);
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": 2});
        merge(&mut body, more);
        server.post("/v1/chat/completions", &body).ok()["timings"]["cache_n"].as_u64().unwrap()
    };
    chat(json!({}));
    assert!(chat(json!({})) > 20);
    assert_eq!(chat(json!({"cache_prompt": false})), 0);
}

#[test]
fn post_sampling_probs_are_reported_on_request() {
    let server = demo();
    let ask = |more: Value| {
        let mut body = json!({"n_probs": 5, "n_predict": 6, "temperature": 1, "top_k": 3, "top_p": 1, "min_p": 0,
            "post_sampling_probs": true});
        merge(&mut body, more);
        story(&server, body)["completion_probabilities"].clone()
    };
    let list = ask(json!({}));
    assert_eq!(list.as_array().unwrap().len(), 6);
    for token in list.as_array().unwrap() {
        let own = token["prob"].as_f64().unwrap();
        assert!(own > 0.0 && own <= 1.0 && token.get("logprob").is_none(), "{token}");
        let top = token["top_probs"].as_array().unwrap();
        let all: Vec<f64> = top.iter().map(|other| other["prob"].as_f64().unwrap()).collect();
        assert!(all.len() == 3 && all.is_sorted_by(|a, b| a >= b), "{token}");
        assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-4, "{token}");
        assert!(top.iter().any(|other| other["id"] == token["id"]), "{token}");
    }
    for token in ask(json!({"temperature": 0})).as_array().unwrap() {
        assert_eq!((&token["prob"], token["top_probs"].as_array().unwrap().len()), (&json!(1.0), 1));
    }
    let model = ask(json!({"post_sampling_probs": false}));
    assert!(model[0]["logprob"].as_f64().unwrap() < 0.0 && model[0].get("prob").is_none());
    assert_eq!(model[0]["top_logprobs"].as_array().unwrap().len(), 5);
    // Chats accept the fields of both interfaces.
    for (field, more) in [
        ("top_logprobs", json!({"n_probs": 3})),
        ("top_probs", json!({"n_probs": 3, "post_sampling_probs": true})),
        ("top_probs", json!({"logprobs": true, "top_logprobs": 3, "post_sampling_probs": true})),
    ] {
        let mut body = json!({"messages": question(), "max_tokens": 4, "temperature": 1});
        merge(&mut body, more.clone());
        let answer = server.post("/v1/chat/completions", &body).ok();
        let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
        assert!(!content.is_empty() && content[0][field].as_array().is_some(), "{more}: {answer}");
    }
}

#[test]
fn response_fields_select_fields() {
    let server = demo();
    let fields = ["content", "generation_settings/n_predict", "timings/cache_n", "unknown", "content/x"];
    let answer = story(&server, json!({"response_fields": fields, "n_predict": 3}));
    let names: Vec<&String> = answer.as_object().unwrap().keys().collect();
    assert_eq!(names, ["content", "generation_settings/n_predict", "timings/cache_n"]);
    assert_eq!(answer["generation_settings/n_predict"], 3);
    assert!(!answer["content"].as_str().unwrap().is_empty());
    let whole = story(&server, json!({"response_fields": [], "n_predict": 3}));
    assert_eq!(whole["content"], answer["content"]);
    assert!(whole["generation_settings"].is_object());
    let more =
        json!({"response_fields": ["tokens", "completion_probabilities"], "n_probs": 1, "n_predict": 3});
    let listed = story(&server, more);
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(listed["completion_probabilities"].as_array().unwrap().len(), 3);
    let body =
        json!({"prompt": "A", "n_predict": 3, "stream": true, "response_fields": ["tokens_predicted"]});
    let chunks = server.post("/completion", &body).events();
    let last: Value = serde_json::from_str(&chunks.last().unwrap().1).unwrap();
    assert_eq!(last, json!({"tokens_predicted": 3, "stop": true}));
}

#[test]
fn generation_settings_repeat_the_request() {
    let server = demo();
    let asked = json!({
        "top_n_sigma": 1.5, "mirostat": 2, "mirostat_tau": 3.5, "mirostat_eta": 0.25, "dynatemp_range": 0.5,
        "dynatemp_exponent": 2.0, "adaptive_target": 0.5, "adaptive_decay": 0.75, "min_keep": 2,
        "samplers": ["top_k", "temperature"], "dry_sequence_breakers": ["x"], "dry_penalty_last_n": 32, "n_indent": 1,
        "t_max_predict_ms": 60000, "ignore_eos": true, "stop": ["zzz"], "n_probs": 1, "seed": 18446744073709551615u64,
        "post_sampling_probs": true, "cache_prompt": false, "min_tokens": 2, "timings_per_token": true,
    });
    let mut body = asked.clone();
    merge(&mut body, json!({"n_predict": 2}));
    let settings = story(&server, body)["generation_settings"].clone();
    for (name, value) in asked.as_object().unwrap() {
        assert_eq!(settings[name], *value, "{name}");
    }
    assert_eq!((&settings["n_predict"], &settings["max_tokens"]), (&json!(2), &json!(2)));
    let props = server.get("/props").ok();
    let defaults = &props["default_generation_settings"]["params"];
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(defaults), names(&settings));
    for (name, value) in [
        ("mirostat", json!(0)),
        ("top_n_sigma", json!(-1.0)),
        ("adaptive_target", json!(-1.0)),
        ("n_predict", json!(-1)),
        ("seed", json!(-1)),
        ("dry_sequence_breakers", json!(["\n", ":", "\"", "*"])),
        ("dry_penalty_last_n", json!(-1)),
        (
            "samplers",
            json!([
                "penalties",
                "dry",
                "top_n_sigma",
                "top_k",
                "typ_p",
                "top_p",
                "min_p",
                "xtc",
                "temperature"
            ]),
        ),
    ] {
        assert_eq!(defaults[name], value, "{name}");
    }
}

#[test]
fn media_in_addition_to_a_prompt_are_refused_by_name() {
    let server = demo();
    let image = json!(["aGVsbG8="]);
    for (body, param) in [
        (
            json!({"prompt": {"prompt_string": "A <__media__>", "multimodal_data": image}}),
            "prompt.multimodal_data",
        ),
        (
            json!({"prompt": [{"prompt_string": "A <__media__>", "multimodal_data": image}]}),
            "prompt[0].multimodal_data",
        ),
        (json!({"prompt": "A", "multimodal_data": image}), "multimodal_data"),
        (json!({"prompt": "A", "image_data": [{"data": "aGVsbG8=", "id": 1}]}), "image_data"),
    ] {
        let (message, _) = server.post("/completion", &body).error(400);
        assert!(message.contains("does not support multimodal requests"), "{message}");
        assert!(message.contains(param), "{message}");
    }
    let empty =
        json!({"prompt": {"prompt_string": "A", "multimodal_data": []}, "image_data": [], "n_predict": 1});
    server.post("/completion", &empty).ok();
}

#[test]
fn numbers_out_of_range_name_their_field() {
    let server = demo();
    for (name, value) in [
        ("temperature", json!(-1)),
        ("top_p", json!(2)),
        ("min_p", json!(-1)),
        ("repetition_penalty", json!(0)),
        ("frequency_penalty", json!(1000)),
        ("mirostat", json!(7)),
        ("logit_bias", json!({"4000000": 1})),
        ("allowed_token_ids", json!([])),
    ] {
        let mut body = json!({"messages": question(), "max_tokens": 1});
        body[name] = value;
        let reply = server.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 400, "{name}");
        assert_eq!(reply.json()["error"]["param"], name);
    }
    for seed in [json!(9_223_372_036_854_775_808u64), json!(-1), json!(-7), json!(u64::MAX)] {
        let body = json!({"messages": question(), "max_tokens": 1, "seed": seed});
        server.post("/v1/chat/completions", &body).ok();
    }
}

#[test]
fn timings_exclude_the_first_token() {
    let server = demo();
    let timings = |n: u64| story(&server, json!({"n_predict": n, "ignore_eos": true}))["timings"].clone();
    let one = timings(1);
    assert_eq!((&one["predicted_n"], &one["predicted_per_second"]), (&json!(1), &json!(0.0)));
    assert_eq!(one["predicted_per_token_ms"], 0.0);
    let many = timings(9);
    let (ms, rate) = (many["predicted_ms"].as_f64().unwrap(), many["predicted_per_second"].as_f64().unwrap());
    assert!((rate - 8000.0 / ms).abs() < 1e-6 * rate, "{many}");
    assert!((many["predicted_per_token_ms"].as_f64().unwrap() - ms / 8.0).abs() < 1e-6 * ms, "{many}");
}

#[test]
fn every_chunk_has_timings_on_request() {
    let server = demo();
    for (asked, least) in [(false, 1), (true, 3)] {
        let body = json!({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "stream": true,
            "timings_per_token": asked});
        let chunks = server.post("/v1/completions", &body).chunks();
        let timed: Vec<u64> =
            chunks.iter().filter_map(|chunk| chunk["timings"]["predicted_n"].as_u64()).collect();
        assert!(timed.len() >= least && timed.is_sorted() && timed.last() == Some(&8), "{timed:?}");
    }
}

#[test]
fn fields_without_effect_are_named_in_a_header() {
    let server = demo();
    const HEADER: &str = "x-latent-ignored-fields";
    let ignored = |path: &str, body: Value| {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        reply.header(HEADER).map(str::to_owned)
    };
    let chat = |more: Value| {
        let mut body = json!({"messages": question(), "max_tokens": 1});
        merge(&mut body, more);
        ignored("/v1/chat/completions", body)
    };
    assert_eq!(chat(json!({})), None);
    // Fields that change no text, or that are null, are not reported.
    let harmless = json!({"user": "me", "metadata": {"a": "b"}, "service_tier": "auto", "store": true, "model": "demo",
        "stream_options": null, "length_penalty": null, "n_keep": 4, "prompt_cache_key": "x", "seed": 1, "top_logprobs": null});
    assert_eq!(chat(harmless), None);
    assert_eq!(
        chat(json!({"length_penalty": 2, "use_beam_search": {"a": [1]}})).unwrap(),
        "length_penalty, use_beam_search"
    );
    // `suffix` is a field of completions only, and `top_k` has an effect in chats.
    assert_eq!(chat(json!({"top_k": 5, "suffix": "x"})).unwrap(), "suffix");
    let stream = json!({"messages": question(), "max_tokens": 1, "stream": true, "length_penalty": 2});
    assert_eq!(ignored("/v1/chat/completions", stream).unwrap(), "length_penalty");
    let completion = json!({"prompt": "A", "n_predict": 1, "model": "demo", "stream": false, "cache_prompt": true, "id_slot": 0,
        "tfs_z": 1});
    assert_eq!(ignored("/completion", completion).unwrap(), "tfs_z");
    let ollama = json!({"model": "demo", "messages": question(), "stream": false, "mirostat": 1,
        "options": {"num_predict": 1, "num_ctx": 100, "tfs_z": 0.5, "mirostat": 2}});
    assert_eq!(ignored("/api/chat", ollama).unwrap(), "mirostat, options.tfs_z");
    let messages =
        json!({"model": "demo", "messages": question(), "max_tokens": 1, "metadata": {}, "mcp_servers": []});
    assert_eq!(ignored("/v1/messages", messages).unwrap(), "mcp_servers");
    assert_eq!(server.post("/v1/chat/completions", &json!({"messages": 1})).header(HEADER), None);
}

#[test]
fn embd_normalize_selects_the_norm() {
    let server = demo();
    let embed = |norm: Value| -> Vec<f64> {
        let body = json!({"input": "The fox ran.", "embd_normalize": norm});
        let answer = server.post("/v1/embeddings", &body).ok();
        let list = answer["data"][0]["embedding"].as_array().unwrap();
        list.iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let unit = embed(Value::Null);
    let norm = |values: &[f64], p: f64| values.iter().map(|v| v.abs().powf(p)).sum::<f64>().powf(1.0 / p);
    assert!((norm(&unit, 2.0) - 1.0).abs() < 1e-4);
    assert_eq!(embed(json!(2)), unit);
    assert!((norm(&embed(json!(1)), 1.0) - 1.0).abs() < 1e-4);
    assert!((norm(&embed(json!(3)), 3.0) - 1.0).abs() < 1e-4);
    let largest = embed(json!(0)).iter().fold(0.0, |most: f64, value| most.max(value.abs()));
    assert!((largest - 32760.0).abs() < 0.1, "{largest}");
    // Without normalization the embedding is the mean itself, which has the same direction.
    let plain = embed(json!(-1));
    let length = norm(&plain, 2.0);
    assert!((length - 1.0).abs() > 1e-3, "{length}");
    assert!(plain.iter().zip(&unit).all(|(plain, unit)| (plain / length - unit).abs() < 1e-4));
    let wrong = json!({"input": "The fox ran.", "embd_normalize": -2});
    assert_eq!(server.post("/v1/embeddings", &wrong).error(400).1, "embd_normalize");
}
