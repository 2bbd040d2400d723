//! Generates bodies of requests.

use crate::source::FuzzSource;
use serde_json::{Map, Value, json};

/// The usual kind of a field's values.
#[derive(Clone, Copy)]
enum FieldValueKind {
    Text,
    Number,
    Real,
    Bool,
    Messages,
    Tools,
    ToolChoice,
    Texts,
    Bias,
    Format,
    Prompt,
    Object,
    Word(&'static [&'static str]),
}

const FIELDS: &[(&str, FieldValueKind)] = &[
    ("messages", FieldValueKind::Messages),
    ("input", FieldValueKind::Messages),
    ("prompt", FieldValueKind::Prompt),
    ("content", FieldValueKind::Prompt),
    ("tokens", FieldValueKind::Prompt),
    ("system", FieldValueKind::Prompt),
    ("instructions", FieldValueKind::Text),
    ("model", FieldValueKind::Text),
    ("tools", FieldValueKind::Tools),
    ("tool_choice", FieldValueKind::ToolChoice),
    ("parallel_tool_calls", FieldValueKind::Bool),
    ("max_tokens", FieldValueKind::Number),
    ("max_output_tokens", FieldValueKind::Number),
    ("max_completion_tokens", FieldValueKind::Number),
    ("n_predict", FieldValueKind::Number),
    ("n", FieldValueKind::Number),
    ("n_probs", FieldValueKind::Number),
    ("seed", FieldValueKind::Number),
    ("top_k", FieldValueKind::Number),
    ("repeat_last_n", FieldValueKind::Number),
    ("priority", FieldValueKind::Number),
    ("top_logprobs", FieldValueKind::Number),
    ("dimensions", FieldValueKind::Number),
    ("best_of", FieldValueKind::Number),
    ("logprobs", FieldValueKind::Bool),
    ("temperature", FieldValueKind::Real),
    ("top_p", FieldValueKind::Real),
    ("min_p", FieldValueKind::Real),
    ("typical_p", FieldValueKind::Real),
    ("repeat_penalty", FieldValueKind::Real),
    ("presence_penalty", FieldValueKind::Real),
    ("frequency_penalty", FieldValueKind::Real),
    ("dry_multiplier", FieldValueKind::Real),
    ("dry_base", FieldValueKind::Real),
    ("xtc_probability", FieldValueKind::Real),
    ("stop", FieldValueKind::Texts),
    ("stop_sequences", FieldValueKind::Texts),
    ("include", FieldValueKind::Texts),
    ("guided_choice", FieldValueKind::Texts),
    ("logit_bias", FieldValueKind::Bias),
    ("stream", FieldValueKind::Bool),
    ("store", FieldValueKind::Bool),
    ("echo", FieldValueKind::Bool),
    ("raw", FieldValueKind::Bool),
    ("think", FieldValueKind::Bool),
    ("ignore_eos", FieldValueKind::Bool),
    ("return_tokens", FieldValueKind::Bool),
    ("with_pieces", FieldValueKind::Bool),
    ("add_special", FieldValueKind::Bool),
    ("continue_final_message", FieldValueKind::Bool),
    ("add_generation_prompt", FieldValueKind::Bool),
    ("stream_options", FieldValueKind::Object),
    ("options", FieldValueKind::Object),
    ("chat_template_kwargs", FieldValueKind::Object),
    ("structured_outputs", FieldValueKind::Object),
    ("metadata", FieldValueKind::Object),
    ("response_format", FieldValueKind::Format),
    ("format", FieldValueKind::Format),
    ("text", FieldValueKind::Format),
    ("output_config", FieldValueKind::Format),
    ("json_schema", FieldValueKind::Format),
    ("grammar", FieldValueKind::Word(&["root ::= \"a\"", "root ::= [a-z]+", "start: \"a\"", "root ::=", ""])),
    ("guided_regex", FieldValueKind::Word(&["[ab]+", "(", "\\d{3}", ""])),
    // `format` also generates the objects of Anthropic's `thinking`.
    ("thinking", FieldValueKind::Format),
    ("reasoning", FieldValueKind::Object),
    ("reasoning_effort", FieldValueKind::Word(&["none", "low", "high", ""])),
    ("encoding_format", FieldValueKind::Word(&["float", "base64", "x"])),
    ("suffix", FieldValueKind::Text),
    ("previous_response_id", FieldValueKind::Text),
];

