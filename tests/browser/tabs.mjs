// Memory, profile and diff.
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
  // 61 layers · 576 elements · 2 bytes
  for (const word of ["70\u202f272 B", "671 GB", "q_latent", "latent_mix", "Layers 3–60", "cache per token"]) assert.ok(text.includes(word), `memory shows ${word}`);
  assert.equal(await page.locator("#memory-tab .chart").nth(1).locator("g.cache").count(), 61, "a column for each layer");
  await page.click("#formulation button[data-key=expanded]");
  // 128 heads · (128 + 64 + 128) elements
  assert.match(await page.textContent("#memory-tab"), /40\u202f960/);
  await page.click("#formulation button[data-key=auto]");
}

// From the circuit over every pass to the plan, with the control and with keys.
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
  // the page has a profile in it: shares stand on the operations
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
  // another profile by the file input; what is none is refused with a reason
  await page.setInputFiles("#profile-file", { name: "x.json", mimeType: "application/json", buffer: Buffer.from('{"a": 1}') });
  await page.waitForFunction(() => document.getElementById("profile-error").textContent.includes("no profile"));
  await page.setInputFiles("#profile-file", { name: "x.json", mimeType: "application/json", buffer: Buffer.from("{") });
  await page.waitForFunction(() => document.getElementById("profile-error").textContent.includes("not JSON"));
  await page.setInputFiles("#profile-file", file);
  await page.waitForFunction(() => document.getElementById("said").textContent === "Profile loaded");
  assert.equal(await page.locator("#profile-tab .roofline").count(), 2);
}
