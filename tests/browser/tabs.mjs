// The tabs next to the drawing, and the steps through the passes.
import assert from "node:assert/strict";

const tab = async (page, name) => {
  await page.click(`#tab-${name}`);
  assert.equal(await page.getAttribute(`#tab-${name}`, "aria-selected"), "true");
  assert.ok(await page.locator(`#${name}-tab`).isVisible());
};

export async function checkMemory(page, shot) {
  await tab(page, "memory");
  await shot(page, "memory");
  const text = await page.textContent("#memory-tab");
  // 61 layers · 576 elements · 2 bytes.
  for (const word of ["70\u202f272 B", "671 GB", "q_latent", "latent_mix", "Layers 3–60", "cache per token"]) assert.ok(text.includes(word), `memory shows ${word}`);
  assert.equal(await page.locator("#memory-tab .chart").nth(1).locator("g.cache").count(), 61, "a column for each layer");
  await page.click("#formulation button[data-key=expanded]");
  // 128 heads · (128 + 64 + 128) elements.
  assert.match(await page.textContent("#memory-tab"), /40\u202f960/);
  await page.click("#formulation button[data-key=auto]");
}

// Steps from the circuit through all passes to the plan, with the control and with keys.
export async function checkPasses(page, shot) {
  await tab(page, "drawing");
  await page.click("#bucket button[data-key=decode]");
  await page.click("#formulation button[data-key=auto]");
  await page.click("#stage button[data-key=circuit]");
  assert.ok(await page.isDisabled("#pass-back"), "nothing is before the circuit");
  await page.click("#pass-next");
  assert.equal(await page.getAttribute("#stage button[data-key=ir]", "aria-checked"), "true");
  assert.ok(await page.isHidden("#pass-note"), "the IR before all passes");
  const changed = () => page.$$eval("#world .op.changed", (list) => list.map((op) => op.getAttribute("aria-label")).join("\n"));
  const steps = await page.$$eval("#pass option", (list) => list.map((option) => option.textContent));
  assert.equal(steps.length, 9, steps.join());
  await page.click("#pass-next");
  assert.match(await page.textContent("#pass-note"), /choose formulations/);
  assert.match(await changed(), /attend_latent/);
  await shot(page, "pass-formulations");
  await page.keyboard.press("n");
  assert.match(await changed(), /linear q_a \+ kv_a/);
  assert.ok(!(await changed()).includes("attend_latent"), "only what this pass changed");
  await page.click("#pass-note summary");
  assert.ok((await page.locator("#pass-note .minus-line").count()) > (await page.locator("#pass-note .plus-line").count()), "two matmuls become one");
  await shot(page, "pass-fuse");
  await page.keyboard.press("n");
  await page.keyboard.press("n");
  assert.match(await page.textContent("#pass-note"), /fold norms/);
  const norms = await operationsOf(page, "rms_norm");
  await page.keyboard.press("p");
  assert.ok((await operationsOf(page, "rms_norm")) > norms, "norms move into what reads them");
  await page.selectOption("#pass", { index: steps.length - 1 });
  assert.equal(await page.getAttribute("#stage button[data-key=plan]", "aria-checked"), "true");
  assert.ok(await page.isDisabled("#pass-next"), "nothing is after the plan");
  assert.ok(await page.isHidden("#pass-note"));
}
const operationsOf = (page, word) => page.locator(`#world .op[aria-label*="${word}"]`).evaluateAll((list, word) => list.filter((op) => op.getAttribute("aria-label").startsWith(word)).length, word);

export async function checkDiff(page, shot) {
  await tab(page, "diff");
  assert.equal(await page.inputValue("#diff-b-model"), "other", "the second model stands on the right");
  assert.match(await page.textContent("#diff-tab"), /Layers 3–60 \(58 ×\) → Layers/);
  await shot(page, "diff-models");
  await page.selectOption("#diff-b-model", "this");
  await page.selectOption("#diff-a-formulation", "absorbed");
  assert.equal(await page.inputValue("#diff-b-formulation"), "auto");
  await page.selectOption("#diff-b-formulation", "naive");
  await shot(page, "diff");
  const removed = await page.$$eval("#diff-tab .minus-row", (rows) => rows.map((row) => row.textContent));
  const added = await page.$$eval("#diff-tab .plus-row", (rows) => rows.map((row) => row.textContent));
  assert.ok(removed.some((row) => row.includes("attend_latent")) && added.some((row) => row.includes("attend_expanded")));
  await page.selectOption("#diff-b-formulation", "absorbed");
  assert.equal(await page.locator("#diff-tab .minus-row, #diff-tab .plus-row, #diff-tab .change-row").count(), 0, "a plan is equal to itself");
}

