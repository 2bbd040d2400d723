//! Compiler from a response template to the rules that the parser runs.

use super::super::call::ObjectKeys;
use super::super::error::ResponseFormatError;
use super::super::grammar::{ArgumentsGrammar, KindGrammar, TaggedGrammar, ToolGrammar};
use super::super::pattern::{self, ResponsePattern};
use super::region::{Region, placeholder};
use super::shape::{
    Anchor, ArgumentsShape, Body, CallShape, Delimiter, FieldKind, FormatField, FormatRules, FormatSource,
    StripRule, TaggedShape,
};
use super::spec::{ArgumentsSpec, CallSpec, FieldSpec, Literals, TaggedSpec, TemplateSpec};
use serde_json::Value;

/// Maximum number of fields of a template.
const MAX_FIELDS: usize = 64;

type FormatRefusal = ResponseFormatError;

pub(super) fn compile(
    name: &str,
    source: FormatSource,
    template: &Value,
) -> Result<FormatRules, FormatRefusal> {
    let spec: TemplateSpec = serde_json::from_value(template.clone())
        .map_err(|e| FormatRefusal::malformed("response_template", e))?;
    if let Some(version) = spec.version.as_ref().filter(|version| **version != 1) {
        return Err(FormatRefusal::Version(version.to_string()));
    }
    if spec.fields.is_empty() || spec.fields.len() > MAX_FIELDS {
        let problem = format!("{} fields, expected 1 to {MAX_FIELDS}", spec.fields.len());
        return Err(FormatRefusal::malformed("fields", problem));
    }
    let (mut fields, mut grammar) = (Vec::new(), None);
    for (name, value) in &spec.fields {
        let place = format!("fields.{name}");
        let field: FieldSpec =
            serde_json::from_value(value.clone()).map_err(|e| FormatRefusal::malformed(&place, e))?;
        if let Some(call) = &field.call {
            grammar = Some(call_grammar(&place, &field, call)?);
        }
        fields.push(compile_field(name, &place, &field)?);
    }
    // Text outside all markers belongs to the field without an opening marker.
    let mut open = fields.iter().enumerate().filter(|(_, field)| field.open.is_none());
    let implicit = open.next().map(|(i, _)| i);
    if let Some((second, _)) = open.next() {
        let problem =
            format!("only one field may omit its opening, but {:?} omits it too", fields[second].name);
        return Err(FormatRefusal::malformed("fields", problem));
    }
    let ignore = spec.ignore.map(|list| list.list("ignore")).transpose()?.unwrap_or_default();
    let calls = fields.iter().filter_map(|field| match &field.body {
        Body::Call(_) => Some(field.close.literals()),
        _ => None,
    });
    let sections = grammar.iter().flat_map(|g: &ToolGrammar| [&g.section_open, &g.section_close]);
    // Line ends around a section (DSML) are layout. A model that omits them is parsed alike.
    let mut sections: Vec<String> = sections.map(|text| text.trim().to_owned()).collect();
    sections.retain(|text| !text.is_empty());
    // Ignored outside of calls: a call's end that is written twice, or after a rejected call.
    let call_ends = calls.flatten().filter(|_| grammar.is_some()).cloned().collect();
    if implicit.is_some_and(|i| matches!(fields[i].body, Body::Call(_))) {
        return Err(FormatRefusal::malformed("fields.tool_calls", "tool calls need an opening"));
    }
    let anchor = match (&spec.start_anchor, &spec.start_anchor_pattern) {
        (Some(list), None) => Anchor::Literals(list.list("start_anchor")?),
        (None, Some(pattern)) => Anchor::Pattern(pattern::regex("start_anchor_pattern", pattern)?),
        _ => {
            return Err(FormatRefusal::malformed(
                "start_anchor",
                "exactly one of start_anchor and start_anchor_pattern",
            ));
        }
    };
    Ok(FormatRules {
        name: name.to_owned(),
        source,
        fields,
        implicit,
        anchor,
        ignore,
        sections,
        call_ends,
        grammar,
    })
}

fn delimiter(
    place: &str,
    literals: Option<&Literals>,
    expression: Option<&String>,
) -> Result<Delimiter, FormatRefusal> {
    match (literals, expression) {
        (Some(_), Some(_)) => Err(FormatRefusal::malformed(place, "a literal and a pattern")),
        (Some(list), None) => Ok(Delimiter::Literals(list.list(place)?)),
        (None, Some(expression)) => Ok(Delimiter::Pattern(ResponsePattern::new(place, expression)?)),
        (None, None) => Ok(Delimiter::None),
    }
}

