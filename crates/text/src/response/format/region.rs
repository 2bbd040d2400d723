//! Fields that are parsed as a whole when they close: Hugging Face's content parsers and
//! transforms.

use super::super::error::ResponseFormatError;
use super::super::pattern;
use fancy_regex::Regex;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Parser of a region's text.
pub(crate) struct Region {
    content: Content,
    /// Template of the result, with placeholders.
    transform: Option<Value>,
    /// Whether `transform` applies to each element of a list.
    each: bool,
}

/// A content parser.
enum Content {
    Text { strip: bool },
    Integer,
    Float,
    Boolean,
    Json { unquoted_keys: Option<Regex>, delimiters: Vec<(String, String)>, or_text: bool },
    Xml { tag: Box<Regex>, merge: bool, value: Option<Box<Content>> },
    Lines { line: String, pair: String, value: Option<Box<Content>> },
}

// The template comes from a checkpoint and the text from a model, so both are bounded.
/// Maximum backtracking steps of an expression on one region.
const BACKTRACKS: usize = 200_000;
/// Maximum number of tags or pairs of one region.
const MAX_PARTS: usize = 4096;
/// Maximum nesting of content parsers.
const MAX_DEPTH: usize = 4;

type Args = Map<String, Value>;

fn flag(args: &Args, key: &str, default: bool) -> bool {
    args.get(key).and_then(Value::as_bool).unwrap_or(default)
}

fn string(args: &Args, key: &str, default: &str) -> String {
    args.get(key).and_then(Value::as_str).unwrap_or(default).to_owned()
}

impl Content {
    fn new(place: &str, name: &str, args: &Args, depth: usize) -> Result<Content, ResponseFormatError> {
        let value = |key: &str| -> Result<Option<Box<Content>>, ResponseFormatError> {
            let Some(parser) = args.get(key).and_then(Value::as_object) else { return Ok(None) };
            if depth == MAX_DEPTH {
                return Err(ResponseFormatError::malformed(place, "value parsers are nested too deeply"));
            }
            let name = string(parser, "name", "text");
            let inner = parser.get("args").and_then(Value::as_object).cloned().unwrap_or_default();
            Ok(Some(Box::new(Content::new(place, &name, &inner, depth + 1)?)))
        };
        Ok(match name {
            "text" => Content::Text { strip: flag(args, "strip", true) },
            "int" => Content::Integer,
            "float" => Content::Float,
            "bool" => Content::Boolean,
            "json" => {
                // A word before a colon, after a bracket or comma.
                let keys = flag(args, "unquoted_keys", false)
                    .then(|| expression(place, r"([{,]\s*)(\w+)\s*:"))
                    .transpose()?;
                Content::Json {
                    unquoted_keys: keys,
                    delimiters: delimiters(place, args)?,
                    or_text: flag(args, "allow_non_json", false),
                }
            }
            "xml-inline" => {
                let tag = args.get("tag_pattern").and_then(Value::as_str).unwrap_or_default();
                let tag = expression(place, tag)?;
                if !["key", "value"]
                    .iter()
                    .all(|name| tag.capture_names().flatten().any(|found| found == *name))
                {
                    return Err(ResponseFormatError::malformed(
                        place,
                        "content_args.tag_pattern needs groups `key` and `value`",
                    ));
                }
                let merge = flag(args, "merge_duplicates", false);
                Content::Xml { tag: Box::new(tag), merge, value: value("value_parser")? }
            }
            "kv-lines" => Content::Lines {
                line: string(args, "line_sep", "\n"),
                pair: string(args, "kv_sep", ":"),
                value: value("value_parser")?,
            },
            other => {
                let known = "text, int, float, bool, json, xml-inline, kv-lines";
                let problem = format!("unknown content parser {other:?}; supported: {known}");
                return Err(ResponseFormatError::malformed(place, problem));
            }
        })
    }

