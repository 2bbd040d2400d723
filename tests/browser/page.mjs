// Tests the page of `latent serve` in Chromium with a scripted server (page/mock.mjs). With a
// folder, it saves screenshots; with --only WORD, it runs the checks whose name contains WORD. See
// README.md.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import * as accessibility from "./page/accessibility.mjs";
import * as answers from "./page/answers.mjs";
import * as attachments from "./page/attachments.mjs";
import * as compare from "./page/compare.mjs";
import * as direction from "./page/direction.mjs";
import * as keeping from "./page/keeping.mjs";
import * as length from "./page/length.mjs";
import * as looks from "./page/looks.mjs";
import { startMock } from "./page/mock.mjs";
import * as safety from "./page/safety.mjs";
import * as settings from "./page/settings.mjs";
import * as shell from "./page/shell.mjs";
import * as twoTabs from "./page/two-tabs.mjs";

const require = createRequire(join(process.env.NODE_PATH ?? process.cwd(), "x.js"));
const { chromium } = require("playwright-core");
const only = process.argv.indexOf("--only") > 0 ? process.argv[process.argv.indexOf("--only") + 1].split(",") : [""];
const shots = process.argv[2]?.startsWith("--") ? undefined : process.argv[2];
if (shots) mkdirSync(shots, { recursive: true });

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

// Each check has a new browser profile. The page may only send requests to its server, and must not
// raise errors.
async function visit(mock, problems, { init, path = "", wait = true, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, colorScheme: "light", locale: "en-GB", ...options });
  if (init) await context.addInitScript(init);
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on("pageerror", (error) => problems.push(`page error: ${error.stack}`));
  page.on("console", (message) => message.type() === "error" && !/the server responded with a status of|ERR_|Failed to load resource/.test(message.text()) && problems.push(`console: ${message.text()}`));
  page.on("request", (request) => request.url().startsWith(mock.url) || /^(blob|data):/.test(request.url()) || problems.push(`asked for ${request.url()}`));
  await page.goto(mock.url + path);
  if (wait) await page.waitForSelector("html[data-ready]", { state: "attached" });
  return page;
}

const checks = [accessibility, answers, attachments, compare, direction, keeping, length, settings, twoTabs, shell, safety, looks].flatMap((module) => Object.entries(module));
let failed = 0;
let passed = 0;

async function run(name, check) {
  const problems = [];
  const pages = [];
  const mock = await startMock();
  const since = performance.now();
  try {
    await check({
      mock,
      problems,
      open: async (options) => {
        const page = await visit(mock, problems, options);
        pages.push(page);
        return page;
      },
      shot: (page, file) => (shots ? page.screenshot({ path: join(shots, `page-${file}.png`) }) : undefined),
    });
    assert.deepEqual(problems, []);
    passed += 1;
    console.log(`ok   ${name} (${((performance.now() - since) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}\n${error.stack}\n${problems.join("\n")}`);
    if (shots) for (const page of pages) await page.screenshot({ path: join(shots, `failed-${name}.png`) }).catch(() => {});
  } finally {
    for (const page of pages) await page.context().close().catch(() => {});
    await mock.close();
  }
}

// A check waits for most of its time, and shares nothing with others, so three run at once.
async function runNext(left) {
  for (const [name, check] of left) {
    if (only.some((word) => name.includes(word))) await run(name, check);
  }
}
try {
  const left = checks.values();
  await Promise.all([runNext(left), runNext(left), runNext(left)]);
} finally {
  await browser.close();
}
if (failed > 0 || passed === 0) {
  console.log(`${failed} of ${failed + passed} checks of the page failed`);
  process.exit(1);
}
console.log(`the browser test of the page passed: ${passed} checks`);
