//! Variables of a chat template other than the messages: tools, and whether the model should think.

use crate::args::TemplateArgs;
use crate::exit::UsageError;
use crate::input;
use anyhow::Result;
use latent_formats::{Checkpoint, input_file};
use latent_text::ChatInput;
use serde_json::{Map, Value};
use std::path::Path;

/// Variables with which templates switch thinking on and off: Qwen's and GLM's `enable_thinking`,
/// DeepSeek's `thinking`.
const THINKING: [&str; 2] = ["enable_thinking", "thinking"];

/// Maximum bytes of a file of tools.
const MAX_TOOLS_BYTES: u64 = 1 << 20;

/// Maximum tools of a file.
const MAX_TOOLS: usize = 1024;

/// Maximum bytes of a system message.
const MAX_SYSTEM_BYTES: u64 = 16 << 20;

/// The system message of the flags.
pub(super) fn system_message(args: &TemplateArgs) -> Result<Option<String>> {
    match &args.system_prompt_file {
        None => Ok(args.system_prompt.clone()),
        Some(path) => {
            let text = input_file::read_text(path, MAX_SYSTEM_BYTES)?;
            Ok(Some(input::prompt(&text).to_owned()))
        }
    }
}

/// Variables of a template other than the messages.
#[derive(Default)]
pub(super) struct TemplateOptions {
    tools: Option<Value>,
    extra: Map<String, Value>,
    /// Whether names of control tokens in a user's text become those tokens.
    pub(super) allow_special: bool,
}

impl TemplateOptions {
    /// Reads the flags. A flag that the model's template would ignore is an error.
    pub(super) fn new(args: &TemplateArgs, checkpoint: &Checkpoint) -> Result<TemplateOptions> {
        let mut options = TemplateOptions { allow_special: args.allow_special, ..TemplateOptions::default() };
        // Without these flags the model needs no chat template.
        if !args.think && !args.no_think && args.tools.is_none() {
            return Ok(options);
        }
        let template = latent_text::chat_template(checkpoint)?.unwrap_or_default();
        if args.think || args.no_think {
            let flag = if args.think { "--think" } else { "--no-think" };
            for name in THINKING.into_iter().filter(|name| reads(template, name)) {
                options.extra.insert(name.to_owned(), Value::Bool(args.think));
            }
            if options.extra.is_empty() {
                return Err(UsageError(format!(
                    "{flag}: the model's chat template does not support it (it reads neither {} nor {})",
                    THINKING[0], THINKING[1]
                ))
                .into());
            }
        }
        if let Some(path) = &args.tools {
            if !reads(template, "tools") {
                let problem = "--tools: the model's chat template does not support tools";
                return Err(UsageError(problem.into()).into());
            }
            options.tools = Some(read_tools(path)?);
        }
        Ok(options)
    }

    /// The tools, or null.
    pub(super) fn tools(&self) -> &Value {
        self.tools.as_ref().unwrap_or(&Value::Null)
    }

    /// Sets the variables.
    pub(super) fn apply(&self, input: &mut ChatInput) {
        input.tools.clone_from(&self.tools);
        input.extra.extend(self.extra.clone());
    }
}

/// Reads a list of tools in OpenAI's format.
pub(super) fn read_tools(path: &Path) -> Result<Value> {
    let failed = |problem: String| UsageError(format!("--tools {}: {problem}", path.display()));
    let text = input_file::read_text(path, MAX_TOOLS_BYTES)
        .map_err(|error| UsageError(format!("--tools: {error}")))?;
    let tools = latent_formats::json::parse(&text).map_err(failed)?;
    check_tools(&tools).map_err(failed)?;
    Ok(tools)
}

/// Checks a list of tools; an error names the tool.
fn check_tools(tools: &Value) -> Result<(), String> {
    const FORM: &str =
        r#"a list such as [{"type": "function", "function": {"name": "weather", "parameters": {…}}}]"#;
    let Some(list) = tools.as_array() else { return Err(format!("expected {FORM}")) };
    if list.is_empty() || list.len() > MAX_TOOLS {
        return Err(format!("it lists {} tools, expected 1 to {MAX_TOOLS}", list.len()));
    }
    for (i, tool) in list.iter().enumerate() {
        let number = i + 1;
        let kind = tool.get("type").and_then(Value::as_str);
        if tool.get("type").is_some() && kind != Some("function") {
            return Err(format!("tool {number}: its type is {}, expected \"function\"", tool["type"]));
        }
        let function = tool.get("function").and_then(Value::as_object);
        let named = function.and_then(|f| f.get("name")).and_then(Value::as_str);
        if named.is_none_or(|name| name.trim().is_empty()) {
            return Err(format!("tool {number} has no function name; expected {FORM}"));
        }
    }
    Ok(())
}

