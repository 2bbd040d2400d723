//! cases.json: outputs of models, including malformed and truncated ones, and the expected
//! messages.

use super::support::{FoldedMessage, OutputPiece, events, fold, whole};
use latent_text::{CallEnding, ParserOptions, ResponseFormat};
use serde_json::Value;

fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("cases.json")).unwrap()
}

fn format(case: &Value, templates: &Value) -> ResponseFormat {
    match (case["format"].as_str(), case["template"].as_str()) {
        (Some(name), None) => ResponseFormat::named(name).unwrap(),
        (None, Some(name)) => {
            ResponseFormat::from_template(&templates[name]).unwrap_or_else(|e| panic!("{name}: {e}"))
        }
        _ => panic!("{case}"),
    }
}

/// Pieces of a case: one text, or a list in which `{"special": …}` is a control token.
fn pieces(output: &Value) -> Vec<OutputPiece> {
    match output {
        Value::String(text) => vec![(text.clone(), false)],
        Value::Array(list) => list
            .iter()
            .map(|piece| match piece.get("special") {
                Some(text) => (text.as_str().unwrap().to_owned(), true),
                None => (piece.as_str().unwrap().to_owned(), false),
            })
            .collect(),
        other => panic!("{other}"),
    }
}

fn check(case: &Value, found: &FoldedMessage) {
    let name = &case["name"];
    let text = |key: &str| case[key].as_str().unwrap_or_default();
    assert_eq!(found.reasoning, text("reasoning"), "{name}: reasoning of {found:#?}");
    assert_eq!(found.content, text("content"), "{name}: content of {found:#?}");
    let calls = case["calls"].as_array().cloned().unwrap_or_default();
    assert_eq!(found.calls.len(), calls.len(), "{name}: {found:#?}");
    for (found, expected) in found.calls.iter().zip(&calls) {
        assert_eq!(found.name, expected["name"].as_str().unwrap(), "{name}");
        if let Some(id) = expected["id"].as_str() {
            assert_eq!(found.id, id, "{name}");
        }
        match expected["ending"].as_str() {
            None => {
                assert_eq!(found.ending, Some(CallEnding::Complete), "{name}: {found:?}");
                let arguments: Value = serde_json::from_str(&found.arguments).unwrap();
                assert_eq!(arguments, expected["arguments"], "{name}");
            }
            Some(ending) => {
                let expected_ending = if ending == "cut" { CallEnding::Cut } else { CallEnding::Malformed };
                assert_eq!(found.ending, Some(expected_ending), "{name}: {found:?}");
                assert_eq!(found.arguments, expected["raw"].as_str().unwrap(), "{name}");
            }
        }
    }
    if let Some(fields) = case["fields"].as_object() {
        let found: serde_json::Map<String, Value> = found.fields.iter().cloned().collect();
        assert_eq!(&found, fields, "{name}");
    }
}

#[test]
fn cases_parse_as_expected_in_any_pieces() {
    let cases = cases();
    let templates = cases[0]["templates"].clone();
    for case in &cases[1..] {
        let format = format(case, &templates);
        let strings = |key: &str| -> Vec<String> {
            case[key].as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let flag = |key: &str, default: bool| case[key].as_bool().unwrap_or(default);
        let options = ParserOptions {
            starts_in_reasoning: flag("starts_in_reasoning", false),
            parse_reasoning: flag("parse_reasoning", true),
            parse_tools: flag("parse_tools", true),
            control_tokens: strings("control_tokens"),
            id_seed: 7,
        };
        let prompt = case["prompt"].as_str();
        let pieces = pieces(&case["output"]);
        let expected = events(&format, &case["tools"], &options, prompt, pieces.clone());
        check(case, &fold(&expected));
        for step in [1, 2, 3, 7] {
            let cut = pieces.iter().flat_map(|(text, special)| {
                let characters: Vec<char> = text.chars().collect();
                let step = if *special { characters.len() } else { step };
                let parts: Vec<OutputPiece> =
                    characters.chunks(step).map(|part| (part.iter().collect(), *special)).collect();
                parts
            });
            let found = events(&format, &case["tools"], &options, prompt, cut);
            assert_eq!(found, expected, "{} in pieces of {step}", case["name"]);
        }
    }
}

#[test]
fn ids_come_from_the_seed() {
    let format = ResponseFormat::named("hermes").unwrap();
    let output = "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"f\"}</tool_call>";
    let ids = |seed| {
        let options = ParserOptions { id_seed: seed, ..ParserOptions::default() };
        let found = fold(&events(&format, &Value::Null, &options, None, [(output.to_owned(), false)]));
        found.calls.into_iter().map(|call| call.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(1), ids(1));
    assert_ne!(ids(1), ids(2));
    assert!(ids(1).iter().all(|id| id.starts_with("call_") && id.len() == 29));
    let mistral =
        whole(&ResponseFormat::named("mistral").unwrap(), &Value::Null, None, "[TOOL_CALLS]f[ARGS]{}");
    assert!(mistral.calls[0].id.len() == 9 && mistral.calls[0].id.chars().all(|c| c.is_ascii_alphanumeric()));
}

#[test]
fn deltas_are_emitted_as_soon_as_they_are_certain() {
    let format = ResponseFormat::named("glm-4.7").unwrap();
    let tools = serde_json::json!([{"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}]);
    let mut parser = latent_text::ResponseParser::new(&format, &tools, &ParserOptions::default());
    let mut step = |piece: &str| {
        let mut events = Vec::new();
        parser.push(piece, false, &mut events);
        format!("{events:?}")
    };
    assert!(step("Hello").contains("Hello"));
    assert_eq!(step(" <"), "[]");
    assert!(step("b").contains("Content(\" <b\")"));
    assert_eq!(step("\n<tool_call>f"), "[]");
    assert!(step("<arg_key>").contains("ToolCallStart"));
    assert!(step("s</arg_key><arg_value>long").contains("long"));
    assert!(step(" text").contains(" text"));
    assert_eq!(step("</arg_val"), "[]");
    assert!(step("ue>").contains("delta: \"\\\"\""));
}
