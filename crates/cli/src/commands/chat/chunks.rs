//! Parser of streamed answers: server-sent events with OpenAI's `chat.completion.chunk` objects.

use super::partner::ReplyFigures;
use crate::server::message;
use serde_json::Value;
use std::time::Instant;

/// Maximum bytes of an event.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// Maximum bytes of an answer.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// Part of an answer.
#[derive(Debug, PartialEq)]
pub(super) enum ReplyChunk {
    Reasoning(String),
    Content(String),
    /// A delta of a tool call. The first one of a call has the name.
    Call {
        index: usize,
        name: String,
        arguments: String,
    },
    /// The answer is complete.
    Over,
}

/// Reads a stream line by line.
#[derive(Default)]
pub(super) struct ReplyChunks {
    /// The data of the current event.
    data: String,
    read: usize,
    finish: Option<String>,
    usage: Value,
    timings: Value,
    /// Number of deltas. It stands for the number of tokens if the server does not report one.
    pieces: usize,
    first: Option<Instant>,
}

impl ReplyChunks {
    /// Processes a line of the stream.
    pub(super) fn push(&mut self, line: &str) -> Result<Vec<ReplyChunk>, String> {
        // Both limits are checked before the line is stored: a server could send one endless event,
        // or endless small ones.
        self.read += line.len();
        if self.data.len() + line.len() > MAX_EVENT_BYTES {
            return Err(format!("an event of the answer exceeds {MAX_EVENT_BYTES} bytes"));
        }
        if self.read > MAX_ANSWER_BYTES {
            return Err(format!("the answer exceeds {MAX_ANSWER_BYTES} bytes"));
        }
        if let Some(data) = line.strip_prefix("data:") {
            // The SSE specification makes one space after the colon optional.
            let data = data.strip_prefix(' ').unwrap_or(data);
            // An empty line should end an event. Some servers send none, so a line that is complete
            // JSON is an event, too.
            let whole = self.data.is_empty()
                && (data.trim() == "[DONE]" || serde_json::from_str::<Value>(data).is_ok());
            // Several `data:` lines of one event are joined by line feeds (SSE specification).
            if !self.data.is_empty() {
                self.data.push('\n');
            }
            self.data.push_str(data);
            if !whole {
                return Ok(Vec::new());
            }
        } else if !line.is_empty() {
            // Comments (`: ping` keeps proxies from timing out), `event:` and `id:` lines are
            // ignored. Some servers send an error as bare JSON in the middle of a stream.
            return match serde_json::from_str::<Value>(line).ok().as_ref().and_then(message) {
                Some(message_text) => Err(message_text),
                None => Ok(Vec::new()),
            };
        }
        let data = std::mem::take(&mut self.data);
        match data.trim() {
            "" => Ok(Vec::new()),
            "[DONE]" => Ok(vec![ReplyChunk::Over]),
            text => self.event(
                &serde_json::from_str(text)
                    .map_err(|error| format!("an event is not valid JSON: {error}"))?,
            ),
        }
    }

    fn event(&mut self, event: &Value) -> Result<Vec<ReplyChunk>, String> {
        if let Some(message_text) = message(event).filter(|_| !event["error"].is_null()) {
            return Err(message_text);
        }
        // `usage` comes in the last event, with `choices: []`. `timings` is llama-server's.
        for (name, latest) in [("usage", &mut self.usage), ("timings", &mut self.timings)] {
            if event[name].is_object() {
                *latest = event[name].clone();
            }
        }
        let choice = &event["choices"][0];
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish = Some(reason.to_owned());
        }
        let delta = &choice["delta"];
        let text = |name: &str| delta[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let mut chunks = Vec::new();
        // DeepSeek's API and llama-server name it `reasoning_content`, OpenRouter and newer vLLM
        // `reasoning`. A server that sends both repeats the same text.
        chunks.extend(text("reasoning_content").or_else(|| text("reasoning")).map(ReplyChunk::Reasoning));
        chunks.extend(text("content").map(ReplyChunk::Content));
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let part = |name: &str| call["function"][name].as_str().unwrap_or_default().to_owned();
            let index = call["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
            chunks.push(ReplyChunk::Call { index, name: part("name"), arguments: part("arguments") });
        }
        if !chunks.is_empty() {
            self.pieces += 1;
            self.first.get_or_insert_with(Instant::now);
        }
        Ok(chunks)
    }

    /// Whether the answer is complete even if the stream ends without `[DONE]`.
    pub(super) fn is_over(&self) -> bool {
        self.finish.is_some()
    }