    /// Returns `None` if the text is not of this kind.
    fn parse(&self, text: &str) -> Option<Value> {
        let plain = text.trim();
        match self {
            Content::Text { strip } => Some(Value::from(if *strip { plain } else { text })),
            Content::Integer => plain.parse::<i64>().ok().map(Value::from),
            // JSON has neither infinity nor NaN.
            Content::Float => plain.parse::<f64>().ok().filter(|value| value.is_finite()).map(Value::from),
            Content::Boolean => {
                Some(Value::from(matches!(plain.to_ascii_lowercase().as_str(), "true" | "1")))
            }
            Content::Json { unquoted_keys, delimiters, or_text } => {
                let found = lax_json(text, unquoted_keys.as_ref(), delimiters);
                found.or_else(|| or_text.then(|| Value::from(plain)))
            }
            Content::Xml { tag, merge, value } => xml(text, tag, *merge, value.as_deref()),
            Content::Lines { line, pair, value } => {
                let mut found = Map::new();
                for part in split(text, line).take(MAX_PARTS) {
                    if let Some((key, text)) =
                        part.trim().split_once(pair.as_str()).filter(|_| !pair.is_empty())
                    {
                        found.insert(key.trim().to_owned(), inner(text.trim(), value.as_deref())?);
                    }
                }
                Some(Value::Object(found))
            }
        }
    }
}

fn split<'a>(text: &'a str, separator: &'a str) -> Box<dyn Iterator<Item = &'a str> + 'a> {
    if separator.is_empty() { Box::new(std::iter::once(text)) } else { Box::new(text.split(separator)) }
}

fn inner(text: &str, parser: Option<&Content>) -> Option<Value> {
    match parser {
        Some(parser) => parser.parse(text),
        None => Some(Value::from(text)),
    }
}

// Tag patterns may have back-references (`</\1>`), which automata do not support. So this is
// fancy_regex, with a limit on its steps.
fn expression(place: &str, pattern: &str) -> Result<Regex, ResponseFormatError> {
    // Python's `\Z` is the end of the text. Here that is `\z`; `\Z` would also match before a final
    // line break.
    let pattern_of = format!("(?s){}", named_references(&pattern.replace(r"\Z", r"\z")));
    let built = fancy_regex::RegexBuilder::new(&pattern_of).backtrack_limit(BACKTRACKS).build();
    built.map_err(|e| ResponseFormatError::Pattern {
        place: place.to_owned(),
        pattern: pattern.to_owned(),
        problem: e.to_string(),
    })
}

/// Replaces numbered references to named groups by named references. Python accepts both;
/// fancy_regex rejects a number in an expression with named groups.
fn named_references(pattern: &str) -> String {
    let mut names: Vec<Option<&str>> = Vec::new();
    let (mut out, mut class, mut characters) = (String::new(), false, pattern.char_indices());
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => {
                let Some((_, escaped)) = characters.next() else { break };
                let group = escaped.to_digit(10).filter(|digit| *digit > 0 && !class);
                let name = group.and_then(|group| names.get(group as usize - 1).copied().flatten());
                match name {
                    Some(name) => out.push_str(&format!("(?P={name})")),
                    None => out.extend(['\\', escaped]),
                }
                continue;
            }
            '[' => class = true,
            ']' => class = false,
            '(' if !class => {
                let rest = pattern.get(at + 1..).unwrap_or_default();
                let name = rest.strip_prefix("?P<").and_then(|rest| rest.split('>').next());
                if name.is_some() || !rest.starts_with('?') {
                    names.push(name);
                }
            }
            _ => {}
        }
        out.push(c);
    }
    out
}

fn delimiters(place: &str, args: &Args) -> Result<Vec<(String, String)>, ResponseFormatError> {
    let pairs = args.get("string_delims").and_then(Value::as_array).into_iter().flatten();
    let pair = |pair: &Value| {
        let text =
            |i: usize| pair.get(i).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
        text(0)
            .zip(text(1))
            .ok_or_else(|| ResponseFormatError::malformed(place, "string_delims must be pairs"))
    };
    pairs.map(pair).collect()
}

