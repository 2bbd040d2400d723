//! Fill-in-the-middle prompts: text before and after a gap, and texts of other files.
//!
//! The prompt is built as by llama.cpp's `/infill`, for which llama.vim and llama.vscode are tuned.

use super::prepare;
use super::prepare::PromptInput;
use crate::error::{ApiError, ErrorKind};
use crate::json::{ObjectFields, kind};
use crate::limits::Limits;
use crate::model::{PreparedPrompt, ServedModel};
use latent_text::{EncodeOptions, FimTokens};
use serde_json::Value;

/// Tokens around the gap: the default batch size of llama-server, which takes 3/4 of it before the
/// gap and 1/4 after it.
const WINDOW: usize = 2048;

/// Tokens reserved for the answer if the request does not set a limit.
const ANSWER: usize = 128;

/// llama.cpp's separator of files, for vocabularies without a file token.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// Texts are code: names of control tokens in them, as in a tokenizer's source, are text.
const CODE: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// The control tokens of a fill-in-the-middle prompt.
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

/// The prompt of `POST /infill`. Texts that exceed the context are cut at the end farther from the
/// gap.
pub(super) fn editor_prompt(
    served: &ServedModel,
    fields: &ObjectFields<'_>,
    limits: &Limits,
    max_tokens: Option<usize>,
) -> Result<Vec<PreparedPrompt>, ApiError> {
    // 501, so that an editor can tell an unsuitable model from a wrong request.
    let markers = markers(served).map_err(|problem| ApiError::new(ErrorKind::NotImplemented, problem))?;
    let mut prefix = texts(served, fields, "input_prefix", GapSide::End)?;
    let mut suffix = texts(served, fields, "input_suffix", GapSide::Start)?;
    let begun = match fields.str("prompt")? {
        None | Some("") => Vec::new(),
        // llama.cpp parses control tokens in `prompt`, the beginning of the answer.
        Some(text) => tokens(served, text, EncodeOptions { parse_special: true, ..CODE })?,
    };
    let extra = extra(served, fields, limits, markers.all)?;
    let answer = max_tokens.unwrap_or(ANSWER).min(served.context / 4);
    // 4: the three markers and BOS.
    let room = served.context.saturating_sub(answer + begun.len() + 4);
    if room == 0 {
        return Err(fields.error("prompt", format!("{} tokens are too many for the context", begun.len())));
    }
    // At least an eighth, so that a long `prompt` does not remove all of the code.
    let window = room.min(WINDOW.saturating_sub(begun.len()).max(WINDOW / 8));
    let (before, after) = shares(prefix.len(), suffix.len(), window);
    prefix.drain(..prefix.len() - before);
    suffix.truncate(after);
    let rest = room - (before + after);
    // As in llama.cpp, the last files take precedence.
    let extra = &extra[extra.len() - extra.len().min(rest)..];
    Ok(vec![served.token_prompt("input_prefix", join(served, markers, extra, &prefix, &suffix, &begun))?])
}

/// Divides a window into tokens before and after the gap: 3/4 and 1/4. A side that needs less
/// leaves the rest to the other, which llama.cpp does not do.
fn shares(before: usize, after: usize, window: usize) -> (usize, usize) {
    let last = after.min(window / 4).max(after.min(window.saturating_sub(before)));
    (before.min(window - last), last)
}

/// The prompt for OpenAI's `suffix`. Nothing is cut: a prompt that is too long is an error.
pub(super) fn gap_prompt(
    served: &ServedModel,
    param: &str,
    prefix: &str,
    suffix: &str,
) -> Result<PreparedPrompt, ApiError> {
    let markers = markers(served).map_err(|problem| ApiError::field(param, problem))?;
    let (prefix, suffix) = (tokens(served, prefix, CODE)?, tokens(served, suffix, CODE)?);
    let tokens = join(served, markers, &[], &prefix, &suffix, &[]);
    let prompt = served.token_prompt(param, tokens)?;
    served.check_length(&prompt)?;
    Ok(prompt)
}

fn join(
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
    // The extra files change least between requests. At the start they are a common prefix in the
    // cache.
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

/// The end of a text that is next to the gap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GapSide {
    Start,
    End,
}

/// The part of a text next to the gap that can contain [`WINDOW`] tokens.
fn near<'t>(served: &ServedModel, text: &'t str, end: GapSide) -> &'t str {
    // Editors may send whole files. Only the part that can be used is tokenized.
    let bytes = served.tokenizer.longest_text(WINDOW).unwrap_or(usize::MAX);
    match end {
        GapSide::Start => &text[..text.floor_char_boundary(bytes)],
        GapSide::End => &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..],
    }
}

/// A required field with a text or, as in llama.cpp, a list of texts and token IDs.
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

/// The tokens of other files (`input_extra`). If the context cannot hold all of them, the last
/// ones.
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
    // Built backwards, so that tokenizing can stop when the context is full.
    let mut parts: Vec<Vec<u32>> = Vec::new();
    let mut count = 0;
    let mut push = |begin: Option<u32>, text: &str| -> Result<bool, ApiError> {
        let part: Vec<u32> = begin.into_iter().chain(tokens(served, text, CODE)?).collect();
        count += part.len();
        parts.push(part);
        Ok(count < served.context)
    };
    // The names `filename` (of the current file), `tmp` and `myproject` are llama.cpp's.
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
    fn unused_room_of_one_side_goes_to_the_other() {
        assert_eq!(shares(10, 10, 100), (10, 10));
        assert_eq!(shares(1000, 1000, 100), (75, 25));
        assert_eq!(shares(1000, 5, 100), (95, 5));
        assert_eq!(shares(5, 1000, 100), (5, 95));
        assert_eq!(shares(0, 0, 1), (0, 0));
        assert_eq!(shares(9, 9, 1), (1, 0));
    }
}
