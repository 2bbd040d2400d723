//! The markers that the parser searches for in each state.

use super::format::{
    ArgumentsShape, Body, CallShape, Delimiter, FieldKind, FormatField, FormatRules, TaggedShape,
};
use super::options::ParserOptions;
use super::watch::{MarkerRole, MarkerWatch};

/// Markers searched outside all fields, and within each field.
pub(super) struct Watches {
    /// While the text consists of white space only.
    pub outside_first: MarkerWatch,
    pub outside: MarkerWatch,
    pub fields: Vec<FieldWatches>,
}

#[derive(Default)]
pub(super) struct FieldWatches {
    /// While the field's text consists of white space only.
    pub first: MarkerWatch,
    pub inside: MarkerWatch,
    /// In the part of a call that contains its name.
    pub header: MarkerWatch,
    /// At the end of a call.
    pub end: MarkerWatch,
    pub between: MarkerWatch,
    pub key: MarkerWatch,
    pub kind: MarkerWatch,
    pub value_open: MarkerWatch,
    pub value: MarkerWatch,
    pub block_end: MarkerWatch,
}

/// Whether the options ask for a field.
pub(super) fn wanted(field: &FormatField, options: &ParserOptions) -> bool {
    match field.kind {
        FieldKind::Reasoning => options.parse_reasoning,
        FieldKind::Tools => options.parse_tools,
        FieldKind::Content | FieldKind::Other => true,
    }
}

struct WatchGatherer<'a> {
    format: &'a FormatRules,
    options: &'a ParserOptions,
}

impl Watches {
    pub fn new(format: &FormatRules, options: &ParserOptions) -> Watches {
        let gatherer = WatchGatherer { format, options };
        Watches {
            outside_first: gatherer.outside(true),
            outside: gatherer.outside(false),
            fields: format.fields.iter().map(|field| gatherer.field(field)).collect(),
        }
    }
}

impl WatchGatherer<'_> {
    fn add(&self, watch: &mut MarkerWatch, role: MarkerRole, delimiter: &Delimiter, verified: bool) {
        match delimiter {
            Delimiter::None => {}
            Delimiter::Literals(texts) => self.texts(watch, role, texts, verified),
            Delimiter::Pattern(pattern) => watch.pattern(role, pattern),
        }
    }

    fn texts<'t>(
        &self,
        watch: &mut MarkerWatch,
        role: MarkerRole,
        texts: impl IntoIterator<Item = &'t String>,
        verified: bool,
    ) {
        watch.literals(role, texts, &self.options.control_tokens, verified);
    }

    fn outside(&self, first: bool) -> MarkerWatch {
        let mut watch = MarkerWatch::default();
        for (i, field) in
            self.format.fields.iter().enumerate().filter(|(_, field)| wanted(field, self.options))
        {
            // In the middle of an answer, `<think>` is a marker only as a control token. Answers
            // about HTML contain it as text.
            let late = field.first && !first;
            self.add(&mut watch, MarkerRole::Open(i), &field.open, late);
            if Some(i) == self.format.implicit {
                self.add(&mut watch, MarkerRole::Ignore, &field.close, false);
            } else if field.first {
                // A closing marker without an opening one: models close reasoning that neither they
                // nor the prompt opened.
                self.add(&mut watch, MarkerRole::Ignore, &field.close, late);
            }
        }
        self.texts(&mut watch, MarkerRole::Ignore, &self.format.ignore, false);
        if self.options.parse_tools {
            self.texts(&mut watch, MarkerRole::Ignore, &self.format.sections, false);
            // After a call, a second end is dropped. Later in the text it needs a control token.
            self.texts(&mut watch, MarkerRole::Ignore, &self.format.call_ends, !first);
        }
        watch
    }

    fn field(&self, field: &FormatField) -> FieldWatches {
        let mut watches = FieldWatches::default();
        for watch in [&mut watches.first, &mut watches.inside] {
            self.add(watch, MarkerRole::Close, &field.close, false);
            self.interruptions(watch, field);
        }
        if field.first {
            self.add(&mut watches.first, MarkerRole::Ignore, &field.open, false);
        }
        if let Body::Call(shape) = &field.body {
            self.call(&mut watches, field, shape);
        }
        watches
    }

    /// Adds the markers of tool calls to those that end reasoning. Models may omit `</think>`
    /// before a call.
    fn interruptions(&self, watch: &mut MarkerWatch, field: &FormatField) {
        if field.kind != FieldKind::Reasoning || !self.options.parse_tools {
            return;
        }
        self.texts(watch, MarkerRole::Before, &field.interrupted_by, false);
        // Markers that the template does not list (GLM's `<tool_call>`) end the reasoning only as
        // control tokens: a model may reason about the marker's text.
        let tools = self.format.fields.iter().filter(|other| other.kind == FieldKind::Tools && field.first);
        for tools in tools {
            self.add(watch, MarkerRole::Before, &tools.open, true);
        }
        if field.first {
            self.texts(watch, MarkerRole::Before, self.format.sections.first(), true);
        }
    }

    fn call(&self, watches: &mut FieldWatches, field: &FormatField, shape: &CallShape) {
        let header = &mut watches.header;
        self.texts(header, MarkerRole::NameOpen, &shape.name_open, false);
        self.texts(header, MarkerRole::NameClose, &shape.name_close, false);
        self.texts(header, MarkerRole::Before, &shape.name_before, false);
        for watch in [&mut watches.header, &mut watches.end] {
            self.add(watch, MarkerRole::Close, &field.close, false);
        }
        // A call without its own end marker ends where the section, another call or an ignored
        // marker begins (test case "v3.1: end missing").
        self.texts(&mut watches.end, MarkerRole::Before, &self.format.sections, false);
        self.texts(&mut watches.end, MarkerRole::Before, &self.format.ignore, false);
        self.add(&mut watches.end, MarkerRole::Before, &field.open, false);
        if let ArgumentsShape::Tagged(tagged) = &shape.arguments {
            self.tagged(watches, field, shape, tagged);
        }
    }

    fn tagged(
        &self,
        watches: &mut FieldWatches,
        field: &FormatField,
        shape: &CallShape,
        tagged: &TaggedShape,
    ) {
        // GLM writes the first `<arg_key>` directly after the name.
        if shape.name_close.is_empty() {
            self.texts(&mut watches.header, MarkerRole::Before, [&tagged.open], false);
        }
        let between = &mut watches.between;
        self.texts(between, MarkerRole::Argument, [&tagged.open], false);
        self.texts(between, MarkerRole::Block, tagged.block.iter().map(|(open, _)| open), false);
        self.add(between, MarkerRole::Close, &field.close, false);
        self.texts(between, MarkerRole::Before, &self.format.sections, false);
        self.add(between, MarkerRole::Before, &field.open, false);
        self.texts(&mut watches.key, MarkerRole::Next, [&tagged.key_close], false);
        self.texts(&mut watches.kind, MarkerRole::Next, &tagged.kind_close, false);
        self.texts(&mut watches.value_open, MarkerRole::Next, &tagged.value_open, false);
        let value = &mut watches.value;
        self.texts(value, MarkerRole::Next, [&tagged.close], false);
        // A missing end marker is detected only by control tokens. As text, these markers can be
        // part of the value (test case "glm: markers in a value").
        self.add(value, MarkerRole::Before, &field.close, true);
        self.texts(value, MarkerRole::Before, [&tagged.open], true);
        self.texts(
            &mut watches.block_end,
            MarkerRole::Close,
            tagged.block.iter().map(|(_, close)| close),
            false,
        );
    }
}
