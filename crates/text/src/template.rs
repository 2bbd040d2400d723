//! Chat templates: Jinja as Hugging Face transformers configures it.

use crate::date::Moment;
use crate::error::TextError;
use crate::tokenizer::Tokenizer;
use latent_jinja::{RenderRequest, RenderedText, StringTrust, Template, TemplateLimits};
use serde_json::Value;

const LIMITS: TemplateLimits = TemplateLimits::DEFAULT;

/// Roles that are trusted as the template's own text, because templates make control tokens of them
/// (`"<|" + message.role + "|>"`). Any other role is content: a client could otherwise name a
/// control token.
const ROLES: [&str; 8] =
    ["system", "user", "assistant", "tool", "developer", "function", "observation", "tool_response"];

/// A compiled template.
pub struct ChatTemplate {
    template: Template,
    /// The template writes tool calls only if the message's content is none (DeepSeek-R1's
    /// distillations).
    calls_need_null: bool,
    /// The template adds the variable `functions`, the tools as text, to its own text.
    adds_functions: bool,
}

#[derive(Clone, Debug)]
pub struct ChatInput {
    /// The conversation: a list of objects with `role` and `content`.
    pub messages: Value,
    /// Tools that the model may call.
    pub tools: Option<Value>,
    /// Whether the prompt ends where the answer begins.
    pub add_generation_prompt: bool,
    /// Text of the token that begins a text.
    pub bos_token: String,
    /// Text of the token that ends a text.
    pub eos_token: String,
    /// Further variables (`enable_thinking`, …).
    pub extra: serde_json::Map<String, Value>,
    /// Seconds since 1970, for templates that print the date; none: now.
    pub now: Option<i64>,
}

impl ChatInput {
    /// A conversation without tools, BOS and EOS; [`of_tokenizer`](Self::of_tokenizer) sets the
    /// latter two.
    pub fn new(messages: Value) -> ChatInput {
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

    fn moment(&self) -> Moment {
        self.now.map_or_else(Moment::now, |seconds| Moment::utc(seconds, 0))
    }

    /// A conversation with the names of a tokenizer's BOS and EOS tokens, which many templates
    /// print.
    pub fn of_tokenizer(messages: Value, tokenizer: &Tokenizer) -> ChatInput {
        let name =
            |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default().to_owned();
        let (bos_token, eos_token) = (name(tokenizer.bos()), name(tokenizer.eos()));
        ChatInput { bos_token, eos_token, ..ChatInput::new(messages) }
    }
}

fn fails(error: &latent_jinja::Error) -> TextError {
    TextError::Template(error.to_string())
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// A template that is too large, nested too deeply, or does not parse.
    pub fn new(source: &str) -> Result<ChatTemplate, TextError> {
        if source.len() > LIMITS.source {
            return Err(TextError::TemplateSize { bytes: source.len(), limit: LIMITS.source });
        }
        let template = Template::parse(source, &LIMITS).map_err(|e| fails(&e))?;
        // For most templates a null content is an error or the text "None", so it is replaced by
        // "". These templates would then omit the calls.
        let calls_need_null = ["['content'] is none", "[\"content\"] is none", ".content is none"]
            .iter()
            .any(|test| source.contains(test));
        // Others loop over `functions` as a list, or test whether it is defined. A text would break
        // those.
        let adds_functions = source.contains("+ functions");
        Ok(ChatTemplate { template, calls_need_null, adds_functions })
    }

    /// Adds the variables that llama.cpp defines in addition to those of transformers:
    /// `date_string` and `datetime` for templates that print the date, and `functions`, the tools
    /// as JSON text, for templates that concatenate it. Existing variables of `input` are kept.
    pub fn define_llama_cpp_variables(&self, input: &mut ChatInput) -> Result<(), TextError> {
        for (name, format) in [("date_string", "%d %b %Y"), ("datetime", "%b %d %Y")] {
            if !input.extra.contains_key(name) {
                let date = input.moment().format(format).map_err(TextError::Template)?;
                input.extra.insert(name.into(), date.into());
            }
        }
        if self.adds_functions && !input.extra.contains_key("functions") {
            let functions = input.tools.as_ref().map(Value::to_string).unwrap_or_default();
            input.extra.insert("functions".into(), functions.into());
        }
        Ok(())
    }

    /// Renders a conversation. The result lists the byte ranges that came from `messages`, `tools`
    /// and `extra`. [`Tokenizer::encode_rendered`](crate::Tokenizer::encode_rendered) does not turn
    /// them into control tokens.
    ///
    /// # Errors
    /// An error raised by the template, a failing operation, or a limit on work, memory, depth or
    /// output.
    pub fn render(&self, input: &ChatInput) -> Result<RenderedText, TextError> {
        let messages = plain_messages(&input.messages, self.calls_need_null);
        let (add, bos, eos) = (
            Value::from(input.add_generation_prompt),
            Value::from(input.bos_token.as_str()),
            Value::from(input.eos_token.as_str()),
        );
        let clock = |format: &str| input.moment().format(format);
        let role = |key: &str, value: &str| key == "role" && ROLES.contains(&value);
        let mut render = RenderRequest::new(&self.template, LIMITS);
        render.clock(&clock);
        let mut define = |name, value, origin| render.define(name, value, origin).map_err(|e| fails(&e));
        // First, so that a client's variable cannot replace `messages` or `bos_token`.
        for (name, value) in &input.extra {
            define(name, value, StringTrust::Content)?;
        }
        define("messages", &messages, StringTrust::ContentBut(&role))?;
        define("tools", input.tools.as_ref().unwrap_or(&Value::Null), StringTrust::Content)?;
        // transformers always defines `documents`, so templates use it without a test.
        define("documents", &Value::Null, StringTrust::Content)?;
        define("add_generation_prompt", &add, StringTrust::Trusted)?;
        define("bos_token", &bos, StringTrust::Trusted)?;
        define("eos_token", &eos, StringTrust::Trusted)?;
        render.finish().map_err(|e| fails(&e))
    }
}

/// Messages as templates expect them: without null contents, unless the template needs them, and
/// with the role `system` instead of `developer`.
fn plain_messages(messages: &Value, calls_need_null: bool) -> Value {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().into_iter().flatten() {
        if let Some(message) = message.as_object_mut() {
            let calls = message
                .get("tool_calls")
                .is_some_and(|calls| calls.as_array().is_some_and(|c| !c.is_empty()));
            if message.get("content").is_some_and(Value::is_null) && !(calls && calls_need_null) {
                message.insert("content".into(), "".into());
            }
            // OpenAI's newer name of the role. Templates of open models do not have it.
            if message.get("role").and_then(Value::as_str) == Some("developer") {
                message.insert("role".into(), "system".into());
            }
        }
    }
    messages
}