/// The required fields of a request to an address.
fn required_fields(path: &str) -> &'static [&'static str] {
    match path {
        "/v1/chat/completions" | "/v1/messages/count_tokens" | "/apply-template" | "/api/chat" => {
            &["messages"]
        }
        "/v1/messages" => &["messages", "max_tokens"],
        "/v1/responses" | "/v1/embeddings" => &["input"],
        "/tokenize" => &["content"],
        "/detokenize" => &["tokens"],
        _ => &["prompt"],
    }
}

/// Generates a body for an address.
pub(super) fn generate(source: &mut FuzzSource<'_>, path: &str) -> Value {
    let mut map = Map::new();
    for name in required_fields(path) {
        // Rarely omitted: the server refuses such a body before it reads the other fields.
        if !source.once_in(32) {
            add(&mut map, name, source);
        }
    }
    for _ in 0..source.below(8) {
        let (name, _) = source.pick(FIELDS);
        add(&mut map, name, source);
    }
    Value::Object(map)
}

fn add(map: &mut Map<String, Value>, name: &str, source: &mut FuzzSource<'_>) {
    let kind =
        FIELDS.iter().find(|(known, _)| *known == name).map_or(FieldValueKind::Text, |(_, kind)| *kind);
    let value = if source.once_in(16) { any(source, 3) } else { of(kind, source) };
    map.insert(name.to_owned(), value);
}

fn of(kind: FieldValueKind, source: &mut FuzzSource<'_>) -> Value {
    match kind {
        FieldValueKind::Text => source.text().into(),
        FieldValueKind::Number => source.number().into(),
        FieldValueKind::Real => real(source),
        FieldValueKind::Bool => (source.below(2) == 1).into(),
        FieldValueKind::Messages => (0..1 + source.below(4)).map(|_| message(source)).collect(),
        FieldValueKind::Tools => (0..source.below(3)).map(|_| tool(source)).collect(),
        FieldValueKind::ToolChoice => match source.below(5) {
            0 => "auto".into(),
            1 => "required".into(),
            2 => json!({"type": "function", "name": "f", "function": {"name": "f"}}),
            3 => json!({"type": *source.pick(&["any", "tool", "none", "auto"]), "name": "f"}),
            _ => "none".into(),
        },
        FieldValueKind::Texts => (0..source.below(4)).map(|_| Value::from(source.text())).collect(),
        FieldValueKind::Bias => match source.below(2) {
            0 => (0..source.below(3)).map(|_| (source.number().to_string(), real(source))).collect(),
            _ => json!([[source.number(), real(source)], [source.number(), false]]),
        },
        FieldValueKind::Format => format(source),
        FieldValueKind::Prompt => match source.below(5) {
            0 => source.text().into(),
            1 => (0..source.below(6)).map(|_| Value::from(source.number())).collect(),
            2 => (0..source.below(4)).map(|_| Value::from(source.text())).collect(),
            3 => json!([source.text(), source.number(), {"prompt_string": source.text()}]),
            _ => json!([{"type": "text", "text": source.text()}, [source.number(), 5]]),
        },
        FieldValueKind::Object => object(source),
        FieldValueKind::Word(words) => (*source.pick(words)).into(),
    }
}

fn real(source: &mut FuzzSource<'_>) -> Value {
    match source.below(4) {
        0 => (source.below(16) as f64 / 8.0).into(),
        1 => source.number().into(),
        2 => json!(*source.pick(&[1e300, -0.0, 1e-300, -1.5, 3.4e38, 0.1])),
        _ => json!(1.0),
    }
}

