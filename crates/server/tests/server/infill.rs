//! Fill-in-the-middle prompts.

use crate::support::{CONTEXT, TestServer, about, config, demo, loader, open_demo, source, wrap};
use latent_formats::CheckpointSource;
use latent_server::{
    CheckedRequest, Extras, Limits, LoadedModel, Loader, ModelFigures, RequestCheck, Server,
};
use latent_text::{FimTokens, GgufVocab, Tokenizer};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The demo model's tokenizer with fill-in-the-middle tokens. They are control tokens, and tokens
/// of bytes that UTF-8 does not have, which cannot occur in code.
fn tokenizer(fim: FimTokens) -> Arc<Tokenizer> {
    let checkpoint = open_demo();
    let CheckpointSource::Gguf(source) = checkpoint.source() else { panic!("a GGUF file is expected") };
    let vocab = GgufVocab { fim, ..GgufVocab::from_metadata(&source.metadata).unwrap() };
    Arc::new(Tokenizer::from_gguf(&vocab).unwrap())
}

const FIM: FimTokens =
    FimTokens { prefix: Some(2), suffix: Some(3), middle: Some(4), pad: None, repository: None, file: None };

fn check(fim: FimTokens) -> (RequestCheck, Arc<Tokenizer>) {
    let tokenizer = tokenizer(fim);
    let figures = ModelFigures {
        context: CONTEXT,
        vocab: tokenizer.vocab_size(),
        hidden: 8,
        ..ModelFigures::default()
    };
    let about = about("demo", &open_demo());
    (RequestCheck::new(&tokenizer, &about, figures, Limits::default()).unwrap(), tokenizer)
}

fn post(check: &RequestCheck, path: &str, body: &Value) -> CheckedRequest {
    check.ask(path, Some(body.to_string().as_bytes()))
}

/// The prompt for the engine.
fn prompt(check: &RequestCheck, path: &str, body: &Value) -> Vec<u32> {
    let checked = post(check, path, body);
    assert_eq!(checked.status, 200, "{}", String::from_utf8_lossy(&checked.body));
    let [job] = checked.jobs.as_slice() else { panic!("{:?}", checked.jobs) };
    job.request.prompt.clone()
}

/// A prompt as text, with names for the markers.
fn shown(tokenizer: &Tokenizer, prompt: &[u32]) -> String {
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let names = [(2, "[PRE]"), (3, "[SUF]"), (4, "[MID]"), (191, "[REPO]"), (192, "[FILE]")];
    let mut text = String::new();
    let mut open = Vec::new();
    for (at, id) in prompt.iter().enumerate() {
        if at == 0 && Some(*id) == bos {
            text.push_str("[BOS]");
        } else if let Some((_, name)) = names.iter().find(|(marker, _)| marker == id) {
            text.push_str(&tokenizer.decode(&std::mem::take(&mut open), false));
            text.push_str(name);
        } else {
            open.push(*id);
        }
    }
    text + &tokenizer.decode(&open, false)
}

#[test]
fn a_gap_stands_between_its_markers_and_names_of_tokens_in_code_are_text() {
    let (check, tokenizer) = check(FIM);
    let eos = tokenizer.token_text(tokenizer.eos().unwrap()).unwrap();
    let body = json!({"input_prefix": format!("a {eos} b\n"), "input_suffix": "}\n", "prompt": "  int n", "n_predict": 4});
    let tokens = prompt(&check, "/infill", &body);
    assert_eq!(shown(&tokenizer, &tokens), format!("[BOS][PRE]a {eos} b\n  int n[SUF]}}\n[MID]"));
    assert!(!tokens.contains(&tokenizer.eos().unwrap()));
    // OpenAI's interface.
    let body = json!({"prompt": format!("a {eos} b\n"), "suffix": "}\n", "max_tokens": 4});
    let whole = prompt(&check, "/v1/completions", &body);
    assert_eq!(shown(&tokenizer, &whole), format!("[BOS][PRE]a {eos} b\n[SUF]}}\n[MID]"));
    // Ollama's interface.
    assert_eq!(prompt(&check, "/api/generate", &body), whole);
    let many = post(&check, "/v1/completions", &json!({"prompt": ["a", "b"], "suffix": "c"}));
    assert_eq!((many.status, many.jobs.len()), (200, 2));
    for (body, word) in [
        (json!({"prompt": "a", "suffix": "b", "echo": true}), "echo"),
        (json!({"prompt": [1, 2], "suffix": "b"}), "prompt[0]"),
        (json!({"suffix": "b"}), "prompt"),
        (json!({"prompt": "a ".repeat(CONTEXT), "suffix": "b"}), "context"),
    ] {
        let refused = post(&check, "/v1/completions", &body);
        let text = String::from_utf8_lossy(&refused.body);
        assert!(refused.status == 400 && text.contains(word), "{body}: {text}");
    }
}

