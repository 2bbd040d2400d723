//! Parsing of JSON requests, with bounds that are checked before any value is built, and with
//! errors that name the field.

mod tree;

pub(crate) use tree::value;

use crate::error::ApiError;
use crate::limits::Limits;
use latent_engine::sampling::SamplingField;
use latent_formats::json::outside_strings;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

/// Validates a request body (an object with bounded depth and number of values). Returns only the
/// fields that are needed before the request is prepared.
pub(crate) fn parse_head(body: &[u8], limits: &Limits) -> Result<Value, ApiError> {
    check_bounds(body, limits)?;
    let fields = |name: &str| matches!(name, "model" | "name" | "stream");
    let value = tree::flat_object(text(body)?, fields).map_err(invalid)?;
    if value.is_object() {
        return Ok(value);
    }
    Err(ApiError::invalid(format!("the body is {}, expected a JSON object", kind(&value))))
}

/// Parses a request body that is a list, with the same bounds.
pub(crate) fn parse_list(body: &[u8], limits: &Limits) -> Result<Vec<Value>, ApiError> {
    check_bounds(body, limits)?;
    match tree::value(text(body)?).map_err(invalid)? {
        Value::Array(list) => Ok(list),
        value => Err(ApiError::invalid(format!("the body is {}, expected a JSON list", kind(&value)))),
    }
}

/// Checks the encoding, the depth and the number of values of a body.
fn check_bounds(body: &[u8], limits: &Limits) -> Result<(), ApiError> {
    check_encoding(body)?;
    let (depth, values) = measure(body);
    if depth > limits.json_depth {
        return Err(ApiError::invalid(format!(
            "the JSON is nested {depth} deep, more than the limit of {} (json_depth)",
            limits.json_depth
        )));
    }
    if values > limits.json_values {
        return Err(ApiError::invalid(format!(
            "the JSON has about {values} values, more than the limit of {} (json_values)",
            limits.json_values
        )));
    }
    Ok(())
}

/// Parses a body that [`parse_head`] has validated. Fields that no API reads are skipped, not
/// stored.
pub(crate) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    parse_all(body).map(|(value, _)| value)
}

/// As [`parse`], with the names of the skipped fields.
pub(crate) fn parse_all(body: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    let mut skipped = Vec::new();
    let value = tree::object(text(body)?, is_read, &mut skipped).map_err(invalid)?;
    Ok((value, skipped))
}

/// Recognizes common wrong encodings, for a helpful error.
fn check_encoding(body: &[u8]) -> Result<(), ApiError> {
    // JSON in UTF-8 begins with an ASCII character and contains no zero bytes, so these patterns
    // never match a valid body. UTF-32 comes first: its byte order mark begins with that of UTF-16.
    let found = match body {
        [0xef, 0xbb, 0xbf, ..] => "begins with a byte order mark (BOM): send it without these three bytes",
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] | [_, 0, 0, 0, ..] | [0, 0, 0, _, ..] => {
            "is UTF-32: send UTF-8"
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [1..=255, 0, ..] | [0, 1..=255, ..] => "is UTF-16: send UTF-8",
        [0x1f, 0x8b, ..] => "is compressed with gzip: send the header Content-Encoding: gzip with it",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            "is compressed with zstd: send the header Content-Encoding: zstd with it"
        }
        _ => return Ok(()),
    };
    Err(ApiError::invalid(format!("the body is not valid JSON: it {found}")))
}

fn text(body: &[u8]) -> Result<&str, ApiError> {
    std::str::from_utf8(body).map_err(invalid)
}

fn invalid(problem: impl std::fmt::Display) -> ApiError {
    ApiError::invalid(format!("the body is not valid JSON: {problem}"))
}

/// An upper bound on the number of values in JSON text.
pub(crate) fn count_values(text: &str) -> usize {
    measure(text.as_bytes()).1
}

