//! Every supported component of tokenizer.json, against the ids of Python's `tokenizers`.

use latent_text::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};
use std::path::Path;

fn read(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The file of a case.
fn file(case: &Value, small: &Value) -> Value {
    let mut file = read("demo/tokenizer.json");
    file["post_processor"] = Value::Null;
    if case["base"] == "small" {
        for key in ["decoder", "normalizer"] {
            file[key] = Value::Null;
        }
        file["added_tokens"] = json!([]);
        file["model"] = small.clone();
        for (key, value) in case["options"].as_object().unwrap() {
            file["model"][key] = value.clone();
        }
    }
    for (key, value) in case["change"].as_object().unwrap() {
        match key.as_str() {
            "model" => file["model"]["ignore_merges"] = value["ignore_merges"].clone(),
            key => file[key] = value.clone(),
        }
    }
    file
}

#[test]
fn ids_equal_those_of_python_tokenizers() {
    let data = read("components/cases.json");
    let texts: Vec<&str> =
        data["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let cases = data["cases"].as_array().unwrap();
    assert!(cases.len() >= 60);
    let mut wrong = Vec::new();
    for case in cases {
        let bytes = serde_json::to_vec(&file(case, &data["small"])).unwrap();
        let tokenizer =
            Tokenizer::from_hf(&bytes, None, None).unwrap_or_else(|e| panic!("{}: {e}", case["change"]));
        for (text, expected) in texts.iter().zip(case["ids"].as_array().unwrap()) {
            let found =
                tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: false }).unwrap();
            if json!(found) != *expected {
                let options = &case["options"];
                wrong.push(format!(
                    "{} {options} {text:?}:\n  {expected}\n  {}",
                    case["change"],
                    json!(found)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
