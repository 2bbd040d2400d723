//! How a model writes tool calls: what a grammar that constrains them is made of. It comes from the same file as the parser.

/// The text of tool calls, in the model's own form:
///
/// ```text
/// section_open (call (separator call)*)? section_close
/// call = open name name_close arguments close
/// ```
///
/// A marker may hold names of control tokens, which then stand for these tokens. Something must stand before a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolGrammar {
    /// Before the first call; may be empty.
    pub section_open: String,
    /// Behind the last call; may be empty.
    pub section_close: String,
    /// Between two calls.
    pub separator: String,
    /// Before the name.
    pub open: String,
    /// The name's form, with `{name}`, and perhaps `{index}` (the call's, from 0) or `{number}` (from 1). Empty: the name.
    pub name: String,
    /// Between name and arguments.
    pub name_close: String,
    pub arguments: ArgumentsGrammar,
    /// Behind the arguments.
    pub close: String,
}

/// The form of a call's arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ArgumentsGrammar {
    /// A JSON object by the tool's schema.
    #[default]
    Json,
    /// Each argument by itself: `before (open key key_close kind? space value_open value close)* after`, with `separator` between them.
    Tagged(Box<TaggedGrammar>),
}

/// Arguments that stand between markers. Strings are written as they are, other values as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaggedGrammar {
    /// Before the first argument, if there is one.
    pub before: String,
    /// Between two arguments.
    pub separator: String,
    /// Behind the last argument, if there is one.
    pub after: String,
    /// Before the key.
    pub open: String,
    /// Behind the key.
    pub key_close: String,
    /// How the type is named, where it is.
    pub kind: Option<KindGrammar>,
    /// Before the value.
    pub value_open: String,
    /// Behind the value. A string cannot contain it.
    pub close: String,
}

/// The name of an argument's type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindGrammar {
    pub string: String,
    /// For other values: one name for all of them, or names of JSON types.
    pub json: Vec<String>,
    /// Behind it.
    pub close: String,
}

impl ToolGrammar {
    /// The text at which a call has begun for certain: before it, output is free.
    pub fn trigger(&self) -> &str {
        if self.section_open.is_empty() { self.open.trim_end() } else { self.section_open.trim_end() }
    }

    /// What stands where the name of a call does.
    pub fn name_of(&self, name: &str, index: usize) -> String {
        let filled =
            self.name.replace("{index}", &index.to_string()).replace("{number}", &(index + 1).to_string());
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