/// The length of a value as JSON text.
pub(crate) fn text_len(value: &Value) -> usize {
    // Counts without building the text, which may have megabytes.
    struct Length(usize);
    impl std::io::Write for Length {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut length = Length(0);
    // Neither the value nor the writer can fail.
    let _ = serde_json::to_writer(&mut length, value);
    length.0
}

/// The fields that some API reads or repeats in its response. Numeric sampling fields are known to
/// [`SamplingField`].
///
/// One list for all APIs: a field is read under the same name in several of them. A test compares
/// the list with the source code.
const FIELDS: &str = "
    content conversation conversation_ids input input_extra input_prefix input_suffix instructions messages previous_response_id prompt suffix system template tokens images
    background keep_alive model name priority store
    add_generation_prompt add_special chat_template_kwargs continue_final_message parallel_tool_calls parse_special raw reasoning
    reasoning_effort think thinking tool_choice tools
    allowed_token_ids bad_words dry_sequence_breakers ignore_eos logit_bias options samplers seed
    cache_prompt filename id_slot image_data lora min_tokens multimodal_data n_discard n_indent n_keep speculative.n_max stop_token_ids t_max_predict_ms t_max_prompt_ms
    best_of max_completion_tokens max_output_tokens max_tokens max_tool_calls n n_predict stop stop_sequences truncation
    format grammar guided_choice guided_grammar guided_json guided_regex json_schema output_config output_format response_format
    structured_outputs text
    dimensions echo embd_normalize encoding_format include include_usage logprobs metadata n_probs post_sampling_probs
    prompt_cache_key response_fields return_progress return_tokens
    reasoning_budget_message reasoning_budget_tokens reasoning_format thinking_budget_tokens truncate verbose
    safety_identifier stream stream_options timings_per_token top_logprobs user with_pieces
";

fn is_read(name: &str) -> bool {
    SamplingField::named(name).is_some() || FIELDS.split_ascii_whitespace().any(|field| field == name)
}

/// Upper bounds of the depth and the number of values of JSON text.
fn measure(text: &[u8]) -> (usize, usize) {
    // serde_json recurses, and each value takes tens of bytes. Counting brackets and commas
    // first bounds both before anything is allocated.
    let (mut depth, mut deepest, mut count) = (0usize, 0usize, 1usize);
    for byte in outside_strings(text) {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
                count += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => count += 1,
            _ => {}
        }
    }
    (deepest, count)
}

/// The type of a value, for error messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// An object in a request, and its path for error messages. A field that is null counts as missing.
#[derive(Clone, Debug)]
pub(crate) struct ObjectFields<'a> {
    map: &'a Map<String, Value>,
    path: String,
    /// The paths of fields that were read, if they are tracked.
    read_paths: Option<Rc<RefCell<HashSet<String>>>>,
}

/// The only nested object whose fields are tracked: Ollama's samplers.
const TRACKED: &str = "options";

