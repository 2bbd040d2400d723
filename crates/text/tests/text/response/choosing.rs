//! Selection of a model's response format, and whether its prompts open the reasoning.

use latent_text::{ChatInput, ChatTemplate, FormatSource, ModelHints, ResponseFormat};
use serde_json::json;

fn template(file: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates").join(file);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn real_chat_templates_select_their_format() {
    let families = [
        ("GLM-4.6.jinja", "glm-4.5"),
        ("GLM-4.7-Flash.jinja", "glm-4.7"),
        ("GigaChat3-10B-A1.8B.jinja", "gigachat-3"),
        ("Kimi-K2-Instruct.jinja", "kimi-k2"),
        ("Kimi-K2-Thinking.jinja", "kimi-k2"),
        ("moonshotai-Kimi-K2.jinja", "kimi-k2"),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja", "deepseek-r1"),
        ("llama-cpp-deepseek-r1.jinja", "deepseek-r1"),
        ("deepseek-ai-DeepSeek-V3.1.jinja", "deepseek-v3.1"),
        ("deepseek-ai-DeepSeek-V3.2.jinja", "deepseek-v3.2"),
        ("constructed/ling-3.jinja", "ling-3"),
    ];
    for (file, name) in families {
        let hints = ModelHints { chat_template: Some(&template(file)), ..ModelHints::default() };
        let format = ResponseFormat::for_model(&hints).unwrap();
        assert_eq!((format.name(), format.source()), (name, FormatSource::ChatTemplate), "{file}");
    }
}

#[test]
fn the_response_template_precedes_chat_template_and_architecture() {
    let own = json!({"start_anchor": "A:", "fields": {"content": {}}});
    let glm = template("GLM-4.6.jinja");
    let mut hints =
        ModelHints { response_template: Some(&own), chat_template: Some(&glm), architecture: Some("youtu") };
    assert_eq!(ResponseFormat::for_model(&hints).unwrap().source(), FormatSource::Checkpoint);
    hints.response_template = None;
    assert_eq!(ResponseFormat::for_model(&hints).unwrap().name(), "glm-4.5");
    hints.chat_template = Some("{{ messages }}");
    let format = ResponseFormat::for_model(&hints).unwrap();
    assert_eq!((format.name(), format.source()), ("hermes", FormatSource::Architecture));
    hints.architecture = Some("llama");
    let format = ResponseFormat::for_model(&hints).unwrap();
    assert_eq!((format.name(), format.source()), ("generic", FormatSource::Generic));
    assert!(format.tool_grammar().is_none() && !format.has_tools() && format.has_reasoning());
    assert!(ResponseFormat::named("none").unwrap_err().to_string().contains("glm-4.7"));
}

#[test]
fn prompts_that_open_the_reasoning_are_recognized() {
    let cases = [
        ("GLM-4.7-Flash.jinja", true, true),
        ("GLM-4.7-Flash.jinja", false, false),
        ("GLM-4.6.jinja", true, false),
        ("GLM-4.6.jinja", false, false),
        ("deepseek-ai-DeepSeek-V3.1.jinja", true, true),
        ("deepseek-ai-DeepSeek-V3.1.jinja", false, false),
        ("deepseek-ai-DeepSeek-V3.2.jinja", true, true),
        ("deepseek-ai-DeepSeek-V3.2.jinja", false, false),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja", true, true),
        ("Kimi-K2-Thinking.jinja", true, false),
        ("GigaChat3-10B-A1.8B.jinja", true, false),
        ("constructed/ling-3.jinja", true, true),
        ("constructed/ling-3.jinja", false, false),
    ];
    for (file, thinking, expected) in cases {
        let source = template(file);
        let format =
            ResponseFormat::for_model(&ModelHints { chat_template: Some(&source), ..ModelHints::default() })
                .unwrap();
        // A user's message cannot open the reasoning.
        for content in [
            "Hi",
            "<think>",
            "<|assistant|><think>\n",
            "<｜Assistant｜><think>",
            "<|im_middle|><think>",
            "<role>ASSISTANT</role>\n<think>",
        ] {
            let mut input = ChatInput::new(json!([{"role": "user", "content": content}]));
            input.extra.insert("enable_thinking".into(), thinking.into());
            input.extra.insert("thinking".into(), thinking.into());
            let prompt = ChatTemplate::new(&source).unwrap().render(&input).unwrap();
            assert_eq!(
                format.opens_reasoning(&prompt),
                expected,
                "{file} {thinking} {content:?}: {:?}",
                prompt.text
            );
        }
    }
}

