//! The grammar of calls.

use super::{Tool, ToolCalls, ToolChoice};
use crate::error::GrammarError;
use crate::lark::{in_regex, marker, token, up_to};
use crate::limits::GrammarLimits;
use crate::schema;
use crate::vocabulary::{Piece, Vocabulary};
use latent_text::{ArgumentsGrammar, TaggedGrammar, ToolGrammar};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

const WHAT: &str = "list of tools";

/// The main grammar, which has no rule `start` but `calls`, and schemas that it names.
pub(crate) struct Grammars {
    pub(crate) lark: String,
    pub(crate) schemas: Vec<(String, Value)>,
}

/// The grammar of some calls. `failing` are tools whose schemas turned out not to compile.
pub(crate) fn grammars(
    calls: &ToolCalls,
    vocabulary: &Vocabulary,
    limits: &GrammarLimits,
    failing: &[usize],
) -> Result<Grammars, GrammarError> {
    let invalid = |problem: &str| GrammarError::Invalid { what: WHAT, problem: problem.to_owned() };
    let (found, limit) = (calls.tools.len(), limits.rules);
    if found > limit {
        return Err(GrammarError::TooLarge { what: WHAT, unit: "tools", found, limit });
    }
    if calls.format.open.is_empty() && calls.format.section_open.is_empty() {
        return Err(invalid("the model's format has nothing that begins a call"));
    }
    let mut writer = Writer { calls, vocabulary, limits, lark: String::new(), schemas: Vec::new() };
    let mut names = Vec::new();
    for (index, tool) in calls.tools.iter().enumerate() {
        let wanted = match &calls.choice {
            ToolChoice::Named(name) => *name == tool.name,
            ToolChoice::Auto | ToolChoice::Required => true,
        };
        if tool.name.is_empty()
            || vocabulary.pieces(&tool.name).iter().any(|p| matches!(p, Piece::Control(_)))
        {
            return Err(invalid(&format!("{:?} is no name for a tool", tool.name)));
        }
        if wanted {
            writer.tool(index, tool, failing.contains(&index))?;
            names.push(format!("tool{index}"));
        }
    }
    if names.is_empty() {
        return Err(match &calls.choice {
            ToolChoice::Named(name) => invalid(&format!("there is no tool {name:?} that could be called")),
            ToolChoice::Auto | ToolChoice::Required => invalid("there are no tools that could be called"),
        });
    }
    writer.outline(&names.join(" | "));
    Ok(Grammars { lark: writer.lark, schemas: writer.schemas })
}

struct Writer<'a> {
    calls: &'a ToolCalls,
    vocabulary: &'a Vocabulary,
    limits: &'a GrammarLimits,
    lark: String,
    schemas: Vec<(String, Value)>,
}

