//! Sources of prompts (pipes, files, token IDs) and their tokens.

use crate::support::{demo, latent};
use serde_json::Value;
use std::path::Path;

/// The prompt's tokens of `latent run --raw --json` with these further words and this standard
/// input.
fn tokens(words: &[&str], input: &[u8]) -> Value {
    let words = [&["run", "--raw", "--json", "-n", "1", "--temp", "0"], words].concat();
    let output = latent(&words).write_stdin(input).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    answer["prompt_tokens"].clone()
}

#[test]
fn byte_order_marks_and_one_line_end_are_removed_from_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt");
    let file_name = file.display().to_string();
    let as_argument = |text: &str| tokens(&[text], b"");
    for (bytes, text) in [
        ("The fox\n", "The fox"),
        ("The fox\r\n", "The fox"),
        ("The fox\n\n", "The fox\n"),
        ("\u{feff}The fox\n", "The fox"),
        ("The fox", "The fox"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        assert_eq!(tokens(&[], bytes.as_bytes()), as_argument(text), "{bytes:?}");
        assert_eq!(tokens(&["-f", &file_name], b"ignored"), as_argument(text), "{bytes:?}");
    }
    let both = latent(&["run", "-f", &file_name, "Hi"]).output().unwrap();
    assert_eq!(both.status.code(), Some(64));
    // tokenize shows the bytes that it is given, as llama-tokenize does
    let shown = |input: &str| latent(&["tokenize", "--json"]).write_stdin(input).output().unwrap().stdout;
    assert_ne!(shown("The fox\n"), shown("The fox"));
}

#[test]
fn token_ids_run_on_a_model_without_a_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let made = latent(&["make-model", "tiny-dense", "F32", "--layers", "1", &at("folder")]).output().unwrap();
    assert!(made.status.success());
    // A file has none, either.
    let made = latent(&["convert", &at("folder"), "-o", &at("m.gguf")]).output().unwrap();
    assert!(made.status.success());
    for model in ["m.gguf", "folder"] {
        let model = at(model);
        let words = ["run", "-m", &model, "--tokens", "1,2", "-n", "3", "--temp", "0"];
        let output = latent(&[&words[..], &["--json"]].concat()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let ids: Vec<String> = answer["tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
        assert_eq!(ids.len(), 3);
        let output = latent(&words).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), ids.join(" "));
        assert!(String::from_utf8_lossy(&output.stderr).contains("no tokenizer"));
        let refused = latent(&["run", "-m", &model, "Hi"]).output().unwrap();
        assert!(!refused.status.success());
        let base = at("base.kld");
        let logits = ["logits", "-m", &model, "--tokens", "1,2,3,4", "--kl-chunk", "4", "--force"];
        let output = latent(&[&logits[..], &["--kl-divergence-base", &base]].concat()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A folder whose tokenizer.json says `"special": false` of the names of turns, and the GGUF file
/// that it is converted to.
#[test]
fn raw_text_has_the_same_tokens_in_a_folder_and_its_gguf_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let converted = |from: &Path, to: &Path| {
        let words = ["convert", &from.display().to_string(), "-o", &to.display().to_string()];
        let output = latent(&words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    converted(&demo(), &at("folder"));
    let file = at("folder/tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    for token in json["added_tokens"].as_array_mut().unwrap() {
        token["special"] = false.into();
    }
    std::fs::write(&file, json.to_string()).unwrap();
    assert!(!converted(&at("folder"), &at("a.gguf")).contains("rule of the tokenizer"));
    // A rule that the format cannot express is named, in every form of the output.
    json["normalizer"] = serde_json::json!({"type": "NFC"});
    std::fs::write(&file, json.to_string()).unwrap();
    let note = "normalizer {\"type\":\"NFC\"}";
    assert!(converted(&at("folder"), &at("b.gguf")).contains(note));
    for flags in ["--type Q8_0 --json --force", "--type Q8_0 --json --dry-run"] {
        let from = at("folder").display().to_string();
        let words: Vec<&str> = ["convert", &from].into_iter().chain(flags.split(' ')).collect();
        let output = latent(&words).output().unwrap();
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(said["notes"][0].as_str().unwrap().contains(note), "{said}");
    }
    const TEXT: &str = "The fox<｜User｜> and <｜end▁of▁sentence｜> the owl";
    for special in [false, true] {
        let [in_folder, in_file] = ["folder", "a.gguf"].map(|name| {
            let model = at(name).display().to_string();
            let flag = if special { ["--allow-special"].as_slice() } else { &[] };
            let ran = tokens(&[&["-m", &model, TEXT], flag].concat(), b"");
            let flag = if special { [].as_slice() } else { &["--plain"] };
            let output =
                latent(&[&["tokenize", "--json", "-m", &model, TEXT], flag].concat()).output().unwrap();
            let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(shown["ids"], ran, "{name} {special}");
            ran
        });
        assert_eq!(in_folder, in_file, "{special}");
        let user = in_folder.as_array().unwrap().iter().any(|id| *id == 3);
        assert_eq!(user, special, "{in_folder}");
    }
}
