//! Requests to every API, checked up to the job for the engine and the answer.

mod body;

use crate::source::FuzzSource;
use latent_formats::{Checkpoint, CheckpointSource as FileSource};
use latent_server::{CheckedRequest, Limits, ModelFacts, ModelFigures, RequestCheck, TakenJob};
use latent_text::Tokenizer;
use serde_json::Value;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The addresses that requests are sent to.
pub(super) const PATHS: [&str; 13] = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/completion",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/api/chat",
    "/api/generate",
    "/api/show",
];

/// Context length in tokens.
const CONTEXT: usize = 4096;

/// The first byte chooses the address with its lower five bits and the chat template with the bit
/// 64. With the bit 128, choices generate the body; otherwise the body is the rest of the input.
///
/// A refusal must have a status of 400, 404 or 429 and the form of its API. An accepted request
/// must be within the limits, and its answer must be JSON. The input items of a stored response
/// must give the same prompt again.
///
/// # Panics
/// If one of these conditions is violated.
pub fn request(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let path = PATHS[usize::from(first & 31) % PATHS.len()];
    let body = match first & 128 {
        0 => rest.to_vec(),
        _ => body::generate(&mut FuzzSource::new(rest), path).to_string().into_bytes(),
    };
    // One request at a time: `ask` collects all jobs that were submitted, of any request.
    let check = server(usize::from(first >> 6 & 1)).lock().unwrap_or_else(PoisonError::into_inner);
    let checked = check.ask(path, Some(&body));
    let shown = || String::from_utf8_lossy(&body);
    let answers: usize = checked.jobs.iter().map(|job| job.choices).sum();
    // A short request must not cause a long answer, beyond a fixed size per choice.
    let limit = 8192 * (1 + answers) + 256 * body.len();
    assert!(checked.body.len() <= limit, "{path}: {} bytes for {}", checked.body.len(), shown());
    if checked.status != 200 {
        refusal(path, &checked).unwrap_or_else(|problem| panic!("{path} {}: {problem}", shown()));
        return;
    }
    assert!(is_json(&checked.body), "{path} {}: {}", shown(), String::from_utf8_lossy(&checked.body));
    for job in &checked.jobs {
        in_bounds(job).unwrap_or_else(|problem| panic!("{path} {}: {problem}", shown()));
    }
    // Only the Responses API stores its input.
    if path == "/v1/responses" {
        resend(&check, &body, &checked);
    }
}

/// The server of the demo model with its own chat template (0), or with one that supports reasoning
/// and tools (1).
fn server(template: usize) -> &'static Mutex<RequestCheck> {
    static ALL: [OnceLock<Mutex<RequestCheck>>; 2] = [const { OnceLock::new() }; 2];
    ALL[template].get_or_init(|| {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
        let path = crates.join("../models/mla-demo-Q4_K_M.gguf");
        let checkpoint = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap_or_else(|error| panic!("{error}"));
        let template = if template == 0 { own_template(&checkpoint) } else { with_tools(&crates) };
        let about = ModelFacts { id: "demo".into(), chat_template: Some(template), ..ModelFacts::default() };
        let figures = ModelFigures {
            context: CONTEXT,
            vocab: tokenizer.vocab_size(),
            hidden: 4,
            ..ModelFigures::default()
        };
        let check = RequestCheck::new(&Arc::new(tokenizer), &about, figures, Limits::default());
        Mutex::new(check.unwrap_or_else(|error| panic!("{error}")))
    })
}

fn own_template(checkpoint: &Checkpoint) -> String {
    let template = match checkpoint.source() {
        FileSource::Gguf(gguf) => gguf.metadata.str("tokenizer.chat_template"),
        FileSource::HuggingFace(_) => unreachable!("the demo model is a GGUF file"),
    };
    template.ok().flatten().unwrap_or_default().to_owned()
}