fn object(source: &mut FuzzSource<'_>) -> Value {
    const NAMES: [&str; 16] = [
        "include_usage",
        "effort",
        "num_predict",
        "temperature",
        "stop",
        "enable_thinking",
        "tools",
        "messages",
        "json",
        "regex",
        "choice",
        "grammar",
        "n",
        "num_ctx",
        "thinking",
        "logit_bias",
    ];
    (0..source.below(4)).map(|_| ((*source.pick(&NAMES)).to_owned(), any(source, 2))).collect()
}

fn format(source: &mut FuzzSource<'_>) -> Value {
    let schema = schema(source);
    match source.below(8) {
        0 => json!({"type": "json_object"}),
        1 => json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}),
        2 => json!({"type": "json_schema", "schema": schema}),
        3 => json!({"format": {"type": "json_schema", "name": "x", "schema": schema}, "effort": "low"}),
        4 => "json".into(),
        5 => json!({"type": *source.pick(&["enabled", "disabled", "adaptive", "text", "x"])}),
        6 => json!({"format": {"type": "text"}}),
        _ => schema,
    }
}

fn schema(source: &mut FuzzSource<'_>) -> Value {
    match source.below(5) {
        0 => json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
        1 => json!({"type": *source.pick(&["string", "integer", "array", "x"])}),
        2 => json!({"enum": [any(source, 1), any(source, 1)]}),
        3 => json!({}),
        _ => any(source, 2),
    }
}

fn tool(source: &mut FuzzSource<'_>) -> Value {
    let name = if source.once_in(4) { source.text() } else { "f".to_owned() };
    let parameters = schema(source);
    match source.below(3) {
        0 => {
            json!({"type": "function", "function": {"name": name, "description": source.text(), "parameters": parameters, "strict": true}})
        }
        1 => json!({"type": "function", "name": name, "parameters": parameters}),
        _ => json!({"name": name, "description": source.text(), "input_schema": parameters}),
    }
}

/// A message, or an item of the Responses API.
fn message(source: &mut FuzzSource<'_>) -> Value {
    let role = *source.pick(&["user", "assistant", "system", "developer", "tool", "user", "user", "alien"]);
    let arguments = json!({"a": source.number()});
    match source.below(12) {
        0 => json!({"role": "assistant", "content": null, "reasoning_content": source.text(), "tool_calls": [
            {"id": source.text(), "type": "function", "function": {"name": "f", "arguments": arguments.to_string()}}]}),
        1 => json!({"role": "assistant", "content": source.text(), "thinking": source.text(), "tool_calls": [
            {"function": {"name": "f", "arguments": arguments}}]}),
        2 => {
            json!({"role": "tool", "tool_call_id": source.text(), "content": source.text(), "tool_name": "f"})
        }
        3 => {
            json!({"role": role, "content": [{"type": "thinking", "thinking": source.text()}, {"type": "text", "text": source.text()},
            {"type": "tool_use", "id": "t", "name": "f", "input": arguments}]})
        }
        4 => {
            json!({"role": role, "content": [{"type": "tool_result", "tool_use_id": "t", "content": source.text(), "is_error": true}]})
        }
        5 => {
            json!({"type": "function_call", "call_id": source.text(), "name": "f", "arguments": arguments.to_string()})
        }
        6 => json!({"type": "function_call_output", "call_id": source.text(), "output": source.text()}),
        7 => {
            json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": source.text()}]})
        }
        8 => {
            json!({"role": role, "content": [{"type": "input_text", "text": source.text()}, any(source, 2)]})
        }
        _ => json!({"role": role, "content": source.text()}),
    }
}

/// Any JSON of at most this depth.
fn any(source: &mut FuzzSource<'_>, depth: usize) -> Value {
    match source.below(if depth > 0 { 8 } else { 5 }) {
        0 => Value::Null,
        1 => (source.below(2) == 1).into(),
        2 => source.number().into(),
        3 => source.text().into(),
        4 => real(source),
        5 => (0..source.below(4)).map(|_| any(source, depth - 1)).collect(),
        6 => (0..source.below(4)).map(|_| (source.text(), any(source, depth - 1))).collect(),
        _ => json!({(*source.pick(&["type", "text", "name", "function"])): any(source, depth - 1)}),
    }
}
