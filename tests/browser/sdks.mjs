// The JavaScript SDKs of OpenAI and Anthropic in a page of another origin than `latent serve`:
// preflights, answers and streams, with --cors for the page's origin, for `localhost` and for `*`,
// and without it. esbuild bundles the SDKs, as for a real page. See README.md.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const modules = process.env.NODE_PATH ?? join(process.cwd(), "node_modules");
const require = createRequire(join(modules, "x.js"));
const { chromium } = require("playwright-core");
const { build } = require("esbuild");
const latent = process.env.LATENT ?? "target/release/latent";
const KEY = "a-key-of-this-test";
const bundle = await build({
  stdin: { contents: 'export { default as OpenAI } from "openai"; export { default as Anthropic } from "@anthropic-ai/sdk";', resolveDir: join(modules, "..") },
  bundle: true,
  format: "esm",
  platform: "browser",
  write: false,
});

const pages = createServer((request, response) => {
  if (request.url === "/sdks.mjs") return void response.writeHead(200, { "content-type": "text/javascript" }).end(bundle.outputFiles[0].text);
  response.writeHead(200, { "content-type": "text/html" }).end("<!doctype html><title>SDKs</title>");
});
await new Promise((resolve) => pages.listen(0, "127.0.0.1", resolve));
const origin = `http://127.0.0.1:${pages.address().port}`;

// Starts `latent serve` with the demo model. Returns its address and a function to stop it.
async function serve(...flags) {
  const child = spawn(latent, ["serve", "--port", "0", "--stop-at-eof", ...flags], {
    env: { ...process.env, LATENT_API_KEY: KEY },
    stdio: ["pipe", "pipe", "inherit"],
  });
  for await (const line of createInterface(child.stdout)) {
    const [url] = line.match(/http:\S+/) ?? [];
    if (url) return { url, end: () => new Promise((resolve) => child.once("exit", resolve) && child.stdin.end()) };
  }
  throw new Error("the server ended before it was ready");
}

// Runs in the page: for each SDK a complete answer, a stream, and an error.
async function ask({ url, key }) {
  const { OpenAI, Anthropic } = await import("/sdks.mjs");
  const options = { apiKey: key, dangerouslyAllowBrowser: true, maxRetries: 0 };
  const openai = new OpenAI({ ...options, baseURL: `${url}/v1` });
  const anthropic = new Anthropic({ ...options, baseURL: url });
  const body = { model: "demo", max_tokens: 8, temperature: 0, messages: [{ role: "user", content: "Tell me a story about a fox." }] };
  const headers = { "OpenAI-Beta": "assistants=v2" };
  const { data, request_id } = await openai.chat.completions.create(body, { headers }).withResponse();
  const texts = { openai: data.choices[0].message.content, request: request_id, openaiStream: "", anthropicStream: "" };
  for await (const chunk of await openai.chat.completions.create({ ...body, stream: true })) texts.openaiStream += chunk.choices[0]?.delta?.content ?? "";
  const message = await anthropic.messages.create(body);
  texts.anthropic = message.content.map((block) => block.text ?? "").join("");
  for await (const event of anthropic.messages.stream(body)) {
    if (event.type === "content_block_delta") texts.anthropicStream += event.delta.text ?? "";
  }
  texts.response = (await openai.responses.create({ model: "demo", input: "Tell me a story about a fox.", temperature: 0, max_output_tokens: 8 })).output_text;
  texts.models = (await openai.models.list()).data.length;
  texts.error = await openai.chat.completions.create({ ...body, temperature: "hot" }).catch((error) => `${error.status} ${error.message}`);
  return texts;
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
let passed = 0;
try {
  for (const cors of [origin, "localhost", "*", undefined]) {
    const server = await serve(...(cors ? ["--cors", cors] : []));
    const page = await (await browser.newContext()).newPage();
    page.setDefaultTimeout(60_000);
    const problems = [];
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    try {
      await page.goto(origin);
      const asked = page.evaluate(ask, { url: server.url, key: KEY });
      if (cors) {
        const texts = await asked;
        assert.ok(texts.openai.length > 0, JSON.stringify(texts));
        for (const name of ["openaiStream", "anthropic", "anthropicStream", "response"]) assert.equal(texts[name], texts.openai, name);
        assert.equal(texts.models, 1);
        assert.match(texts.request, /^req_/, "the page reads the id of the request");
        assert.match(texts.error, /^400 .*temperature/);
      } else {
        await assert.rejects(asked, /Connection error/, "without --cors no page of another origin may ask");
      }
      passed += 1;
      console.log(`ok   --cors ${cors ?? "(none)"}`);
    } catch (error) {
      console.log(problems.join("\n"));
      throw error;
    } finally {
      await page.context().close();
      await server.end();
    }
  }
} finally {
  await browser.close();
  pages.close();
}
console.log(`the SDKs in a browser passed: ${passed} servers`);
