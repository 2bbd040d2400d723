//! Tool calls in the formats of several model families.

use crate::support::{Random, Walk, admits, compile, small};
use latent_grammar::{CallableTool, Grammar, GrammarError, GrammarSource, ToolCalls, ToolRequirement};
use latent_text::{
    ArgumentsGrammar, CallEnding, KindGrammar, ParserOptions, ResponseEvent, ResponseFormat, ResponseParser,
    TaggedGrammar, ToolGrammar,
};
use serde_json::{Value, json};
use std::sync::Arc;

fn format(parts: [&str; 7]) -> ToolGrammar {
    let [section_open, section_close, separator, open, name, name_close, close] = parts.map(str::to_owned);
    ToolGrammar {
        section_open,
        section_close,
        separator,
        open,
        name,
        name_close,
        close,
        ..ToolGrammar::default()
    }
}

/// Markers that are control tokens, like Kimi-K2's.
fn by_tokens() -> ToolGrammar {
    let form = "functions.{name}:{index}";
    format(["<|calls|>", "<|/calls|>", "", "<|call|>", form, "<|args|>", "<|/call|>"])
}

/// Markers that are text, with the name inside the JSON.
fn by_text() -> ToolGrammar {
    format(["", "", "\n", "<tool_call>\n{\"name\": \"", "", "\", \"arguments\": ", "}\n</tool_call>"])
}

/// Each argument in its own tags, like GLM's.
fn tagged() -> ToolGrammar {
    let tags = TaggedGrammar {
        open: "<k>".into(),
        key_close: "</k>\n".into(),
        value_open: "<v>".into(),
        close: "</v>\n".into(),
        ..TaggedGrammar::default()
    };
    let arguments = ArgumentsGrammar::Tagged(Box::new(tags));
    ToolGrammar { arguments, ..format(["", "", "\n", "<tool_call>", "", "\n", "</tool_call>"]) }
}

/// Each argument with its type, like DSML's.
fn typed() -> ToolGrammar {
    let kind = KindGrammar { string: "true".into(), json: vec!["false".into()], close: "\">".into() };
    let tags = TaggedGrammar {
        before: "\n".into(),
        after: "\n".into(),
        separator: "\n".into(),
        open: "<p name=\"".into(),
        key_close: "\" string=\"".into(),
        kind: Some(kind),
        close: "</p>".into(),
        ..TaggedGrammar::default()
    };
    let arguments = ArgumentsGrammar::Tagged(Box::new(tags));
    ToolGrammar {
        arguments,
        ..format(["<calls>\n", "</calls>", "\n", "<invoke name=\"", "", "\">", "</invoke>\n"])
    }
}

/// Tags like DSML's, whose mark is a control token or text.
fn marked(mark: &str) -> ToolGrammar {
    let of = |text: &str| text.replace('%', mark);
    let tags = TaggedGrammar {
        open: of("<%p "),
        key_close: ">".into(),
        close: of("</%p>"),
        separator: "\n".into(),
        after: "\n".into(),
        ..TaggedGrammar::default()
    };
    let parts = ["\n\n<%calls>\n", "\n</%calls>", "\n", "<%call ", "", ">\n", "</%call>"].map(of);
    let arguments = ArgumentsGrammar::Tagged(Box::new(tags));
    ToolGrammar { arguments, ..format(parts.each_ref().map(String::as_str)) }
}

/// Both marks, each with the texts of two calls.
fn by_marks() -> [(ToolGrammar, [String; 2]); 2] {
    ["<|call|>", "DSML"].map(|mark| {
        let get = "<%call get>\n<%p city>Bonn</%p>\n</%call>";
        (marked(mark), [get, "<%call get_time>\n</%call>"].map(|call| call.replace('%', mark)))
    })
}

fn whole(format: &ToolGrammar, calls: &str) -> String {
    format!("{}{calls}{}", format.section_open, format.section_close)
}

fn tool(name: &str, parameters: Value) -> CallableTool {
    CallableTool { name: name.into(), parameters: Some(parameters), strict: false }
}

fn tools() -> Vec<CallableTool> {
    let city = json!({"type": "string"});
    vec![
        tool(
            "get",
            json!({"type": "object", "properties": {"city": city, "days": {"type": "integer"}}, "required": ["city"]}),
        ),
        tool("get_time", json!({"type": "object", "properties": {}, "additionalProperties": false})),
    ]
}

