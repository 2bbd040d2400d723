// Content of the drawing, and navigation in it.
import assert from "node:assert/strict";

const scale = (page) => page.evaluate(() => document.getElementById("world").getCTM().a);
const shift = (page) => page.evaluate(() => ({ x: document.getElementById("world").getCTM().e, y: document.getElementById("world").getCTM().f }));
const choose = (page, group, key) => page.click(`#${group} button[data-key=${key}]`);
const operations = (page) => page.locator("#world .op").count();
const near = (a, b, about) => assert.ok(Math.abs(a - b) < 0.02 * Math.max(1, Math.abs(b)), `${about}: ${a} is not ${b}`);

export async function checkDrawing(page, shot) {
  await shot(page, "plan-light");
  const text = await page.textContent("#world");
  for (const word of ["Layers 0–2", "3 ×", "Layers 3–60", "58 ×", "attend_latent", "latent cache", "576 × f16", "phase 8", "8 of 256 experts"]) {
    assert.ok(text.includes(word), `the plan shows ${word}`);
  }
  assert.ok(!text.includes("phase 9"), "nine phases, counted from 0");
  assert.match(await page.textContent("#notice"), /assumed to be F8_E4M3/);
  // Boxes do not overlap in any view.
  for (const stage of ["circuit", "ir", "plan"]) {
    await choose(page, "stage", stage);
    assert.ok((await operations(page)) > 20, stage);
    assert.deepEqual(await overlaps(page), [], `boxes of ${stage}`);
    assert.deepEqual(await overflows(page), [], `titles of ${stage}`);
    if (stage !== "plan") await shot(page, stage);
  }
  const counts = {};
  for (const formulation of ["auto", "absorbed", "naive", "separate", "expanded"]) {
    await choose(page, "formulation", formulation);
    for (const rows of ["small_batch", "prefill", "decode"]) {
      await choose(page, "bucket", rows);
      assert.deepEqual(await overlaps(page), [], `boxes of ${formulation}, ${rows}`);
    }
    counts[formulation] = await page.$$eval("#world .op", (list) => list.map((op) => op.getAttribute("aria-label")).join("\n"));
  }
  assert.ok(counts.absorbed.includes("attend_latent") && !counts.absorbed.includes("attend_expanded"));
  assert.ok(counts.naive.includes("attend_expanded") && !counts.naive.includes("attend_latent"));
  assert.ok(/attend_(split|separate)/.test(counts.separate) && counts.expanded.includes("expanded_store"));
  assert.ok(counts.auto.includes("attend_latent") && counts.auto.includes("attend_expanded"));
  await choose(page, "formulation", "auto");

  // For one row the naive path is pale, for many rows the absorbed one.
  const pale = () => page.$$eval("#world .op.pale", (list) => list.map((op) => op.getAttribute("aria-label")));
  assert.ok((await pale()).every((label) => /rope|attend_expanded/.test(label)));
  await choose(page, "bucket", "prefill");
  assert.ok((await pale()).some((label) => label.includes("attend_latent")));
  await choose(page, "bucket", "decode");

  // The wheel zooms around the pointer. A drag pans, and does not open an operation.
  const before = await scale(page);
  const box = await page.locator("#canvas").boundingBox();
  const [x, y] = [box.x + 500, box.y + 300];
  const world = ([px, py]) => page.evaluate(([cx, cy]) => new DOMPoint(cx, cy).matrixTransform(document.getElementById("world").getScreenCTM().inverse()).toJSON(), [px, py]);
  const point = await world([x, y]);
  await page.mouse.move(x, y);
  await page.mouse.wheel(0, -240);
  await page.waitForFunction((old) => document.getElementById("world").getCTM().a > old * 1.2, before);
  const after = await world([x, y]);
  near(after.x, point.x, "the point under the pointer");
  near(after.y, point.y, "the point under the pointer");
  const start = await shift(page);
  await page.mouse.down();
  await page.mouse.move(x + 90, y + 60, { steps: 4 });
  await page.mouse.up();
  const end = await shift(page);
  near(end.x - start.x, 90, "pan");
  near(end.y - start.y, 60, "pan");
  assert.ok(await page.locator("#panel").isHidden(), "a drag is no click");

  await page.emulateMedia({ colorScheme: "dark" });
  await page.keyboard.press("w");
  await shot(page, "plan-dark");
  const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(background, "rgb(13, 18, 25)");
  await page.click("#theme");
  assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(244, 246, 249)");
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 800, height: 900 });
  await page.keyboard.press("w");
  await shot(page, "plan-narrow");
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 800), "nothing runs out of a narrow window");
  await page.setViewportSize({ width: 1500, height: 950 });
}

