//! Parsing of message content: a string, or a list of parts.

use crate::error::ApiError;
use crate::items::MessageText;
use crate::json::{ObjectFields, kind};
use serde_json::Value;

/// The error text for images, sounds and files.
pub(crate) fn no_media(part: &str) -> String {
    let what = if part.contains("image") {
        "this model does not support image input"
    } else if part.contains("audio") {
        "this model does not support audio input"
    } else if part.contains("file") || part == "document" {
        "files are not supported: send their text"
    } else {
        "unknown part type"
    };
    format!("{what} (found a part of type {part:?}, expected \"text\")")
}

/// Parses text content. Parts other than text are errors.
pub(crate) fn content_text(fields: &ObjectFields<'_>, name: &str) -> Result<MessageText, ApiError> {
    read_content(fields, name, |part, kind| Err(part.error("type", no_media(kind))))
}

/// Parses a tool's result. Images in it are replaced by a text.
pub(crate) fn result_text(fields: &ObjectFields<'_>, name: &str) -> Result<MessageText, ApiError> {
    // Agents take screenshots or read image files by a tool. Each later request repeats the result,
    // so an error would end the conversation for good.
    read_content(fields, name, |part, kind| {
        if kind.contains("image") {
            return Ok("[An image was here. This model reads text only.]".to_owned());
        }
        Err(part.error("type", no_media(kind)))
    })
}

/// Parses text content. `other` handles parts that are not text.
fn read_content(
    fields: &ObjectFields<'_>,
    name: &str,
    other: impl Fn(&ObjectFields<'_>, &str) -> Result<String, ApiError>,
) -> Result<MessageText, ApiError> {
    match fields.get(name) {
        None => Ok(MessageText::default()),
        Some(Value::String(text)) => Ok(text.as_str().into()),
        Some(Value::Array(_)) => {
            let mut texts = Vec::new();
            for part in fields.objects(name)? {
                match part.require_str("type")? {
                    // `text` in chat completions and Anthropic's API, the others in responses.
                    "text" | "input_text" | "output_text" => texts.push(part.require_str("text")?.to_owned()),
                    "refusal" => texts.push(part.require_str("refusal")?.to_owned()),
                    // Reasoning that a client sends back within the content.
                    "thinking" | "reasoning" => {}
                    kind => texts.push(other(&part, kind)?),
                }
            }
            Ok(MessageText::of_parts(texts))
        }
        Some(other) => {
            Err(fields.error(name, format!("expected a string or a list of parts, found {}", kind(other))))
        }
    }
}
