//! llama.cpp's interface.

use crate::support::{TestServer, config, demo, start, until};
use latent_server::ServerConfig;
use serde_json::{Value, json};

#[test]
fn tokens_and_text_go_both_ways() {
    let server = demo();
    let tokens = server.post("/tokenize", &json!({"content": "The fox ran."})).ok()["tokens"].clone();
    assert!(tokens.as_array().unwrap().len() > 2);
    assert_eq!(server.post("/detokenize", &json!({"tokens": tokens})).ok()["content"], "The fox ran.");
    let pieces = server.post("/tokenize", &json!({"content": "The fox ran.", "with_pieces": true})).ok();
    assert_eq!(pieces["tokens"][0]["id"], tokens[0]);
    assert_eq!(server.post("/detokenize", &json!({"tokens": [4_000_000_000_u64]})).status, 400);
    assert_eq!(server.post("/detokenize", &json!({"tokens": [-1]})).status, 400);
    assert_eq!(server.post("/tokenize", &json!({})).status, 400);
}

#[test]
fn completions_stream_and_end_in_their_own_form() {
    let server = demo();
    let body = |more: Value| {
        let mut body = json!({"prompt": "Once upon a time", "n_predict": 12, "temperature": 0});
        crate::support::merge(&mut body, more);
        body
    };
    let whole = server.post("/completion", &body(json!({"n_probs": 2, "return_tokens": true}))).ok();
    assert_eq!(
        (&whole["stop"], &whole["stop_type"], &whole["tokens_predicted"]),
        (&json!(true), &json!("limit"), &json!(12))
    );
    assert_eq!(whole["tokens"].as_array().unwrap().len(), 12);
    assert_eq!(whole["completion_probabilities"].as_array().unwrap().len(), 12);
    assert_eq!(whole["generation_settings"]["temperature"], 0.0);
    assert!(whole["timings"]["prompt_n"].is_u64());
    let events = server.post("/completion", &body(json!({"stream": true, "return_tokens": true}))).events();
    let values: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let text: String = values.iter().map(|value| value["content"].as_str().unwrap()).collect();
    assert_eq!(text, whole["content"].as_str().unwrap());
    let last = &values[values.len() - 1];
    assert_eq!((&last["stop"], &last["tokens_predicted"]), (&json!(true), &json!(12)));
    let ids: Vec<&Value> = values.iter().flat_map(|value| value["tokens"].as_array().unwrap()).collect();
    assert_eq!(ids, whole["tokens"].as_array().unwrap().iter().collect::<Vec<_>>());
    // Prompts of token IDs, of IDs and texts mixed, and several prompts.
    let tokens = server.post("/tokenize", &json!({"content": "Once upon a time", "add_special": true})).ok()
        ["tokens"]
        .clone();
    assert_eq!(
        server.post("/completion", &body(json!({"prompt": tokens}))).ok()["content"],
        whole["content"]
    );
    let list = server.post("/completion", &body(json!({"prompt": ["Once upon a time", tokens]}))).ok();
    assert_eq!(list[0]["content"], list[1]["content"]);
    server.post("/completion", &body(json!({"prompt": ["Once", 5, " upon"]}))).ok();
}

