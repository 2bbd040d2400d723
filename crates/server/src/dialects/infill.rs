//! Fill-in-the-middle prompts: text before and after a gap, and texts of other files.

use super::prepare;
use super::prepare::PromptInput;
use crate::error::{ApiError, ErrorKind};
use crate::json::{ObjectFields, kind};
use crate::limits::Limits;
use crate::model::{PreparedPrompt, ServedModel};
use latent_text::{EncodeOptions, FimTokens};
use serde_json::Value;

/// Tokens before and after the gap in an editor's request, as many as `llama-server` takes with its default batch.
const WINDOW: usize = 2048;

/// Tokens that are left for an answer if a request does not say how many it may have.
const ANSWER: usize = 128;

/// What separates texts of files if the vocabulary has no token for it.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// How the texts of a request are read: they are code, in which names of control tokens are text.
const CODE: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// The control tokens that every such prompt needs.
#[derive(Clone, Copy, Debug)]
struct Markers {
    prefix: u32,
    suffix: u32,
    middle: u32,
    all: FimTokens,
}

fn markers(served: &ServedModel) -> Result<Markers, String> {
    let all = served.tokenizer.fim_tokens();
    match (all.prefix, all.suffix, all.middle) {
        (Some(prefix), Some(suffix), Some(middle)) => Ok(Markers { prefix, suffix, middle, all }),
        _ => Err(format!(
            "the model {} cannot fill in the middle: its vocabulary has no token for {}; use a model that was trained for it, such as \
             DeepSeek-Coder-V2-Lite, or `prompt` in /completion",
            served.about.id,
            all.missing().join(", ")
        )),
    }
}

/// The prompt of `POST /infill`. What is too much for the context is cut where it is farthest from the gap.
pub(super) fn editor_prompt(
    served: &ServedModel,
    fields: &ObjectFields<'_>,
    limits: &Limits,
    max_tokens: Option<usize>,
) -> Result<Vec<PreparedPrompt>, ApiError> {
    let markers = markers(served).map_err(|problem| ApiError::new(ErrorKind::NotImplemented, problem))?;
    let mut prefix = texts(served, fields, "input_prefix", GapSide::End)?;
    let mut suffix = texts(served, fields, "input_suffix", GapSide::Start)?;
    let begun = match fields.str("prompt")? {
        None | Some("") => Vec::new(),
        Some(text) => tokens(served, text, EncodeOptions { parse_special: true, ..CODE })?,
    };
    let extra = extra(served, fields, limits, markers.all)?;
    let answer = max_tokens.unwrap_or(ANSWER).min(served.context / 4);
    // the markers, and the token that begins every prompt
    let room = served.context.saturating_sub(answer + begun.len() + 4);
    if room == 0 {
        return Err(fields.error("prompt", format!("{} tokens are too many for the context", begun.len())));
    }
    let window = room.min(WINDOW.saturating_sub(begun.len()).max(WINDOW / 8));
    let (before, after) = shares(prefix.len(), suffix.len(), window);
    prefix.drain(..prefix.len() - before);
    suffix.truncate(after);
    let rest = room - (before + after);
    let extra = &extra[extra.len() - extra.len().min(rest)..];
    Ok(vec![served.token_prompt("input_prefix", whole(served, markers, extra, &prefix, &suffix, &begun))?])
}

/// How many tokens before and after the gap fit into a window: three quarters and one, and what one leaves the other takes.
fn shares(before: usize, after: usize, window: usize) -> (usize, usize) {
    let last = after.min(window / 4).max(after.min(window.saturating_sub(before)));
    (before.min(window - last), last)
}

/// The prompt of a text that ends where another one begins, whole: OpenAI's `suffix`.
pub(super) fn gap_prompt(
    served: &ServedModel,
    param: &str,
    prefix: &str,
    suffix: &str,
) -> Result<PreparedPrompt, ApiError> {
    let markers = markers(served).map_err(|problem| ApiError::field(param, problem))?;
    let (prefix, suffix) = (tokens(served, prefix, CODE)?, tokens(served, suffix, CODE)?);
    let tokens = whole(served, markers, &[], &prefix, &suffix, &[]);
    let prompt = served.token_prompt(param, tokens)?;
    served.check_length(&prompt)?;
    Ok(prompt)
}

