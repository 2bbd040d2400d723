//! Chat templates: Jinja as Hugging Face transformers configures it.

mod json;

use crate::error::TextError;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, Value};

/// Largest template.
pub const MAX_SOURCE: usize = 1 << 20;

/// Steps that a rendering may take: far more than any real conversation needs, few enough to end within seconds.
pub const MAX_FUEL: u64 = 50_000_000;

/// Largest result, in bytes.
pub const MAX_OUTPUT: usize = 64 << 20;

/// Largest range that a template may count through.
const MAX_RANGE: i64 = 100_000;

/// A compiled template.
pub struct ChatTemplate {
    environment: Environment<'static>,
}

/// What a template sees.
#[derive(Clone, Debug)]
pub struct ChatInput {
    /// The conversation: a list of objects with `role` and `content`.
    pub messages: serde_json::Value,
    /// Tools that the model may call.
    pub tools: Option<serde_json::Value>,
    /// Whether the prompt ends where the answer begins.
    pub add_generation_prompt: bool,
    /// Text of the token that begins a text.
    pub bos_token: String,
    /// Text of the token that ends a text.
    pub eos_token: String,
    /// Further variables (`enable_thinking`, …).
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// Seconds since 1970, for templates that print the date; none: now.
    pub now: Option<i64>,
}

impl ChatInput {
    /// A conversation to be continued, without tools.
    pub fn new(messages: serde_json::Value) -> ChatInput {
        ChatInput {
            messages,
            tools: None,
            add_generation_prompt: true,
            bos_token: String::new(),
            eos_token: String::new(),
            extra: serde_json::Map::new(),
            now: None,
        }
    }
}

fn fails(error: &minijinja::Error) -> TextError {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let line = error.line().map_or_else(String::new, |line| format!(" (line {line})"));
    TextError::Template(format!("{detail}{line}"))
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// A template that is too large or does not parse.
    pub fn new(source: &str) -> Result<ChatTemplate, TextError> {
        if source.len() > MAX_SOURCE {
            return Err(TextError::TemplateSize { bytes: source.len(), limit: MAX_SOURCE });
        }
        let mut environment = Environment::new();
        let syntax =
            SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| fails(&e))?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(MAX_FUEL));
        environment.set_formatter(json::python_text);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", json::to_json);
        environment.add_function("raise_exception", |text: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_function("range", range);
        environment.add_template_owned("chat", source.to_owned()).map_err(|e| fails(&e))?;
        Ok(ChatTemplate { environment })
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// What the template raises, a template that takes too long, or a result that is too large.
    pub fn render(&self, input: &ChatInput) -> Result<String, TextError> {
        let template = self.environment.get_template("chat").map_err(|e| fails(&e))?;
        let mut context: std::collections::BTreeMap<String, Value> = std::collections::BTreeMap::new();
        let null = serde_json::Value::Null;
        let mut set = |name: &str, value: &serde_json::Value| {
            context.insert(name.to_owned(), Value::from(Serde(value.clone())));
        };
        for (name, value) in &input.extra {
            set(name, value);
        }
        set("messages", &plain_messages(&input.messages));
        set("tools", input.tools.as_ref().unwrap_or(&null));
        set("documents", &null);
        set("add_generation_prompt", &input.add_generation_prompt.into());
        set("bos_token", &input.bos_token.clone().into());
        set("eos_token", &input.eos_token.clone().into());
        let now = input.now;
        context.insert(
            "strftime_now".to_owned(),
            Value::from_function(move |format: String| strftime(now, &format)),
        );
        let text = template.render(Value::from(context)).map_err(|e| fails(&e))?;
        if text.len() > MAX_OUTPUT {
            return Err(TextError::Template(format!(
                "its result has {} bytes, more than {MAX_OUTPUT}",
                text.len()
            )));
        }
        Ok(text)
    }
}

/// Messages as templates expect them: no null contents but with tool calls, and `developer` called `system`.
fn plain_messages(messages: &serde_json::Value) -> serde_json::Value {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().into_iter().flatten() {
        if let Some(message) = message.as_object_mut() {
            if message.get("content").is_some_and(serde_json::Value::is_null) {
                message.insert("content".into(), "".into());
            }
            if message.get("role").and_then(serde_json::Value::as_str) == Some("developer") {
                message.insert("role".into(), "system".into());
            }
        }
    }
    messages
}

/// Python's range, limited.
fn range(a: i64, b: Option<i64>, step: Option<i64>) -> Result<Vec<i64>, minijinja::Error> {
    let (start, end) = b.map_or((0, a), |b| (a, b));
    let step = step.unwrap_or(1);
    let wrong = |text: &'static str| minijinja::Error::new(ErrorKind::InvalidOperation, text);
    if step == 0 {
        return Err(wrong("range() with step 0"));
    }
    let mut numbers = Vec::new();
    let mut at = start;
    while (step > 0 && at < end) || (step < 0 && at > end) {
        if numbers.len() as i64 >= MAX_RANGE {
            return Err(wrong("range() is too long"));
        }
        numbers.push(at);
        at = at.saturating_add(step);
    }
    Ok(numbers)
}

/// Python's datetime.now().strftime.
fn strftime(now: Option<i64>, format: &str) -> Result<String, minijinja::Error> {
    let wrong = |e: &dyn std::fmt::Display| minijinja::Error::new(ErrorKind::InvalidOperation, e.to_string());
    let time = match now {
        Some(seconds) => {
            jiff::Timestamp::from_second(seconds).map_err(|e| wrong(&e))?.to_zoned(jiff::tz::TimeZone::UTC)
        }
        None => jiff::Zoned::now(),
    };
    jiff::fmt::strtime::format(format, &time).map_err(|e| wrong(&e))
}

/// Keeps `Kwargs` named for the filter in `json`.
pub(crate) type Named = Kwargs;