impl Writer<'_> {
    fn marker(&self, text: &str) -> String {
        marker(self.vocabulary, text)
    }

    /// The rules `calls` and, before text that is free, `body`.
    fn outline(&mut self, tools: &str) {
        let ToolGrammar { section_open, section_close, separator, .. } = &self.calls.format;
        let begin = self.marker(section_open);
        let end = self.marker(section_close);
        let separator = self.marker(separator);
        let several = self.calls.parallel && !matches!(self.calls.choice, ToolChoice::Named(_));
        let more = if several { format!("({separator}call)*") } else { String::new() };
        let _ = writeln!(self.lark, "call: {tools}");
        if self.calls.choice != ToolChoice::Auto {
            let _ = writeln!(self.lark, "calls: {begin}call {more} {end}");
            return;
        }
        // the first marker follows text, which ends with it
        let trigger = self.trigger();
        let rest = self.marker(&section_open[trigger.len().min(section_open.len())..]);
        let first = if section_open.is_empty() { "first" } else { "call" };
        let tail = format!("{rest}{first} {more} {end}");
        let free: String = self.free_tokens();
        let text = match self.vocabulary.pieces(&trigger).as_slice() {
            [Piece::Control(id)] => {
                let _ = writeln!(self.lark, "PLAIN: /(?s:.+)/");
                format!("(PLAIN? {} {tail} | PLAIN?)", token(*id))
            }
            _ => {
                let _ = write!(self.lark, "{}", up_to(self.vocabulary, "before", &trigger));
                let _ = writeln!(self.lark, "PLAIN: /(?s:.+)/ & ~/(?s:.*){}(?s:.*)/", in_regex(&trigger));
                format!("(before {tail} | PLAIN?)")
            }
        };
        let _ = match free.is_empty() {
            true => writeln!(self.lark, "calls: {text}"),
            false => writeln!(self.lark, "calls: (PLAIN? ({free}))* {text}"),
        };
        if section_open.is_empty() {
            let cut = self.calls.format.open.strip_prefix(&*trigger).unwrap_or_default().to_owned();
            self.first_calls(&cut);
        }
    }

    /// What announces calls in free text: the first control token of the first marker; or, of the text before one, the tag that it begins with, or
    /// its first word.
    fn trigger(&self) -> String {
        let format = &self.calls.format;
        let first = if format.section_open.is_empty() { &format.open } else { &format.section_open };
        let text = match self.vocabulary.pieces(first).first() {
            Some(Piece::Text(text)) => &first[..text.len()],
            Some(Piece::Control(id)) => return self.vocabulary.name(*id).to_owned(),
            None => return String::new(),
        };
        let start = text.len() - text.trim_start().len();
        let inner = &text[start..];
        let closing = match inner.chars().next() {
            Some('<') => inner.find('>'),
            Some('[') => inner.find(']'),
            _ => None,
        };
        let len = closing.map(|at| at + 1).or(inner.find(char::is_whitespace)).unwrap_or(inner.len());
        text[..start + len].to_owned()
    }

    fn free_tokens(&self) -> String {
        let ids = self.calls.free_tokens.iter().filter_map(|name| {
            match self.vocabulary.pieces(name).as_slice() {
                [Piece::Control(id)] => Some(token(*id)),
                // as text it is free anyway
                _ => None,
            }
        });
        ids.collect::<Vec<_>>().join("| ")
    }

    /// The first call, whose beginning is partly behind it.
    fn first_calls(&mut self, begin: &str) {
        let mut names = Vec::new();
        for (index, tool) in self.calls.tools.iter().enumerate() {
            let head = self.head(tool, begin);
            let _ = writeln!(self.lark, "first{index}: {head} rest{index}");
            names.push(format!("first{index}"));
        }
        let _ = writeln!(self.lark, "first: {}", names.join(" | "));
    }

    /// From the beginning of a call to its arguments. Texts that touch are one literal: no name can then be taken for the beginning of
    /// another.
    fn head(&self, tool: &Tool, begin: &str) -> String {
        let format = &self.calls.format;
        let form = if format.name.is_empty() { "{name}" } else { &format.name };
        // which call it is, a grammar does not count
        let form = form.replace("{number}", "{index}").replace("{name}", &tool.name);
        let whole = format!("{begin}{form}{}", format.name_close);
        let parts: Vec<String> = whole.split("{index}").map(|part| self.marker(part)).collect();
        parts.join("/[0-9]{1,4}/ ")
    }

    fn tool(&mut self, index: usize, tool: &Tool, failing: bool) -> Result<(), GrammarError> {
        let head = self.head(tool, &self.calls.format.open);
        let end = self.marker(&self.calls.format.close);
        let any = json!({"type": "object"});
        let given = tool.parameters.as_ref().filter(|_| !failing).unwrap_or(&any);
        // no parameters at all is written as an empty object, too
        let given = if given.as_object().is_some_and(Map::is_empty) { &any } else { given };
        let arguments = match self.arguments(index, given) {
            Err(GrammarError::Invalid { .. }) if !tool.strict => self.arguments(index, &any)?,
            Err(GrammarError::Invalid { what, problem }) => {
                return Err(GrammarError::Invalid {
                    what,
                    problem: format!("tool {}: {problem}", tool.name),
                });
            }
            other => other?,
        };
        let _ = writeln!(self.lark, "rest{index}: {arguments}{end}\ntool{index}: {head} rest{index}");
        Ok(())
    }

    fn arguments(&mut self, index: usize, parameters: &Value) -> Result<String, GrammarError> {
        let prepared = schema::prepare(parameters, self.limits)?;
        match &self.calls.format.arguments {
            ArgumentsGrammar::Json => Ok(self.schema(format!("arguments{index}"), prepared)),
            ArgumentsGrammar::Tagged(tags) => self.tagged(index, tags, parameters),
        }
    }

    /// Refers to a schema.
    fn schema(&mut self, name: String, schema: Value) -> String {
        let reference = format!("@{name} ");
        self.schemas.push((name, schema));
        reference
    }

    /// Arguments one by one, in the order of the schema.
    fn tagged(
        &mut self,
        index: usize,
        tags: &TaggedGrammar,
        parameters: &Value,
    ) -> Result<String, GrammarError> {
        let properties = parameters.get("properties").and_then(Value::as_object);
        let Some(properties) = properties.filter(|properties| !properties.is_empty()) else {
            return Ok(match parameters.get("additionalProperties") {
                Some(Value::Bool(false)) => String::new(),
                _ => self.any_tagged(index, tags),
            });
        };
        let required = |name: &str| {
            let list = parameters.get("required").and_then(Value::as_array);
            list.is_some_and(|list| list.iter().any(|of| of.as_str() == Some(name)))
        };
        let mut arguments = Vec::new();
        for (at, (name, schema)) in properties.iter().enumerate() {
            let value = self.value(&format!("{index}v{at}"), tags, parameters, name, schema)?;
            arguments.push((value, required(name)));
        }
        Ok(self.joined(index, tags, &arguments))
    }

    /// Arguments in their order, those that are not required perhaps left out, with what stands between and around them.
    fn joined(&mut self, index: usize, tags: &TaggedGrammar, arguments: &[(String, bool)]) -> String {
        let [before, separator, after] =
            [&tags.before, &tags.separator, &tags.after].map(|text| self.marker(text));
        let id = |letter: char, at: usize| format!("{letter}{index}n{at} ");
        for (at, (argument, required)) in arguments.iter().enumerate() {
            // `f`: the first argument is this or a later one; `m`: more follow from this one on
            let last = at + 1 == arguments.len();
            let more = if last { String::new() } else { id('m', at + 1) };
            let _ = write!(self.lark, "{}: ({argument}) {more}", id('f', at));
            if !required && !last {
                let _ = write!(self.lark, "| {}", id('f', at + 1));
            }
            let _ = write!(self.lark, "\n{}: {separator}({argument}) {more}", id('m', at));
            if !required {
                let _ = write!(self.lark, "| {}", if last { "\"\" " } else { &more });
            }
            self.lark.push('\n');
        }
        let optional = if arguments.iter().any(|(_, required)| *required) { "" } else { "?" };
        format!("({before}{}{after}){optional} ", id('f', 0))
    }

    /// An argument with its markers.
    fn value(
        &mut self,
        id: &str,
        tags: &TaggedGrammar,
        parameters: &Value,
        name: &str,
        schema: &Value,
    ) -> Result<String, GrammarError> {
        let begin = |kind: &str| begin(tags, name, kind);
        let schema = resolved(schema, parameters);
        let texts = schema.get("const").map(std::slice::from_ref);
        let texts = texts.or_else(|| schema.get("enum").and_then(Value::as_array).map(Vec::as_slice));
        if let Some(texts) = texts.filter(|texts| texts.iter().all(Value::is_string)) {
            let begin = begin("string");
            let texts = texts.iter().filter_map(Value::as_str);
            let written = texts.map(|text| self.marker(&format!("{begin}{text}{}", tags.close)));
            return Ok(written.collect::<Vec<_>>().join("| "));
        }
        if may_be_string(schema) {
            let rule = up_to(self.vocabulary, &format!("raw{id}"), &tags.close);
            self.lark.push_str(&rule);
            return Ok(format!("{}raw{id} ", self.marker(&begin("string"))));
        }
        let mut alone = schema.clone();
        for key in ["$defs", "definitions"] {
            if let (Some(definitions), Some(alone)) = (parameters.get(key), alone.as_object_mut()) {
                alone.insert(key.to_owned(), definitions.clone());
            }
        }
        let prepared = schema::prepare(&alone, self.limits)?;
        let reference = self.schema(format!("arguments{id}"), prepared);
        let kind = schema.get("type").and_then(Value::as_str).unwrap_or("object");
        let kind = if kind == "integer" { "number" } else { kind };
        Ok(format!("{}{reference}{}", self.marker(&begin(kind)), self.marker(&tags.close)))
    }

    /// Arguments of any names, as texts.
    fn any_tagged(&mut self, index: usize, tags: &TaggedGrammar) -> String {
        let [open, before, separator, after] =
            [&tags.open, &tags.before, &tags.separator, &tags.after].map(|text| self.marker(text));
        // what follows the key, up to the value
        let key_end = begin(&TaggedGrammar { open: String::new(), ..tags.clone() }, "", "string");
        let key = up_to(self.vocabulary, &format!("key{index}"), &key_end);
        let value = up_to(self.vocabulary, &format!("raw{index}"), &tags.close);
        self.lark.push_str(&key.replacen("/(?s:.*)/", "/[^<>\"\\n]+/", 1));
        self.lark.push_str(&value);
        let _ = writeln!(self.lark, "argument{index}: {open}key{index} raw{index}");
        format!("({before}argument{index} ({separator}argument{index})* {after})? ")
    }
}

