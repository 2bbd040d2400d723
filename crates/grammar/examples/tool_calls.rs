//! Checks whether the grammar of tool calls admits a text. Reads lines of JSON from standard input,
//! such as
//!
//! ```text
//! {"format": "glm-4.7", "controls": ["<tool_call>"], "tools": [{"name": "get", "parameters": {}}], "tool_choice": "auto", "text": "Hello"}
//! ```
//!
//! and answers each with a line: `{"admitted": true, "at": 5}`, where `at` is the number of bytes
//! of the text that can be generated. `tool_choice` is `auto`, `required` or the name of a tool.
//! With `"parallel": false` at most one call is allowed. The vocabulary consists of bytes and of
//! `controls`, the names of control tokens.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

#[path = "../tests/support/mod.rs"]
mod support;

use latent_grammar::{CallableTool, Grammar, GrammarSource, Grammars, ToolCalls, ToolRequirement};
use latent_text::{ResponseFormat, Tokenizer};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::BufRead as _;
use std::sync::Arc;
use support::{Walk, limits, of_bytes};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut known = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let mut line: Value = serde_json::from_str(&line?)?;
        let text = line["text"].take();
        let text = text.as_str().ok_or("text must be a string")?;
        let key = line.to_string();
        if !known.contains_key(&key) {
            known.insert(key.clone(), grammar(&line)?);
        }
        let (grammar, tokenizer) = &known[&key];
        let mut walk = Walk::with(grammar, Arc::clone(tokenizer));
        let verdict = match walk.text(text) {
            Ok(()) => json!({"admitted": walk.may_end(), "at": text.len()}),
            Err(at) => json!({"admitted": false, "at": at}),
        };
        println!("{verdict}");
    }
    Ok(())
}

fn grammar(line: &Value) -> Result<(Arc<Grammar>, Arc<Tokenizer>), Box<dyn std::error::Error>> {
    let string = |key: &str| line[key].as_str().ok_or_else(|| format!("{key} must be a string"));
    let controls = line["controls"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let controls: Vec<&str> = ["<end>", "<stop>"].into_iter().chain(controls).collect();
    let tokenizer = Arc::new(of_bytes(&[], &controls));
    let format = ResponseFormat::named(string("format")?)?;
    let tool = |tool: &Value| CallableTool {
        name: tool["name"].as_str().unwrap_or_default().to_owned(),
        parameters: tool.get("parameters").cloned(),
        strict: true,
    };
    let calls = ToolCalls {
        format: format.tool_grammar().ok_or("the format has no tool calls")?.clone(),
        free_markers: format.free_markers(&format.control_tokens(&tokenizer)),
        tools: line["tools"].as_array().into_iter().flatten().map(tool).collect(),
        choice: match string("tool_choice")? {
            "auto" => ToolRequirement::Auto,
            "required" => ToolRequirement::Required,
            name => ToolRequirement::Named(name.to_owned()),
        },
        parallel: line["parallel"] != false,
    };
    let grammar =
        Grammars::new(&tokenizer, limits())?.compile(&GrammarSource::Tools(Box::new(calls)), None)?;
    Ok((grammar, tokenizer))
}
