//! Drawings of `latent graph`.

use crate::support;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn latent(args: &[&str]) -> std::process::Output {
    support::latent(args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = latent(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn error(args: &[&str], code: i32) -> String {
    let output = latent(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn config() -> String {
    root("tests/browser/deepseek-v3.json").display().to_string()
}

#[test]
fn a_profile_writes_a_timeline() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps.json");
    let out = path.display().to_string();
    let profile: Value = serde_json::from_str(&stdout(&[
        "profile", "-t", "2", "-p", "20", "-n", "3", "--json", "--trace", &out,
    ]))
    .unwrap();
    let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let steps = profile["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 2);
    for (pid, step) in steps.iter().enumerate() {
        assert_eq!(step["timeline"]["measured"], true);
        let count: u64 =
            step["phases"].as_array().unwrap().iter().map(|phase| phase["count"].as_u64().unwrap()).sum();
        let micros = |event: &Value, key: &str| event[key].as_f64().unwrap();
        for thread in 0..2 {
            let own: Vec<&Value> = events
                .iter()
                .filter(|event| event["pid"] == pid && event["tid"] == thread && event["ph"] == "X")
                .collect();
            let phases: Vec<&&Value> = own.iter().filter(|event| event["cat"] == "phase").collect();
            assert_eq!(phases.len() as u64, count, "every phase of thread {thread} has a slice");
            for pair in phases.windows(2) {
                let end = micros(pair[0], "ts") + micros(pair[0], "dur");
                assert!(micros(pair[1], "ts") >= end - 1e-6, "one after the other: {} {}", pair[0], pair[1]);
            }
            let (waits, inside): (Vec<&Value>, Vec<&Value>) =
                own.iter().filter(|event| event["cat"] != "phase").partition(|event| event["cat"] == "wait");
            assert!(!waits.is_empty() && !inside.is_empty());
            for event in waits.iter().chain(&inside) {
                let (from, to) = (micros(event, "ts"), micros(event, "ts") + micros(event, "dur"));
                let within = phases.iter().any(|phase| {
                    micros(phase, "ts") - 1e-6 <= from
                        && to <= micros(phase, "ts") + micros(phase, "dur") + 1e-6
                });
                assert!(within, "inside a phase: {event}");
            }
        }
    }
    let names = |kind: &str| events.iter().filter(|event| event["name"] == kind).count();
    assert_eq!((names("process_name"), names("thread_name")), (2, 4));
    assert!(error(&["profile", "-p", "0", "-n", "1", "--trace", &out], 1).contains("--force"));
}

#[test]
fn pages_are_self_contained() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.html");
    let demo = root("models/mla-demo-Q4_K_M.gguf").display().to_string();
    let profile = folder.path().join("profile.json");
    std::fs::write(&profile, r#"{"limits": {"read_bandwidth": 1e10}, "steps": []}"#).unwrap();
    let (weights, parity) = (folder.path().join("weights.json"), folder.path().join("parity.json"));
    std::fs::write(&weights, stdout(&["audit", "--deep", "--json"])).unwrap();
    std::fs::write(&parity, stdout(&["diff", "--json", "--tokens", "5,6,7"])).unwrap();
    let [out, profile, weights, parity] =
        [&path, &profile, &weights, &parity].map(|path| path.display().to_string());
    let files = ["--profile", &profile, "--weights", &weights, "--parity", &parity, "--against", &config()];
    stdout(&[&["graph", &demo, "--html", &out][..], &files].concat());
    let page = std::fs::read_to_string(path).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("default-src 'none'"));
    let data = |id: &str| -> Value {
        let from = page.find(&format!("id=\"{id}\">")).unwrap() + id.len() + 6;
        serde_json::from_str(&page[from..from + page[from..].find("</script>").unwrap()]).unwrap()
    };
    assert_eq!(data("drawing")["format"], "latent-drawing");
    assert_eq!(data("against")["model"]["assumed"], "F8_E4M3");
    assert_eq!(data("wanted")["stage"], "plan");
    assert_eq!(data("profile")["limits"]["read_bandwidth"], 1e10);
    assert!(data("weights")["tensors"].as_array().unwrap().len() > 100);
    assert_eq!(data("parity")["report"]["points"][0]["name"], "embed");
    let text = data("file-info");
    assert!(
        text["tokenizer"].as_array().unwrap().contains(&serde_json::json!(["vocabulary", "1024 tokens"]))
    );
    assert_eq!(text["special"][0]["role"], "BOS");
    assert_eq!(text["metadata"][0], serde_json::json!(["general.architecture", "deepseek2"]));
}

#[test]
fn the_data_of_the_page_is_printed_too() {
    let drawing: Value = serde_json::from_str(&stdout(&["graph", "--format", "drawing-json"])).unwrap();
    let count = |key: &str| drawing[key].as_array().unwrap().len();
    assert_eq!(count("views"), 2 + count("formulations") * count("buckets") * (count("passes") + 1));
    // Quantized weights: tiles, 8-bit input, and the reason.
    let bindings = drawing["bindings"].as_array().unwrap();
    let q4 = bindings.iter().find(|b| b["operation"] == "linear" && b["format"] == "Q4_K").unwrap();
    assert_eq!((&q4["layout"], &q4["activation"]), (&"tiles".into(), &"a8".into()));
    assert!(!q4["others"].as_array().unwrap().is_empty());
    // A mix of formats: one block, and for each format its layers.
    let mixed = |weight: &&Value| weight["formats"].as_array().unwrap().len() > 1;
    let layers =
        drawing["weights"].as_array().unwrap().iter().find(mixed).map(|w| w["formats"][0]["layers"].clone());
    assert!(layers.is_some_and(|layers| layers.as_str().unwrap().contains(['–', ','])));
}

#[test]
fn wrong_words_are_explained() {
    assert!(error(&["graph", "plan", "ir"], 64).contains("one stage at a time"));
    assert!(error(&["graph", "a.gguf", "b.gguf"], 64).contains("one model"));
    assert!(error(&["graph", "a.gguf", "-m", "b.gguf"], 64).contains("two models"));
    assert!(error(&["graph", "--profile", "x.json"], 64).contains("--html"));
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).display().to_string()
    };
    let out = folder.path().join("x.html").display().to_string();
    let broken = write("broken.json", "{");
    assert!(error(&["graph", &broken, "--html", &out], 1).contains("broken.json"));
    let list = write("list.json", "[]");
    assert!(error(&["graph", &list, "--html", &out], 1).contains("JSON object"));
    let empty = write("empty.json", "{}");
    assert!(error(&["graph", &empty, "--html", &out], 2).contains("model_type"));
    assert!(error(&["graph", "--html", &out, "--profile", &list], 1).contains("latent profile --json"));
    assert!(
        error(&["graph", "--html", &out, "--weights", &list], 1).contains("latent verify --weights --json")
    );
    assert!(error(&["graph", "--html", &out, "--parity", &empty], 1).contains("latent diff --json"));
    // without --weights the page has no statistics
    let shallow = write("shallow.json", &stdout(&["verify", "--json"]));
    assert!(error(&["graph", "--html", &out, "--weights", &shallow], 1).contains("verify --weights"));
    assert!(error(&["graph", "--weights", &list], 64).contains("--html"));
    assert!(error(&["graph", "--html", "/no/such/folder/x.html"], 1).contains("/no/such/folder/x.html"));
}

/// The drawings of the documents are what the tool draws today: one layer of DeepSeek-V3 in each
/// formulation. With `UPDATE_DRAWINGS=1` in the environment the test writes them anew.
#[test]
fn the_documents_show_what_is_drawn_today() {
    for formulation in ["absorbed", "naive", "separate"] {
        let args = ["graph", &config(), "plan", "--layers", "1..2", "--mla", formulation, "--format", "svg"];
        let svg = stdout(&args);
        let path = root(&format!("docs/img/mla-{formulation}.svg"));
        if std::env::var_os("UPDATE_DRAWINGS").is_some() {
            std::fs::write(&path, &svg).unwrap();
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
        let name = path.display();
        assert!(
            stored == svg,
            "{name} is not what is drawn today: run with UPDATE_DRAWINGS=1 and look at it"
        );
        // nothing of the machine that draws is in it
        assert!(!svg.contains("avx") && !svg.contains("portable"));
    }
}
