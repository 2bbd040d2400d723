//! `latent audit` as a user meets it: each exit code and message.
#![allow(missing_docs, reason = "tests")]

use assert_cmd::Command;
use formats::Checkpoint;
use formats::safetensors::Writer;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};

fn latent(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::cargo_bin("latent").unwrap();
    let output = command
        .args(args)
        .env_remove("LATENT_MODEL")
        .timeout(std::time::Duration::from_secs(100))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn json(args: &[&str]) -> (i32, Value) {
    let (code, stdout, stderr) = latent(args);
    (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}")))
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures")
}

/// The fixture v3 as a folder of its own, with one more tensor.
fn with_tensor(name: &str) -> tempfile::TempDir {
    let source = fixtures().join("v3");
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(source.join("config.json"), folder.path().join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let mut writer = Writer::new();
    for tensor in checkpoint.tensors() {
        writer.tensor(tensor.name.clone(), tensor.ty, &tensor.shape).unwrap();
    }
    writer.tensor(name, base::TensorType::F32, &[1]).unwrap();
    let mut file = std::fs::File::create(folder.path().join("model.safetensors")).unwrap();
    writer
        .write(&mut file, |i, out| match checkpoint.tensors().get(i) {
            Some(info) => out.write_all(checkpoint.tensor(&info.name).unwrap().data),
            None => out.write_all(&[0; 4]),
        })
        .unwrap();
    folder
}

#[test]
fn every_fixture_is_clean() {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(fixtures()).unwrap().flatten().filter(|e| e.path().is_dir()) {
        paths.push(entry.path());
        let gguf = entry.path().join("model.f32.gguf");
        paths.extend(Some(gguf).filter(|path| path.exists()));
    }
    assert!(paths.len() > 9);
    for path in paths {
        let (code, report) = json(&["audit", "-m", &path.display().to_string(), "--json"]);
        assert_eq!(code, 0, "{}: {}", path.display(), report["findings"]);
        assert_eq!((&report["findings"], &report["plans"]), (&serde_json::json!([]), &60.into()));
        assert!(report["edges"].as_u64() > report["nodes"].as_u64());
    }
}

#[test]
fn the_demo_model_is_clean_and_its_edges_are_named() {
    let (code, text, _) = latent(&["audit"]);
    assert_eq!(code, 0);
    assert!(text.contains("findings       0") && text.contains("circuit deepseek2"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let (_, edges, _) = latent(&["audit", "--edges"]);
    assert!(edges.contains("[k_rope]") && edges.contains("latent_store") && edges.contains("[residual]"));
    let (_, edges) = json(&["audit", "--edges", "--json"]);
    assert!(edges[0]["slot"] == "tokens" && edges[0]["producer"].is_null());
}

#[test]
fn a_tensor_that_nothing_reads_is_a_finding_and_refuses_the_model() {
    let folder = with_tensor("model.layers.1.self_attn.sinks");
    let path = folder.path().display().to_string();
    let (code, text, error) = latent(&["audit", "-m", &path]);
    assert_eq!(code, 1, "{text}{error}");
    assert!(text.contains("A30") && text.contains("self_attn.sinks") && text.contains("unused"), "{text}");
    assert!(error.contains("1 finding"), "{error}");
    let (_, report) = json(&["audit", &path, "--json"]);
    assert_eq!(report["findings"][0]["code"], "A30");
    let (code, _, error) = latent(&["logits", "-m", &path, "--tokens", "1"]);
    assert_eq!(code, 1);
    assert!(error.contains("A30") && error.contains("self_attn.sinks"), "{error}");
    // one that is declared is no finding
    let folder = with_tensor("vision_tower.patch_embed.weight");
    let (code, report) = json(&["audit", "-m", &folder.path().display().to_string(), "--json"]);
    assert_eq!((code, &report["unused"][0]["tensor"]), (0, &"vision_tower.patch_embed.weight".into()));
}

#[test]
fn models_that_cannot_be_audited() {
    let (code, _, error) = latent(&["audit", "-m", "/no/such/model.gguf"]);
    assert_eq!(code, 1);
    assert!(error.contains("/no/such/model.gguf"), "{error}");
    let (code, _, error) = latent(&["audit", "--rules", "--deep"]);
    assert_eq!(code, 64, "{error}");
}

/// docs/audit.md lists the rules as the program does.
#[test]
fn the_documented_rules_are_those_of_the_code() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/audit.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let (code, rules) = json(&["audit", "--rules", "--json"]);
    assert_eq!(code, 0);
    let rows: Vec<String> = rules
        .as_array()
        .unwrap()
        .iter()
        .map(|r| {
            let text = |key: &str| r[key].as_str().unwrap();
            format!("| {} | {} | {} |", text("code"), text("holds"), text("hint"))
        })
        .collect();
    let written: Vec<&str> = docs.lines().filter(|line| line.starts_with("| A")).collect();
    assert_eq!(written, rows, "run `latent audit --rules --json` and bring docs/audit.md up to date");
}