#[test]
fn other_files_come_first_and_far_text_is_cut() {
    let files = json!([{"filename": "a.h", "text": "one"}, {"text": "two"}]);
    let body = json!({"input_prefix": "x", "input_suffix": "y", "input_extra": files});
    let (plain, own) = check(FIM);
    let tokens = prompt(&plain, "/infill", &body);
    let snippet = "\n\n--- snippet ---\n\n";
    assert_eq!(shown(&own, &tokens), format!("[BOS]{snippet}one{snippet}two[PRE]x[SUF]y[MID]"));
    let (named, own) = check(FimTokens { repository: Some(191), file: Some(192), ..FIM });
    let tokens = prompt(&named, "/infill", &body);
    let expected = "[BOS][REPO]myproject\n[FILE]a.h\none[FILE]tmp\ntwo[FILE]filename\n[PRE]x[SUF]y[MID]";
    assert_eq!(shown(&own, &tokens), expected);
    // The text around the gap is kept. The rest of the context holds the end of the other files.
    let long = |word: &str| (0..2000).map(|i| format!("{word}{i}\n")).collect::<String>();
    let body = json!({
        "input_prefix": long("before"), "input_suffix": long("after"), "n_predict": 16,
        "input_extra": [{"text": long("far")}, {"text": "near"}],
    });
    let tokens = prompt(&plain, "/infill", &body);
    let text = shown(&own, &tokens);
    assert!(tokens.len() + 16 <= CONTEXT && tokens.len() > CONTEXT - 32, "{}", tokens.len());
    assert!(text.contains("before1999\n[SUF]after0\n") && text.ends_with("[MID]"), "{text}");
    let body = json!({"input_prefix": "x", "input_suffix": "y", "input_extra": [{"text": long("far")}, {"text": "near"}]});
    let tokens = prompt(&plain, "/infill", &body);
    let text = shown(&own, &tokens);
    assert!(
        text.starts_with("[BOS]") && text.ends_with(&format!("far1999\n{snippet}near[PRE]x[SUF]y[MID]")),
        "{text}"
    );
    assert!(tokens.len() < CONTEXT);
    // A megabyte of text before the gap is cut too.
    let body = json!({"input_prefix": "word ".repeat(200_000), "input_suffix": ""});
    assert!(prompt(&plain, "/infill", &body).len() < CONTEXT);
}

#[test]
fn malformed_requests_for_a_gap_name_their_field() {
    let (check, _) = check(FIM);
    for (more, word) in [
        (json!({"input_extra": [{}]}), "input_extra[0].text"),
        (json!({"input_extra": [{"filename": "ok"}]}), "input_extra[0].text"),
        (json!({"input_extra": [{"filename": 123, "text": "abc"}]}), "input_extra[0].filename"),
        (json!({"input_extra": [{"text": 456}]}), "input_extra[0].text"),
        (json!({"input_extra": {}}), "input_extra"),
        (json!({"input_prefix": null}), "input_prefix"),
        (json!({"input_suffix": 1}), "input_suffix"),
        (json!({"prompt": ["a"]}), "prompt"),
    ] {
        let mut body = json!({"input_prefix": "a", "input_suffix": "b"});
        crate::support::merge(&mut body, more);
        let refused = post(&check, "/infill", &body);
        let text = String::from_utf8_lossy(&refused.body);
        assert!(refused.status == 400 && text.contains(word), "{body}: {text}");
    }
}

#[test]
fn a_model_without_fill_in_the_middle_tokens_is_an_error() {
    let server = demo();
    let (message, _) = server.post("/infill", &json!({"input_prefix": "a", "input_suffix": "b"})).error(501);
    assert!(message.contains("prefix, suffix, middle"), "{message}");
    let (message, param) = server.post("/v1/completions", &json!({"prompt": "a", "suffix": "b"})).error(400);
    assert!(param == "suffix" && message.contains("fill in the middle"), "{message}");
}

/// A server whose model has fill-in-the-middle tokens.
fn with_gaps() -> TestServer {
    let mut plain = loader();
    let loader: Loader = Box::new(move |attempt| {
        let loaded = plain(attempt)?;
        Ok(LoadedModel { tokenizer: tokenizer(FIM), ..loaded })
    });
    let server = Server::start(config(), vec![source("demo", loader)], Extras::default()).unwrap();
    server.wait_loaded(Duration::from_secs(60)).expect("it loads in time").unwrap();
    wrap(server)
}

#[test]
fn a_gap_is_filled_and_its_prefix_cached() {
    let server = with_gaps();
    let extra = "int llama_n_threads();\n".repeat(20);
    let ask = |prompt: &str| {
        let body = json!({
            "input_extra": [{"filename": "llama.h", "text": extra}], "input_prefix": "int main() {\n",
            "prompt": prompt, "input_suffix": "}\n", "n_predict": 4, "temperature": 0, "ignore_eos": true,
        });
        server.post("/infill", &body).ok()
    };
    let first = ask("    int n");
    assert_eq!(first["tokens_predicted"], 4);
    assert!(first["prompt"].as_str().unwrap().contains("int llama_n_threads();"));
    let second = ask("    int n_threads = ");
    assert!(second["timings"]["cache_n"].as_u64().unwrap() >= 64, "{second}");
    // Editors send a request for no tokens, to fill the cache before the user types.
    let warm = json!({"input_prefix": "", "input_suffix": "", "prompt": "", "input_extra": [{"text": "x"}], "n_predict": 0, "stream": false});
    let warmed = server.post("/infill", &warm);
    assert_eq!(warmed.status, 200, "{}", warmed.text());
    server.assert_idle();
}