/// What stands before the value of an argument.
fn begin(tags: &TaggedGrammar, name: &str, kind: &str) -> String {
    let TaggedGrammar { open, key_close, value_open, .. } = tags;
    let kind = tags.kind.as_ref().map_or(String::new(), |kinds| format!("{}{}", kinds.of(kind), kinds.close));
    format!("{open}{name}{key_close}{kind}{value_open}")
}

/// What a reference to a definition of the same schema stands for.
fn resolved<'v>(schema: &'v Value, root: &'v Value) -> &'v Value {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix('#'));
    target.and_then(|pointer| root.pointer(pointer)).unwrap_or(schema)
}

/// Whether a value of a schema can be a string, so that all its values are written as they are.
fn may_be_string(schema: &Value) -> bool {
    let Some(object) = schema.as_object() else { return true };
    match object.get("type") {
        Some(Value::String(name)) => return name == "string",
        Some(Value::Array(names)) => return names.iter().any(|name| name == "string"),
        _ => {}
    }
    if let Some(values) = object.get("enum").and_then(Value::as_array) {
        return values.iter().any(Value::is_string);
    }
    if let Some(value) = object.get("const") {
        return value.is_string();
    }
    let options = ["anyOf", "oneOf"].iter().find_map(|key| object.get(*key)?.as_array());
    match options {
        Some(options) => options.iter().any(may_be_string),
        None => !object.contains_key("$ref") && !object.contains_key("properties"),
    }
}
