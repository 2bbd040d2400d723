//! `latent diff` and `latent dump`.

use crate::support;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Output;

fn fixture(case: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures").join(case);
    path.display().to_string()
}

fn latent(args: &[&str]) -> Output {
    support::latent(args).output().unwrap()
}

fn text(args: &[&str], code: i32) -> String {
    let output = latent(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), stderr.as_ref()), (Some(code), ""), "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(args: &[&str], code: i32, words: &[&str]) {
    let output = latent(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    for word in words.iter().chain(&["error:"]) {
        assert!(stderr.contains(word), "{args:?}: no {word:?} in {stderr}");
    }
}

/// The circuit of a model with MLPs that read what attention reads: the edit that docs/debugging.md
/// makes with jq.
fn miswired(folder: &Path, model: &[&str]) -> PathBuf {
    let circuit = text(&[&["graph", "circuit"], model].concat(), 0);
    let mut circuit: Value = serde_json::from_str(&circuit).unwrap();
    circuit["blocks"]["mla"]["out"] = json!(["h_mid", "x"]);
    for block in ["dense", "moe"] {
        let block = &mut circuit["blocks"][block];
        block["in"] = json!(["h_mid", "x"]);
        let mlp = block["ops"].as_array_mut().unwrap().iter_mut().find(|op| op["op"] == "mlp").unwrap();
        mlp["in"] = json!(["x"]);
    }
    let path = folder.join("wrong.json");
    std::fs::write(&path, circuit.to_string()).unwrap();
    path
}

#[test]
fn equal_sides_agree_in_every_bit_and_the_table_fits_a_terminal() {
    let model = fixture("v3");
    let same = text(&["diff", "-m", &model, "--a", "precision=default", "--all"], 0);
    assert!(same.ends_with("the two sides agree in every bit\n"), "{same}");
    for args in [&["diff", "-m", &model, "--all"][..], &["diff"], &["diff", "--a", "mla=naive,isa=portable"]]
    {
        let table = text(args, 0);
        assert!(table.contains("the two sides agree; the last value, logits, is off by"), "{table}");
        let widest = table.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 80, "{widest}: {table}");
    }
}

#[test]
fn a_miswired_circuit_is_located_and_sets_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("v3");
    let circuit = format!("circuit={}", miswired(folder.path(), &["-m", &model]).display());
    let args = ["diff", "-m", &model, "--precision", "exact", "--a", "mla=auto", "--b", &circuit];
    let table = text(&args, 1);
    assert!(table.contains("The sides part at layers.0.ffn_act: silu_mul."), "{table}");
    assert!(table.contains("layers.0.attn_residual"), "the layer is shown in full: {table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80 || !line.contains(' ')), "{table}");
    let found: Value = serde_json::from_str(&text(&[&args[..], &["--json"]].concat(), 1)).unwrap();
    assert_eq!(found["first"], "layers.0.ffn_act");
    let points = found["report"]["points"].as_array().unwrap();
    let at = found["report"]["parted"].as_u64().unwrap() as usize;
    assert_eq!((&points[at]["name"], &points[at]["verdict"]), (&found["first"], &"parts".into()));
    assert!(points[..at].iter().all(|point| point["verdict"] == "same" && point["relative"] == 0.0));
    assert!(points[at]["cosine"].as_f64().unwrap() < 0.99);
    assert_eq!(found["tokens"].as_array().unwrap().len(), 24);
}

/// The example of docs/debugging.md: the same edit, the same command, the same finding.
#[test]
fn the_example_of_the_documentation_is_true() {
    let read = |path: &str| {
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
    };
    let document = read("docs/debugging.md");
    let folder = tempfile::tempdir().unwrap();
    let setting = format!("circuit={}", miswired(folder.path(), &[]).display());
    let found = text(&["diff", "--precision", "exact", "--a", "mla=auto", "--b", &setting], 1);
    let names = |text: &str| -> Vec<String> {
        let first = text.lines().skip_while(|line| !line.starts_with("value "));
        let rows = first.take_while(|line| !line.is_empty());
        rows.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
    };
    // The document omits rows.
    let found_names = names(&found);
    let mut rest = found_names.iter();
    for name in names(&document).iter().filter(|name| *name != "…") {
        assert!(rest.any(|found| found == name), "the output has no {name} in this place: {found_names:?}");
    }
    let blame =
        |text: &str| text.lines().find(|line| line.starts_with("The sides part at")).map(str::to_owned);
    assert!(blame(&found).is_some());
    assert_eq!(blame(&found), blame(&document));
}

#[test]
fn a_dump_is_a_side() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("ours.safetensors").display().to_string();
    let model = fixture("v3");
    let said = text(
        &[
            "dump",
            "-m",
            &model,
            "--precision",
            "exact",
            "--tokens",
            "5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21",
            &dump,
        ],
        0,
    );
    assert!(said.contains("values of 17 tokens"), "{said}");
    let exact = text(&["diff", "-m", &model, "--precision", "exact", "--dump", &dump], 0);
    assert!(exact.contains("agree in every bit") && exact.contains("17 tokens"), "{exact}");
    text(&["diff", "-m", &model, "--dump", &dump], 0);
    let part = text(&["diff", "-m", &model, "--dump", &dump, "--layers", "1..2", "--all"], 0);
    assert!(part.contains("layers.1.latent") && !part.contains("layers.0.latent"), "{part}");
    let other = fixture("youtu");
    refused(&["diff", "-m", &other, "--dump", &dump], 1, &["ours.safetensors", "layers."]);
    refused(&["diff", "-m", &model, "--dump", &dump, "--tokens", "1,2"], 1, &["17 tokens", "--tokens"]);
}

#[test]
fn wrong_usage_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.json").display().to_string();
    std::fs::write(&bad, "{\"name\": 3}").unwrap();
    let model = fixture("v3");
    refused(&["diff", "--a", "mla=quick"], 64, &["--a mla=quick", "absorbed"]);
    refused(&["diff", "--b", "speed=11"], 64, &["speed=11", "precision", "threads"]);
    refused(&["diff", "--b", "threads=0"], 64, &["threads=0", "1..=1024"]);
    refused(&["diff", "--b", "cache-type=q9_0"], 64, &["f32, f16 or bf16"]);
    refused(&["diff", "--tolerance", "NaN"], 64, &["--tolerance"]);
    refused(&["diff", "--layers", "4..99"], 64, &["4..99"]);
    refused(&["diff", "--tokens", "1,99999"], 1, &["99999", "1024"]);
    refused(&["diff", "--dump", "/no/such/dump"], 1, &["/no/such/dump"]);
    refused(&["diff", "--dump", &bad], 1, &["bad.json", "not a dump"]);
    refused(
        &["diff", "-m", &model, "--model-b", &fixture("youtu")],
        1,
        &["numbers per row", "different shapes"],
    );
    refused(&["diff", "--circuit", &bad], 1, &["bad.json", "expected a string"]);
    refused(&["diff", "--a", "expanded-cache"], 1, &["--mla naive"]);
    refused(&["dump", "--tokens", "1,2", "/no/such/folder/x.safetensors"], 1, &["/no/such/folder"]);
    refused(&["dump", "x.safetensors"], 64, &["--tokens"]);
    for command in ["diff", "dump"] {
        let help = text(&["help", command], 0);
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{command}");
    }
}