export async function checkProfile(page, shot, file) {
  // The page contains a profile: operations show their shares.
  assert.ok((await page.locator("#world .heat-text").count()) > 5);
  await shot(page, "plan-profile");
  await tab(page, "profile");
  await shot(page, "profile");
  assert.equal(await page.locator("#profile-tab .roofline").count(), 2, "decoding and a prompt");
  const text = await page.textContent("#profile-tab");
  for (const word of ["Decoding", "A prompt of 20", "GFLOP/s", "operations per byte", "memory"]) assert.ok(text.includes(word), word);
  const shares = await page.$$eval("#profile-tab table:first-of-type tbody tr", (rows) => rows.map((row) => parseFloat(row.children[5].textContent)));
  assert.ok(shares.length > 5);
  assert.deepEqual(shares.slice(0, 3), [...shares.slice(0, 3)].sort((a, b) => b - a), "the costliest first");
  // The file input loads another profile, and refuses other files with a reason.
  await page.setInputFiles("#profile-file", { name: "x.json", mimeType: "application/json", buffer: Buffer.from('{"a": 1}') });
  await page.waitForFunction(() => document.getElementById("profile-error").textContent.includes("not a profile"));
  await page.setInputFiles("#profile-file", { name: "x.json", mimeType: "application/json", buffer: Buffer.from("{") });
  await page.waitForFunction(() => document.getElementById("profile-error").textContent.includes("not JSON"));
  await page.setInputFiles("#profile-file", file);
  await page.waitForFunction(() => document.getElementById("said").textContent === "Profile loaded");
  assert.equal(await page.locator("#profile-tab .roofline").count(), 2);
  // Operations show their shares even if the profile was loaded while the drawing was hidden.
  await tab(page, "drawing");
  const astray = await page.$$eval("#world .heat", (list) => {
    const middle = (box) => box.x + box.width / 2;
    return list.filter((heat) => Math.abs(middle(heat.getBBox()) - middle(heat.closest(".op").querySelector(".shape").getBBox())) > 250).length;
  });
  assert.equal(astray, 0, "shares beside their operations");
}

// A file chosen in the page is validated before it is shown.
async function refuses(page, key, words) {
  const give = (text) => page.setInputFiles(`#${key}-file`, { name: "x.json", mimeType: "application/json", buffer: Buffer.from(text) });
  const says = (text) => page.waitForFunction(([id, text]) => document.getElementById(id).textContent.includes(text), [`${key}-error`, text]);
  await give('{"a": 1}');
  await says(words);
  await give("{");
  await says("not JSON");
}

export async function checkWeights(page, shot, file) {
  await tab(page, "weights");
  await shot(page, "weights");
  const text = await page.textContent("#weights-tab");
  for (const word of ["Q4_K", "Q6_K", "rms", "NaN or infinite", "128", "zeros", "Every tensor, by type"]) assert.ok(text.includes(word), `weights show ${word}`);
  assert.ok(!text.includes("undefined") && !text.includes("NaN %"), text);
  const list = page.locator("#weights-tab details").first();
  await list.locator("summary").click();
  await list.locator("table").waitFor();
  assert.match(await list.textContent(), /\.weight/);
  await refuses(page, "weights", "no tensors with statistics");
  await page.setInputFiles("#weights-file", file);
  await page.waitForFunction(() => document.getElementById("said").textContent === "File of statistics loaded");
}

export async function checkTokenizer(page, shot) {
  await tab(page, "tokenizer");
  await shot(page, "tokenizer");
  const text = await page.textContent("#tokenizer-tab");
  for (const word of ["pre-tokenizer", "deepseek-v3", "1024 tokens", "adds BOS", "EOG", "Chat template", "general.architecture", "deepseek2", "an array of 1024"]) {
    assert.ok(text.includes(word), `the tokenizer shows ${word}`);
  }
}

export async function checkParity(page, shot, file) {
  await tab(page, "parity");
  await shot(page, "parity");
  const text = await page.textContent("#parity-tab");
  for (const word of ["They agree", "precision exact", "embed", "same", "cosine", "tolerance"]) assert.ok(text.includes(word), `parity shows ${word}`);
  assert.ok((await page.locator("#parity-tab circle").count()) > 50, "a point for each value");
  assert.equal(await page.locator("#parity-tab .minus-row").count(), 0);
  await refuses(page, "parity", "no report with points");
  await page.setInputFiles("#parity-file", file);
  await page.waitForFunction(() => document.getElementById("said").textContent === "Comparison loaded");
}

// On a phone and in a small window nothing exceeds the page, and every tab can be reached with the
// keyboard.
export async function checkSmall(page, shot) {
  for (const [width, height] of [[640, 800], [390, 780]]) {
    await page.setViewportSize({ width, height });
    await page.focus('[role=tab][aria-selected="true"]');
    const seen = new Set();
    for (let i = 0; i < 7; i += 1) {
      await page.keyboard.press("ArrowRight");
      const id = await page.evaluate(() => document.activeElement.id.replace("tab-", ""));
      seen.add(id);
      assert.ok(await page.locator(`#${id}-tab`).isVisible(), id);
      await shot(page, `small-${width}-${id}`);
      assert.ok(await page.evaluate((width) => document.documentElement.scrollWidth <= width, width), `${id} fits into ${width} pixels`);
      const wide = await page.evaluate((id) => ((pane) => pane.scrollWidth - pane.clientWidth)(document.getElementById(`${id}-tab`)), id);
      assert.ok(wide <= 1, `the page of ${id} is ${wide} pixels too wide for ${width}`);
    }
    assert.equal(seen.size, 7, "every tab");
  }
  await page.setViewportSize({ width: 1500, height: 950 });
}

export async function checkHostileTabs(page, shot) {
  for (const name of ["weights", "tokenizer", "parity"]) {
    await tab(page, name);
    await shot(page, `hostile-${name}`);
    assert.match(await page.textContent(`#${name}-tab`), /<\/script><script>window\.pwned/, `${name} shows texts as they are`);
  }
  for (const details of await page.locator("#weights-tab details").all()) await details.evaluate((element) => (element.open = true));
}
