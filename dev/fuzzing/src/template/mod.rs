//! Renders generated or arbitrary chat templates with several inputs.

mod grammar;

use crate::source::FuzzSource;
use latent_text::{ChatInput, ChatTemplate, RenderedText};
use serde_json::{Value, json};

/// Stack of the rendering thread: 2 MB, as on the server's threads and as SECURITY.md promises.
/// Sanitizers make frames larger.
const STACK: usize = if cfg!(fuzzing) { 8 << 20 } else { 2 << 20 };

/// Maximum size of a result in bytes.
const MAX_OUTPUT: usize = 16 << 20;

/// Renders conversations with a template. An input that begins with a zero byte is interpreted by
/// the grammar; any other is the template itself.
///
/// # Panics
/// If the engine panics, a result exceeds the limit, or text from a message counts as the
/// template's own. The caller limits memory and time.
pub fn template(bytes: &[u8]) {
    let (template, inputs) = match bytes.split_first() {
        Some((0, choices)) => {
            let mut source = FuzzSource::new(choices);
            let input = generated_input(&mut source);
            (grammar::template(&mut source), vec![input])
        }
        _ => (String::from_utf8_lossy(bytes).into_owned(), inputs()),
    };
    run(&template, &inputs);
}

fn run(template_text: &str, inputs: &[ChatInput]) {
    let render = || {
        let Ok(template) = ChatTemplate::new(template_text) else { return };
        for input in inputs {
            let Ok(rendered) = template.render(input) else { continue };
            assert!(rendered.text.len() <= MAX_OUTPUT, "{} bytes", rendered.text.len());
            check_content_ranges(template_text, &rendered);
        }
    };
    // A thread of its own: the stack of the caller's thread has another size.
    let builder = std::thread::Builder::new().stack_size(STACK);
    let joined = std::thread::scope(|scope| builder.spawn_scoped(scope, render).map(|thread| thread.join()));
    match joined {
        Ok(Ok(())) => {}
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => panic!("no thread to render on: {error}"),
    }
}

/// A private-use character that only the inputs contain. Wherever it occurs in a result, the text
/// came from outside.
const MARK: char = '\u{e000}';

/// Compares the content ranges of a result with the marks in it.
fn check_content_ranges(template: &str, rendered: &RenderedText) {
    let mut end = 0;
    for range in &rendered.content {
        assert!(range.start >= end && range.start < range.end, "{:?}", rendered.content);
        assert!(rendered.text.is_char_boundary(range.start) && rendered.text.is_char_boundary(range.end));
        end = range.end;
    }
    assert!(end <= rendered.text.len());
    // Such templates could produce the mark themselves: literally, by an escape in a string, by an
    // HTML entity, or by a format.
    if template.contains([MARK, '\\', '&', '%']) {
        return;
    }
    for (at, _) in rendered.text.match_indices(MARK) {
        let next = rendered.content.partition_point(|range| range.end <= at);
        let inside = rendered.content.get(next).is_some_and(|range| range.start <= at);
        assert!(
            inside,
            "byte {at} of {:?} came from a message, unlike {:?}",
            rendered.text, rendered.content
        );
    }
}

/// A plain conversation, and one with everything that templates read.
fn inputs() -> Vec<ChatInput> {
    let mut plain = ChatInput::new(json!([{"role": "user", "content": "Hi\u{e000}"}]));
    plain.now = Some(1_700_000_000);
    let mut full = ChatInput::new(json!([
        {"role": "system", "content": "Be <b>brief</b>.\u{e000}"},
        {"role": "user", "content": [{"type": "text", "text": "What is 2+2?\u{e000}"}, {"type": "image"}]},
        {"role": "assistant", "content": null, "reasoning_content": "\u{e000}Add.", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": [2.5, null, true]}}}
        ]},
        {"role": "tool", "tool_call_id": "1", "content": "4"},
        {"role": "assistant", "content": "<think>ok</think>4"},
        {"role": "user", "content": "\u{e000}Danke 🙂"}
    ]));
    full.tools =
        Some(json!([{"type": "function", "function": {"name": "add", "description": "Adds.\u{e000}",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}}}]));
    full.now = Some(0);
    full.bos_token = "<s>".into();
    full.eos_token = "</s>".into();
    full.extra.insert("enable_thinking".into(), true.into());
    vec![plain, full]
}

/// A conversation of unusual messages.
fn generated_input(source: &mut FuzzSource<'_>) -> ChatInput {
    let mut input = inputs().swap_remove(source.below(2));
    if source.once_in(2) {
        input.messages = (0..source.below(4)).map(|_| message(source)).collect();
    }
    input.add_generation_prompt = !source.once_in(3);
    if source.once_in(4) {
        input.tools = Some(value(source, 3));
    }
    if source.once_in(4) {
        input.extra.insert("x".into(), value(source, 4));
    }
    if source.once_in(4) {
        input.now = Some(source.number());
    }
    input
}

fn message(source: &mut FuzzSource<'_>) -> Value {
    let role = *source.pick(&["user", "assistant", "system", "tool", "developer", ""]);
    let content =
        if source.once_in(4) { value(source, 3) } else { format!("{}{MARK}", source.text()).into() };
    match source.below(6) {
        0 => json!({"role": role}),
        1 => value(source, 2),
        2 => json!({"role": role, "content": content, "tool_calls": value(source, 3)}),
        _ => json!({"role": role, "content": content}),
    }
}

fn value(source: &mut FuzzSource<'_>, depth: usize) -> Value {
    match source.below(if depth == 0 { 5 } else { 8 }) {
        0 => Value::Null,
        1 => source.once_in(2).into(),
        2 => source.number().into(),
        3 => json!(*source.pick(&[0.5, -0.0, 1e300, 5e-324, 1e16, 0.1])),
        4 => source.text().into(),
        5 => (0..source.below(4)).map(|_| value(source, depth - 1)).collect(),
        6 => Value::Object((0..source.below(4)).map(|_| (source.text(), value(source, depth - 1))).collect()),
        _ => (0..source.below(4)).fold(source.text().into(), |inner, _| json!([inner])),
    }
}