#[test]
fn props_health_and_models_describe_the_server() {
    let server = demo();
    assert_eq!(server.get("/health").ok(), json!({"status": "ok"}));
    let props = server.get("/props").ok();
    assert_eq!(props["model_alias"], "demo");
    assert_eq!(props["default_generation_settings"]["n_ctx"], crate::support::CONTEXT);
    assert!(props["chat_template"].as_str().unwrap().contains("messages"));
    assert_eq!(server.get("/slots").ok().as_array().unwrap().len(), 16);
    let models = server.get("/v1/models").ok();
    assert_eq!((&models["data"][0]["id"], &models["models"][0]["name"]), (&json!("demo"), &json!("demo")));
    assert_eq!(server.get("/v1/models/demo").ok()["id"], "demo");
    server.get("/v1/models/other").error(404);
    server.post("/completion", &json!({"prompt": "A", "n_predict": 3})).ok();
    // The engine publishes its metrics after the step that ended the answer.
    let mut metrics = server.get("/metrics").text();
    while !metrics.contains("llamacpp:tokens_predicted_total 3") {
        assert!(metrics.contains("llamacpp:tokens_predicted_total "), "{metrics}");
        metrics = server.get("/metrics").text();
    }
    for name in [
        "llamacpp:prompt_tokens_total ",
        "llamacpp:tokens_predicted_total 3",
        "latent_ready 1",
        "latent_http_requests_total{path=\"/completion\",status=\"200\"} 1",
    ] {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
    // Prometheus needs the type of every sample.
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(metrics.contains(&format!("# TYPE {name} ")), "{line}");
        assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn rates_are_those_since_the_last_scrape_and_seconds_are_summed() {
    let server = demo();
    let figure = |page: &str, name: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("llamacpp:{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {page}")).parse().unwrap()
    };
    let prompt = "The quick brown fox jumps over the lazy dog. ".repeat(12);
    let body = json!({"prompt": prompt, "n_predict": 8, "ignore_eos": true, "temperature": 0});
    let answers = [0, 1].map(|_| server.post("/completion", &body).ok());
    server.assert_idle();
    let scraped = server.get("/metrics");
    let started: u64 = scraped.header("process-start-time-unix").unwrap().parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(started <= now && now - started < 3600, "{started} of {now}");
    let page = scraped.text();
    let sum =
        |name: &str| answers.iter().map(|answer| answer["timings"][name].as_f64().unwrap()).sum::<f64>();
    assert_eq!(figure(&page, "prompt_tokens_total"), sum("prompt_n"));
    assert!(sum("cache_n") > 0.0);
    assert_eq!(figure(&page, "prompt_tokens_cached_total"), sum("cache_n"));
    assert_eq!(figure(&page, "tokens_predicted_total"), 16.0);
    let whole = answers[0]["tokens_evaluated"].as_f64().unwrap();
    assert_eq!(figure(&page, "n_tokens_max"), whole + 8.0);
    assert_eq!(figure(&page, "spec_decode_num_drafts_total"), 0.0);
    // Seven tokens of each answer took a step. The first one comes from the prompt's last step.
    for (seconds, rate, tokens) in [
        ("tokens_predicted_seconds_total", "predicted_tokens_seconds", 14.0),
        ("prompt_seconds_total", "prompt_tokens_seconds", sum("prompt_n")),
    ] {
        let (seconds, rate) = (figure(&page, seconds), figure(&page, rate));
        assert!(seconds > 0.0 && (rate * seconds / tokens - 1.0).abs() < 1e-3, "{rate} in {seconds}: {page}");
    }
    let again = server.get("/metrics").text();
    for rate in ["predicted_tokens_seconds", "prompt_tokens_seconds"] {
        assert_eq!(figure(&again, rate), 0.0);
    }
    assert_eq!(figure(&again, "tokens_predicted_total"), 16.0);
}

#[test]
fn phases_are_timed_while_a_client_polls() {
    let server = demo();
    assert_eq!(server.get("/latent/profile").ok(), json!({"phases": []}));
    server.post("/completion", &json!({"prompt": "A", "n_predict": 30, "ignore_eos": true})).ok();
    server.assert_idle();
    let profile = server.get("/latent/profile").ok();
    let phases = profile["phases"].as_array().unwrap();
    assert!(phases.len() > 3, "{profile}");
    let share: f64 = phases.iter().map(|phase| phase["share"].as_f64().unwrap()).sum();
    assert!(share > 0.05 && share < 1.2, "{share}");
    assert!(profile["rows"].as_f64().unwrap() >= 1.0 && profile["step_microseconds"].as_f64().unwrap() > 0.0);
    assert!(server.get("/").text().contains("<!DOCTYPE html>"));
    assert!(server.get("/assets/main.js").header("content-type").unwrap().starts_with("text/javascript"));
}

#[test]
fn steps_before_the_first_poll_are_timed() {
    let server = demo();
    server.post("/completion", &json!({"prompt": "A", "n_predict": 10, "ignore_eos": true})).ok();
    server.assert_idle();
    let profile = server.get("/latent/profile").ok();
    assert!(profile["phases"].as_array().unwrap().len() > 3, "{profile}");
}

