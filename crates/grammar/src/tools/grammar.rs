//! Lark grammar of tool calls. CI compares it with xgrammar's structural tags
//! (tests/clients/tool_grammars.py).

use super::{CallableTool, ToolCalls, ToolRequirement};
use crate::error::GrammarError;
use crate::lark::{ANY, in_regex, marker, token, up_to};
use crate::limits::{Budget, GrammarLimits};
use crate::schema;
use crate::vocabulary::{MarkerPiece, VocabularyTrie};
use latent_text::{ArgumentsGrammar, TaggedGrammar, ToolGrammar};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

const WHAT: &str = "list of tools";

/// The main grammar, whose top rule is `calls`, and the schemas that it references.
pub(crate) struct CallGrammars {
    pub(crate) lark: String,
    pub(crate) schemas: Vec<(String, Value)>,
}

/// Writes the grammar of tool calls. `failing` are the indices of tools whose schemas do not
/// compile.
pub(crate) fn grammars(
    calls: &ToolCalls,
    vocabulary: &VocabularyTrie,
    limits: &GrammarLimits,
    failing: &[usize],
    budget: &Budget,
) -> Result<CallGrammars, GrammarError> {
    let invalid = |problem: &str| GrammarError::Invalid { what: WHAT, problem: problem.to_owned() };
    let (found, limit) = (calls.tools.len(), limits.rules);
    if found > limit {
        return Err(GrammarError::TooLarge { what: WHAT, unit: "tools", found, limit });
    }
    if calls.format.open.is_empty() && calls.format.section_open.is_empty() {
        return Err(invalid("the model's format has no marker that begins a call"));
    }
    let mut writer = Writer { calls, vocabulary, limits, budget, lark: String::new(), schemas: Vec::new() };
    let mut wanted = Vec::new();
    for (index, tool) in calls.tools.iter().enumerate() {
        let callable = match &calls.choice {
            ToolRequirement::Named(name) => *name == tool.name,
            ToolRequirement::Auto | ToolRequirement::Required => true,
        };
        // `marker` would write such a name as the control token itself.
        if tool.name.is_empty()
            || vocabulary.pieces(&tool.name).iter().any(|p| matches!(p, MarkerPiece::Control(_)))
        {
            return Err(invalid(&format!("invalid tool name {:?}", tool.name)));
        }
        if callable {
            writer.tool(index, tool, failing.contains(&index))?;
            wanted.push(index);
        }
    }
    if wanted.is_empty() {
        return Err(match &calls.choice {
            ToolRequirement::Named(name) => invalid(&format!("unknown tool {name:?} in the tool choice")),
            ToolRequirement::Auto | ToolRequirement::Required => invalid("the request has no tools"),
        });
    }
    writer.outline(&wanted);
    Ok(CallGrammars { lark: writer.lark, schemas: writer.schemas })
}

struct Writer<'a> {
    calls: &'a ToolCalls,
    vocabulary: &'a VocabularyTrie,
    limits: &'a GrammarLimits,
    budget: &'a Budget,
    lark: String,
    schemas: Vec<(String, Value)>,
}