/// Parses JSON with other string delimiters and unquoted keys. Gemma 4 writes `<|"|>text<|"|>`.
fn lax_json(text: &str, keys: Option<&Regex>, delimiters: &[(String, String)]) -> Option<Value> {
    if keys.is_none() && delimiters.is_empty() {
        return serde_json::from_str(text).ok();
    }
    let mut plain = String::new();
    let mut rest = text;
    // Keys are quoted only outside of strings: a string may contain `, a:`.
    let quote = |piece: &str| match keys {
        Some(keys) => keys.replace_all(piece, "$1\"$2\":").into_owned(),
        None => piece.to_owned(),
    };
    loop {
        // The next string begins at the first opening delimiter of any pair.
        let next = delimiters.iter().filter_map(|pair| rest.find(pair.0.as_str()).map(|at| (at, pair)));
        let Some((at, (open, close))) = next.min_by_key(|(at, _)| *at) else { break };
        let (before, string) = (rest.get(..at)?, rest.get(at + open.len()..)?);
        let end = string.find(close.as_str())?;
        plain.push_str(&quote(before));
        plain.push_str(&serde_json::to_string(string.get(..end)?).ok()?);
        rest = string.get(end + close.len()..)?;
    }
    plain.push_str(&quote(rest));
    serde_json::from_str(&plain).ok()
}

fn xml(text: &str, tag: &Regex, merge: bool, parser: Option<&Content>) -> Option<Value> {
    let mut found: Map<String, Value> = Map::new();
    for captures in tag.captures_iter(text).take(MAX_PARTS) {
        let captures = captures.ok()?;
        let key = captures.name("key")?.as_str().to_owned();
        let value = inner(captures.name("value").map_or("", |value| value.as_str()), parser)?;
        match found.get_mut(&key).filter(|_| merge) {
            // The third and later values of a key.
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = json!([first.take(), value]),
            None => {
                found.insert(key, value);
            }
        }
    }
    Some(Value::Object(found))
}

impl Region {
    pub fn new(
        place: &str,
        content: &str,
        args: &Args,
        transform: Option<&Value>,
        each: bool,
    ) -> Result<Region, ResponseFormatError> {
        if let Some(transform) = transform {
            check(place, transform)?;
        } else if each {
            return Err(ResponseFormatError::malformed(place, "transform_each needs a transform"));
        }
        Ok(Region { content: Content::new(place, content, args, 0)?, transform: transform.cloned(), each })
    }

    /// The value of a region's text; `None` if the text does not fit the template.
    pub fn parse(&self, text: &str, captures: &HashMap<String, String>) -> Option<Value> {
        let value = self.content.parse(text)?;
        let Some(transform) = &self.transform else { return Some(value) };
        // Placeholders refer to groups of the markers and to the content.
        let mut scope: Map<String, Value> =
            captures.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect();
        if !self.each {
            scope.insert("content".to_owned(), value);
            return apply(transform, &scope);
        }
        let mut out = Vec::new();
        for item in value.as_array()? {
            let mut scope = scope.clone();
            scope.extend(item.as_object()?.clone());
            out.push(apply(transform, &scope)?);
        }
        Some(Value::Array(out))
    }
}

/// The path in a placeholder, such as `content.name` in `{content.name}`.
pub(super) fn placeholder(text: &str) -> Option<&str> {
    let path = text.strip_prefix('{')?.strip_suffix('}')?;
    // Anything else in braces is text, such as JSON.
    let word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
    path.split('.').all(word).then_some(path)
}

/// Rejects strings in which a placeholder is mixed with text.
fn check(place: &str, transform: &Value) -> Result<(), ResponseFormatError> {
    match transform {
        Value::Object(object) => object.values().try_for_each(|value| check(place, value)),
        Value::Array(array) => array.iter().try_for_each(|value| check(place, value)),
        Value::String(text) if placeholder(text).is_none() => {
            let mixed = pattern::regex(place, r"\{\w+(?:\.\w+)*\}")?.is_match(text.as_str());
            let problem = format!("{text:?} mixes a placeholder with text; interpolation is not supported");
            if mixed { Err(ResponseFormatError::malformed(place, problem)) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

fn apply(transform: &Value, scope: &Map<String, Value>) -> Option<Value> {
    Some(match transform {
        Value::Object(object) => {
            let parts: Option<Map<String, Value>> =
                object.iter().map(|(key, value)| Some((key.clone(), apply(value, scope)?))).collect();
            Value::Object(parts?)
        }
        Value::Array(array) => {
            Value::Array(array.iter().map(|value| apply(value, scope)).collect::<Option<_>>()?)
        }
        Value::String(text) => match placeholder(text) {
            Some(path) => {
                let mut parts = path.split('.');
                let mut value = scope.get(parts.next()?)?;
                for part in parts {
                    value = value.get(part)?;
                }
                value.clone()
            }
            None => Value::from(text.as_str()),
        },
        other => other.clone(),
    })
}
