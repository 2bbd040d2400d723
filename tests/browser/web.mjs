// Tests the page of docs/web/ in Chromium: the demo model on WebGPU gives the program's answers.
// The first argument is the folder from crates/web/build.sh, an optional second one receives
// screenshots. Prints a message if Chromium has no adapter. See README.md.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { extname, join, normalize } from "node:path";

const require = createRequire(join(process.env.NODE_PATH ?? process.cwd(), "x.js"));
const { chromium } = require("playwright-core");
const [folder, shots] = process.argv.slice(2);
const latent = process.env.LATENT ?? "target/release/latent";
if (shots) mkdirSync(shots, { recursive: true });

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".txt": "text/plain", ".svg": "image/svg+xml", ".wasm": "application/wasm", ".gguf": "application/octet-stream" };
const server = createServer((request, response) => {
  const path = join(folder, normalize(new URL(request.url, "http://page").pathname).replace(/\/$/, "/index.html"));
  if (!existsSync(path)) return void response.writeHead(404).end();
  response.writeHead(200, { "content-type": TYPES[extname(path)] ?? "text/plain" }).end(readFileSync(path));
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const url = `http://127.0.0.1:${server.address().port}/`;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    // Chromium's software adapter. On Linux, WebGPU must be enabled explicitly.
    "--enable-unsafe-webgpu", "--enable-features=Vulkan", "--use-webgpu-adapter=swiftshader"],
});
const problems = [];

async function visit(options = {}, init) {
  const context = await browser.newContext({ viewport: { width: 1180, height: 760 }, colorScheme: "light", ...options });
  if (init) await context.addInitScript(init);
  const page = await context.newPage();
  page.setDefaultTimeout(90_000);
  page.on("pageerror", (error) => problems.push(`page error: ${error.stack}`));
  page.on("console", (message) => message.type() === "error" && problems.push(`console: ${message.text()}`));
  page.on("request", (request) => request.url().startsWith(url) || problems.push(`asked for ${request.url()}`));
  await page.goto(url);
  return page;
}
const shot = (page, name) => shots && page.screenshot({ path: join(shots, `web-${name}.png`) });
const state = (page, wanted) => page.waitForSelector(`html[data-state="${wanted}"]`, { state: "attached" });

async function ask(page, text) {
  await page.fill("#prompt", text);
  await page.click("#send");
  await state(page, "ready");
  assert.equal(await page.locator(".message.failed").count(), 0, await page.locator("#messages").innerText());
  return page.locator(".message.answer").last().evaluate((answer) => answer.firstChild?.textContent ?? "");
}

// The program's answer, in f32 as on the device.
function native(question, tokens) {
  const args = ["run", "--precision", "exact", "--temp", "0", "-n", String(tokens), "--json", question];
  return JSON.parse(execFileSync(latent, args, { encoding: "utf8" })).text;
}

const checks = {
  async "a browser without WebGPU says so"() {
    const page = await visit({}, () => Object.defineProperty(Navigator.prototype, "gpu", { value: undefined }));
    await page.waitForSelector("#notice:not([hidden])");
    assert.match(await page.locator("#notice").innerText(), /offers no WebGPU/);
    assert.ok(await page.locator("#demo").isDisabled());
    await shot(page, "none");
  },
  async "a browser that cannot suspend WebAssembly says so"() {
    const page = await visit({}, () => delete WebAssembly.Suspending);
    await page.waitForSelector("#notice:not([hidden])");
    assert.match(await page.locator("#notice").innerText(), /JavaScript Promise Integration/);
  },
  async "the demo model answers as the program does"() {
    const page = await visit();
    await state(page, "open");
    await page.fill("#context", "256");
    await page.click("#demo");
    await state(page, "ready");
    assert.match(await page.locator("#model").innerText(), /million parameters/);
    await page.fill("#temperature", "0");
    await page.fill("#max-tokens", "24");
    for (const question of ["Tell me a story about a fox and a lantern.", "Tell me a story about a boat."]) {
      await page.click("#again");
      assert.equal(await ask(page, question), native(question, 24));
    }
    assert.match(await page.locator("#answer-speed").innerText(), /tokens\/s/);
    const times = Number((await page.locator("#times").innerText()).match(/([\d.]+) times/)[1]);
    assert.ok(times > 2, `${times}`);
    await shot(page, "light");
    // The conversation continues from cached rows until it is stopped.
    await page.fill("#max-tokens", "100000");
    await page.fill("#prompt", "And then?");
    await page.click("#send");
    await page.waitForFunction(() => document.querySelectorAll(".message.answer")[1]?.textContent.length > 0);
    await page.click("#stop");
    await state(page, "ready");
    assert.match(await page.locator(".message.answer").last().innerText(), /It was stopped/);
    await page.emulateMedia({ colorScheme: "dark" });
    await shot(page, "dark");
    await page.setViewportSize({ width: 390, height: 844 });
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
    await shot(page, "narrow");
  },
  async "files are opened, and what is none is refused"() {
    const page = await visit();
    await state(page, "open");
    await page.setInputFiles("#file", { name: "page.gguf", mimeType: "", buffer: Buffer.from("<!doctype html><p>not found") });
    await page.waitForSelector("#notice:not([hidden])");
    assert.match(await page.locator("#notice").innerText(), /page\.gguf.*it is a web page/);
    await page.setInputFiles("#file", join(folder, "pkg/demo.gguf"));
    await state(page, "ready");
    assert.ok(await page.locator("#notice").isHidden());
    assert.match(await page.locator("#latent-bytes").innerText(), /KiB|MiB/);
  },
};

async function adapter() {
  const page = await visit();
  const offered = await page.evaluate(async () => {
    const found = await navigator.gpu?.requestAdapter();
    return found && [found.info.vendor, found.info.architecture, found.info.description].filter(Boolean).join(" ");
  });
  await page.context().close();
  problems.length = 0;
  return offered;
}

let failed = 0;
try {
  const offered = await adapter();
  console.log(offered ? `adapter: ${offered}` : "SKIPPED: Chromium offers no WebGPU adapter here: the demo model on WebGPU");
  const needs = /demo model|files/;
  for (const [name, check] of Object.entries(checks)) {
    if (!offered && needs.test(name)) continue;
    problems.length = 0;
    const since = performance.now();
    try {
      await check();
      assert.deepEqual(problems, []);
      console.log(`ok   ${name} (${((performance.now() - since) / 1000).toFixed(1)} s)`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL ${name}\n${error.stack}\n${problems.join("\n")}`);
    } finally {
      for (const context of browser.contexts()) await context.close().catch(() => {});
    }
  }
} finally {
  await browser.close();
  server.close();
}
if (failed > 0) process.exit(1);
console.log("the browser test of docs/web passed");