fn with_tools(crates: &Path) -> String {
    let path = crates.join("text/tests/templates/GLM-4.7-Flash.jinja");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether an answer is JSON: as a whole, or in each line or event of a stream.
fn is_json(body: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(body) else { return false };
    let line = |line: &str| {
        let data = line.strip_prefix("data: ").unwrap_or(line);
        data == "[DONE]" || data.starts_with("event: ") || serde_json::from_str::<Value>(data).is_ok()
    };
    !text.is_empty() && text.lines().filter(|line| !line.is_empty()).all(line)
}

/// Checks that a refusal blames the request and has the form of its API.
fn refusal(path: &str, checked: &CheckedRequest) -> Result<(), String> {
    let text = String::from_utf8_lossy(&checked.body).into_owned();
    if !matches!(checked.status, 400 | 404 | 429) {
        return Err(format!("status {}: {text}", checked.status));
    }
    let value: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    let error = &value["error"];
    let word = |value: &Value| value.as_str().is_some_and(|word| !word.is_empty());
    let is_valid = match path {
        path if path.starts_with("/v1/messages") => {
            value["type"] == "error" && word(&error["type"]) && word(&error["message"])
        }
        path if path.starts_with("/v1/") => {
            let param = error.get("param").is_some_and(|param| param.is_null() || word(param));
            param && word(&error["type"]) && word(&error["message"])
        }
        path if path.starts_with("/api/") => word(error),
        _ => error["code"] == checked.status && word(&error["type"]) && word(&error["message"]),
    };
    if is_valid { Ok(()) } else { Err(text) }
}

/// Checks that a job is within the limits, whatever the request says.
fn in_bounds(job: &TakenJob) -> Result<(), String> {
    let request = &job.request;
    let limits = Limits::default();
    let sampling = &request.sampling;
    let unit = |value: f32| (0.0..=1.0).contains(&value);
    let checks = [
        ("prompt", (1..=CONTEXT).contains(&request.prompt.len())),
        ("choices", (1..=limits.choices).contains(&job.choices)),
        // `MAX_TOKENS` in the server's `params.rs`.
        ("max_tokens", request.max_tokens.is_none_or(|most| most <= 1 << 30)),
        ("stop", request.stop.len() <= limits.stop),
        ("stop_bytes", request.stop.iter().all(|text| (1..=limits.stop_bytes).contains(&text.len()))),
        ("logprobs", request.logprobs.is_none_or(|top| top <= limits.top_logprobs)),
        ("temperature", (0.0..=100.0).contains(&sampling.temperature)),
        ("probabilities", [sampling.top_p, sampling.min_p, sampling.typical_p].into_iter().all(unit)),
        ("xtc", unit(sampling.xtc_probability) && unit(sampling.xtc_threshold)),
        ("repeat_penalty", sampling.repeat_penalty > 0.0 && sampling.repeat_penalty.is_finite()),
        ("penalties", (sampling.presence_penalty + sampling.frequency_penalty).is_finite()),
        ("dry", (sampling.dry_multiplier + sampling.dry_base).is_finite()),
        // `ignore_eos` bans the end-of-generation tokens in addition to those of the request.
        ("logit_bias", sampling.logit_bias.len() <= limits.logit_bias + 64),
        ("biases", sampling.logit_bias.iter().all(|(_, bias)| *bias < f32::INFINITY)),
    ];
    match checks.iter().find(|(_, fine)| !fine) {
        Some((name, _)) => Err(format!("{name}: {job:?}")),
        None => Ok(()),
    }
}

/// Sends the input items of a stored response again and compares the prompts.
fn resend(check: &RequestCheck, body: &[u8], checked: &CheckedRequest) {
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(body) else { return };
    let Ok(answer) = serde_json::from_slice::<Value>(&checked.body) else { return };
    let Some(id) = answer["id"].as_str() else { return };
    let listed = check.ask(&format!("/v1/responses/{id}/input_items"), None);
    if listed.status == 404 {
        // Responses are stored unless the request says otherwise.
        assert_eq!(fields.get("store"), Some(&Value::Bool(false)), "{answer}");
        return;
    }
    let mut items: Value = serde_json::from_slice(&listed.body).unwrap_or_else(|error| panic!("{error}"));
    let mut items = items["data"].as_array_mut().map(std::mem::take).unwrap_or_default();
    // Input items are listed in descending order.
    items.reverse();
    // Their messages are already among the items.
    for name in ["instructions", "previous_response_id"] {
        fields.remove(name);
    }
    fields.insert("input".into(), items.into());
    let body = Value::Object(fields).to_string();
    let second = check.ask("/v1/responses", Some(body.as_bytes()));
    let prompt = |checked: &CheckedRequest| checked.jobs.first().map(|job| job.request.prompt.clone());
    assert_eq!(prompt(&second), prompt(checked), "{body}: {}", String::from_utf8_lossy(&second.body));
}
