// Reading the drawing: embedded, at a readable size, collapsed, linked to, saved.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { findings } from "./axe.mjs";

const scale = (page) => page.evaluate(() => document.getElementById("world").getCTM().a);
const folds = (page) => page.locator("#world .fold");

export async function checkReadable(page, shot) {
  for (const [width, height, share] of [[1280, 800, 0.75], [390, 844, 0.6]]) {
    await page.setViewportSize({ width, height });
    await page.reload();
    await page.waitForSelector("#world .op");
    await shot(page, `readable-${width}`);
    const seen = await page.evaluate(() => {
      const k = document.getElementById("world").getCTM().a;
      const sizes = [...document.querySelectorAll("#world text")].map((text) => parseFloat(getComputedStyle(text).fontSize) * k);
      return { smallest: Math.min(...sizes), canvas: document.getElementById("canvas").getBoundingClientRect().height };
    });
    assert.ok(seen.smallest >= 8.9, `labels of ${seen.smallest} pixels at ${width}`);
    assert.ok(seen.canvas >= share * height, `${seen.canvas} of ${height} pixels are left for the drawing at ${width}`);
    assert.ok(await page.evaluate((most) => document.documentElement.scrollWidth <= most, width));
  }
  await page.setViewportSize({ width: 1280, height: 800 });
  assert.equal(await page.getAttribute("#options", "aria-expanded"), "false");
  assert.ok(await page.isHidden("#bar"));
  await page.click("#options");
  assert.ok(await page.isVisible("#stage"));
  assert.match(await page.textContent("#explain"), /^Plan: after all passes.*Costs are counted for/);
  await page.click("#options");
  await page.setViewportSize({ width: 1500, height: 950 });
  await page.reload();
  await page.waitForSelector("#world .op");
  // Dragging over text does not select it.
  const box = await page.locator("#canvas").boundingBox();
  await page.mouse.move(box.x + 120, box.y + 40);
  await page.mouse.down();
  await page.mouse.move(box.x + 420, box.y + 340, { steps: 5 });
  await page.mouse.up();
  assert.equal(await page.evaluate(() => String(getSelection())), "");
  await page.keyboard.press("w");
  await page.click("#guide-button");
  await shot(page, "guide");
  const guide = await page.textContent("#guide");
  for (const words of ["How to read this", "residual stream", "A box is an operation", "Plan. After all passes", "absorbed", "counted for"]) assert.ok(guide.includes(words), words);
  await page.keyboard.press("Escape");
  assert.ok(await page.isHidden("#guide"));
}