fn whole(
    served: &ServedModel,
    markers: Markers,
    extra: &[u32],
    prefix: &[u32],
    suffix: &[u32],
    begun: &[u32],
) -> Vec<u32> {
    let tokenizer = &served.tokenizer;
    let mut tokens = Vec::with_capacity(extra.len() + prefix.len() + suffix.len() + begun.len() + 4);
    tokens.extend(tokenizer.bos().filter(|_| tokenizer.adds_bos()));
    // what changes least comes first: an editor's next request begins with the same tokens
    tokens.extend(extra);
    tokens.push(markers.prefix);
    tokens.extend(prefix);
    tokens.extend(begun);
    tokens.push(markers.suffix);
    tokens.extend(suffix);
    tokens.push(markers.middle);
    tokens
}

fn tokens(served: &ServedModel, text: &str, how: EncodeOptions) -> Result<Vec<u32>, ApiError> {
    served.tokenizer.encode(text, how).map_err(|error| served.text_error(error))
}

/// Which end of a text is next to the gap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GapSide {
    Start,
    End,
}

/// The part of a text next to the gap that may have as many tokens as an editor's request can hold. The rest of a large file is not read.
fn near<'t>(served: &ServedModel, text: &'t str, end: GapSide) -> &'t str {
    let bytes = served.tokenizer.longest_text(WINDOW).unwrap_or(usize::MAX);
    match end {
        GapSide::Start => &text[..text.floor_char_boundary(bytes)],
        GapSide::End => &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..],
    }
}

/// A required text, or llama.cpp's list of texts and token ids.
fn texts(
    served: &ServedModel,
    fields: &ObjectFields<'_>,
    name: &str,
    end: GapSide,
) -> Result<Vec<u32>, ApiError> {
    match fields.get(name).ok_or_else(|| fields.missing(name))? {
        Value::String(text) => tokens(served, near(served, text, end), CODE),
        Value::Array(list) => {
            let prompt = prepare::mixed_prompt(served, &fields.path(name), list, PromptInput::Part)?;
            Ok(prompt.tokens)
        }
        other => Err(fields.error(name, format!("expected a string, found {}", kind(other)))),
    }
}

/// The texts of other files: the last ones, as far as the context can hold them.
fn extra(
    served: &ServedModel,
    fields: &ObjectFields<'_>,
    limits: &Limits,
    markers: FimTokens,
) -> Result<Vec<u32>, ApiError> {
    let chunks = fields.objects("input_extra")?;
    limits.check("input_extra", "messages", chunks.len(), limits.messages)?;
    let mut files = Vec::with_capacity(chunks.len());
    for chunk in &chunks {
        files.push((chunk.str("filename")?.unwrap_or("tmp"), chunk.require_str("text")?));
    }
    // from the last to the first, and each from its end
    let mut parts: Vec<Vec<u32>> = Vec::new();
    let mut count = 0;
    let mut push = |begin: Option<u32>, text: &str| -> Result<bool, ApiError> {
        let part: Vec<u32> = begin.into_iter().chain(tokens(served, text, CODE)?).collect();
        count += part.len();
        parts.push(part);
        Ok(count < served.context)
    };
    let mut fits = match markers.file {
        Some(file) => push(Some(file), "filename\n")?,
        None => true,
    };
    for (name, text) in files.into_iter().rev() {
        if !fits {
            break;
        }
        fits = push(None, text)?
            && match markers.file {
                Some(file) => push(Some(file), &format!("{name}\n"))?,
                None => push(None, SNIPPET)?,
            };
    }
    if let Some(repository) = markers.repository.filter(|_| fits) {
        push(Some(repository), "myproject\n")?;
    }
    Ok(parts.into_iter().rev().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_of_a_gap_leaves_the_other_takes() {
        assert_eq!(shares(10, 10, 100), (10, 10));
        assert_eq!(shares(1000, 1000, 100), (75, 25));
        assert_eq!(shares(1000, 5, 100), (95, 5));
        assert_eq!(shares(5, 1000, 100), (5, 95));
        assert_eq!(shares(0, 0, 1), (0, 0));
        assert_eq!(shares(9, 9, 1), (1, 0));
    }
}