/// Whether a Jinja template reads an outside variable: the name occurs in its code, not as an
/// attribute, before the template sets it.
// A search for the name alone is wrong: it may occur in the template's text, in a comment, or as an
// attribute (`message.thinking`). A scan of the code blocks suffices, so no parser is needed.
fn reads(template: &str, name: &str) -> bool {
    let mut rest = template;
    while let Some(at) = rest.find(['{']) {
        rest = &rest[at + 1..];
        let end = match rest.as_bytes().first() {
            Some(b'#') => {
                rest = rest.find("#}").map_or("", |end| &rest[end + 2..]);
                continue;
            }
            Some(b'{') => "}}",
            Some(b'%') => "%}",
            _ => continue,
        };
        let (code, after) = code_until(&rest[1..], end);
        match mention(code, name) {
            Mention::Read => return true,
            // From here on the name is the template's own variable.
            Mention::Set => return false,
            Mention::None => rest = after,
        }
    }
    false
}

/// The code up to `end`, and what follows it. An `end` within quotes does not count.
fn code_until<'t>(text: &'t str, end: &str) -> (&'t str, &'t str) {
    let bytes = text.as_bytes();
    let (mut at, mut quote) = (0, None);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, _) if bytes[at..].starts_with(end.as_bytes()) => {
                return (&text[..at], &text[at + end.len()..]);
            }
            _ => {}
        }
        at += 1;
    }
    (text, "")
}

/// How a block of code first mentions a variable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mention {
    None,
    Read,
    Set,
}

fn mention(code: &str, name: &str) -> Mention {
    let bytes = code.as_bytes();
    // Bytes of multi-byte characters count as letters, so that a word never ends inside a
    // character.
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80;
    let (mut at, mut before, mut found) = (0, "", Mention::None);
    while at < bytes.len() {
        let byte = bytes[at];
        if byte == b'"' || byte == b'\'' {
            at += 1;
            while at < bytes.len() && bytes[at] != byte {
                at += 1 + usize::from(bytes[at] == b'\\');
            }
            (before, at) = ("'", at + 1);
        } else if is_name(byte) {
            let start = at;
            while at < bytes.len() && is_name(bytes[at]) {
                at += 1;
            }
            let word = code.get(start..at).unwrap_or_default();
            if word == name && before != "." {
                match before {
                    // `set x = x | default(…)` reads it, too, so the search continues.
                    "set" | "for" if found == Mention::None => found = Mention::Set,
                    _ => return Mention::Read,
                }
            }
            before = word;
        } else {
            if !byte.is_ascii_whitespace() {
                before = if byte == b'.' { "." } else { "" };
            }
            at += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_switch_is_a_variable_that_the_template_reads_from_outside() {
        for template in [
            "{% if not thinking is defined %}{% set thinking = false %}{% endif %}",
            "{%- set thinking = thinking | default(true) -%}",
            "{{ '}}' if thinking else \"%}\" }}",
            "{# thinking #}{{ messages[0].thinking }}{%- if thinking -%}",
        ] {
            assert!(reads(template, "thinking"), "{template}");
        }
        for template in [
            "I am thinking {% if enable_thinking %}",
            "{{ message.thinking }}{{ message['thinking'] }}{{ \"thinking\" }}",
            "{# thinking #}{% set thinking = '' %}{{ thinking }}",
            "{% for thinking in thoughts %}{{ thinking }}{% endfor %}",
            "{{ 'a \\' thinking' }}",
            "{{ un",
            "{",
            "",
        ] {
            assert!(!reads(template, "thinking"), "{template}");
        }
        assert!(reads("{%- if tools -%}", "tools"));
    }

    #[test]
    fn real_templates_have_the_switches_that_their_models_have() {
        let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/templates");
        let of = |name: &str| {
            let template = std::fs::read_to_string(templates.join(name)).unwrap();
            ["enable_thinking", "thinking", "tools"].map(|variable| reads(&template, variable))
        };
        assert_eq!(of("GLM-4.7-Flash.jinja"), [true, false, true]);
        assert_eq!(of("deepseek-ai-DeepSeek-V3.1.jinja"), [true, true, false]);
        assert_eq!(of("deepseek-ai-DeepSeek-V3.2.jinja"), [true, true, true]);
        assert_eq!(of("Kimi-K2-Thinking.jinja"), [false, false, true]);
        assert_eq!(of("deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja"), [false, false, false]);
    }

    #[test]
    fn tools_are_named_functions() {
        let tool = |name: Value| json!({"type": "function", "function": {"name": name, "parameters": {}}});
        assert_eq!(check_tools(&json!([tool("weather".into()), {"function": {"name": "time"}}])), Ok(()));
        for (tools, word) in [
            (json!({"name": "weather"}), "expected a list"),
            (json!([]), "0 tools"),
            (json!([tool("weather".into()), tool("".into())]), "tool 2"),
            (json!([tool(7.into())]), "tool 1"),
            (json!([{"name": "weather"}]), "no function"),
            (json!(["weather"]), "tool 1"),
            (json!([{"type": "retrieval", "function": {"name": "x"}}]), "retrieval"),
        ] {
            let problem = check_tools(&tools).unwrap_err();
            assert!(problem.contains(word), "{problem}");
        }
    }
}