// The WCAG contrast of every label with its background.
export async function checkLabelContrast(page) {
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    const poor = await page.evaluate(() => {
      const style = getComputedStyle(document.documentElement);
      const luminance = (name) => {
        const [r, g, b] = [1, 3, 5].map((at) => parseInt(style.getPropertyValue(name).trim().slice(at, at + 2), 16) / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const contrast = (a, b) => (Math.max(luminance(a), luminance(b)) + 0.05) / (Math.min(luminance(a), luminance(b)) + 0.05);
      const behind = ["--band", "--band-odd", "--block", "--raised", "--paper", "--linear-tint", "--norm-tint", "--io-tint", "--experts-tint", "--attention-tint", "--cache-tint", "--position-tint", "--sum-tint"];
      return ["--faint", "--soft", "--ink"].flatMap((text) => behind.filter((back) => contrast(text, back) < 4.5).map((back) => `${text} on ${back}: ${contrast(text, back).toFixed(2)}`));
    });
    assert.deepEqual(poor, [], colorScheme);
  }
  await page.emulateMedia({ colorScheme: "light" });
}

export async function checkFolding(page, shot) {
  await page.keyboard.press("h");
  const operations = () => page.locator("#world .op").count();
  const all = await operations();
  const height = () => page.evaluate(() => document.getElementById("world").getBBox().height);
  const tall = await height();
  await page.click('#world .fold[aria-label^="Fold Layers"] >> nth=0');
  assert.ok((await operations()) < all);
  assert.ok((await height()) < tall);
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-expanded")), "false", "the focus stays on it");
  await page.keyboard.press("Enter");
  assert.equal(await operations(), all);
  await page.click("#fold-all");
  await shot(page, "folded");
  assert.equal(await page.locator('#world .fold[aria-label^="Unfold Layers"]').count(), 2);
  assert.ok((await page.locator("#world .op").count()) > 0, "embedding and head stay");
  await page.click("#unfold-all");
  assert.equal(await operations(), all);
  assert.equal(await folds(page).count(), 4);
}

export async function checkLinks(page) {
  await page.keyboard.press("h");
  await page.click('#world .op[aria-label*="attend_latent"] >> nth=0');
  const link = await page.locator("#panel a").evaluate((a) => a.href);
  assert.equal(link, page.url(), "the address names the operation");
  const title = await page.textContent("#panel h2");
  await page.keyboard.press("Escape");
  await page.click("#stage button[data-key=circuit]");
  assert.match(page.url(), /stage=circuit/);
  await page.goto("about:blank");
  await page.goto(link);
  await page.waitForSelector("#panel h2");
  assert.equal(await page.textContent("#panel h2"), title);
  assert.equal(await page.getAttribute("#stage button[data-key=plan]", "aria-checked"), "true");
  await page.goto(`${link.split("#")[0]}#stage=nothing&op=9999.1&formulation=%3Cb%3E&tab=memory`);
  await page.waitForSelector("#memory-tab:visible");
  await page.goto(link.split("#")[0]);
  await page.reload();
  await page.waitForSelector("#world .op");
  assert.ok(await page.isVisible("#drawing-tab"));
}

export async function checkSaving(page) {
  const save = async (button) => {
    const [download] = await Promise.all([page.waitForEvent("download"), page.click(button)]);
    return [download.suggestedFilename(), readFileSync(await download.path())];
  };
  const [name, svg] = await save("#save-svg");
  assert.match(name, /^deepseek-v3.*plan-auto-decode\.svg$/);
  assert.match(svg.toString(), /^<svg [^>]*viewBox="0 0 \d+/);
  for (const words of ["Layers 3–60", "attend_latent", "--linear:"]) assert.ok(svg.toString().includes(words), words);
  assert.ok(!svg.toString().includes('class="fold"'), "no controls");
  // The saved SVG is complete, with its colours.
  const drawn = await page.evaluate(async (text) => {
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await image.decode();
    return [image.naturalWidth, image.naturalHeight];
  }, svg.toString());
  const [pngName, png] = await save("#save-png");
  assert.match(pngName, /\.png$/);
  assert.equal(png.subarray(1, 4).toString(), "PNG");
  assert.ok(Math.abs(png.readUInt32BE(16) - 2 * drawn[0]) <= 2 && Math.abs(png.readUInt32BE(20) - 2 * drawn[1]) <= 2, `${png.readUInt32BE(16)} × ${png.readUInt32BE(20)} of ${drawn}`);
  assert.ok(png.length > 100_000, "something is drawn");
}

export async function checkMap(page) {
  await page.keyboard.press("w");
  assert.ok(await page.isVisible("#map-box"), "a part is out of sight");
  const frame = () => page.evaluate(() => Number(document.getElementById("map-frame").getAttribute("y")));
  const before = await frame();
  const box = await page.locator("#minimap").boundingBox();
  await page.mouse.click(box.x + box.width / 2, box.y + box.height - 4);
  assert.ok((await frame()) > before + 200, "a press in the map goes there");
  for (let i = 0; i < 12; i += 1) await page.keyboard.press("-");
  assert.ok((await scale(page)) < 0.3);
  assert.ok(await page.isHidden("#map-box"), "all is in sight");
  await page.keyboard.press("w");
  assert.ok(await page.isVisible("#map-box"), "a part is out of sight again");
}

// A frame in a page that is taller than the window.
export async function checkEmbedded(page, shot) {
  const inside = page.frameLocator("iframe");
  await inside.locator("#world .op").first().waitFor();
  await shot(page, "embedded");
  assert.ok(await inside.locator("#bar").isHidden(), "the room is the drawing's");
  assert.ok(await inside.locator("#wheel-hint").isVisible());
  const zoom = () => inside.locator("#world").evaluate((world) => world.getCTM().a);
  const before = await zoom();
  const box = await page.locator("iframe").boundingBox();
  const over = [box.x + box.width / 2, box.y + box.height / 2];
  await page.mouse.move(...over);
  await page.mouse.wheel(0, 240);
  await page.waitForFunction(() => scrollY > 100);
  assert.equal(await zoom(), before, "the wheel scrolls the page");
  await page.evaluate(() => scrollTo(0, 0));
  await page.keyboard.down("Control");
  await page.mouse.wheel(0, -240);
  await page.keyboard.up("Control");
  await inside.locator("#world").evaluate((world, old) => new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error("Ctrl and the wheel do not zoom")), 5000);
    const look = () => (world.getCTM().a > old * 1.2 ? (clearTimeout(late), resolve()) : setTimeout(look, 30));
    look();
  }), before);
  assert.equal(await page.evaluate(() => scrollY), 0);
  await inside.locator("#canvas").click({ position: { x: 5, y: 5 } });
  assert.ok(await inside.locator("#wheel-hint").isHidden());
  const zoomed = await zoom();
  await page.mouse.move(...over);
  await page.mouse.wheel(0, 240);
  await inside.locator("#world").evaluate((world, old) => new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error("the wheel does not zoom after a click")), 5000);
    const look = () => (world.getCTM().a < old * 0.9 ? (clearTimeout(late), resolve()) : setTimeout(look, 30));
    look();
  }), zoomed);
  assert.equal(await page.evaluate(() => scrollY), 0, "after a click it zooms");
  // A click outside of the drawing disables the wheel again.
  await page.mouse.click(box.x + 5, box.y + box.height + 20);
  await inside.locator("#wheel-hint").waitFor({ state: "visible" });
  await page.mouse.move(...over);
  await page.mouse.wheel(0, 240);
  await page.waitForFunction(() => scrollY > 100);
}