impl Writer<'_> {
    fn marker(&self, text: &str) -> String {
        marker(self.vocabulary, text)
    }

    /// Writes the rule `calls`.
    fn outline(&mut self, tools: &[usize]) {
        let ToolGrammar { section_open, section_close, open, .. } = &self.calls.format;
        let begin = self.marker(section_open);
        let several = self.calls.parallel && !matches!(self.calls.choice, ToolRequirement::Named(_));
        let end = if several { self.others(tools) } else { self.marker(section_close) };
        self.beginnings("call", open, tools);
        if self.calls.choice != ToolRequirement::Auto {
            let _ = writeln!(self.lark, "calls: {begin}call {end}");
            return;
        }
        // With the choice `auto`, free text may precede the calls and ends at the first marker.
        let trigger = self.trigger();
        let rest = self.marker(&section_open[trigger.len().min(section_open.len())..]);
        // Without a section, the trigger is the beginning of the first call, which the rule must
        // not repeat.
        let first = if section_open.is_empty() { "first" } else { "call" };
        let tail = format!("{rest}{first} {end}");
        let free: String = self.free_markers();
        let text = match self.vocabulary.pieces(&trigger).as_slice() {
            // Text cannot contain a control token, so no pattern needs to exclude the trigger.
            [MarkerPiece::Control(id)] => {
                let _ = writeln!(self.lark, "PLAIN: /(?s:.+)/");
                format!("(PLAIN? {} {tail} | PLAIN?)", token(*id))
            }
            pieces => {
                let text_only = pieces.len() == 1;
                let _ = write!(self.lark, "{}", up_to(self.vocabulary, "before", ANY, &trigger));
                // Text without calls must not contain the trigger, or the model could write
                // unconstrained calls.
                let but =
                    if text_only { format!(" & ~/{ANY}{}{ANY}/", in_regex(&trigger)) } else { String::new() };
                let _ = writeln!(self.lark, "PLAIN: /(?s:.+)/{but}");
                format!("(before {tail} | PLAIN?)")
            }
        };
        let _ = match free.is_empty() {
            true => writeln!(self.lark, "calls: {text}"),
            false => writeln!(self.lark, "calls: (PLAIN? ({free}))* {text}"),
        };
        if section_open.is_empty() {
            let cut = self.calls.format.open.strip_prefix(&*trigger).unwrap_or_default();
            self.beginnings("first", cut, tools);
        }
    }

    /// Writes the calls after the first one, and the end of all. If the next call and the end begin
    /// with the same text, that prefix is factored out: the greedy lexer would otherwise commit to
    /// one of them. DSML needs this, because a line end precedes both.
    fn others(&mut self, tools: &[usize]) -> String {
        let ToolGrammar { section_close, separator, open, .. } = &self.calls.format;
        let next = format!("{separator}{open}");
        let alike = match [&next, section_close].map(|text| self.vocabulary.pieces(text).into_iter().next()) {
            [Some(MarkerPiece::Text(next)), Some(MarkerPiece::Text(end))] => common_prefix(next, end),
            _ => 0,
        };
        if alike == 0 {
            return format!("({}call)* {}", self.marker(separator), self.marker(section_close));
        }
        let [both, end] = [&section_close[..alike], &section_close[alike..]].map(|text| self.marker(text));
        self.beginnings("next", &next[alike..], tools);
        let _ = writeln!(self.lark, "others: {both}(next others | {end})");
        "others ".to_owned()
    }

    /// The text that announces calls in free text: the first marker up to its first control token.
    /// If the marker is plain text, its leading tag or first word.
    fn trigger(&self) -> String {
        let format = &self.calls.format;
        let first = if format.section_open.is_empty() { &format.open } else { &format.section_open };
        let text = match self.vocabulary.pieces(first).as_slice() {
            [MarkerPiece::Text(text)] => *text,
            [MarkerPiece::Text(text), MarkerPiece::Control(id), ..] => {
                return format!("{text}{}", self.vocabulary.name(*id));
            }
            [MarkerPiece::Control(id), ..] => return self.vocabulary.name(*id).to_owned(),
            _ => return String::new(),
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

    fn free_markers(&self) -> String {
        // Markers that begin with text are covered by free text up to their first control token.
        let free = self.calls.free_markers.iter();
        let free =
            free.filter(|text| matches!(self.vocabulary.pieces(text).first(), Some(MarkerPiece::Control(_))));
        free.map(|text| self.marker(text)).collect::<Vec<_>>().join("| ")
    }

    /// Writes a rule for a call of any tool. `begin` is the remaining text before the name.
    fn beginnings(&mut self, rule: &str, begin: &str, tools: &[usize]) {
        for index in tools {
            let head = self.head(&self.calls.tools[*index], begin);
            let _ = writeln!(self.lark, "{rule}{index}: {head} rest{index}");
        }
        let names: Vec<String> = tools.iter().map(|index| format!("{rule}{index}")).collect();
        let _ = writeln!(self.lark, "{rule}: {}", names.join(" | "));
    }

    /// A call from its beginning to its arguments. Adjacent texts are one literal, so that a name
    /// is never mistaken for the prefix of another.
    fn head(&self, tool: &CallableTool, begin: &str) -> String {
        let format = &self.calls.format;
        let form = if format.name.is_empty() { "{name}" } else { &format.name };
        // A grammar cannot count calls, so any number is accepted (Kimi-K2: `functions.name:0`).
        let form = form.replace("{number}", "{index}").replace("{name}", &tool.name);
        let whole = format!("{begin}{form}{}", format.name_close);
        let parts: Vec<String> = whole.split("{index}").map(|part| self.marker(part)).collect();
        parts.join("/[0-9]{1,4}/ ")
    }

    fn tool(&mut self, index: usize, tool: &CallableTool, failing: bool) -> Result<(), GrammarError> {
        let end = self.marker(&self.calls.format.close);
        let any = json!({"type": "object"});
        let given = tool.parameters.as_ref().filter(|_| !failing).unwrap_or(&any);
        // Clients also write `{}` for a tool without parameters; as a schema it would allow any
        // JSON value.
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
        let _ = writeln!(self.lark, "rest{index}: {arguments}{end}");
        Ok(())
    }

    fn arguments(&mut self, index: usize, parameters: &Value) -> Result<String, GrammarError> {
        let prepared = schema::prepare(parameters, self.limits, self.budget)?;
        match &self.calls.format.arguments {
            ArgumentsGrammar::Json => Ok(self.schema(format!("arguments{index}"), prepared)),
            ArgumentsGrammar::Tagged(tags) => self.tagged(index, tags, parameters),
        }
    }

    /// Adds a schema and returns a reference to it.
    fn schema(&mut self, name: String, schema: Value) -> String {
        let reference = format!("@{name} ");
        self.schemas.push((name, schema));
        reference
    }

    /// Tagged arguments in the order of the schema.
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

    /// Joins arguments in their order with separators. Arguments that are not required may be
    /// omitted.
    fn joined(&mut self, index: usize, tags: &TaggedGrammar, arguments: &[(String, bool)]) -> String {
        let [before, separator, after] =
            [&tags.before, &tags.separator, &tags.after].map(|text| self.marker(text));
        let id = |letter: char, at: usize| format!("{letter}{index}n{at} ");
        for (at, (argument, required)) in arguments.iter().enumerate() {
            // Rule `f`: the first argument is this or a later one. Rule `m`: further arguments,
            // from this one on. Two chains of rules are linear in the arguments; listing subsets
            // would be exponential.
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

    /// Writes an argument with its markers.
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
        // Strings are written raw, without quotes, so their alternatives are literals instead of a
        // schema.
        let texts = schema.get("const").map(std::slice::from_ref);
        let texts = texts.or_else(|| schema.get("enum").and_then(Value::as_array).map(Vec::as_slice));
        if let Some(texts) = texts.filter(|texts| texts.iter().all(Value::is_string)) {
            let begin = begin("string");
            let texts = texts.iter().filter_map(Value::as_str);
            let written = texts.map(|text| self.marker(&format!("{begin}{text}{}", tags.close)));
            return Ok(written.collect::<Vec<_>>().join("| "));
        }
        // A raw string may contain anything up to the closing marker. Other types are JSON.
        if may_be_string(schema) {
            let rule = up_to(self.vocabulary, &format!("raw{id}"), ANY, &tags.close);
            self.lark.push_str(&rule);
            return Ok(format!("{}raw{id} ", self.marker(&begin("string"))));
        }
        let mut alone = schema.clone();
        // The schema stands alone here, so it needs the definitions that its references name.
        for key in ["$defs", "definitions"] {
            if let (Some(definitions), Some(alone)) = (parameters.get(key), alone.as_object_mut()) {
                alone.insert(key.to_owned(), definitions.clone());
            }
        }
        let prepared = schema::prepare(&alone, self.limits, self.budget)?;
        let reference = self.schema(format!("arguments{id}"), prepared);
        let kind = schema.get("type").and_then(Value::as_str).unwrap_or("object");
        let kind = if kind == "integer" { "number" } else { kind };
        Ok(format!("{}{reference}{}", self.marker(&begin(kind)), self.marker(&tags.close)))
    }

    /// Tagged arguments with any names and raw values.
    fn any_tagged(&mut self, index: usize, tags: &TaggedGrammar) -> String {
        let [open, before, separator, after] =
            [&tags.open, &tags.before, &tags.separator, &tags.after].map(|text| self.marker(text));
        // The text between the key and the value.
        let key_end = begin(&TaggedGrammar { open: String::new(), ..tags.clone() }, "", "string");
        let key = up_to(self.vocabulary, &format!("key{index}"), "[^<>\"\\n]+", &key_end);
        let value = up_to(self.vocabulary, &format!("raw{index}"), ANY, &tags.close);
        self.lark.push_str(&key);
        self.lark.push_str(&value);
        let _ = writeln!(self.lark, "argument{index}: {open}key{index} raw{index}");
        format!("({before}argument{index} ({separator}argument{index})* {after})? ")
    }
}

/// The text before an argument's value.
fn begin(tags: &TaggedGrammar, name: &str, kind: &str) -> String {
    let TaggedGrammar { open, key_close, value_open, .. } = tags;
    let kind = tags.kind.as_ref().map_or(String::new(), |kinds| format!("{}{}", kinds.of(kind), kinds.close));
    format!("{open}{name}{key_close}{kind}{value_open}")
}

/// Length in bytes of the common prefix of two texts.
fn common_prefix(one: &str, other: &str) -> usize {
    one.chars().zip(other.chars()).take_while(|(a, b)| a == b).map(|(c, _)| c.len_utf8()).sum()
}

/// Resolves a reference within the same schema.
fn resolved<'v>(schema: &'v Value, root: &'v Value) -> &'v Value {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix('#'));
    target.and_then(|pointer| root.pointer(pointer)).unwrap_or(schema)
}

/// Whether a schema allows strings. Then all its values are written raw.
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
