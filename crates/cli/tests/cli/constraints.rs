//! `--json-schema` and `--grammar`: constrained answers, and errors with their position.

use crate::support::{demo, latent};
use serde_json::Value;

const SCHEMA: &str = r#"{"type": "object", "required": ["name", "age", "tags"], "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
    "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3}}}"#;

fn answer(more: &[&str]) -> Value {
    let model = demo().display().to_string();
    let given = ["run", "-m", &model, "--json", "--threads", "1", "-n", "600", "Tell me about a person."];
    let output = latent(&[&given, more].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_demo_models_answers_obey_a_schema() {
    for seed in 0..20 {
        let seed = seed.to_string();
        let answer = answer(&["--temp", "1", "--seed", &seed, "--json-schema", SCHEMA]);
        let text = answer["text"].as_str().unwrap();
        assert_eq!(answer["stop"], "end", "{text}");
        let person: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(person["name"].as_str().unwrap().chars().count() <= 12, "{text}");
        assert!((0..=99).contains(&person["age"].as_i64().unwrap()), "{text}");
        let tags = person["tags"].as_array().unwrap();
        assert!(tags.len() <= 3 && tags.iter().all(|tag| tag == "red" || tag == "green"), "{text}");
        assert_eq!(person.as_object().unwrap().len(), 3, "{text}");
    }
}

#[test]
fn answers_obey_grammars_of_both_dialects() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let gbnf = file("list.gbnf", "root ::= item{3}\nitem ::= \"- \" [a-z]{1,8} \"\\n\"\n");
    let lark = file("lines.txt", "start: LINE~3\nLINE: /- [a-z]{1,8}\\n/\n");
    for grammar in [gbnf, lark] {
        let answer = answer(&["--temp", "1", "--seed", "3", "--grammar", &grammar]);
        let text = answer["text"].as_str().unwrap();
        let line = |line: &str| {
            let word = line.strip_prefix("- ").unwrap_or_default();
            (1..=8).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_lowercase())
        };
        assert!(text.ends_with('\n') && text.lines().count() == 3 && text.lines().all(line), "{text:?}");
        assert_eq!(answer["stop"], "end");
    }
    // A choice of one: the answer has only one continuation.
    let one = file("one.gbnf", "root ::= \"yes, but\"");
    let model = demo().display().to_string();
    latent(&["chat", "-m", &model, "-q", "--grammar", &one])
        .write_stdin("Well?\nReally?\n")
        .assert()
        .success()
        .stdout("yes, but\nyes, but\n");
}

#[test]
fn errors_name_the_file_and_the_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.gbnf");
    std::fs::write(&path, "root ::= item\nitem ::= [a-z\n").unwrap();
    let (path, model) = (path.display().to_string(), demo().display().to_string());
    for (flags, message) in [
        (
            ["--grammar", &path],
            "bad.gbnf: the GBNF grammar is malformed at line 2, column 10: this `[` is not closed",
        ),
        (
            ["--json-schema", "{\"not\": {}}"],
            "--json-schema: the JSON schema cannot be used: the keyword `not` at # is not supported",
        ),
        (["--json-schema", "{\"type\": "], "--json-schema: "),
        (["--json-schema", "no-such-file.json"], "no-such-file.json"),
        (["--grammar", "no-such-file.lark"], "no-such-file.lark"),
    ] {
        let output = latent(&[&["run", "-m", &model, "Hi"], &flags[..]].concat()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{said}");
        assert!(said.contains(message) && said.lines().count() == 1, "{said}");
    }
    latent(&["run", "-m", &model, "--json-schema", "{}", "--grammar", &path, "Hi"]).assert().code(64);
}
