//! Real chat templates render an assistant's past turn as the model writes it. Parsing that text
//! returns the turn.

use super::support::{events, fold};
use latent_text::{ChatInput, ChatTemplate, ModelHints, ParserOptions, ResponseFormat};
use serde_json::{Value, json};

/// A template: the type of its arguments, the number of calls, and whether it also writes content
/// or reasoning.
struct RealTemplate {
    file: &'static str,
    strings: bool,
    calls: usize,
    content: bool,
    reasoning: bool,
}

/// (The templates of Kimi-K2-Instruct and K2-Thinking change a list while they render calls, which
/// Jinja's sandbox refuses.)
const REAL: [RealTemplate; 9] = [
    RealTemplate {
        file: "constructed/ling-3.jinja",
        strings: false,
        calls: 3,
        content: true,
        reasoning: true,
    },
    RealTemplate { file: "GLM-4.6.jinja", strings: false, calls: 3, content: true, reasoning: true },
    RealTemplate { file: "GLM-4.7-Flash.jinja", strings: false, calls: 3, content: true, reasoning: true },
    RealTemplate {
        file: "GigaChat3-10B-A1.8B.jinja",
        strings: false,
        calls: 1,
        content: true,
        reasoning: false,
    },
    RealTemplate {
        file: "moonshotai-Kimi-K2.jinja",
        strings: false,
        calls: 3,
        content: true,
        reasoning: false,
    },
    RealTemplate {
        file: "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja",
        strings: true,
        calls: 2,
        content: false,
        reasoning: false,
    },
    RealTemplate {
        file: "llama-cpp-deepseek-r1.jinja",
        strings: false,
        calls: 3,
        content: false,
        reasoning: false,
    },
    RealTemplate {
        file: "deepseek-ai-DeepSeek-V3.1.jinja",
        strings: false,
        calls: 3,
        content: true,
        reasoning: false,
    },
    RealTemplate {
        file: "deepseek-ai-DeepSeek-V3.2.jinja",
        strings: false,
        calls: 3,
        content: true,
        reasoning: true,
    },
];

fn tools() -> Value {
    let properties = json!({
        "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
        "near": {"type": "object"}, "tags": {"type": ["array", "null"]}, "note": {"type": ["string", "null"]}
    });
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "description": "d",
               "parameters": {"type": "object", "properties": properties}}})
    };
    json!([tool("get_weather"), tool("stop")])
}

fn arguments() -> [(&'static str, Value); 3] {
    let many = json!({
        "city": "Zürich \"x\" <b>\n</b> 5", "days": 2, "exact": false, "near": {"a": [1, {"b": null}]}, "tags": null,
        "note": "12:30 — {\"no\": json"
    });
    [
        ("get_weather", many),
        ("stop", json!({})),
        ("get_weather", json!({"city": "5", "tags": ["a", "</think>"]})),
    ]
}

fn turn(real: &RealTemplate, content: &str) -> (ResponseFormat, String, Vec<(&'static str, Value)>) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates").join(real.file);
    let source = std::fs::read_to_string(path).unwrap();
    let calls: Vec<(&str, Value)> = arguments().into_iter().take(real.calls).collect();
    let written: Vec<Value> = calls
        .iter()
        .enumerate()
        .map(|(i, (name, arguments))| {
            let arguments = if real.strings { Value::from(arguments.to_string()) } else { arguments.clone() };
            json!({"id": format!("functions.{name}:{i}"), "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    let content = if real.content { Value::from(content) } else { Value::Null };
    let assistant = json!({"role": "assistant", "content": content, "reasoning_content": "First\nthis.", "tool_calls": written});
    let mut input =
        ChatInput::new(json!([{"role": "user", "content": "<think>Weather? <tool_call>"}, assistant]));
    input.tools = Some(tools());
    input.add_generation_prompt = false;
    input.extra.insert("thinking".into(), true.into());
    let rendered = ChatTemplate::new(&source).unwrap().render(&input).unwrap();
    let format =
        ResponseFormat::for_model(&ModelHints { chat_template: Some(&source), ..ModelHints::default() })
            .unwrap();
    let begin =
        rendered.text.rfind("</b> 5").map_or(0, |at| rendered.text[..at].rfind("Weather?").unwrap_or(0));
    let prompt = latent_text::RenderedText { text: rendered.text, content: rendered.content };
    // The assistant's turn begins at the first anchor after the user's message.
    let anchors = [
        "<|assistant|>",
        "<|im_middle|>",
        "<｜Assistant｜>",
        "assistant<|role_sep|>\n",
        "<role>ASSISTANT</role>",
    ];
    let found = anchors
        .iter()
        .filter_map(|anchor| prompt.text[begin..].find(anchor).map(|at| begin + at + anchor.len()));
    let output = prompt.text[found.min().unwrap()..].to_owned();
    (format, output, calls)
}

#[test]
fn calls_written_by_real_templates_are_parsed_back() {
    for real in &REAL {
        for content in ["Let me see.", ""] {
            let (format, output, calls) = turn(real, content);
            let parsed = |pieces: Vec<(String, bool)>| {
                fold(&events(&format, &tools(), &ParserOptions::default(), None, pieces))
            };
            let found = parsed(vec![(output.clone(), false)]);
            let place = format!("{} {content:?}: {output:?}: {found:#?}", real.file);
            assert_eq!(found.content, if real.content { content } else { "" }, "{place}");
            assert_eq!(found.reasoning, if real.reasoning { "First\nthis." } else { "" }, "{place}");
            assert_eq!(found.calls.len(), calls.len(), "{place}");
            for (found, (name, arguments)) in found.calls.iter().zip(&calls) {
                assert_eq!(found.name, *name, "{place}");
                assert_eq!(&serde_json::from_str::<Value>(&found.arguments).unwrap(), arguments, "{place}");
            }
            if format.name() == "kimi-k2" {
                assert_eq!(found.calls[1].id, "functions.stop:1");
            }
            let characters = output.chars().map(|c| (c.to_string(), false)).collect();
            assert_eq!(parsed(characters), found, "{place}");
        }
    }
}

/// The grammar that constrains a model's calls agrees with its template.
#[test]
fn grammars_agree_with_real_templates() {
    // The line breaks of constructed templates need not be the model's.
    for real in REAL.iter().filter(|real| !real.file.starts_with("constructed/")) {
        let (format, output, calls) = turn(real, "");
        let calls: Vec<_> = calls
            .into_iter()
            .map(|(name, arguments)| (name.to_owned(), arguments.as_object().unwrap().clone()))
            .collect();
        let mut written = super::support::write_calls(format.tool_grammar().unwrap(), &calls);
        // Templates write JSON with Python's spaces. In DeepSeek-R1's, the section's end follows
        // the second call, but not a single call.
        let squeeze = |text: &str| text.replace("\": ", "\":").replace(", \"", ",\"").replace(", {", ",{");
        if real.file.starts_with("deepseek-ai-DeepSeek-R1") {
            written = written.replace("\n\n", "\n");
        }
        let (found, expected) = (squeeze(&output), squeeze(&written));
        assert!(found.contains(expected.trim_end()), "{}:\n{found}\n{expected}", real.file);
    }
}
