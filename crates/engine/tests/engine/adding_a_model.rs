//! `docs/adding-a-model.md` is a test: its blocks of JSON are the circuit of the repository, and
//! that circuit passes the fixture.

use crate::support::{all_logits, checkpoint, engine, error, fixture, folder};
use latent_engine::EngineOptions;
use latent_graph::Circuit;
use latent_graph::passes::{MlaChoice, Precision};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// The contents of the fenced blocks of a document in this language.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let parts = document.split(&fence).skip(1);
    parts.map(|part| part.split("```").next().unwrap().to_owned()).collect()
}

/// One object with the keys of all `json` blocks.
fn circuit(document: &str) -> Value {
    let mut whole = Map::new();
    for block in blocks(document, "json") {
        let Value::Object(part) = serde_json::from_str(&block).unwrap() else { panic!("no object: {block}") };
        for (key, value) in part {
            assert!(whole.insert(key.clone(), value).is_none(), "{key} occurs twice");
        }
    }
    Value::Object(whole)
}

#[test]
fn the_circuit_of_the_document_is_the_one_of_the_repository_and_passes() {
    let document = read("docs/adding-a-model.md");
    let circuit = circuit(&document);
    let kept: Value = serde_json::from_str(&read("crates/graph/circuits/minicpm3.json")).unwrap();
    assert_eq!(circuit, kept);
    let circuit = Arc::new(Circuit::parse(&circuit.to_string()).unwrap());
    let expected = fixture("minicpm3");
    for mla in [MlaChoice::Absorbed, MlaChoice::Naive] {
        let options = EngineOptions {
            mla,
            precision: Precision::Exact,
            threads: Some(2),
            context: Some(1024),
            circuit: Some(circuit.clone()),
            ..EngineOptions::default()
        };
        let mut engine = engine(&checkpoint(&folder("minicpm3")), &options);
        let logits = all_logits(&mut engine, &expected.tokens, 16);
        for (&row, truth) in expected.rows.iter().zip(&expected.logits) {
            assert!(error(&logits[row], truth) < 1e-9, "{mla}, row {row}");
        }
    }
}

/// The other JSON blocks of the document: each fence names the file of a circuit and the key in it.
#[test]
fn the_parts_of_other_circuits_are_those_of_the_repository() {
    let document = read("docs/adding-a-model.md");
    for (fence, file, key) in [
        ("json dense", "blocks/dense.json", None),
        ("json mla/cache", "blocks/mla.json", Some("cache")),
        ("json deepseek2/layers", "deepseek2.json", Some("layers")),
    ] {
        let shown: Value = serde_json::from_str(&blocks(&document, fence)[0]).unwrap();
        let kept: Value = serde_json::from_str(&read(&format!("crates/graph/circuits/{file}"))).unwrap();
        assert_eq!(shown, *key.map_or(&kept, |key| &kept[key]), "{fence}");
    }
}

#[test]
fn the_other_blocks_of_the_document_are_true() {
    let document = read("docs/adding-a-model.md");
    let config: Value = serde_json::from_str(&blocks(&document, "json config")[0]).unwrap();
    let kept: Value =
        serde_json::from_str(&std::fs::read_to_string(folder("minicpm3").join("config.json")).unwrap())
            .unwrap();
    for (key, value) in config.as_object().unwrap() {
        assert_eq!(kept[key], *value, "{key}");
    }
    let sources = read("crates/graph/src/config/families.rs") + &read("crates/graph/src/circuit/mod.rs");
    let rust = blocks(&document, "rust");
    assert_eq!(rust.len(), 2);
    for block in rust {
        assert!(sources.contains(&block), "not in the sources: {block}");
    }
}
