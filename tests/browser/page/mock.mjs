// A mock of `latent serve` with scripted answers. The beginning of the last user message selects
// the scene.
import { readFileSync, readdirSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ASSETS = join(dirname(fileURLToPath(import.meta.url)), "../../../crates/server/assets");
const TYPES = { html: "text/html", js: "text/javascript", css: "text/css", svg: "image/svg+xml" };
export const POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'";

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// state: set by tests (key, health, drawing, scenes) and read by tests (requests, aborted).
export async function startMock(state = {}) {
  Object.assign(state, { requests: [], aborted: 0, polls: 0, watched: {}, failed: new Set(), ...state });
  const server = createServer((request, response) => {
    handle(request, response, state).catch((error) => {
      if (!response.destroyed) response.destroy(error);
    });
  });
  await new Promise((resolve) => server.listen(state.port ?? 0, "127.0.0.1", resolve));
  state.port = server.address().port;
  state.url = `http://127.0.0.1:${state.port}/`;
  state.close = () => new Promise((resolve) => {
    server.closeAllConnections();
    server.close(resolve);
  });
  return state;
}

async function handle(request, response, state) {
  const { pathname, searchParams } = new URL(request.url, "http://x");
  if (pathname.startsWith("/latent/")) state.watched[pathname] = searchParams.get("model");
  if (pathname === "/") return file(response, "index.html");
  if (pathname.startsWith("/assets/")) return file(response, pathname.slice(8));
  if (pathname === "/health") {
    if (state.health) return json(response, 503, state.health);
    return json(response, 200, { status: "ok" });
  }
  if (pathname === "/latent/graph") return graph(request, response, state);
  if (state.key && request.headers.authorization !== `Bearer ${state.key}`) return json(response, 401, { error: { message: "no valid API key was given", type: "authentication_error" } });
  if (pathname === "/props") return json(response, 200, { model_alias: state.model ?? "mla-demo-Q4_K_M", default_generation_settings: { n_ctx: state.sleeping ? 0 : (state.context ?? 4096), params: { temperature: 0.8, top_p: 0.95, top_k: 40, min_p: 0.05, samplers: ["penalties", "top_k", "temperature"] } }, total_slots: 16 });
  if (pathname === "/v1/models") return json(response, 200, { object: "list", data: (state.models ?? ["mla-demo"]).map((id) => ({ id, object: "model" })) });
  if (pathname === "/latent/stats") return json(response, 200, stats(state));
  if (pathname === "/latent/profile") return json(response, 200, profile(state));
  if (pathname === "/v1/chat/completions/input_tokens") return json(response, 200, { object: "response.input_tokens", input_tokens: tokensOf(await bodyOf(request)) });
  if (pathname === "/v1/chat/completions") return chat(request, response, state);
  return json(response, 404, { error: { message: `there is no ${pathname}` } });
}

function file(response, name) {
  if (!readdirSync(ASSETS).includes(name)) return json(response, 404, {});
  response.writeHead(200, { "Content-Type": `${TYPES[name.split(".").at(-1)]}; charset=utf-8`, "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff" });
  response.end(readFileSync(join(ASSETS, name)));
}

function json(response, status, body, headers = {}) {
  response.writeHead(status, { "Content-Type": "application/json", ...headers });
  response.end(JSON.stringify(body));
}

function graph(request, response, state) {
  const cookie = /(?:^|; )latent_key=([^;]*)/.exec(request.headers.cookie ?? "")?.[1] ?? "";
  if (state.key && decodeURIComponent(cookie) !== state.key) return json(response, 401, { error: { message: "key" } });
  if (state.drawing) {
    response.writeHead(200, { "Content-Type": "text/html; charset=utf-8" });
    return response.end(readFileSync(state.drawing));
  }
  response.writeHead(200, { "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": "frame-ancestors 'self'" });
  return response.end("<!DOCTYPE html><title>Drawing</title><p id=drawn>the drawing");
}

function stats(state) {
  state.polls += 1;
  const wave = Math.sin(state.polls / 3);
  return { running: 2, waiting: 1, slots: 16, batch: 3, steps: 48_211 + state.polls, kv_blocks: { total: 512, used: 40 + state.polls, cached: 200, tokens: 64 }, tokens_per_second: 41.7 + 5 * wave, prompt_tokens_per_second: Math.max(0, 300 * wave) };
}

const PHASES = ["norm", "q_a + kv_a", "q_b", "latent_store", "absorb_query", "attend_latent", "combine_splits", "project_value", "o_proj", "norm + router", "topk", "moe_gate_up", "moe_down", "shared_gate_up", "shared_down", "sum", "final_norm", "lm_head"];

function profile(state) {
  if (state.noProfile) return { phases: [] };
  const weights = PHASES.map((_, i) => [3, 9, 6, 2, 5, 14, 1, 4, 7, 3, 1, 24, 18, 4, 3, 1, 1, 8][i] + Math.sin(state.polls + i) / 3);
  const sum = weights.reduce((a, b) => a + b);
  return { phases: PHASES.map((name, i) => ({ name, share: weights[i] / sum, microseconds: (2619 * weights[i]) / sum })), step_microseconds: 2619, rows: 2 };
}

async function bodyOf(request) {
  let text = "";
  for await (const piece of request) text += piece;
  return JSON.parse(text);
}

// One token per word.
const tokensOf = ({ messages }) => messages.reduce((sum, { content }) => sum + (content ?? "").split(/\s+/).filter(Boolean).length, 0);

async function chat(request, response, state) {
  const body = await bodyOf(request);
  state.requests.push(body);
  const tokens = tokensOf(body);
  if (state.context && tokens >= state.context) return json(response, 400, { error: { message: "This model's maximum context length is", type: "invalid_request_error", code: "context_length_exceeded", n_prompt_tokens: tokens, n_ctx: state.context } });
  request.socket.setNoDelay(true);
  let gone = false;
  response.on("close", () => {
    gone = true;
    if (!response.writableFinished) state.aborted += 1;
  });
  const asked = body.messages.findLast((message) => message.role === "user")?.content ?? "";
  const scene = state.scenes?.[asked.split(/[\s:]/)[0]];
  const stream = new Stream(response, body, () => gone);
  if (scene) return scene(stream, body, state);
  return stream.answer(`You said: ${asked}`);
}

// Splits an answer at arbitrary bytes, also within lines and characters.
export class Stream {
  constructor(response, body, gone) {
    Object.assign(this, { response, body, gone, prompt: 120, cached: 64, tokens: 0, piece: 7 });
  }

  begin() {
    if (!this.response.headersSent) this.response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
  }

  // Writes bytes in chunks of odd lengths.
  async bytes(text) {
    this.begin();
    const all = Buffer.from(text);
    for (let at = 0; at < all.length; at += this.piece) {
      if (this.gone()) return;
      this.response.write(all.subarray(at, at + this.piece));
      if (this.wait) await pause(this.wait);
    }
  }

  event(object, end = "\n\n") {
    return this.bytes(`data: ${JSON.stringify({ id: "c", object: "chat.completion.chunk", model: this.body.model ?? "mla-demo", ...object })}${end}`);
  }

  delta(delta, more = {}) {
    this.tokens += 1;
    return this.event({ choices: [{ index: 0, delta, finish_reason: null }], ...more });
  }

  async text(text, { size = 12, wait = 0, key = "content" } = {}) {
    for (let at = 0; at < text.length && !this.gone(); at += size) {
      await this.delta({ [key]: text.slice(at, at + size) });
      if (wait) await pause(wait);
    }
  }

  async finish(reason = "stop") {
    await this.event({ choices: [{ index: 0, delta: {}, finish_reason: reason }] });
    await this.event({ choices: [], usage: { prompt_tokens: this.prompt, completion_tokens: this.tokens, total_tokens: this.prompt + this.tokens, prompt_tokens_details: { cached_tokens: this.cached } }, timings: { cache_n: this.cached, prompt_n: this.prompt - this.cached, prompt_ms: 20, predicted_n: this.tokens, predicted_ms: 100, predicted_per_second: 41.66 } });
    await this.bytes("data: [DONE]\n\n");
    this.response.end();
  }

  async answer(text, options) {
    await this.text(text, options);
    await this.finish();
  }

  error(status, body, headers) {
    json(this.response, status, body, headers);
  }
}
