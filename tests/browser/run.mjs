// Tests the pages of `latent graph --html` in Chromium as a user sees and uses them. See README.md.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { checkDrawing, checkKeys, checkPanel, checkSearch } from "./drawing.mjs";
import { checkAccessibility, checkArrangement, checkEmbedded, checkFolding, checkLabelContrast, checkLinks, checkMap, checkReadable, checkSaving, checkTimeline } from "./reading.mjs";
import { checkDiff, checkHostileTabs, checkMemory, checkParity, checkPasses, checkProfile, checkSmall, checkTokenizer, checkWeights } from "./tabs.mjs";

const require = createRequire(join(process.env.NODE_PATH ?? process.cwd(), "x.js"));
const { chromium } = require("playwright-core");
const here = dirname(fileURLToPath(import.meta.url));
const latent = process.env.LATENT ?? "target/release/latent";
const shots = process.argv[2];
const work = mkdtempSync(join(tmpdir(), "latent-browser-"));
if (shots) mkdirSync(shots, { recursive: true });

const run = (...args) => execFileSync(latent, args, { stdio: ["ignore", "pipe", "inherit"], env: { ...process.env, LATENT_MODEL: undefined } });
const file = (name) => join(work, name);

// The pages: the demo model with a profile, DeepSeek-V3 from its config.json against the demo, and a hostile model.
const config = join(here, "deepseek-v3.json");
writeFileSync(file("profile.json"), run("profile", "-p", "20", "-n", "3", "--json", "--trace", file("trace.json")));
writeFileSync(file("weights.json"), run("audit", "--deep", "--json"));
writeFileSync(file("parity.json"), run("diff", "--json"));
run("graph", "--html", file("demo.html"), "--profile", file("profile.json"), "--weights", file("weights.json"), "--parity", file("parity.json"));
run("graph", config, "--html", file("v3.html"), "--against", join(here, "../../models/mla-demo-Q4_K_M.gguf"));
run("graph", hostile(), "--html", file("hostile.html"), ...hostileFiles());

// A configuration in which every text contains markup.
function hostile() {
  const evil = "</script><script>window.pwned=1</script><!--<img src=x onerror=window.pwned=1>";
  const object = JSON.parse(readFileSync(config, "utf8"));
  mkdirSync(file("evil"));
  const path = join(file("evil"), "<img src=x onerror=alert(1)>.json");
  writeFileSync(path, JSON.stringify({ ...object, _name_or_path: evil }));
  return path;
}

// Statistics and a comparison in which every text contains markup, with invalid numbers.
function hostileFiles() {
  const evil = "</script><script>window.pwned=1</script><!--<img src=x onerror=window.pwned=1>";
  const tensor = { name: evil, type: evil, shape: [evil, null, 3], min: evil, max: null, mean: [], rms: null, zero_share: {}, wrong: [evil, { [evil]: 1 }], odd: evil };
  const point = { name: evil, operation: evil, verdict: evil, relative: evil, cosine: null, max_abs: {}, made_by: evil };
  writeFileSync(file("evil-weights.json"), JSON.stringify({ file: evil, tensors: [tensor, { ...tensor, rms: 1, shape: [2] }] }));
  writeFileSync(file("evil-parity.json"), JSON.stringify({ a: evil, b: 7, tokens: evil, report: { tolerance: evil, parted: 0, points: [point, { ...point, verdict: "parts" }], not_compared: [evil, 3] } }));
  return ["--weights", file("evil-weights.json"), "--parity", file("evil-parity.json")];
}

const context = await chromium.launchPersistentContext(file("profile"), {
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  headless: true,
  viewport: { width: 1500, height: 950 },
  colorScheme: "light",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const problems = [];

// Opens a page that must not access the network and must not raise errors.
async function open(name) {
  const page = await context.newPage();
  page.on("pageerror", (error) => problems.push(`${name}: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && problems.push(`${name}: ${message.text()}`));
  page.on("request", (request) => /^(file|data):/.test(request.url()) || problems.push(`${name} asked for ${request.url()}`));
  await page.goto(pathToFileURL(file(name)).href);
  await page.waitForSelector("#world .op");
  return page;
}
const shot = (page, name) => (shots ? page.screenshot({ path: join(shots, `${name}.png`) }) : undefined);

try {
  const v3 = await open("v3.html");
  const drawn = await v3.evaluate(() => performance.getEntriesByName("latent-drawn")[0].startTime);
  console.log(`the page of 61 layers stood after ${drawn.toFixed(0)} ms (${(readFileSync(file("v3.html")).length / 1e6).toFixed(2)} MB)`);
  // The page should open within a second. The limit is five, so that a busy machine does not fail.
  assert.ok(drawn < 5000, `drawn after ${drawn} ms`);
  await checkDrawing(v3, shot);
  await checkPanel(v3, shot);
  await checkSearch(v3);
  await checkKeys(v3);
  await checkFolding(v3, shot);
  await checkLinks(v3);
  await checkSaving(v3);
  await checkMap(v3);
  await checkArrangement(v3);
  await checkLabelContrast(v3);
  await checkReadable(v3, shot);
  await checkPasses(v3, shot);
  await checkMemory(v3, shot);
  await checkDiff(v3, shot);

  const demo = await open("demo.html");
  await checkProfile(demo, shot, file("profile.json"));
  await checkWeights(demo, shot, file("weights.json"));
  await checkTokenizer(demo, shot);
  await checkParity(demo, shot, file("parity.json"));
  await checkTimeline(demo, JSON.parse(readFileSync(file("trace.json"), "utf8")), shot);
  await checkAccessibility(demo);
  await checkSmall(demo, shot);

  writeFileSync(file("outer.html"), `<!doctype html><title>outer</title><body style="margin:0;height:3000px"><iframe sandbox="allow-scripts allow-downloads" allow="fullscreen" src="demo.html" style="width:1100px;height:600px;border:0"></iframe>`);
  const outer = await context.newPage();
  outer.on("pageerror", (error) => problems.push(`outer: ${error.message}`));
  await outer.goto(pathToFileURL(file("outer.html")).href);
  await checkEmbedded(outer, shot);

  const evil = await open("hostile.html");
  assert.equal(await evil.evaluate(() => window.pwned), undefined, "a name of the model ran as script");
  assert.match(await evil.textContent("#name"), /^<\/script><script>window\.pwned/, "the name is shown as it is");
  await shot(evil, "hostile");
  await checkHostileTabs(evil, shot);
  assert.equal(await evil.locator("img").count(), 0);
  assert.equal(await evil.evaluate(() => window.pwned), undefined, "a text of a loaded file ran as script");
  // Even if a name could inject markup, the content security policy would block it.
  const stopped = await evil.evaluate(
    () =>
      new Promise((resolve) => {
        document.addEventListener("securitypolicyviolation", (event) => resolve(event.violatedDirective));
        const script = document.createElement("script");
        script.textContent = "window.pwned = 2";
        document.body.append(script);
        setTimeout(() => resolve("nothing stopped it"), 3000);
      }),
  );
  assert.match(stopped, /script-src/);
  assert.equal(await evil.evaluate(() => window.pwned), undefined);
  problems.splice(0, problems.length, ...problems.filter((text) => !text.includes("Content Security Policy")));
  assert.deepEqual(problems, []);
  console.log("the browser test passed");
} finally {
  await context.close();
  rmSync(work, { recursive: true, force: true });
}