impl<'a> ObjectFields<'a> {
    /// The object at `path`.
    pub(crate) fn of(value: &'a Value, path: impl Into<String>) -> Result<ObjectFields<'a>, ApiError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(ObjectFields { map, path, read_paths: None }),
            other => Err(ApiError::field(path, format!("expected an object, found {}", kind(other)))),
        }
    }

    /// The top-level object of a request. It tracks which fields are read.
    pub(crate) fn tracked(value: &'a Value) -> Result<ObjectFields<'a>, ApiError> {
        Ok(ObjectFields { read_paths: Some(Rc::default()), ..ObjectFields::of(value, "")? })
    }

    /// The paths of fields that are not null and were never read.
    pub(crate) fn unread(&self) -> Vec<String> {
        let Some(read_paths) = self.read_paths.as_ref().map(|paths| paths.borrow()) else {
            return Vec::new();
        };
        let nested =
            self.map.get(TRACKED).and_then(Value::as_object).filter(|_| read_paths.contains(TRACKED));
        let nested = nested.into_iter().flatten().map(|(name, value)| (format!("{TRACKED}.{name}"), value));
        let all = self.map.iter().map(|(name, value)| (name.clone(), value)).chain(nested);
        all.filter(|(path, value)| !value.is_null() && !read_paths.contains(path))
            .map(|(path, _)| path)
            .collect()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// An error about a field.
    pub(crate) fn error(&self, name: &str, message: impl std::fmt::Display) -> ApiError {
        ApiError::field(self.path(name), message)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        if let Some(read_paths) = &self.read_paths {
            read_paths.borrow_mut().insert(self.path(name));
        }
        // Many clients serialize unset options as null.
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The first present field of several synonyms.
    pub(crate) fn any(&self, names: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        names.iter().find_map(|name| self.get(name).map(|value| (*name, value)))
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = || match value {
            // A number is quoted, since its range may be wrong and not its type.
            Value::Number(number) => {
                self.error(name, format!("expected {expected}, found the number {number}"))
            }
            value => self.error(name, format!("expected {expected}, found {}", kind(value))),
        };
        read(value).map(Some).ok_or_else(wrong)
    }

    pub(crate) fn str(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(crate) fn require_str(&self, name: &str) -> Result<&'a str, ApiError> {
        self.str(name)?.ok_or_else(|| self.missing(name))
    }

    pub(crate) fn missing(&self, name: &str) -> ApiError {
        self.error(name, "this field is required")
    }

    pub(crate) fn bool(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub(crate) fn f32(&self, name: &str) -> Result<Option<f32>, ApiError> {
        self.typed(name, "a number", |value| value.as_f64().map(|number| number as f32))
    }

    /// An integer. Some encoders write it as `5.0`.
    pub(crate) fn i64(&self, name: &str) -> Result<Option<i64>, ApiError> {
        self.typed(name, "an integer", whole)
    }

    /// An integer of at least 0.
    pub(crate) fn usize(&self, name: &str) -> Result<Option<usize>, ApiError> {
        self.typed(name, "an integer of at least 0", |value| {
            whole(value).and_then(|number| usize::try_from(number).ok())
        })
    }

    /// A seed: any signed or unsigned 64-bit integer. `Some(None)` for −1, which asks for a random
    /// one.
    pub(crate) fn seed(&self, name: &str) -> Result<Option<Option<u64>>, ApiError> {
        self.typed(name, "an integer from -2^63 to 2^64 - 1", |value| {
            // Above 2^53 (9.007e15) a float does not identify one integer.
            let float = || value.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15).map(|f| f as i64);
            match value.as_u64() {
                Some(seed) => Some(Some(seed)),
                // Other negative seeds are used as their two's complement.
                None => value.as_i64().or_else(float).map(|seed| (seed != -1).then_some(seed as u64)),
            }
        })
    }

    pub(crate) fn array(&self, name: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.typed(name, "a list", Value::as_array)
    }

    /// A list of strings.
    pub(crate) fn texts(&self, name: &str) -> Result<Option<Vec<&'a str>>, ApiError> {
        let Some(list) = self.array(name)? else { return Ok(None) };
        let text = |(i, value): (usize, &'a Value)| {
            let wrong =
                || self.error(&format!("{name}[{i}]"), format!("expected a string, found {}", kind(value)));
            value.as_str().ok_or_else(wrong)
        };
        list.iter().enumerate().map(text).collect::<Result<_, _>>().map(Some)
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<ObjectFields<'a>>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        // The nested object records into the same set.
        let read_paths = self.read_paths.clone().filter(|_| name == TRACKED);
        ObjectFields::of(value, self.path(name)).map(|fields| Some(ObjectFields { read_paths, ..fields }))
    }

    /// A list of objects; empty if the field is missing.
    pub(crate) fn objects(&self, name: &str) -> Result<Vec<ObjectFields<'a>>, ApiError> {
        let list = self.array(name)?.map_or(&[][..], Vec::as_slice);
        let path = self.path(name);
        list.iter().enumerate().map(|(i, value)| ObjectFields::of(value, format!("{path}[{i}]"))).collect()
    }

    pub(crate) fn map(&self) -> &'a Map<String, Value> {
        self.map
    }
}

