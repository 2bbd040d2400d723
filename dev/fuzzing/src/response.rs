//! Parses responses in pieces and as a whole, with every built-in format and with response
//! templates of checkpoints.

use crate::source::FuzzSource;
use latent_text::{CallEnding, ParserOptions, ResponseEvent, ResponseFormat, ResponseParser};
use serde_json::{Value, json};

/// Response templates like those in checkpoints.
fn templates() -> [Value; 3] {
    [
        json!({"start_anchor": "A:", "fields": {
            "thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
            "content": {"open": "<r>\n", "close_pattern": r"\n?</r>"},
            "tool_calls": {"open_pattern": r"<call to=(?P<name>\w+).*?>", "close": ["</call>", "</call>\n"], "repeats": true,
                "content": "json", "transform": {"function": {"name": "{name}", "arguments": "{content}"}}}}}),
        json!({"start_anchor_pattern": r"A\d", "fields": {
            "tool_calls": {"open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>", "close_pattern": r"</function>\s*</tool_call>",
                "repeats": true, "content": "xml-inline",
                "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
                "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|$)"}}}),
        json!({"start_anchor": "A", "fields": {
            "tool_calls": {"open_pattern": r"<\|tool_call>call:(?P<name>\w+)", "close": "<tool_call|>", "content": "json",
                "content_args": {"unquoted_keys": true, "string_delims": [["<|\"|>", "<|\"|>"]]},
                "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
            "meta": {"open": "<meta>", "close": "</meta>", "content": "kv-lines"},
            "content": {"repeats": true, "join": " "}}}),
    ]
}

/// Parses with any JSON as a checkpoint's template. The model's output is in the field `output`.
fn own_template(bytes: &[u8]) {
    let Ok(template) = serde_json::from_slice::<Value>(bytes) else { return };
    let output = template.get("output").and_then(Value::as_str).unwrap_or("<a>b</a>{\"c\": 1}").to_owned();
    if let Ok(format) = ResponseFormat::from_template(template.get("template").unwrap_or(&template)) {
        compare(&format, &ParserOptions::default(), &[(output, false)]);
    }
}

/// An input that begins with `{` is a checkpoint's template. After a zero byte, choices generate
/// the output. In any other input the first byte chooses the format, and the rest is the output.
///
/// However the output is split, the events must be the same. Calls must be in order, and the
/// arguments of a complete call must be JSON.
pub fn response(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    if *first == b'{' {
        return own_template(bytes);
    }
    let names = ResponseFormat::names();
    let format = |number: usize| match number % (names.len() + 3) {
        own if own < names.len() => ResponseFormat::named(names[own]).expect("the format is ours"),
        other => {
            ResponseFormat::from_template(&templates()[other - names.len()]).expect("the template is valid")
        }
    };
    if *first != 0 {
        let text = String::from_utf8_lossy(rest);
        return compare(
            &format(usize::from(*first) - 1),
            &ParserOptions::default(),
            &[(text.into_owned(), false)],
        );
    }
    let mut source = FuzzSource::new(rest);
    let format = format(source.below(64));
    // Compared with 1, not 0: after the last byte every choice is 0, which stands for the default.
    let mut options = ParserOptions {
        starts_in_reasoning: source.below(4) == 1,
        parse_reasoning: source.below(8) != 1,
        parse_tools: source.below(8) != 1,
        ..ParserOptions::default()
    };
    let mut markers: Vec<String> = format.markers().into_iter().map(str::to_owned).collect();
    markers.push("<tool_call>\n<function=".to_owned());
    if source.below(2) == 1 {
        options.control_tokens.clone_from(&markers);
    }
    let pieces: Vec<(String, bool)> = (0..source.below(48)).map(|_| piece(&mut source, &markers)).collect();
    compare(&format, &options, &pieces);
}

fn piece(source: &mut FuzzSource<'_>, markers: &[String]) -> (String, bool) {
    const PARTS: [&str; 24] = [
        "a",
        " ",
        "\n",
        "é",
        "🙂",
        "\"",
        "\\",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "1",
        "-",
        ".5e",
        "null",
        "true",
        "name",
        "\"name\":",
        "\"f\"",
        "\"arguments\":",
        "{\"a\": \"b\"}",
        "<",
    ];
    let marker = source.pick(markers).clone();
    match source.below(4) {
        0 => ((*source.pick(&PARTS)).to_owned(), false),
        1 => (marker, false),
        2 => {
            let end = marker.char_indices().nth(source.below(12)).map_or(marker.len(), |(at, _)| at);
            (marker[..end].to_owned(), false)
        }
        _ => (marker, true),
    }
}

fn run(
    format: &ResponseFormat,
    options: &ParserOptions,
    pieces: &[(String, bool)],
    end: fn(&mut ResponseParser, &mut Vec<ResponseEvent>),
) -> Vec<ResponseEvent> {
    let tools = json!([{"name": "f", "parameters": {"properties": {"a": {"type": "string"}, "name": {"type": ["integer", "null"]}}}}]);
    let mut parser = ResponseParser::new(format, &tools, options);
    let mut events = Vec::new();
    for (text, special) in pieces {
        parser.push(text, *special, &mut events);
    }
    end(&mut parser, &mut events);
    events
}

fn compare(format: &ResponseFormat, options: &ParserOptions, pieces: &[(String, bool)]) {
    // Text must parse the same in the given pieces, in one piece, and split between all characters.
    // Control tokens stay separate, because they are never part of a text.
    let mut whole: Vec<(String, bool)> = Vec::new();
    for (text, special) in pieces {
        match whole.last_mut() {
            Some((last, false)) if !special => last.push_str(text),
            _ => whole.push((text.clone(), *special)),
        }
    }
    let characters: Vec<(String, bool)> = pieces
        .iter()
        .flat_map(|(text, special)| match special {
            true => vec![(text.clone(), true)],
            false => text.chars().map(|c| (c.to_string(), false)).collect(),
        })
        .collect();
    for end in [ResponseParser::finish, ResponseParser::cut] {
        let expected = run(format, options, &whole, end);
        check(&expected);
        for cut in [pieces, &characters] {
            assert_eq!(run(format, options, cut, end), expected, "{} {pieces:?}", format.name());
        }
    }
}

/// Checks that calls are in order and that complete calls have JSON arguments.
fn check(events: &[ResponseEvent]) {
    let (mut next, mut open, mut arguments) = (0, false, String::new());
    for event in events {
        match event {
            ResponseEvent::ToolCallStart { index, name, .. } => {
                assert!(!open && *index == next && !name.is_empty(), "{event:?}");
                (next, open) = (next + 1, true);
                arguments.clear();
            }
            ResponseEvent::ToolCallArguments { index, delta } => {
                assert!(open && index + 1 == next, "{event:?}");
                arguments.push_str(delta);
            }
            ResponseEvent::ToolCallEnd { index, ending } => {
                assert!(open && index + 1 == next, "{event:?}");
                open = false;
                if *ending == CallEnding::Complete {
                    assert!(serde_json::from_str::<Value>(&arguments).is_ok(), "no JSON: {arguments:?}");
                }
            }
            _ => {}
        }
    }
    assert!(!open, "a call without an end: {events:?}");
}
