//! The markers that the parser searches for in each state.

use super::format::{Arguments, Body, CallShape, Delimiter, Field, FieldKind, Format, Tagged};
use super::options::ParserOptions;
use super::watch::{Role, Watch};

/// Searches outside all fields, and within each.
pub(super) struct Watches {
    /// Before anything but white space has come.
    pub outside_first: Watch,
    pub outside: Watch,
    pub fields: Vec<FieldWatches>,
}

#[derive(Default)]
pub(super) struct FieldWatches {
    /// At the beginning of a text, and later.
    pub first: Watch,
    pub inside: Watch,
    pub header: Watch,
    /// What ends a call.
    pub end: Watch,
    pub between: Watch,
    pub key: Watch,
    pub kind: Watch,
    pub value_open: Watch,
    pub value: Watch,
    pub block_end: Watch,
}

/// Whether a field is looked for.
pub(super) fn wanted(field: &Field, options: &ParserOptions) -> bool {
    match field.kind {
        FieldKind::Reasoning => options.parse_reasoning,
        FieldKind::Tools => options.parse_tools,
        FieldKind::Content | FieldKind::Other => true,
    }
}

struct Gatherer<'a> {
    format: &'a Format,
    options: &'a ParserOptions,
}

impl Watches {
    pub fn new(format: &Format, options: &ParserOptions) -> Watches {
        let gatherer = Gatherer { format, options };
        Watches {
            outside_first: gatherer.outside(true),
            outside: gatherer.outside(false),
            fields: format.fields.iter().map(|field| gatherer.field(field)).collect(),
        }
    }
}

impl Gatherer<'_> {
    fn add(&self, watch: &mut Watch, role: Role, delimiter: &Delimiter, verified: bool) {
        match delimiter {
            Delimiter::None => {}
            Delimiter::Literals(texts) => self.texts(watch, role, texts, verified),
            Delimiter::Pattern(pattern) => watch.pattern(role, pattern),
        }
    }

    fn texts<'t>(
        &self,
        watch: &mut Watch,
        role: Role,
        texts: impl IntoIterator<Item = &'t String>,
        verified: bool,
    ) {
        watch.literals(role, texts, &self.options.control_tokens, verified);
    }

    fn outside(&self, first: bool) -> Watch {
        let mut watch = Watch::default();
        for (i, field) in
            self.format.fields.iter().enumerate().filter(|(_, field)| wanted(field, self.options))
        {
            let late = field.first && !first;
            self.add(&mut watch, Role::Open(i), &field.open, late);
            if Some(i) == self.format.implicit {
                self.add(&mut watch, Role::Ignore, &field.close, false);
            } else if field.first {
                // a closing that nothing opened
                self.add(&mut watch, Role::Ignore, &field.close, late);
            }
        }
        self.texts(&mut watch, Role::Ignore, &self.format.ignore, false);
        if self.options.parse_tools {
            self.texts(&mut watch, Role::Ignore, &self.format.sections, false);
            self.texts(&mut watch, Role::Ignore, &self.format.call_ends, !first);
        }
        watch
    }

    fn field(&self, field: &Field) -> FieldWatches {
        let mut watches = FieldWatches::default();
        for watch in [&mut watches.first, &mut watches.inside] {
            self.add(watch, Role::Close, &field.close, false);
            self.interruptions(watch, field);
        }
        if field.first {
            self.add(&mut watches.first, Role::Ignore, &field.open, false);
        }
        if let Body::Call(shape) = &field.body {
            self.call(&mut watches, field, shape);
        }
        watches
    }

    /// Tool calls that begin while the model is still in its reasoning.
    fn interruptions(&self, watch: &mut Watch, field: &Field) {
        if field.kind != FieldKind::Reasoning || !self.options.parse_tools {
            return;
        }
        self.texts(watch, Role::Before, &field.interrupted_by, false);
        let tools = self.format.fields.iter().filter(|other| other.kind == FieldKind::Tools && field.first);
        for tools in tools {
            self.add(watch, Role::Before, &tools.open, true);
        }
        if field.first {
            self.texts(watch, Role::Before, self.format.sections.first(), true);
        }
    }

    fn call(&self, watches: &mut FieldWatches, field: &Field, shape: &CallShape) {
        let header = &mut watches.header;
        self.texts(header, Role::NameOpen, &shape.name_open, false);
        self.texts(header, Role::NameClose, &shape.name_close, false);
        self.texts(header, Role::Before, &shape.name_before, false);
        for watch in [&mut watches.header, &mut watches.end] {
            self.add(watch, Role::Close, &field.close, false);
        }
        // without its own end a call ends where anything else begins
        self.texts(&mut watches.end, Role::Before, &self.format.sections, false);
        self.texts(&mut watches.end, Role::Before, &self.format.ignore, false);
        self.add(&mut watches.end, Role::Before, &field.open, false);
        if let Arguments::Tagged(tagged) = &shape.arguments {
            self.tagged(watches, field, shape, tagged);
        }
    }

    fn tagged(&self, watches: &mut FieldWatches, field: &Field, shape: &CallShape, tagged: &Tagged) {
        if shape.name_close.is_empty() {
            self.texts(&mut watches.header, Role::Before, [&tagged.open], false);
        }
        let between = &mut watches.between;
        self.texts(between, Role::Argument, [&tagged.open], false);
        self.texts(between, Role::Block, tagged.block.iter().map(|(open, _)| open), false);
        self.add(between, Role::Close, &field.close, false);
        self.texts(between, Role::Before, &self.format.sections, false);
        self.add(between, Role::Before, &field.open, false);
        self.texts(&mut watches.key, Role::Next, [&tagged.key_close], false);
        self.texts(&mut watches.kind, Role::Next, &tagged.kind_close, false);
        self.texts(&mut watches.value_open, Role::Next, &tagged.value_open, false);
        let value = &mut watches.value;
        self.texts(value, Role::Next, [&tagged.close], false);
        // a value whose end was forgotten: only where control tokens tell that what follows is not part of it
        self.add(value, Role::Before, &field.close, true);
        self.texts(value, Role::Before, [&tagged.open], true);
        self.texts(&mut watches.block_end, Role::Close, tagged.block.iter().map(|(_, close)| close), false);
    }
}
