//! Capabilities of chat templates, under llama.cpp's names (`chat_template_caps` in `/props`).
//!
//! As in llama.cpp, they are found by rendering small conversations and searching the output.

use latent_text::{ChatInput, ChatTemplate};
use serde_json::{Value, json};

/// A text that no template contains.
const PROBE: &str = "probe-9f3b";

/// The capabilities of a chat template.
pub(crate) fn template_caps(template: &ChatTemplate, source: &str) -> Value {
    let shows = |messages: Value, tools: Option<Value>, words: &[&str]| {
        let mut input = ChatInput::new(messages);
        input.tools = tools;
        template.render(&input).is_ok_and(|rendered| words.iter().all(|word| rendered.text.contains(word)))
    };
    let user = |text: &str| json!({"role": "user", "content": text});
    let tool = json!([{"type": "function", "function": {
        "name": PROBE, "description": "x", "parameters": {"type": "object", "properties": {}}}}]);
    let call = |id: &str, arguments: &Value| {
        let function = json!({"name": "f", "arguments": arguments});
        json!({"id": id, "type": "function", "function": function})
    };
    let calls = |calls: Value| {
        let result = json!({"role": "tool", "tool_call_id": "call00001", "name": "f", "content": "x"});
        let called = json!({"role": "assistant", "content": "", "tool_calls": calls});
        json!([user("x"), called, result, user("x")])
    };
    let object = json!({PROBE: 1});
    let text = Value::from(object.to_string());
    let one = |arguments: &Value| shows(calls(json!([call("call00001", arguments)])), None, &[PROBE]);
    let (objects, texts) = (one(&object), one(&text));
    let arguments = |name: &str| if objects { json!({name: 1}) } else { json!({name: 1}).to_string().into() };
    let two =
        calls(json!([call("call00001", &arguments(PROBE)), call("call00002", &arguments("probe-second"))]));
    // A template without support for lists prints the list as Python or JSON.
    let typed = ChatInput::new(json!([{"role": "user", "content": [{"type": "text", "text": PROBE}]}]));
    let typed = template.render(&typed).is_ok_and(|rendered| {
        let text = &rendered.text;
        text.contains(PROBE) && !["'type'", "\"type\""].iter().any(|word| text.contains(word))
    });
    let thought =
        json!({"role": "assistant", "content": "x", "reasoning_content": PROBE, "reasoning": PROBE});
    json!({
        "supports_string_content": shows(json!([user(PROBE)]), None, &[PROBE]),
        "supports_typed_content": typed,
        "supports_system_role": shows(json!([{"role": "system", "content": PROBE}, user("x")]), None, &[PROBE]),
        "supports_tools": shows(json!([user("x")]), Some(tool), &[PROBE]),
        "supports_tool_calls": objects || texts,
        "supports_object_arguments": objects,
        "supports_parallel_tool_calls": (objects || texts) && shows(two, None, &[PROBE, "probe-second"]),
        "supports_preserve_reasoning": shows(json!([user("x"), thought, user("x")]), None, &[PROBE]),
        "supports_reasoning_effort": source.contains("reasoning_effort"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(source: &str) -> Value {
        template_caps(&ChatTemplate::new(source).unwrap(), source)
    }

    #[test]
    fn capabilities_follow_from_the_rendered_text() {
        let plain = caps("{% for message in messages %}{{ message.content }}{% endfor %}");
        for (name, expected) in [
            ("supports_string_content", true),
            ("supports_system_role", true),
            ("supports_typed_content", false),
            ("supports_tools", false),
            ("supports_tool_calls", false),
            ("supports_parallel_tool_calls", false),
            ("supports_preserve_reasoning", false),
            ("supports_reasoning_effort", false),
        ] {
            assert_eq!(plain[name], expected, "{name}");
        }
        // This template supports all but system messages, for which it raises an error.
        let rich = caps(
            "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}\
             {% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}\
             {{ m.reasoning_content }}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}{% endfor %}{% endfor %}\
             {% endfor %}{{ reasoning_effort }}",
        );
        for (name, value) in rich.as_object().unwrap() {
            assert_eq!(value, &json!(name != "supports_system_role"), "{name}");
        }
    }
}