    /// Why the answer ended.
    pub(super) fn finish(&self) -> Option<&str> {
        self.finish.as_deref()
    }

    /// Tokens of the answer, if reported.
    pub(super) fn tokens(&self) -> Option<usize> {
        count(&self.usage["completion_tokens"]).or_else(|| count(&self.timings["predicted_n"]))
    }

    /// Counts and times of the answer: those of the server, else as observed since `start`.
    pub(super) fn figures(&self, start: Instant) -> ReplyFigures {
        let seconds = |name: &str| {
            self.timings[name].as_f64().filter(|ms| ms.is_finite() && *ms >= 0.0).map(|ms| ms / 1e3)
        };
        let first = self.first.unwrap_or_else(Instant::now);
        let cached = count(&self.usage["prompt_tokens_details"]["cached_tokens"])
            .or_else(|| count(&self.timings["cache_n"]));
        // llama-server's `prompt_n` leaves out the cached tokens, and OpenAI's `prompt_tokens`
        // includes them.
        let prompt = count(&self.usage["prompt_tokens"])
            .or_else(|| Some(count(&self.timings["prompt_n"])?.saturating_add(cached.unwrap_or(0))));
        ReplyFigures {
            prompt: prompt.unwrap_or(0),
            cached: cached.unwrap_or(0).min(prompt.unwrap_or(0)),
            tokens: self.tokens().unwrap_or(self.pieces),
            prompt_seconds: seconds("prompt_ms").unwrap_or_else(|| first.duration_since(start).as_secs_f64()),
            seconds: seconds("predicted_ms").unwrap_or_else(|| first.elapsed().as_secs_f64()),
            drafted: count(&self.timings["draft_n"]).unwrap_or(0),
            accepted: count(&self.timings["draft_n_accepted"]).unwrap_or(0),
            discarded: 0,
        }
    }
}

/// A number of tokens; `None` if absurdly large.
fn count(value: &Value) -> Option<usize> {
    let number = value.as_u64().filter(|number| *number < 1 << 40)?;
    usize::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<ReplyChunk>, ReplyChunks) {
        let mut chunks = ReplyChunks::default();
        let mut found = Vec::new();
        for line in text.lines() {
            found.extend(chunks.push(line).unwrap());
        }
        (found, chunks)
    }

    #[test]
    fn streams_of_every_server_are_understood() {
        let (found, chunks) = read(
            ": ping\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
             event: x\ndata:{\"choices\":[{\"delta\":{\"reasoning\":\"Hm\",\"reasoning_content\":\"Hm\"}}]}\n\n\
             data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\ndata: {\"choices\":\ndata: [{\"delta\":{\"content\":\"!\"}}]}\n\n\
             data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]}}]}\n\n\
             data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"timings\":{\"predicted_ms\":500,\"prompt_ms\":-1}}\n\n\
             data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\n\
             data: [DONE]\n\n",
        );
        let call = ReplyChunk::Call { index: 0, name: "f".into(), arguments: "{".into() };
        let (reasoning, hi, end) = (
            ReplyChunk::Reasoning("Hm".into()),
            ReplyChunk::Content("Hi".into()),
            ReplyChunk::Content("!".into()),
        );
        assert_eq!(found, [reasoning, hi, end, call, ReplyChunk::Over]);
        let figures = chunks.figures(Instant::now());
        assert_eq!((figures.prompt, figures.cached, figures.tokens), (9, 5, 4));
        assert_eq!(figures.seconds.to_bits(), 0.5f64.to_bits());
        assert!(chunks.is_over() && chunks.finish() == Some("stop") && figures.prompt_seconds >= 0.0);
    }

    #[test]
    fn errors_in_a_stream_are_reported_and_hostile_streams_refused() {
        let error = |line: &str| ReplyChunks::default().push(line).unwrap_err();
        assert_eq!(error("data: {\"error\":{\"message\":\"out of blocks\"}}"), "out of blocks");
        assert_eq!(error("{\"error\":\"gone\"}"), "gone");
        let mut endless = ReplyChunks::default();
        let line = format!("data: \"{}", "x".repeat(1 << 20));
        assert!((0..20).any(|_| endless.push(&line).is_err()));
        let (found, chunks) =
            read("data: 7\n\ndata: {\"choices\":7,\"usage\":{\"prompt_tokens\":1e300}}\n\ndata: [[]]\n");
        assert!(found.is_empty() && chunks.figures(Instant::now()).prompt == 0);
    }
}
