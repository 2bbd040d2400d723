//! Texts of messages: a string, or a list of parts.

use crate::error::ApiError;
use crate::items::MessageText;
use crate::json::{ObjectFields, kind};
use serde_json::Value;

/// What is said about images and sounds.
pub(crate) fn no_media(part: &str) -> String {
    let what = if part.contains("image") {
        "this model reads no images"
    } else if part.contains("audio") {
        "this model hears no sounds"
    } else if part.contains("file") || part == "document" {
        "files are not read: send their text"
    } else {
        "parts of this type are not known"
    };
    format!("{what} (found a part of type {part:?}, expected \"text\")")
}

/// A text, or the texts of a list of parts. Other parts are refused by name.
pub(crate) fn content_text(fields: &ObjectFields<'_>, name: &str) -> Result<MessageText, ApiError> {
    read_content(fields, name, |part, kind| Err(part.error("type", no_media(kind))))
}

/// The same of a tool's result, which may hold images that the client's next request repeats: a text takes the place of each, so that the
/// conversation can continue.
pub(crate) fn result_text(fields: &ObjectFields<'_>, name: &str) -> Result<MessageText, ApiError> {
    read_content(fields, name, |part, kind| {
        if kind.contains("image") {
            return Ok("[An image was here. This model reads text only.]".to_owned());
        }
        Err(part.error("type", no_media(kind)))
    })
}

/// A text, or the texts of a list of parts; `other` reads a part of another type.
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
                    "text" | "input_text" | "output_text" => texts.push(part.require_str("text")?.to_owned()),
                    "refusal" => texts.push(part.require_str("refusal")?.to_owned()),
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