fn compile_field(name: &str, place: &str, spec: &FieldSpec) -> Result<FormatField, FormatRefusal> {
    let open = delimiter(&format!("{place}.open"), spec.open.as_ref(), spec.open_pattern.as_ref())?;
    let close = delimiter(&format!("{place}.close"), spec.close.as_ref(), spec.close_pattern.as_ref())?;
    if spec.join.is_some() && !spec.repeats {
        return Err(FormatRefusal::malformed(place, "'join' requires 'repeats': true"));
    }
    let named =
        |delimiter: &Delimiter| matches!(delimiter, Delimiter::Pattern(pattern) if pattern.has_names());
    if spec.transform.is_none() && (named(&open) || named(&close)) {
        return Err(FormatRefusal::malformed(
            place,
            "named groups reach the result only through a 'transform'",
        ));
    }
    let kind = match name {
        "content" => FieldKind::Content,
        "thinking" | "reasoning" | "reasoning_content" => FieldKind::Reasoning,
        "tool_calls" => FieldKind::Tools,
        _ => FieldKind::Other,
    };
    // Hugging Face's `text` parser has a Boolean `strip`, true by default. The two strings are
    // additions of the built-in templates.
    let strip = match spec.content_args.get("strip") {
        Some(Value::Bool(false)) => StripRule::None,
        Some(Value::String(text)) if text == "at_markers" => StripRule::AtMarkers,
        Some(Value::String(text)) if text == "before_calls" => StripRule::BeforeCalls,
        _ => StripRule::Both,
    };
    let interrupted_by = spec.interrupted_by.as_ref().map(|list| list.list(place)).transpose()?;
    Ok(FormatField {
        name: name.to_owned(),
        kind,
        open,
        close,
        first: spec.first,
        interrupted_by: interrupted_by.unwrap_or_default(),
        strip,
        join: spec.join.clone(),
        body: body(place, kind, spec)?,
    })
}

fn body(place: &str, kind: FieldKind, spec: &FieldSpec) -> Result<Body, FormatRefusal> {
    if let Some(call) = &spec.call {
        return Ok(Body::Call(Box::new(call_shape(place, call)?)));
    }
    let content = spec.content.as_deref().unwrap_or("text");
    let text = matches!(kind, FieldKind::Reasoning | FieldKind::Content);
    // Plain text is streamed. Anything else is known only when the field closes.
    if text && content == "text" && spec.transform.is_none() {
        return Ok(Body::Text);
    }
    // Built even if the call is streamed, so that errors in the template are reported.
    let region =
        Region::new(place, content, &spec.content_args, spec.transform.as_ref(), spec.transform_each)?;
    let streamed = (kind == FieldKind::Tools).then(|| streamed_call(spec)).flatten();
    Ok(streamed.map_or(Body::Region(Box::new(region)), |shape| Body::Call(Box::new(shape))))
}

/// The shape of a call whose JSON can be streamed, although the template describes it as a region.
///
/// Hugging Face's form has no notion of streaming. This recognizes its transforms that only move
/// the name and the arguments.
fn streamed_call(spec: &FieldSpec) -> Option<CallShape> {
    if spec.content.as_deref() != Some("json") || !spec.content_args.is_empty() {
        return None;
    }
    let function = spec.transform.as_ref()?.get("function")?;
    let shape = |arguments, name_group| CallShape {
        name_open: None,
        name_close: Vec::new(),
        name_before: Vec::new(),
        name_patterns: Vec::new(),
        name_group,
        unescape: false,
        id_prefix: "call_".to_owned(),
        id_length: 24,
        arguments,
        or_object: None,
    };
    let keys = |name: &str, arguments: &str| ObjectKeys {
        name: vec![name.to_owned()],
        arguments: vec![arguments.to_owned()],
        id: Vec::new(),
    };
    if function.as_str() == Some("{content}") && !spec.transform_each {
        return Some(shape(ArgumentsShape::Object(keys("name", "arguments")), None));
    }
    let path = |key: &str| function.get(key).and_then(Value::as_str).and_then(placeholder);
    let (name, arguments) = (path("name")?, path("arguments")?);
    // Cohere writes a list of objects with `tool_name` and `parameters`.
    if spec.transform_each {
        return Some(shape(ArgumentsShape::Object(keys(name, arguments)), None));
    }
    match (name.strip_prefix("content."), arguments.strip_prefix("content.")) {
        (Some(name), Some(arguments)) => Some(shape(ArgumentsShape::Object(keys(name, arguments)), None)),
        // The name is a group of the opening pattern, and the whole content is the arguments
        // (gpt-oss: `to=functions.{name}`).
        (None, None) if arguments == "content" && name != "content" => {
            Some(shape(ArgumentsShape::Json, Some(name.to_owned())))
        }
        _ => None,
    }
}

