//! Conversion of items to the messages of chat templates.

use super::{ContentForm, ConversationItem, MessageText, Role};
use crate::json;
use serde_json::{Map, Value, json};

/// How a template expects the arguments of tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ArgumentForm {
    /// An object, as in Transformers.
    #[default]
    Object,
    /// JSON text, as in OpenAI's API.
    Text,
}

/// How a template expects messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TemplateForms {
    pub(crate) arguments: ArgumentForm,
    pub(crate) system: ContentForm,
    pub(crate) user: ContentForm,
    pub(crate) assistant: ContentForm,
    pub(crate) tool: ContentForm,
}

/// Converts a conversation. Consecutive reasoning, text and tool calls of the assistant become one
/// message, as templates expect.
pub(crate) fn template_messages(items: &[ConversationItem], forms: &TemplateForms) -> Vec<Value> {
    let mut messages = Vec::new();
    let mut open: Option<Assistant> = None;
    for item in items {
        match item {
            ConversationItem::Message { role: Role::Assistant, text, .. } => {
                // Templates write reasoning, text, then calls. A second text, or text after calls,
                // would be out of order in one message.
                let assistant = assistant_message(&mut open, &mut messages, forms, |a| {
                    a.text.is_none() && a.calls.is_empty()
                });
                assistant.text = Some(text.clone());
            }
            ConversationItem::Reasoning(text) => {
                let assistant = assistant_message(&mut open, &mut messages, forms, |a| {
                    a.text.is_none() && a.calls.is_empty()
                });
                assistant.reasoning.push_str(text);
            }
            ConversationItem::ToolCall { id, name, arguments } => {
                let assistant = assistant_message(&mut open, &mut messages, forms, |_| true);
                assistant.calls.push(call(id, name, arguments, forms.arguments));
            }
            ConversationItem::Message { role, name, text } => {
                messages.extend(open.take().map(|assistant| assistant.message(forms)));
                let form = if *role == Role::System { forms.system } else { forms.user };
                let mut message = json!({"role": role.name(), "content": text.content(form)});
                if let Some(name) = name {
                    message["name"] = name.as_str().into();
                }
                messages.push(message);
            }
            ConversationItem::ToolResult { id, name, text } => {
                messages.extend(open.take().map(|assistant| assistant.message(forms)));
                let mut message =
                    json!({"role": "tool", "tool_call_id": id, "content": text.content(forms.tool)});
                // Some templates write the tool's name, which OpenAI's API does not send with a
                // result.
                if let Some(name) = name.clone().or_else(|| called(items, id)) {
                    message["name"] = name.into();
                }
                messages.push(message);
            }
        }
    }
    messages.extend(open.map(|assistant| assistant.message(forms)));
    messages
}

/// The assistant's message that an item belongs to: the open one if it `fits`, otherwise a new one.
fn assistant_message<'a>(
    open: &'a mut Option<Assistant>,
    messages: &mut Vec<Value>,
    forms: &TemplateForms,
    fits: impl Fn(&Assistant) -> bool,
) -> &'a mut Assistant {
    if open.as_ref().is_some_and(|assistant| !fits(assistant)) {
        messages.extend(open.take().map(|assistant| assistant.message(forms)));
    }
    open.get_or_insert_default()
}

/// A message of the assistant that is being built.
#[derive(Default)]
struct Assistant {
    reasoning: String,
    text: Option<MessageText>,
    calls: Vec<Value>,
}

impl Assistant {
    fn message(self, forms: &TemplateForms) -> Value {
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        // Templates compare missing content with "", and fail on null.
        let content = self.text.filter(|text| !text.is_empty()).map(|text| text.content(forms.assistant));
        message.insert("content".into(), content.unwrap_or_else(|| "".into()));
        if !self.reasoning.is_empty() {
            // Templates differ in the name of the field.
            message.insert("reasoning_content".into(), self.reasoning.as_str().into());
            message.insert("reasoning".into(), self.reasoning.into());
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".into(), self.calls.into());
        }
        Value::Object(message)
    }
}

fn call(id: &str, name: &str, arguments: &str, form: ArgumentForm) -> Value {
    // Arguments that are not an object stay text: a model may have written them, and the history
    // must not be refused.
    let object = match form {
        ArgumentForm::Text => None,
        ArgumentForm::Object if arguments.trim().is_empty() => Some(json!({})),
        ArgumentForm::Object => json::value(arguments).ok().filter(Value::is_object),
    };
    let arguments = object.unwrap_or_else(|| arguments.into());
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// The name of the tool that was called with this id.
fn called(items: &[ConversationItem], id: &str) -> Option<String> {
    // The last one: IDs such as `call_0` repeat if the client does not send its own.
    items.iter().rev().find_map(|item| match item {
        ConversationItem::ToolCall { id: other, name, .. } if other == id => Some(name.clone()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(role: Role, text: &str) -> ConversationItem {
        ConversationItem::Message { role, name: None, text: text.into() }
    }

    #[test]
    fn consecutive_assistant_items_are_one_message() {
        let call = |id: &str| ConversationItem::ToolCall {
            id: id.into(),
            name: "f".into(),
            arguments: r#"{"a": 1}"#.into(),
        };
        let items = [
            say(Role::User, "q"),
            ConversationItem::Reasoning("hm".into()),
            say(Role::Assistant, "let me see"),
            call("1"),
            call("2"),
            ConversationItem::ToolResult { id: "2".into(), name: None, text: "r".into() },
            ConversationItem::Reasoning("so".into()),
            call("3"),
            ConversationItem::Reasoning("again".into()),
            say(Role::Assistant, "x"),
            say(Role::Assistant, "y"),
        ];
        let messages = template_messages(&items, &TemplateForms::default());
        let roles: Vec<_> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
        // Reasoning begins a new message, and so does a second text.
        assert_eq!(roles, ["user", "assistant", "tool", "assistant", "assistant", "assistant"]);
        assert_eq!(messages[1]["reasoning_content"], "hm");
        assert_eq!(messages[1]["content"], "let me see");
        assert_eq!(messages[1]["tool_calls"].as_array().unwrap().len(), 2);
        assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
        // A result has the name of its call's function.
        assert_eq!(messages[2]["name"], "f");
        assert_eq!(messages[4]["reasoning"], "again");
        assert_eq!(messages[5]["content"], "y");
        let text = template_messages(
            &items,
            &TemplateForms { arguments: ArgumentForm::Text, ..TemplateForms::default() },
        );
        assert_eq!(text[1]["tool_calls"][0]["function"]["arguments"], r#"{"a": 1}"#);
    }
}