fn calls(format: ToolGrammar, choice: ToolRequirement, parallel: bool) -> ToolCalls {
    let free_markers = vec!["<think>".into(), "</think>".into()];
    ToolCalls { format, free_markers, tools: tools(), choice, parallel }
}

fn of(calls: ToolCalls) -> Arc<Grammar> {
    compile(&GrammarSource::Tools(Box::new(calls))).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn check(grammar: &Arc<Grammar>, good: &[&str], bad: &[&str]) {
    good.iter().for_each(|text| assert!(admits(grammar, text), "refuses {text:?}"));
    bad.iter().for_each(|text| assert!(!admits(grammar, text), "admits {text:?}"));
}

#[test]
fn calls_between_control_tokens() {
    let call = "<|call|>functions.get:0<|args|>{\"city\": \"Bonn\"}<|/call|>";
    let one = format!("<|calls|>{call}<|/calls|>");
    let two = format!("<|calls|>{call}<|call|>functions.get_time:1<|args|>{{}}<|/call|><|/calls|>");
    let auto = of(calls(by_tokens(), ToolRequirement::Auto, true));
    // Markers spelled as text are only text.
    let mut walk = Walk::new(&auto);
    assert!("<|calls|>{".bytes().all(|byte| walk.push(u32::from(byte))));
    for text in [&one, &two, "", "Hello {日", &format!("<think>hm</think> I look.{one}")] {
        let mut walk = Walk::new(&auto);
        assert!(walk.text(text).is_ok(), "{text}");
        assert!(walk.may_end(), "{text}");
    }
    for text in [
        "<|call|>",
        "a<|calls|>b",
        "<|calls|><|call|>functions.other",
        "<|args|>",
        "<|calls|><|call|>functions.get:x",
    ] {
        assert!(Walk::new(&auto).text(text).is_err(), "{text}");
    }
    let single = of(calls(by_tokens(), ToolRequirement::Required, false));
    assert!(Walk::new(&single).text(&one).is_ok() && Walk::new(&single).text(&two).is_err());
    assert!(Walk::new(&single).text("H").is_err() && !Walk::new(&single).may_end());
    let bad = one.replace("\"Bonn\"", "7");
    assert!(Walk::new(&single).text(&bad).is_err());
}

#[test]
fn calls_between_markers_of_text() {
    let call = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"<tool_call>\", \"days\": 3}}\n</tool_call>";
    let time = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    let both = format!("{call}\n{time}");
    let auto = of(calls(by_text(), ToolRequirement::Auto, true));
    let thinking = format!("a <tool b <tool_cal {call}");
    check(
        &auto,
        &["", "Hello", "a <tool", call, time, &both, &thinking, &format!("well\n{both}")],
        &[
            "<tool_call>",
            "a<tool_call>b",
            &format!("{call}x"),
            &format!("{call}{time}"),
            &call.replace("get", "other"),
        ],
    );
    let required = of(calls(by_text(), ToolRequirement::Required, false));
    check(&required, &[call, time], &["", "Hello", &both, &format!(" x{call}")]);
    let named = of(calls(by_text(), ToolRequirement::Named("get_time".into()), true));
    check(&named, &[time], &[call, "", &format!("{time}\n{time}")]);
}

#[test]
fn arguments_by_themselves() {
    let grammar = of(calls(tagged(), ToolRequirement::Auto, true));
    check(
        &grammar,
        &[
            "<tool_call>get\n<k>city</k>\n<v>Bonn </v\n\"日</v>\n</tool_call>",
            "x<tool_call>get\n<k>city</k>\n<v></v>\n<k>days</k>\n<v>-3</v>\n</tool_call>\n<tool_call>get_time\n</tool_call>",
        ],
        &[
            "<tool_call>get\n</tool_call>",
            "<tool_call>get\n<k>days</k>\n<v>1</v>\n</tool_call>",
            "<tool_call>get\n<k>city</k>\n<v>a</v>\n<k>days</k>\n<v>a</v>\n</tool_call>",
            "<tool_call>get_time\n<k>city</k>\n<v>a</v>\n</tool_call>",
            "<tool_call>get\n<k>other</k>\n<v>a</v>\n</tool_call>",
        ],
    );
}

#[test]
fn another_call_may_begin_like_the_end_of_the_calls() {
    for (format, [get, time]) in by_marks() {
        let two = whole(&format, &format!("{get}\n{time}"));
        let three = whole(&format, &format!("{time}\n{get}\n{get}"));
        let one = whole(&format, &time);
        let open = format.section_open.clone();
        for choice in [ToolRequirement::Auto, ToolRequirement::Required] {
            let grammar = of(calls(format.clone(), choice.clone(), true));
            check(
                &grammar,
                &[&one, &two, &three],
                &[&two.replace(&format!("\n{time}"), &time), &format!("{open}{get}\n")],
            );
            check(&of(calls(format.clone(), choice, false)), &[&one], &[&two, &three]);
        }
    }
}

#[test]
fn an_argument_may_contain_the_beginning_of_its_end_marker() {
    for (format, [get, _]) in by_marks() {
        let grammar = of(calls(format.clone(), ToolRequirement::Required, true));
        let with = |city: &str| whole(&format, &get.replace("Bonn", city));
        check(&grammar, &[&with("<b>x</b>"), &with("</"), &with("")], &[&with("").replace("</", "<")]);
    }
}

#[test]
fn text_before_calls_may_contain_the_beginning_of_a_marker() {
    for (format, [get, _]) in by_marks() {
        let call = whole(&format, &get);
        let grammar = of(calls(format, ToolRequirement::Auto, true));
        let text = "One.\n\n<b>two</b>\n\n<";
        check(
            &grammar,
            &[text, &call, &format!("{text}{call}")],
            &[&format!("{call}{text}"), &call[..call.len() - 1]],
        );
    }
}

#[test]
fn arguments_with_their_types() {
    let parameters = json!({
        "type": "object",
        "$defs": {"unit": {"enum": ["C", "F"]}},
        "properties": {"where": {"type": ["string", "null"]}, "unit": {"$ref": "#/$defs/unit"}, "at": {"type": "array", "items": {"type": "integer"}}},
    });
    let any = CallableTool { name: "any".into(), parameters: None, strict: true };
    let calls = ToolCalls {
        format: typed(),
        free_markers: Vec::new(),
        tools: vec![tool("w", parameters), any],
        choice: ToolRequirement::Required,
        parallel: true,
    };
    let whole = |inner: &str| format!("<calls>\n<invoke name=\"w\">{inner}</invoke>\n</calls>");
    let (place, unit, at) = (
        "<p name=\"where\" string=\"true\">a\nb</p>",
        "<p name=\"unit\" string=\"true\">F</p>",
        "<p name=\"at\" string=\"false\">[1, 2]</p>",
    );
    let grammar = of(calls);
    check(
        &grammar,
        &[
            &whole(""),
            &whole(&format!("\n{place}\n")),
            &whole(&format!("\n{place}\n{unit}\n{at}\n")),
            &whole(&format!("\n{place}\n{at}\n")),
            &whole(&format!("\n{at}\n")),
            "<calls>\n<invoke name=\"any\">\n<p name=\"q\" string=\"true\">x</p>\n<p name=\"r\" string=\"true\"></p>\n</invoke>\n</calls>",
            "<calls>\n<invoke name=\"any\"></invoke>\n\n<invoke name=\"w\"></invoke>\n</calls>",
        ],
        &[
            &whole("\n"),
            &whole(&format!("\n{at}\n{place}\n")),
            &whole(&format!("\n{place}{at}\n")),
            &whole(&format!("\n{}\n", unit.replace('F', "K"))),
            &whole(&format!("\n{}\n", at.replace('1', "x"))),
            "<calls>\n</calls>",
        ],
    );
}

#[test]
fn unsupported_schemas_are_errors_only_for_strict_tools() {
    for parameters in
        [json!({"type": "object", "not": {}}), json!({"oneOf": [{"type": "object"}, {"required": ["a"]}]})]
    {
        let mut calls = calls(by_text(), ToolRequirement::Required, false);
        calls.tools.push(tool("odd", parameters));
        let grammar = of(calls.clone());
        let odd = "<tool_call>\n{\"name\": \"odd\", \"arguments\": {\"x\": [1]}}\n</tool_call>";
        let get = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"a\"}}\n</tool_call>";
        check(&grammar, &[odd, get], &[&get.replace("city", "town"), &odd.replace("[1]", "[")]);
        calls.tools[2].strict = true;
        let error = compile(&GrammarSource::Tools(Box::new(calls))).err().unwrap();
        assert!(
            matches!(&error, GrammarError::Invalid { problem, .. } if problem.contains("tool odd")),
            "{error}"
        );
    }
}

#[test]
fn impossible_calls_are_errors() {
    let none = ToolCalls { tools: vec![], ..calls(by_text(), ToolRequirement::Auto, true) };
    let other = calls(by_text(), ToolRequirement::Named("other".into()), true);
    let mut control = calls(by_text(), ToolRequirement::Auto, true);
    control.tools[0].name = "a<end>".into();
    let formless = calls(ToolGrammar::default(), ToolRequirement::Auto, true);
    for (calls, message) in [
        (none, "no tools"),
        (other, "unknown tool \"other\""),
        (control, "invalid tool name"),
        (formless, "no marker that begins"),
    ] {
        let error = compile(&GrammarSource::Tools(Box::new(calls))).err().unwrap();
        assert!(error.to_string().contains(message), "{error}");
    }
}

/// The result of parsing an output: the calls and the remaining text.
fn parsed(format: &ResponseFormat, text: &str) -> (Vec<(String, Value, CallEnding)>, String) {
    let mut parser = ResponseParser::new(format, &json!([]), &ParserOptions::default());
    let mut events = Vec::new();
    parser.push(text, false, &mut events);
    parser.finish(&mut events);
    let (mut calls, mut rest, mut arguments) = (Vec::new(), String::new(), String::new());
    for event in events {
        match event {
            ResponseEvent::ToolCallStart { name, .. } => calls.push((name, Value::Null, CallEnding::Cut)),
            ResponseEvent::ToolCallArguments { delta, .. } => arguments += &delta,
            ResponseEvent::ToolCallEnd { ending, .. } => {
                let last = calls.last_mut().unwrap();
                last.1 = serde_json::from_str(&std::mem::take(&mut arguments)).unwrap_or_default();
                last.2 = ending;
            }
            ResponseEvent::Content(text) | ResponseEvent::Reasoning(text) => rest += &text,
            _ => {}
        }
    }
    (calls, rest)
}

/// Random choices within the masks produce, in the format of every family, calls that the parser
/// reads back.
#[test]
fn constrained_calls_parse_back_in_every_format() {
    let parameters = json!({"type": "object", "required": ["city"], "properties": {
        "city": {"enum": ["Bonn", "Köln \"am\" Rhein"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14}, "now": {"type": "boolean"},
        "at": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2}}});
    let tools = vec![
        tool("get", parameters),
        tool("get_time", json!({"type": "object", "properties": {}, "additionalProperties": false})),
    ];
    let mut formats = 0;
    for name in ResponseFormat::names() {
        let format = ResponseFormat::named(name).unwrap();
        let Some(grammar) = format.tool_grammar() else { continue };
        formats += 1;
        let calls = ToolCalls {
            format: grammar.clone(),
            free_markers: Vec::new(),
            tools: tools.clone(),
            choice: ToolRequirement::Required,
            parallel: true,
        };
        let compiled = of(calls);
        for seed in 0..12 {
            let mut random = Random(seed);
            let mut walk = Walk::new(&compiled);
            let mut bytes = Vec::new();
            for _ in 0..2000 {
                let allowed = walk.allowed();
                assert!(!allowed.is_empty(), "{name}: {:?}", walk.constraint.problem());
                let token = allowed[random.next(allowed.len())];
                if small().end_of_generation().contains(&token)
                    || walk.constraint.may_end() && random.next(2) == 0
                {
                    break;
                }
                bytes.extend_from_slice(small().piece(token).unwrap());
                assert!(walk.push(token));
            }
            assert!(walk.may_end(), "{name}: {}", String::from_utf8_lossy(&bytes));
            let text = String::from_utf8(bytes).unwrap();
            let (calls, rest) = parsed(&format, &text);
            assert!(!calls.is_empty() && rest.trim().is_empty(), "{name}: {text}\n{calls:?} {rest:?}");
            for (tool, arguments, ending) in calls {
                assert_eq!(ending, CallEnding::Complete, "{name}: {text}");
                let object = arguments.as_object().unwrap_or_else(|| panic!("{name}: {text}"));
                if tool == "get" {
                    let city = object["city"].as_str().unwrap();
                    assert!(["Bonn", "Köln \"am\" Rhein"].contains(&city), "{name}: {text}");
                    assert!(
                        object.get("days").is_none_or(|days| (1..=14).contains(&days.as_i64().unwrap_or(0))),
                        "{name}: {text}"
                    );
                    assert!(object.get("now").is_none_or(Value::is_boolean), "{name}: {text}");
                    assert!(object.get("at").is_none_or(Value::is_array), "{name}: {text}");
                } else {
                    assert!(tool == "get_time" && object.is_empty(), "{name}: {text}");
                }
            }
        }
    }
    assert!(formats >= 10, "{formats}");
}
