//! OpenAI's completions and embeddings.

use crate::support::demo;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

#[test]
fn completions_take_texts_tokens_and_lists() {
    let server = demo();
    let path = "/v1/completions";
    let body = |prompt: Value| json!({"prompt": prompt, "max_tokens": 10, "temperature": 0});
    let one = server.post(path, &body(json!("Once upon a time"))).ok();
    let text = one["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(
        (&one["object"], &one["choices"][0]["finish_reason"]),
        (&json!("text_completion"), &json!("length"))
    );
    let many = server.post(path, &body(json!(["Once upon a time", "The lantern"]))).ok();
    assert_eq!(many["choices"][0]["text"], text.as_str());
    assert_eq!((&many["choices"][1]["index"], &many["usage"]["completion_tokens"]), (&json!(1), &json!(20)));
    let mut streamed = body(json!(["Once upon a time", "The lantern"]));
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let chunks = server.post(path, &streamed).chunks();
    let mut texts = [String::new(), String::new()];
    for chunk in &chunks {
        for choice in chunk["choices"].as_array().unwrap() {
            texts[choice["index"].as_u64().unwrap() as usize].push_str(choice["text"].as_str().unwrap());
        }
    }
    assert_eq!(texts[0], text);
    assert_eq!(texts[1], many["choices"][1]["text"].as_str().unwrap());
    assert_eq!(chunks[chunks.len() - 1]["usage"]["completion_tokens"], 20);
    let mut echo = body(json!("Once upon a time"));
    echo["echo"] = true.into();
    assert_eq!(server.post(path, &echo).ok()["choices"][0]["text"], format!("Once upon a time{text}"));
    let mut logprobs = body(json!("Once upon a time"));
    logprobs["logprobs"] = 2.into();
    let logprobs = server.post(path, &logprobs).ok()["choices"][0]["logprobs"].clone();
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 10);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    // OpenAI's default of `max_tokens` in completions.
    assert_eq!(
        server.post(path, &json!({"prompt": "Once upon a time", "ignore_eos": true})).ok()["usage"]["completion_tokens"],
        16
    );
    server.assert_idle();
}

#[test]
fn embeddings_are_normalised_and_the_same_in_both_encodings() {
    let server = demo();
    let path = "/v1/embeddings";
    let plain = server.post(path, &json!({"input": ["A red fox.", "A red fox.", "Thunder at sea"]})).ok();
    let vector = |i: usize| -> Vec<f64> {
        plain["data"][i]["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let length = dot(&vector(0), &vector(0));
    assert!((length - 1.0).abs() < 1e-4, "{length}");
    assert!(dot(&vector(0), &vector(1)) > 0.999 && dot(&vector(0), &vector(2)) < 0.999);
    assert!(plain["usage"]["prompt_tokens"].as_u64().unwrap() > 6);
    let base64 = server.post(path, &json!({"input": "A red fox.", "encoding_format": "base64"})).ok();
    let bytes = STANDARD.decode(base64["data"][0]["embedding"].as_str().unwrap()).unwrap();
    assert_eq!(bytes.len(), 4 * vector(0).len());
    let first = f32::from_le_bytes(bytes[..4].try_into().unwrap());
    assert!((f64::from(first) - vector(0)[0]).abs() < 1e-4);
    assert_eq!(server.post(path, &json!({"input": "x", "dimensions": 3})).error(400).1, "dimensions");
    assert_eq!(
        server.post(path, &json!({"input": ""})).status,
        if server.post("/tokenize", &json!({"content": "", "add_special": true})).ok()["tokens"] == json!([])
        {
            400
        } else {
            200
        }
    );
    server.post(path, &json!({})).error(400);
    server.assert_idle();
}
