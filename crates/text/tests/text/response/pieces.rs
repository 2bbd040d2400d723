//! Property tests: a response split into any pieces parses like the whole, calls written by a
//! grammar are parsed back, and text outside the format stays text.

use super::support::{OutputPiece, control_tokens, ended, events, fold, tools_for, write_calls};
use latent_text::{ArgumentsGrammar, CallEnding, ParserOptions, ResponseFormat, ResponseParser};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
#[cfg(unix)]
use std::time::Duration;

/// Response templates of checkpoints that contain expressions.
fn templates() -> Vec<Value> {
    let cases: Vec<Value> = serde_json::from_str(include_str!("cases.json")).unwrap();
    cases[0]["templates"].as_object().unwrap().values().cloned().collect()
}

fn formats() -> Vec<ResponseFormat> {
    let own = ResponseFormat::names().into_iter().map(|name| ResponseFormat::named(name).unwrap());
    own.chain(templates().iter().map(|template| ResponseFormat::from_template(template).unwrap())).collect()
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1_000_000..1_000_000i32).prop_map(|n| Value::from(f64::from(n) / 8.0)),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,3}", inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop_oneof![
            Just("a"),
            Just(" "),
            Just("\n"),
            Just("é"),
            Just("🙂"),
            Just("<"),
            Just("\""),
            Just("\\"),
            Just("{"),
            Just("5"),
            Just("</"),
            Just("\u{3000}"),
            Just("null"),
            Just("}"),
            Just("]"),
            Just("<|"),
            Just("\t"),
        ],
        0..8,
    )
    .prop_map(|parts| parts.concat())
}

fn calls() -> impl Strategy<Value = Vec<(String, Map<String, Value>)>> {
    let arguments = prop::collection::btree_map("[a-z]{1,6}", value(), 0..4);
    let call = ("[a-z_]{1,8}", arguments).prop_map(|(name, map)| (name, map.into_iter().collect()));
    prop::collection::vec(call, 1..4)
}

/// Noise: parts of the format's markers, JSON, text, white space.
fn noise(format: &ResponseFormat, seeds: &[(u8, u16)], text: &str) -> String {
    let markers = format.markers();
    let parts = [
        "{\"name\": \"f\", \"arguments\": {\"a\": [1, \"x\"]}}",
        "get_weather",
        "functions.f:0",
        "\n",
        "  ",
        text,
        "true",
        "1.5",
        "city",
        "[{",
        "}]",
        "\"",
        ",",
        ":",
        "<think>",
    ];
    let mut out = String::new();
    for (kind, number) in seeds {
        let marker = if markers.is_empty() { "" } else { markers[*number as usize % markers.len()] };
        match kind % 4 {
            0 => out.push_str(parts[*number as usize % parts.len()]),
            1 => {
                // An incomplete marker.
                let end =
                    marker.char_indices().nth(*number as usize % 7 + 1).map_or(marker.len(), |(at, _)| at);
                out.push_str(&marker[..end]);
            }
            _ => out.push_str(marker),
        }
    }
    out
}

/// Splits a text so that control tokens are separate pieces.
fn tokens(output: &str, control: &[String], as_text: &[bool]) -> Vec<OutputPiece> {
    let mut pieces: Vec<OutputPiece> = Vec::new();
    let (mut rest, mut n) = (output, 0);
    while !rest.is_empty() {
        let token =
            control.iter().filter(|token| rest.starts_with(token.as_str())).max_by_key(|token| token.len());
        n += usize::from(token.is_some());
        // Some arrive as text.
        let special = token.is_some() && !as_text.get(n % as_text.len().max(1)).copied().unwrap_or(false);
        let length = token.map_or_else(|| rest.chars().next().unwrap().len_utf8(), String::len);
        let (piece, after) = rest.split_at(length);
        rest = after;
        match pieces.last_mut() {
            Some((last, false)) if !special => last.push_str(piece),
            _ => pieces.push((piece.to_owned(), special)),
        }
    }
    pieces
}