#[test]
fn slots_show_figures_of_requests_and_none_of_their_texts() {
    let mut config = config();
    config.scheduler.max_running = 2;
    let server = start(config);
    let slots = |server: &TestServer| server.get("/slots").ok().as_array().unwrap().clone();
    let idle = slots(&server);
    assert_eq!(idle.len(), 2);
    assert!(idle.iter().all(|slot| slot.get("params").is_none() && slot["is_processing"] == false));
    let body = json!({"prompt": "The secret fox", "n_predict": 5, "ignore_eos": true, "temperature": 0.25, "stop": ["secret stop"]});
    let answer = server.post("/completion", &body).ok();
    until("idle", || slots(&server).iter().all(|slot| slot["is_processing"] == false));
    let [first, second] = <[Value; 2]>::try_from(slots(&server)).unwrap();
    assert_eq!((&first["id_task"], &answer["id_slot"]), (&json!(0), &json!(0)));
    assert_eq!(first["n_prompt_tokens"], answer["tokens_evaluated"]);
    // A finished request has no progress.
    assert_eq!(first["n_prompt_tokens_processed"], 0);
    assert_eq!(
        first["next_token"],
        json!([{"has_next_token": false, "has_new_line": false, "n_remain": -1, "n_decoded": 0}])
    );
    assert_eq!(first["params"]["temperature"], 0.25);
    assert!(second.get("id_task").is_none() && !first.to_string().contains("secret"), "{first}");
    // A stream that the client does not read to its end.
    let stream = server
        .begin("/completion", &json!({"prompt": "A", "n_predict": 400, "ignore_eos": true, "stream": true}));
    let mut running = Value::Null;
    until("running", || {
        running = slots(&server)[1].clone();
        running["next_token"][0]["n_decoded"].as_u64().is_some_and(|decoded| decoded > 0)
    });
    let token = &running["next_token"][0];
    let [decoded, remain] = ["n_decoded", "n_remain"].map(|name| token[name].as_u64().unwrap());
    assert_eq!(
        (decoded + remain, &running["is_processing"], &token["has_next_token"]),
        (400, &json!(true), &json!(true))
    );
    assert_eq!(server.get("/slots?fail_on_no_slot=1").status, 200);
    drop(stream);
    until("idle", || slots(&server)[1]["is_processing"] == false);
    server.assert_idle();
}

#[test]
fn slots_are_hidden_and_refused_by_name() {
    let server = start(ServerConfig { slots: false, ..config() });
    assert!(server.get("/slots").error(501).0.contains("--no-slots"));
    assert_eq!(server.get("/props").ok()["endpoint_slots"], false);
    for (method, path, status, word) in [
        ("POST", "/rerank", 501, "embeddings"),
        ("POST", "/v1/rerank", 501, "reranker"),
        ("POST", "/reranking", 501, "reranker"),
        ("GET", "/cors-proxy", 403, "does not forward requests"),
        ("GET", "/tools", 403, "tools"),
        ("POST", "/props", 501, "flags"),
        ("POST", "/slots/0?action=save", 501, "--slot-save-path"),
    ] {
        let (message, _) = server.ask(method, path, &[], "").error(status);
        assert!(message.contains(word), "{path}: {message}");
    }
}

#[test]
fn props_tell_what_the_template_and_the_server_can_do() {
    let props = demo().get("/props").ok();
    assert_eq!(props["chat_template_caps"]["supports_string_content"], true);
    assert_eq!(props["chat_template_caps"]["supports_system_role"], true);
    assert_eq!(props["modalities"], json!({"vision": false, "video": false, "audio": false}));
    assert_eq!((&props["endpoint_slots"], &props["endpoint_metrics"]), (&json!(true), &json!(true)));
    assert!(props["build_info"].as_str().unwrap().starts_with('b'));
}