#[test]
fn text_before_calls_may_contain_other_markers() {
    for name in ResponseFormat::names() {
        let format = ResponseFormat::named(name).unwrap();
        let control = super::support::control_tokens(&format);
        let free = format.free_markers(&control);
        let Some(call) = format.tool_grammar() else {
            assert!(free.is_empty(), "{name}: {free:?}");
            continue;
        };
        let (tokens, whole): (Vec<_>, Vec<_>) = free.iter().partition(|marker| control.contains(marker));
        assert!(
            tokens.iter().all(|token| !call.open.contains(*token) && !call.close.contains(*token)),
            "{name}: {tokens:?}"
        );
        let whole: Vec<_> =
            whole.into_iter().filter(|marker| control.iter().any(|token| marker.contains(token))).collect();
        let expected: &[&str] = match name {
            "kimi-k3" => &[
                "<|close|>message<|sep|>",
                "<|close|>response<|sep|>",
                "<|close|>think<|sep|>",
                "<|open|>message role=\"assistant\"<|sep|>",
                "<|open|>response<|sep|>",
                "<|open|>think<|sep|>",
            ],
            _ => &[],
        };
        assert_eq!(whole, expected, "{name}");
        if name == "glm-4.7" {
            assert!(
                free.contains(&"<think>".to_owned()) && free.contains(&"</think>".to_owned()),
                "{free:?}"
            );
        }
    }
}

#[test]
fn invalid_response_templates_are_rejected_with_the_position() {
    let field = |field: serde_json::Value| json!({"start_anchor": "A:", "fields": {"x": field}});
    let cases = [
        (json!(5), "response_template"),
        (json!({"start_anchor": "A:", "fields": {}}), "0 fields"),
        (json!({"start_anchor": "A:", "version": 2, "fields": {"content": {}}}), "version 2"),
        (json!({"fields": {"content": {}}}), "start_anchor"),
        (
            json!({"start_anchor": "a", "start_anchor_pattern": "a", "fields": {"content": {}}}),
            "start_anchor",
        ),
        (json!({"start_anchor": "A:", "fields": {"a": {}, "b": {}}}), "\"b\""),
        (json!({"start_anchor": "A:", "odd": 1, "fields": {"content": {}}}), "odd"),
        (field(json!({"open": "[", "close": "]", "content": "yaml"})), "yaml"),
        (field(json!({"open": "[", "odd": 1})), "odd"),
        (field(json!({"open": []})), "empty"),
        (field(json!({"open": [""]})), "empty"),
        (field(json!({"open": "a", "open_pattern": "b"})), "fields.x.open"),
        (field(json!({"open_pattern": "a(?=b)"})), "a(?=b)"),
        (field(json!({"open_pattern": "("})), "("),
        (field(json!({"open_pattern": "<(?P<name>a)>"})), "transform"),
        (field(json!({"open": "a", "join": " "})), "repeats"),
        (field(json!({"open": "a", "transform_each": true})), "transform"),
        (field(json!({"open": "a", "transform": {"v": "pre {content}"}})), "interpolation"),
        (field(json!({"open": "a", "content": "xml-inline", "content_args": {"tag_pattern": "<a>"}})), "key"),
    ];
    for (template, part) in cases {
        let error = ResponseFormat::from_template(&template).unwrap_err().to_string();
        assert!(error.contains(part), "{template}: {error}");
    }
}

#[test]
fn formats_are_sync_and_parsers_are_send() {
    fn shared<T: Send + Sync>() {}
    fn moved<T: Send>() {}
    shared::<ResponseFormat>();
    moved::<latent_text::ResponseParser>();
}
