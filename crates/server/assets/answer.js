// Streams one answer into a message.

import { ApiError, streamChat } from "./api.js";

// Adds a chunk of the stream to the message.
export function applyChunk(message, chunk, live, now = Date.now()) {
  const delta = chunk.choices?.[0]?.delta ?? {};
  const reasoning = delta.reasoning_content ?? (typeof delta.reasoning === "string" ? delta.reasoning : "");
  if (reasoning) {
    live.reasoningSince ??= now;
    message.reasoning = (message.reasoning ?? "") + reasoning;
    count(live, now);
  }
  if (delta.content) {
    endReasoning(message, live, now);
    message.content += delta.content;
    count(live, now);
  }
  for (const call of delta.tool_calls ?? []) {
    endReasoning(message, live, now);
    applyCall(message, call, live);
    count(live, now);
  }
  const reason = chunk.choices?.[0]?.finish_reason;
  if (reason) {
    endReasoning(message, live, now);
    message.finish = reason;
  }
  // In a comparison of two models, each answer keeps the requested model name.
  if (chunk.model && !message.pair) message.model = chunk.model;
  if (chunk.usage) message.usage = usageOf(chunk.usage);
  if (chunk.timings) message.timings = chunk.timings;
  live.prompt = chunk.prompt_progress ?? live.prompt;
  live.progress = chunk.prompt_progress ?? (live.tokens > 0 ? null : live.progress);
}

function count(live, now) {
  live.firstToken ??= now;
  live.lastToken = now;
  live.tokens += 1;
}

function endReasoning(message, live, now) {
  if (live.reasoningSince === null || live.reasoningSince === undefined) return;
  message.reasoningMs = (message.reasoningMs ?? 0) + now - live.reasoningSince;
  live.reasoningSince = null;
}

// Parts of a tool call have an index. Some servers omit it and send whole calls.
function applyCall(message, call, live) {
  message.calls ??= [];
  const base = live.callBase;
  const at = base + (call.index ?? message.calls.length - base);
  message.calls[at] ??= { id: "", name: "", arguments: "" };
  const known = message.calls[at];
  if (call.id) known.id = call.id;
  if (call.function?.name) known.name += call.function.name;
  const text = call.function?.arguments;
  if (text !== undefined && text !== null) known.arguments += typeof text === "string" ? text : JSON.stringify(text);
  for (let i = 0; i < at; i += 1) message.calls[i] ??= { id: "", name: "", arguments: "" };
}

function usageOf(usage) {
  return { prompt: usage.prompt_tokens ?? 0, completion: usage.completion_tokens ?? 0, cached: usage.prompt_tokens_details?.cached_tokens ?? 0, reasoning: usage.completion_tokens_details?.reasoning_tokens ?? 0 };
}

// Prompt, cached and completion tokens, from the server's figures so far.
export function tokensOf(message) {
  const { usage, timings } = message;
  if (usage) return usage;
  if (!timings) return null;
  const cached = timings.cache_n ?? 0;
  return { prompt: (timings.prompt_n ?? 0) + cached, cached, completion: timings.predicted_n ?? 0, reasoning: 0 };
}

// The same during the stream. Without figures of the server, each chunk counts as a token.
export function tokensSoFar(message, live) {
  const known = tokensOf(message);
  if (known || !live?.prompt) return known;
  const { processed, cache } = live.prompt;
  return { prompt: processed, cached: Math.min(cache ?? 0, processed), completion: live.tokens, reasoning: 0 };
}

// Tokens per second: the server's figure, otherwise from the received chunks.
export function rateOf(message, live) {
  if (message.timings?.predicted_per_second > 0) return message.timings.predicted_per_second;
  if (live && live.tokens > 3 && live.lastToken > live.firstToken) return ((live.tokens - 1) * 1000) / (live.lastToken - live.firstToken);
  return message.rate ?? null;
}

export class Answer {
  constructor(conversation, message, body, changed) {
    this.conversation = conversation;
    this.message = message;
    this.body = body;
    this.changed = changed;
    this.abort = new AbortController();
    this.live = { started: Date.now(), tokens: 0, callBase: message.calls?.length ?? 0 };
    // Remove figures and errors of the previous attempt.
    for (const key of ["finish", "error", "errorKind", "retryAt", "full", "usage", "timings"]) delete message[key];
  }

  // Never rejects: errors are stored in the message.
  async run() {
    const { message } = this;
    try {
      await streamChat(this.body, (chunk) => {
        applyChunk(message, chunk, this.live);
        this.changed();
      }, this.abort.signal);
      message.finish ??= "stop";
    } catch (error) {
      if (error.name === "AbortError") message.finish = "stopped";
      else {
        const known = error instanceof ApiError;
        message.error = known ? error.message : `The page failed: ${error.message}`;
        message.errorKind = known ? error.kind : "server";
        if (error.retryAfter) message.retryAt = Date.now() + error.retryAfter * 1000;
      }
    }
    endReasoning(message, this.live, Date.now());
    const rate = rateOf(message, this.live);
    if (rate !== null) message.rate = rate;
  }

  stop() {
    this.abort.abort();
  }
}
