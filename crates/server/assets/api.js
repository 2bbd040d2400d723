// The server's API: addresses relative to the page, the key, error messages, streamed answers.

import { whole } from "./dom.js";
import { safeStorage } from "./store.js";

const session = safeStorage("sessionStorage");
const local = safeStorage();
let key = session?.getItem("latent.key") ?? local?.getItem("latent.key") ?? "";

export const hasKey = () => key !== "";

// Stored for this tab, or permanently if the user asks for it.
export function setKey(value, remember) {
  key = value;
  session?.setItem("latent.key", value);
  if (remember) local?.setItem("latent.key", value);
  else local?.removeItem("latent.key");
}

export const address = (path) => new URL(path, document.baseURI);

const headers = () => (key ? { Authorization: `Bearer ${key}` } : {});

// kind: "key", "busy", "loading", "long", "request", "server", "network"
export class ApiError extends Error {
  constructor(kind, message, { status = 0, retryAfter = 0, progress } = {}) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.retryAfter = retryAfter;
    this.progress = progress;
  }
}

export async function send(path, options = {}) {
  let response;
  try {
    response = await fetch(address(path), { ...options, headers: { ...headers(), ...options.headers }, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("network", "The server cannot be reached. Is it running?");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

export const getJson = async (path, options) => (await send(path, options)).json();

async function errorOf(response) {
  const text = await response.text().catch(() => "");
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // The error of a proxy may be an HTML page.
  }
  const said = body?.error?.message ?? (typeof body?.error === "string" ? body.error : null) ?? body?.message ?? body?.detail ?? "";
  const { status } = response;
  if (body?.error?.code === "context_length_exceeded" || body?.error?.type === "exceed_context_size_error") return tooLong(body.error, said, status);
  const kind = status === 401 || status === 403 ? "key" : status === 429 ? "busy" : status === 503 ? "loading" : status >= 500 ? "server" : "request";
  const words = { key: "This server requires an API key. Enter it above.", busy: "The server is full.", loading: "The model is being loaded.", server: "The server failed.", request: "The server refused the request." }[kind];
  const progress = body?.progress ?? body?.error?.progress;
  return new ApiError(kind, String((status !== 401 && said) || words).slice(0, 2000), { status, retryAfter: retryAfter(response.headers.get("Retry-After")), progress });
}

export const tooLongText = (tokens, context) => `This message is too long: with the conversation it has ${whole(tokens)} tokens, and the context holds ${whole(context)} including the answer.`;

function tooLong({ n_prompt_tokens: tokens, n_ctx: context }, said, status) {
  const known = Number.isFinite(tokens) && Number.isFinite(context);
  return new ApiError("long", known ? tooLongText(tokens, context) : String(said).slice(0, 2000), { status });
}

// Seconds of a Retry-After header, which has seconds or a date.
export function retryAfter(value, now = Date.now()) {
  if (!value) return 0;
  const parsed = /^\d+$/.test(value.trim()) ? Number(value) : (Date.parse(value) - now) / 1000;
  return Number.isFinite(parsed) ? Math.max(0, Math.min(3600, Math.ceil(parsed))) : 0;
}

// Parses an SSE stream into events with name and data. Chunks may end anywhere.
export class SseParser {
  constructor() {
    this.rest = "";
    this.data = [];
    this.event = "";
    this.afterReturn = false;
  }

  push(text) {
    const events = [];
    // A line may end with LF, CR or CRLF, and CRLF may be split between two chunks.
    if (this.afterReturn && text.startsWith("\n")) text = text.slice(1);
    if (text !== "") this.afterReturn = text.endsWith("\r");
    const lines = (this.rest + text).split(/\r\n|\n|\r/);
    this.rest = lines.pop();
    for (const line of lines) this.line(line, events);
    return events;
  }

  line(line, events) {
    if (line === "") {
      if (this.data.length > 0) events.push({ event: this.event, data: this.data.join("\n") });
      this.data = [];
      this.event = "";
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.data.push(value);
    if (field === "event") this.event = value;
  }
}

// Streams a chat completion. `onChunk` receives each parsed chunk. Resolves after [DONE] or a
// finish reason.
export async function streamChat(body, onChunk, signal) {
  const response = await send("v1/chat/completions", { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", Accept: "text/event-stream" }, signal });
  if (!(response.headers.get("Content-Type") ?? "").includes("event-stream")) return wholeAnswer(response, onChunk);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new SseParser();
  let finished = false;
  try {
    for (;;) {
      const { value, done } = await read(reader);
      for (const { data } of parser.push(done ? "\n\n" : value)) {
        if (data === "[DONE]") return;
        const chunk = parseChunk(data);
        if (chunk.error) throw new ApiError("server", String(chunk.error.message ?? chunk.error).slice(0, 2000), { status: chunk.error.code });
        if (chunk.choices?.[0]?.finish_reason) finished = true;
        onChunk(chunk);
      }
      if (done) break;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
  if (!finished) throw new ApiError("network", "The connection was lost before the answer was complete.");
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("network", "The connection was lost before the answer was complete.");
  }
}

function parseChunk(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("server", `The server sent what is not JSON: ${data.slice(0, 200)}`);
  }
}

// Converts the answer of a server or proxy that does not stream to one chunk.
async function wholeAnswer(response, onChunk) {
  const body = await response.json().catch(() => {
    throw new ApiError("server", "Unexpected reply from the server. Is there a proxy in between?");
  });
  const choice = body.choices?.[0];
  const calls = choice?.message?.tool_calls?.map((call, index) => ({ index, ...call }));
  onChunk({ ...body, choices: [{ delta: { ...choice?.message, tool_calls: calls }, finish_reason: choice?.finish_reason ?? "stop" }] });
}

// Sets a cookie with the key, since the request of the drawing's frame cannot have a header.
export function allowDrawing() {
  const path = address("latent/graph").pathname;
  if (key) document.cookie = `latent_key=${encodeURIComponent(key)}; path=${path}; SameSite=Strict`;
}