// axe-core's findings in every tab, light and dark, with an open operation and with a dialog.
export async function checkAccessibility(page) {
  // The accessible name of an operation spells out the abbreviations of its box.
  const clean = async (state) => assert.deepEqual(await findings(page, { "label-content-name-mismatch": /^<g class="op / }), [], state);
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    for (const id of ["memory", "profile", "diff", "weights", "tokenizer", "parity", "drawing"]) {
      await page.click(`#tab-${id}`);
      await clean(`${id}, ${colorScheme}`);
    }
    await page.keyboard.press("h");
    await page.locator("#world .op").first().click();
    await clean(`an operation, ${colorScheme}`);
    await page.keyboard.press("Escape");
    for (const dialog of ["guide", "help"]) {
      await page.click(`#${dialog}-button`);
      await clean(`${dialog}, ${colorScheme}`);
      await page.keyboard.press("Escape");
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
}

// The timeline of a loaded profile equals that of the program.
export async function checkTimeline(page, written, shot) {
  await page.click("#tab-profile");
  const charts = page.locator("#profile-tab .timeline");
  assert.equal(await charts.count(), 2, "of decoding and of the prompt");
  const label = await charts.first().getAttribute("aria-label");
  assert.match(label, /^Timeline of Decoding: thread 0 \d+ % working/);
  const bars = await charts.first().evaluate((chart) => {
    const width = (selector) => [...chart.querySelectorAll(selector)].flatMap((path) => [...path.getAttribute("d").matchAll(/M([\d.]+) [\d.]+H([\d.]+)/g)]).reduce((sum, [, from, to]) => sum + Number(to) - Number(from), 0);
    return { working: width(".working"), waiting: width(".waiting"), rows: chart.querySelectorAll(".tick.end").length, families: chart.querySelectorAll(".working").length };
  });
  assert.ok(bars.families > 3 && bars.working > 0 && bars.working + bars.waiting <= 901 * bars.rows, JSON.stringify(bars));
  await charts.first().scrollIntoViewIfNeeded();
  await shot(page, "timeline");
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save-timeline")]);
  const saved = JSON.parse(readFileSync(await download.path(), "utf8"));
  // Reading and writing a profile changes the last digits of numbers.
  const rounded = (value) => JSON.parse(JSON.stringify(value), (_, entry) => (typeof entry === "number" ? Number(entry.toPrecision(12)) : entry));
  assert.deepEqual(rounded(saved), rounded(written));
  const threads = new Set(saved.traceEvents.map(({ tid }) => tid));
  for (const thread of threads) {
    const own = saved.traceEvents.filter(({ cat, pid, tid }) => cat === "phase" && pid === 0 && tid === thread);
    assert.ok(own.length > 20, `${own.length} phases of thread ${thread}`);
    assert.deepEqual([...new Set(own.map(({ args }) => args.layer).filter((layer) => layer !== null))], [0, 1, 2, 3, 4, 5], "layer by layer");
  }
}

// The page lays out blocks itself, since they collapse. Expanded, and with room for all columns,
// they have the positions of the program's SVG.
export async function checkArrangement(page) {
  await page.setViewportSize({ width: 6000, height: 950 });
  for (const stage of ["circuit", "ir", "plan"]) {
    await page.evaluate((key) => document.querySelector(`#stage button[data-key=${key}]`).click(), stage);
    const [own, written] = await page.evaluate((key) => {
      const { formulation, bucket } = JSON.parse(document.getElementById("wanted").textContent);
      const { views } = JSON.parse(document.getElementById("drawing").textContent);
      const view = views.find((entry) => entry.stage === key && (entry.pass ?? null) === null && (key !== "plan" || (entry.formulation === formulation && entry.bucket === bucket)));
      const numbers = (text) => text.match(/-?\d+(?:\.\d+)?/g).map(Number);
      const drawn = (selector, attribute) => [...document.querySelectorAll(`#world > ${selector}`)].map((element) => numbers(element.getAttribute(attribute)));
      return [
        { blocks: drawn("g[role=group]", "transform"), joins: drawn("path.residual-stream", "d") },
        { blocks: view.blocks.map(({ x, y }) => [x, y]), joins: view.scene.filter(({ type }) => type === "path").map(({ d }) => numbers(d)) },
      ];
    }, stage);
    assert.ok(own.blocks.length > 2 && own.joins.length > 1);
    const rounded = ({ blocks, joins }) => [blocks, joins].map((lists) => lists.map((list) => list.map((value) => Math.round(10 * value) / 10)));
    assert.deepEqual(rounded(own), rounded(written), stage);
  }
  await page.setViewportSize({ width: 1500, height: 950 });
}
