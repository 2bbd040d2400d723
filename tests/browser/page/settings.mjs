// Settings belong to a conversation; new ones begin with the defaults.
import assert from "node:assert/strict";
import { pause } from "./mock.mjs";
import { askAndWait, until } from "./steps.mjs";

const value = (page, key) => page.inputValue(`#set-${key}`);
const differs = async (page) => /differs/.test(await page.getAttribute("#settings-button", "aria-label"));

export async function settings_of_a_conversation_stay_in_it({ mock, open, shot }) {
  const page = await open();
  await page.click("#settings-button");
  await page.fill("#set-system", "Answer as a pirate.\nAlways.");
  await page.fill("#set-temperature", "1.5");
  assert.match(await page.textContent("#difference"), /Differs from the defaults: System prompt, Temperature/);
  assert.ok(await differs(page));
  await askAndWait(page, "ahoy");
  assert.match(await page.textContent(".system-prompt summary"), /Answer as a pirate\./, "the prompt is visible in the chat");
  await page.click(".system-prompt summary");
  await shot(page, "chat-settings");
  await page.click("#new-chat");
  assert.equal(await value(page, "system"), "");
  assert.equal(await value(page, "temperature"), "");
  assert.ok(!(await differs(page)));
  assert.equal(await page.textContent("#difference"), "Same as the defaults.");
  assert.equal(await page.locator(".system-prompt").count(), 0);
  await askAndWait(page, "plain");
  assert.equal(mock.requests[1].temperature, undefined);
  assert.equal(mock.requests[1].messages[0].role, "user");
  // An edited draft stays in its conversation only.
  await page.fill("#set-temperature", "0.1");
  await page.click(".conversation:has-text('ahoy')");
  await until(async () => (await value(page, "temperature")) === "1.5", "those of the first conversation");
  await page.click("#new-chat");
  assert.equal(await value(page, "temperature"), "");
  await page.fill("#set-top_p", "0.5");
  await page.click(".conversation:has-text('plain')");
  await until(async () => (await value(page, "temperature")) === "0.1", "what was not sent is kept");
  assert.equal(await value(page, "top_p"), "");
  await pause(900);
  await page.reload();
  await page.waitForSelector(".message.assistant");
  await page.click("#settings-button");
  assert.equal(await value(page, "temperature"), "0.1");
  await page.click("#new-chat");
  assert.equal(await value(page, "top_p"), "0.5", "those of the unsent chat too");
  assert.equal(await page.evaluate(() => JSON.parse(localStorage.getItem("latent.settings") ?? "{}").temperature ?? ""), "", "the defaults are as they were");
}

export async function defaults_are_edited_in_one_place({ mock, open, shot }) {
  const page = await open();
  await askAndWait(page, "before");
  await page.click("#settings-button");
  await page.check("#settings input[value=defaults]", { force: true });
  await page.fill("#set-system", "Be brief.");
  await page.fill("#set-seed", "7");
  await shot(page, "defaults");
  await page.check("#settings input[value=chat]", { force: true });
  assert.equal(await value(page, "system"), "", "this chat keeps what it was held with");
  assert.match(await page.textContent("#difference"), /Differs from the defaults: System prompt, Seed/);
  await page.click("#new-chat");
  assert.equal(await value(page, "system"), "Be brief.");
  assert.ok(await page.locator(".system-prompt").isVisible());
  await askAndWait(page, "after");
  assert.deepEqual(mock.requests[1].messages[0], { role: "system", content: "Be brief." });
  assert.equal(mock.requests[1].seed, 7);
  await page.fill("#set-seed", "8");
  await page.click("#settings button:has-text('Save as defaults')");
  assert.equal(await page.textContent("#difference"), "Same as the defaults.");
  await page.click("#new-chat");
  assert.equal(await value(page, "seed"), "8");
  await page.fill("#set-seed", "9");
  await page.click("#settings button:has-text('Reset to defaults')");
  assert.equal(await value(page, "seed"), "8");
  // The shown system prompt leads to its field.
  await page.click("#settings [aria-label='Close settings']");
  await page.click(".system-prompt summary");
  await page.click("[aria-label='Edit system prompt']");
  assert.equal(await page.evaluate(() => document.activeElement.id), "set-system");
}