/// An integer. Numbers beyond 64 bits saturate.
fn whole(value: &Value) -> Option<i64> {
    // Saturation, also of the cast from a float, makes a huge limit (`1e300`) mean no limit.
    let float = || value.as_f64().filter(|float| float.fract() == 0.0).map(|float| float as i64);
    let large = || value.as_u64().map(|_| i64::MAX);
    value.as_i64().or_else(large).or_else(float)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn depth_and_values_are_bounded_before_parsing() {
        let limits = Limits::default();
        let parse = |body: &[u8]| parse_head(body, &limits).and_then(|_| super::parse(body));
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse(deep.as_bytes()).unwrap_err().message.contains("json_depth"));
        let many = format!("{{\"a\":[{}1]}}", "1,".repeat(limits.json_values));
        assert!(parse(many.as_bytes()).unwrap_err().message.contains("json_values"));
        // Brackets in strings do not count.
        let text = format!("{{\"a\":\"{}\\\"[\"}}", "[".repeat(1000));
        assert!(parse(text.as_bytes()).is_ok());
        // Among them a body that begins with a byte order mark, and an unpaired surrogate.
        for wrong in ["", "{", "[1]", "7", "{\"a\":1}x", "\u{feff}{}", "{\"stop\":\"\\ud800\"}"] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(parse(b"{\"a\":\"\xff\"}").is_err());
    }

    #[test]
    fn other_encodings_than_utf_8_are_named() {
        let utf_16 = |bytes: fn(u16) -> [u8; 2]| "{}".encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
        for (body, word) in [
            ("\u{feff}{}".as_bytes().to_vec(), "byte order mark"),
            (utf_16(u16::to_le_bytes), "UTF-16"),
            (utf_16(u16::to_be_bytes), "UTF-16"),
            ([&[0xff, 0xfe][..], &utf_16(u16::to_le_bytes)].concat(), "UTF-16"),
            (b"\0\0\0{\0\0\0}".to_vec(), "UTF-32"),
            (b"{\0\0\0}\0\0\0".to_vec(), "UTF-32"),
            (b"\x1f\x8b\x08\0".to_vec(), "gzip"),
            (b"\x28\xb5\x2f\xfd ".to_vec(), "zstd"),
        ] {
            let error = parse_head(&body, &Limits::default()).unwrap_err();
            assert!(error.message.contains(word), "{}", error.message);
        }
    }

    #[test]
    fn fields_that_no_interface_reads_are_skipped() {
        let body = br#"{"unknown": [{}, {"a": [1, "x"]}], "model": "a", "stop": ["x", 1.5, -2, null, true, {"b": {}}], "model": "b"}"#;
        // Of a repeated field the last value counts, as in most parsers of JSON.
        let value = parse(body).unwrap();
        assert_eq!(value, json!({"model": "b", "stop": ["x", 1.5, -2, null, true, {"b": {}}]}));
        assert_eq!(parse_head(body, &Limits::default()).unwrap(), json!({"model": "b"}));
        // Skipped fields must be valid JSON too.
        assert!(parse_head(b"{\"unknown\": [1,]}", &Limits::default()).is_err());
        assert_eq!(text_len(&value), value.to_string().len());
    }

    /// Every field that the source code reads must be in [`FIELDS`], or it is skipped by the
    /// parser.
    #[test]
    fn fields_that_are_read_are_kept() {
        fn visit(folder: &std::path::Path, check: &mut dyn FnMut(&str)) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    visit(&path, check);
                } else if path.extension().is_some_and(|ext| ext == "rs") {
                    let source = std::fs::read_to_string(path).unwrap();
                    check(source.split("#[cfg(test)]").next().unwrap());
                }
            }
        }
        let mut count = 0;
        visit(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut |source| {
            for call in source.split("fields.").skip(1) {
                let Some((method, rest)) = call.split_once("(\"") else { continue };
                let reads = [
                    "get",
                    "str",
                    "require_str",
                    "bool",
                    "f32",
                    "i64",
                    "usize",
                    "array",
                    "object",
                    "objects",
                ];
                if reads.contains(&method) {
                    let name = rest.split('"').next().unwrap();
                    // Fields of tools, of tool calls and of adapters.
                    let nested = ["description", "function", "strict", "namespace", "id", "scale"];
                    assert!(is_read(name) || nested.contains(&name), "{name}");
                    count += 1;
                }
            }
        });
        assert!(count > 50, "{count}");
    }

    #[test]
    fn errors_name_the_field() {
        let value = json!({"a": {"b": [{"c": "x"}]}, "n": null, "f": 5.0, "g": 5.5, "big": 1e300});
        let fields = ObjectFields::of(&value, "").unwrap();
        let inner = &fields.object("a").unwrap().unwrap().objects("b").unwrap()[0];
        let error = inner.bool("c").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("a.b[0].c"));
        assert!(error.message.contains("expected true or false, found a string"), "{}", error.message);
        // Null counts as missing, and 5.0 as a whole number.
        assert_eq!(fields.str("n").unwrap(), None);
        assert_eq!(fields.usize("f").unwrap(), Some(5));
        assert!(fields.usize("g").is_err());
        // Saturates beyond 64 bits.
        assert_eq!(fields.i64("big").unwrap(), Some(i64::MAX));
    }
}