/// Splits text pieces further. Control tokens are not split.
fn cut(pieces: &[OutputPiece], cuts: &[prop::sample::Index]) -> Vec<OutputPiece> {
    let mut out = Vec::new();
    for (text, special) in pieces {
        if *special {
            out.push((text.clone(), true));
            continue;
        }
        let count = text.chars().count();
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(count + 1)).collect();
        at.extend([0, count]);
        at.sort_unstable();
        let characters: Vec<char> = text.chars().collect();
        out.extend(at.windows(2).map(|pair| (characters[pair[0]..pair[1]].iter().collect(), false)));
    }
    out
}

fn options() -> impl Strategy<Value = ParserOptions> {
    (any::<bool>(), prop::bool::weighted(0.9), prop::bool::weighted(0.9), any::<u64>()).prop_map(
        |(starts_in_reasoning, parse_reasoning, parse_tools, id_seed)| ParserOptions {
            starts_in_reasoning,
            parse_reasoning,
            parse_tools,
            id_seed,
            ..ParserOptions::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_pieces_give_what_the_whole_gives(
        format in prop::sample::select(formats()),
        calls in calls(),
        seeds in prop::collection::vec((any::<u8>(), any::<u16>()), 0..12),
        more in prop::collection::vec((any::<u8>(), any::<u16>()), 0..6),
        text in text(),
        mut options in options(),
        control in any::<bool>(),
        as_text in prop::collection::vec(prop::bool::weighted(0.2), 1..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
    ) {
        let mut output = noise(&format, &seeds, &text);
        if let Some(grammar) = format.tool_grammar() {
            let mut written = write_calls(grammar, &calls);
            // Some are truncated or malformed.
            if let Some((1, number)) = seeds.first().map(|(kind, number)| (kind % 3, *number as usize)) {
                let at = written.char_indices().nth(number % written.chars().count()).map_or(0, |(at, _)| at);
                written.truncate(at);
            }
            output.push_str(&written);
        }
        output.push_str(&noise(&format, &more, "x"));
        let tokens_of = control_tokens(&format);
        let pieces = if control {
            options.control_tokens.clone_from(&tokens_of);
            tokens(&output, &tokens_of, &as_text)
        } else {
            vec![(output.clone(), false)]
        };
        let tools = tools_for(&calls);
        let whole = events(&format, &tools, &options, None, pieces.clone());
        fold(&whole);
        let parts = events(&format, &tools, &options, None, cut(&pieces, &cuts));
        prop_assert_eq!(&parts, &whole, "{} {:?}", format.name(), output);
        let characters = pieces.iter().flat_map(|(text, special)| -> Vec<OutputPiece> {
            if *special { vec![(text.clone(), true)] } else { text.chars().map(|c| (c.to_string(), false)).collect() }
        });
        prop_assert_eq!(&events(&format, &tools, &options, None, characters), &whole, "{} {:?}", format.name(), output);
    }

    #[test]
    fn an_answer_that_is_cut_off_is_the_beginning_of_the_longer_one(
        format in prop::sample::select(ResponseFormat::names()),
        calls in calls(),
        seeds in prop::collection::vec((any::<u8>(), any::<u16>()), 0..6),
        text in text(),
        mut options in options(),
        control in any::<bool>(),
        at in any::<prop::sample::Index>(),
    ) {
        let format = ResponseFormat::named(format).unwrap();
        let json = format.tool_grammar().is_none_or(|grammar| grammar.arguments == ArgumentsGrammar::Json);
        let written = format.tool_grammar().map(|grammar| write_calls(grammar, &calls)).unwrap_or_default();
        let output = format!("{}{written}{text}", noise(&format, &seeds, &text));
        let mut pieces = vec![(output.clone(), false)];
        if control {
            options.control_tokens = control_tokens(&format);
            pieces = tokens(&output, &options.control_tokens, &[]);
        }
        let mut characters: Vec<OutputPiece> = pieces.iter().flat_map(|(text, special)| match special {
            true => vec![(text.clone(), true)],
            false => text.chars().map(|c| (c.to_string(), false)).collect(),
        }).collect();
        let tools = tools_for(&calls);
        let whole = fold(&events(&format, &tools, &options, None, characters.clone()));
        characters.truncate(at.index(characters.len() + 1));
        let short = ended(&format, &tools, &options, None, characters.clone(), ResponseParser::cut);
        let joined = cut(&characters, &[]);
        prop_assert_eq!(&ended(&format, &tools, &options, None, joined, ResponseParser::cut), &short);
        let short = fold(&short);
        let given: String = characters.into_iter().map(|(text, _)| text).collect();
        let begins = |whole: &str, short: &str| whole.starts_with(short.trim_end());
        prop_assert!(begins(&whole.content, &short.content), "{} {given:?}: {short:#?} of {whole:#?}", format.name());
        prop_assert!(begins(&whole.reasoning, &short.reasoning), "{} {given:?}: {short:#?} of {whole:#?}", format.name());
        prop_assert!(short.calls.len() <= whole.calls.len(), "{} {given:?}: {short:#?} of {whole:#?}", format.name());
        for (short, whole) in short.calls.iter().zip(&whole.calls) {
            prop_assert_eq!((&short.name, &short.id), (&whole.name, &whole.id));
            // The type of a value between tags is determined when it is complete.
            prop_assert!(!json || whole.arguments.starts_with(&short.arguments), "{} {given:?}: {short:?} of {whole:?}", format.name());
        }
    }

    #[test]
    fn what_a_grammar_writes_is_parsed_back(
        format in prop::sample::select(formats().into_iter().filter(|f| f.tool_grammar().is_some()).collect::<Vec<_>>()),
        calls in calls(),
        text in "[a-zA-Z .,é\n]{0,12}",
    ) {
        let output = format!("{text}{}", write_calls(format.tool_grammar().unwrap(), &calls));
        // Each name has one set of types.
        let mut names: Vec<&String> = calls.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        prop_assume!(names.len() == calls.len());
        let found = fold(&events(&format, &tools_for(&calls), &ParserOptions::default(), None, [(output.clone(), false)]));
        prop_assert_eq!(found.calls.len(), calls.len(), "{} {:?}", format.name(), output);
        prop_assert_eq!(found.content.as_str(), text.trim_end(), "{} {:?}", format.name(), output);
        for (found, (name, arguments)) in found.calls.iter().zip(&calls) {
            prop_assert_eq!(&found.name, name);
            prop_assert_eq!(found.ending, Some(CallEnding::Complete));
            let arguments = Value::Object(arguments.clone());
            prop_assert_eq!(serde_json::from_str::<Value>(&found.arguments).unwrap(), arguments, "{} {:?}", format.name(), output);
        }
    }

    #[test]
    fn text_without_markers_stays_as_it_is(
        format in prop::sample::select(ResponseFormat::names()),
        text in prop::collection::vec(text(), 0..8),
        special in any::<bool>(),
    ) {
        let format = ResponseFormat::named(format).unwrap();
        let output = text.concat();
        prop_assume!(!format.markers().iter().any(|marker| output.contains(marker)));
        let control = if special { control_tokens(&format) } else { Vec::new() };
        let options = ParserOptions { control_tokens: control, ..ParserOptions::default() };
        let found = fold(&events(&format, &Value::Null, &options, None, [(output.clone(), false)]));
        prop_assert_eq!(found.content, output);
    }
}

#[test]
fn an_incomplete_marker_at_the_end_is_not_text() {
    for name in ResponseFormat::names() {
        let format = ResponseFormat::named(name).unwrap();
        let parse =
            |pieces: Vec<OutputPiece>, options: &ParserOptions, end: fn(&mut ResponseParser, &mut Vec<_>)| {
                fold(&ended(&format, &Value::Null, options, None, pieces, end))
            };
        for (thinks, marker) in [
            (false, format.tool_grammar().map(|g| g.trigger())),
            (true, format.reasoning_markers().map(|(_, close)| close)),
        ] {
            let options = ParserOptions { starts_in_reasoning: thinks, ..ParserOptions::default() };
            for (at, c) in marker.unwrap_or_default().char_indices() {
                let half = &marker.unwrap()[..at + c.len_utf8()];
                let found = parse(vec![(format!("It rains{half}"), false)], &options, ResponseParser::cut);
                let text = if thinks { &found.reasoning } else { &found.content };
                assert_eq!((text.trim_end(), found.calls.len()), ("It rains", 0), "{name} {half:?}");
            }
        }
        // After one of the marker's control tokens, for both ways to end.
        let control = control_tokens(&format);
        let options = ParserOptions { control_tokens: control.clone(), ..ParserOptions::default() };
        let trigger = format.tool_grammar().map(|g| g.trigger().trim().to_owned()).unwrap_or_default();
        let begins = |token: &&String| {
            trigger.starts_with(token.as_str()) && !format.markers().contains(&token.as_str())
        };
        let first = control.iter().find(begins);
        let Some(token) = first else { continue };
        let next: String = trigger[token.len()..].chars().take(2).collect();
        for end in [ResponseParser::cut, ResponseParser::finish] {
            let pieces = vec![("It rains".into(), false), (token.clone(), true), (next.clone(), false)];
            assert_eq!(parse(pieces, &options, end).content, "It rains", "{name}");
        }
    }
}

/// CPU time of this thread.
#[cfg(unix)]
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// 60 000 characters take milliseconds. In quadratic time they would take minutes.
#[cfg(unix)]
#[test]
fn long_outputs_take_linear_time() {
    let tools = json!([{"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}]);
    for format in formats() {
        let open = format
            .tool_grammar()
            .map(|grammar| format!("{}f{}", grammar.open, grammar.name_close))
            .unwrap_or_default();
        for (lead, unit) in [
            ("", "word "),
            ("", "<"),
            ("", "<think>"),
            ("", "\n"),
            ("<think>", "</thin"),
            (open.as_str(), "{\"a\":"),
            (open.as_str(), "<arg_key>s</arg_key><arg_value>x"),
            (open.as_str(), "["),
        ] {
            let output = format!("{lead}{}", unit.repeat(60_000 / unit.len()));
            let start = cpu();
            let characters = output.chars().map(|c| (c.to_string(), false));
            let found = fold(&events(&format, &tools, &ParserOptions::default(), None, characters));
            drop(found);
            let took = cpu() - start;
            assert!(took < Duration::from_secs(5), "{} {lead:?} {unit:?}: {took:?}", format.name());
        }
    }
}

#[test]
fn what_follows_a_call_and_is_none_stays_text_in_any_pieces() {
    let format = ResponseFormat::named("mistral").unwrap();
    let call = r#"[TOOL_CALLS] [{"name": "f", "arguments": {}}"#;
    for rest in [r#", {"name": "g", "argu" x"#, r#", {"a": 1 "b""#, ", ]", " x", ", {\"name\": 1}"] {
        let output = format!("{call}{rest}");
        let parse = |pieces: Vec<OutputPiece>| {
            fold(&events(&format, &Value::Null, &ParserOptions::default(), None, pieces))
        };
        let whole = parse(vec![(output.clone(), false)]);
        assert_eq!(whole.calls.len(), 1, "{rest}");
        assert_eq!(whole.content.trim(), rest.trim());
        let characters = output.chars().map(|c| (c.to_string(), false)).collect();
        assert_eq!(parse(characters), whole, "{rest}");
        assert_eq!(parse(vec![(call.to_owned(), false), (rest.to_owned(), false)]), whole, "{rest}");
    }
}