fn call_shape(place: &str, spec: &CallSpec) -> Result<CallShape, FormatRefusal> {
    let list = |key: &str, literals: &Option<Literals>| {
        let lists =
            literals.as_ref().map(|literals| literals.list(&format!("{place}.call.{key}"))).transpose();
        lists.map(Option::unwrap_or_default)
    };
    let patterns = spec.name_patterns.iter().map(|text| pattern::regex(place, text));
    Ok(CallShape {
        name_open: spec.name_open.clone(),
        name_close: list("name_close", &spec.name_close)?,
        name_before: list("name_before", &spec.name_before)?,
        name_patterns: patterns.collect::<Result<_, _>>()?,
        name_group: None,
        unescape: spec.unescape,
        id_prefix: spec.id.prefix.clone(),
        id_length: spec.id.length.min(64),
        arguments: match &spec.arguments {
            ArgumentsSpec::Json {} => ArgumentsShape::Json,
            ArgumentsSpec::Object(keys) => ArgumentsShape::Object(keys.clone()),
            ArgumentsSpec::Tagged(tagged) => ArgumentsShape::Tagged(tagged_shape(place, tagged)?),
        },
        or_object: spec.or_object.clone(),
    })
}

fn tagged_shape(place: &str, spec: &TaggedSpec) -> Result<TaggedShape, FormatRefusal> {
    let block = spec.block.as_ref().map(|block| (block.open.clone(), block.close.clone()));
    let parts = [&spec.open, &spec.key_close, &spec.close]
        .into_iter()
        .chain(&spec.kind_close)
        .chain(&spec.value_open);
    // An empty marker would match everywhere, and the parser would not advance.
    if parts.chain(block.iter().flat_map(|(open, close)| [open, close])).any(String::is_empty) {
        return Err(FormatRefusal::malformed(format!("{place}.call.arguments"), "markers must not be empty"));
    }
    Ok(TaggedShape {
        open: spec.open.clone(),
        key_close: spec.key_close.clone(),
        kind_close: spec.kind_close.clone(),
        kind_string: spec.kind_string.clone(),
        value_open: spec.value_open.clone(),
        close: spec.close.clone(),
        block,
    })
}

/// The form in which constrained decoding writes a call: the first of the literals that are parsed,
/// unless `written` has another text.
fn call_grammar(place: &str, field: &FieldSpec, spec: &CallSpec) -> Result<ToolGrammar, FormatRefusal> {
    let first = |literals: Option<&Literals>, key: &str| -> Result<String, FormatRefusal> {
        let list = literals.map(|literals| literals.list(&format!("{place}.{key}"))).transpose()?;
        Ok(list.and_then(|list| list.into_iter().next()).unwrap_or_default())
    };
    let written = &spec.written;
    let or = |written: &Option<String>, literals: Option<&Literals>, key: &str| match written {
        Some(text) => Ok(text.clone()),
        None => first(literals, key),
    };
    let (mut open, mut name_close) = (
        or(&written.open, field.open.as_ref(), "open")?,
        or(&written.name_close, spec.name_close.as_ref(), "call.name_close")?,
    );
    let mut close = or(&written.close, field.close.as_ref(), "close")?;
    let arguments = match &spec.arguments {
        ArgumentsSpec::Json {} => ArgumentsGrammar::Json,
        // The object around the arguments becomes part of the markers. The first path of each key
        // is the model's own form.
        ArgumentsSpec::Object(keys) => {
            let key = |paths: &[String]| paths.first().cloned().unwrap_or_default();
            open.push_str(&format!("{{\"{}\": \"", key(&keys.name)));
            name_close = format!("\", \"{}\": ", key(&keys.arguments));
            close.insert(0, '}');
            ArgumentsGrammar::Json
        }
        ArgumentsSpec::Tagged(tagged) => ArgumentsGrammar::Tagged(Box::new(TaggedGrammar {
            before: tagged.before.clone(),
            separator: tagged.separator.clone(),
            after: tagged.after.clone(),
            open: tagged.open.clone(),
            key_close: tagged.key_close.clone(),
            kind: tagged.kind_close.clone().map(|close| KindGrammar {
                string: tagged.kind_string.clone(),
                json: tagged.kind_json.clone(),
                close,
            }),
            value_open: format!("{}{}", tagged.space, tagged.value_open.as_deref().unwrap_or_default()),
            close: tagged.close.clone(),
        })),
    };
    let (section_open, section_close) = spec
        .section
        .as_ref()
        .map(|section| (section.open.clone(), section.close.clone()))
        .unwrap_or_default();
    Ok(ToolGrammar {
        section_open,
        section_close,
        separator: spec.separator.clone(),
        open,
        name: written.name.clone().unwrap_or_else(|| "{name}".to_owned()),
        name_close,
        arguments,
        close,
    })
}
