//! The form of a model's tool calls, for constrained decoding. It is compiled from the same
//! response template as the parser, so that constrained calls can always be parsed.

/// The text of tool calls in the model's own format:
///
/// ```text
/// section_open (call (separator call)*)? section_close
/// call = open name name_close arguments close
/// ```
///
/// The name of a control token in a marker stands for that token. Either `section_open` or `open`
/// is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolGrammar {
    /// Before the first call; may be empty.
    pub section_open: String,
    /// After the last call; may be empty.
    pub section_close: String,
    /// Between two calls.
    pub separator: String,
    /// Before the name.
    pub open: String,
    /// The form of the name: a text with `{name}` and optionally the call's `{index}` (from 0) or
    /// `{number}` (from 1). Kimi-K2 writes `functions.{name}:{index}`.
    pub name: String,
    /// Between name and arguments.
    pub name_close: String,
    pub arguments: ArgumentsGrammar,
    /// After the arguments.
    pub close: String,
}

/// The form of a call's arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ArgumentsGrammar {
    /// A JSON object that the tool's schema accepts.
    #[default]
    Json,
    /// Arguments between markers: `before (open key key_close kind? value_open value close)*
    /// after`, with `separator` between two arguments.
    Tagged(Box<TaggedGrammar>),
}

/// Arguments between markers. Strings are written verbatim, other values as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaggedGrammar {
    /// Before the first argument; omitted without arguments.
    pub before: String,
    /// Between two arguments.
    pub separator: String,
    /// After the last argument; omitted without arguments.
    pub after: String,
    /// Before the key.
    pub open: String,
    /// After the key.
    pub key_close: String,
    /// The form of the value's type, if the format has one (DSML, Kimi-K3).
    pub kind: Option<KindGrammar>,
    /// Before the value.
    pub value_open: String,
    /// After the value. A string cannot contain it.
    pub close: String,
}

/// The form of an argument's type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindGrammar {
    pub string: String,
    /// For other values: one name for all of them (DSML: `false`), or names of JSON types
    /// (Kimi-K3).
    pub json: Vec<String>,
    /// After the type.
    pub close: String,
}

impl ToolGrammar {
    /// The text at which a call has certainly begun. Output before it is unconstrained.
    pub fn trigger(&self) -> &str {
        // White space at the end of the marker is not part of the trigger. The grammar requires it
        // after the trigger.
        if self.section_open.is_empty() { self.open.trim_end() } else { self.section_open.trim_end() }
    }

    /// The text that a model writes as the name of a call.
    pub fn name_of(&self, name: &str, index: usize) -> String {
        let filled =
            self.name.replace("{index}", &index.to_string()).replace("{number}", &(index + 1).to_string());
        // The name is filled in last, because a function's name may contain `{index}`.
        filled.replace("{name}", name)
    }
}

impl KindGrammar {
    /// The name of a JSON type (`string`, `number`, `boolean`, `null`, `object`, `array`).
    pub fn of(&self, json_type: &str) -> &str {
        if json_type == "string" {
            return &self.string;
        }
        let named = self.json.iter().find(|name| *name == json_type);
        named.or(self.json.first()).map_or("", String::as_str)
    }
}