// Pairs of operations of one block whose boxes overlap.
function overlaps(page) {
  return page.evaluate(() => {
    const found = [];
    for (const block of document.querySelectorAll("#world > g")) {
      const boxes = [...block.querySelectorAll(".op .shape")].map((shape) => ({ name: shape.closest(".op").getAttribute("aria-label"), box: shape.getBBox() }));
      for (let i = 0; i < boxes.length; i += 1) {
        for (let j = 0; j < i; j += 1) {
          const [a, b] = [boxes[i].box, boxes[j].box];
          if (a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height) found.push(`${boxes[i].name} / ${boxes[j].name}`);
        }
      }
    }
    return found;
  });
}

// Texts of an operation that exceed its box.
function overflows(page) {
  return page.evaluate(() => {
    const found = [];
    for (const op of document.querySelectorAll("#world .op")) {
      const shape = op.querySelector(".shape").getBBox();
      for (const text of op.querySelectorAll("text")) {
        const box = text.getBBox();
        if (box.x < shape.x - 1 || box.x + box.width > shape.x + shape.width + 1) found.push(text.textContent);
      }
    }
    return found;
  });
}

export async function checkPanel(page, shot) {
  const op = (label) => page.locator(`#world .op[aria-label*="${label}"]`).first();
  await page.keyboard.press("h");
  await op("linear q_a + kv_a").click();
  const panel = page.locator("#panel");
  await panel.waitFor({ state: "visible" });
  await shot(page, "panel");
  const text = await panel.textContent();
  for (const word of ["y = x · Wᵀ", "rms_norm attn_norm", "rows × 1536", "F8_E4M3", "bound to", "input f32", "tier", "other kernel", "FLOP", "weights read", "model.layers.{layer}.self_attn.q_a_proj.weight"]) {
    assert.ok(text.includes(word), `the panel says ${word}: ${text}`);
  }
  // 2 · (1536 + 576) · 7168 FLOPs per row.
  assert.ok(text.includes("30.3 MFLOP"), text);
  await page.keyboard.press("Escape");
  assert.ok(await panel.isHidden());
  await op("attend_latent").click();
  // 2 · 128 heads · 4097 rows · (576 + 512) FLOPs.
  assert.match(await panel.textContent(), /1.14 GFLOP/);
  await page.fill("#cached", "0");
  assert.match(await panel.textContent(), /279 kFLOP/);
  await page.fill("#cached", "4096");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
}

export async function checkSearch(page) {
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.id), "search");
  await page.keyboard.type("absorb_v");
  assert.equal(await page.textContent("#found"), "2 found");
  assert.equal(await page.locator("#world .op.found").count(), 2);
  await page.keyboard.press("Enter");
  assert.equal(await page.textContent("#found"), "1 of 2");
  assert.match(await page.textContent("#panel h2"), /absorb_v/);
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  assert.equal(await page.inputValue("#search"), "");
  assert.equal(await page.locator("#world .op.found").count(), 0);
  await page.keyboard.press("/");
  await page.keyboard.type("no such thing");
  assert.equal(await page.textContent("#found"), "0 found");
  await page.keyboard.press("Escape");
}

export async function checkKeys(page) {
  await page.keyboard.press("0");
  near(await scale(page), 1, "original size");
  await page.keyboard.press("h");
  const view = await page.evaluate(() => ({ height: document.getElementById("world").getBBox().height, space: document.getElementById("canvas").getBoundingClientRect().height }));
  assert.ok((await scale(page)) * view.height <= view.space + 60, "the height fits");
  const before = await scale(page);
  await page.keyboard.press("+");
  near(await scale(page), before * 1.25, "zoom in");
  assert.equal(await page.locator("#zoom-level").textContent(), `${Math.round(before * 125)} %`);
  await page.keyboard.press("-");
  await page.keyboard.press("w");
  // With the keyboard only: to the first operation, to the next one, into its panel and back.
  await page.locator('#world .op[tabindex="0"]').first().focus();
  const first = await page.evaluate(() => document.activeElement.getAttribute("aria-label"));
  await page.keyboard.press("ArrowDown");
  const second = await page.evaluate(() => document.activeElement.getAttribute("aria-label"));
  assert.notEqual(first, second);
  await page.keyboard.press("Enter");
  assert.ok(await page.locator("#panel").isVisible());
  assert.equal(await page.evaluate(() => document.activeElement.id), "panel");
  await page.keyboard.press("Escape");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), second, "the focus comes back");
  assert.equal(await page.locator('#world .op[tabindex="0"]').count(), 1, "one stop for the tab key");
  await page.keyboard.press("?");
  assert.ok(await page.locator("#help").isVisible());
  await page.keyboard.press("Escape");
  assert.ok(await page.locator("#help").isHidden());
  // For screen readers, every control has a name.
  const nameless = await page.$$eval("button, input, select, .op, [role=tab], [role=radio]", (list) =>
    list.filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length || e.title)).map((e) => e.outerHTML),
  );
  assert.deepEqual(nameless, []);
  assert.notEqual(await page.textContent("#said"), "");
}