#[test]
fn embeddings_have_the_form_of_their_address() {
    let server = demo();
    let native = |path: &str, body: Value| -> Vec<f64> {
        let value = server.post(path, &body).ok();
        assert_eq!(value[0]["index"], 0);
        let [vector] = value[0]["embedding"].as_array().unwrap().as_slice() else { panic!("{value}") };
        vector.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let vector = native("/embedding", json!({"content": "hello world"}));
    assert!((vector.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-3);
    assert_eq!(native("/embeddings", json!({"input": "hello world"})), vector);
    let sum = native("/embedding", json!({"content": "hello world", "embd_normalize": 1}));
    assert!((sum.iter().map(|x| x.abs()).sum::<f64>() - 1.0).abs() < 1e-3);
    let largest = native("/embedding", json!({"content": "hello world", "embd_normalize": 0}));
    assert!((largest.iter().fold(0.0, |a: f64, x| a.max(x.abs())) - 32760.0).abs() < 1.0);
    // Without normalization the embedding has the length that the model computed.
    let plain = native("/embedding", json!({"content": "hello world", "embd_normalize": -1}));
    let length = plain.iter().map(|x| x * x).sum::<f64>().sqrt();
    assert!((length - 1.0).abs() > 1e-3, "{length}");
    assert!(plain.iter().zip(&vector).all(|(plain, unit)| (plain / length - unit).abs() < 1e-4));
    assert_eq!(server.post("/embedding", &json!({"content": "x", "embd_normalize": -2})).status, 400);
    let input = json!([
        "hello world",
        {"content": [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]},
        {"prompt_string": "hello world"},
        [5, "hello", 7],
        [5, 6],
    ]);
    let list = server.post("/v1/embeddings", &json!({"input": input})).ok();
    assert_eq!((&list["object"], list["data"].as_array().unwrap().len()), (&json!("list"), 5));
    for i in 0..3 {
        let own: Vec<f64> =
            list["data"][i]["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        assert_eq!(own, vector, "{i}");
    }
    assert_eq!(server.post("/embeddings", &json!({"input": input})).ok()[4]["index"], 4);
    for input in [
        json!([]),
        json!({"content": "x"}),
        json!({"content": [{"type": "unknown"}]}),
        json!({"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}),
    ] {
        server.post("/v1/embeddings", &json!({"input": input})).error(400);
    }
    let (message, param) = server.post("/v1/embeddings", &json!({})).error(400);
    assert!(param == "input" && message.contains("`input`"), "{message}");
}

#[test]
fn progress_begins_with_the_cached_tokens() {
    let server = demo();
    let prompt = "The fox carried a lantern. ".repeat(30);
    let body =
        json!({"prompt": prompt, "n_predict": 3, "stream": true, "return_progress": true, "temperature": 0});
    for cached in [false, true] {
        let events = server.post("/completion", &body).events();
        let values: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
        let progress: Vec<&Value> =
            values.iter().filter(|value| value["prompt_progress"].is_object()).collect();
        let (first, last) = (progress[0], progress[progress.len() - 1]);
        let of = |value: &Value, name: &str| value["prompt_progress"][name].as_f64().unwrap();
        assert_eq!(of(first, "processed"), of(first, "cache"));
        assert_eq!(of(first, "cache") > 0.0, cached, "{first}");
        assert_eq!(of(last, "processed"), of(last, "total"));
        assert!(
            progress.windows(2).all(|pair| of(pair[0], "processed") < of(pair[1], "processed")),
            "{progress:?}"
        );
        assert!(progress.windows(2).all(|pair| of(pair[0], "time_ms") <= of(pair[1], "time_ms")));
        assert_eq!((&first["timings"]["prompt_n"], &first["timings"]["predicted_n"]), (&json!(0), &json!(0)));
        assert_eq!(last["timings"]["prompt_n"].as_f64().unwrap(), of(last, "total") - of(last, "cache"));
        let end = &values[values.len() - 1];
        assert!(end["stop"] == true && end["has_new_line"] == false, "{end}");
    }
    let lines =
        json!({"prompt": "A", "n_predict": 9, "stream": true, "grammar": crate::support::only("a\nb")});
    let events = server.post("/completion", &lines).events();
    let end: Value = serde_json::from_str(&events[events.len() - 1].1).unwrap();
    assert_eq!(end["has_new_line"], true, "{end}");
}
