// Actions of users on the page.
import assert from "node:assert/strict";

export async function ask(page, text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
}

// Waits until the answer is complete: the button then sends again.
export const done = (page) => page.waitForSelector("#send[aria-label=Send]");

export async function askAndWait(page, text) {
  await ask(page, text);
  // The button changes before the key press returns.
  await done(page);
}

export const lastAnswer = (page) => page.locator(".message.assistant").last();
export const answerText = (page) => lastAnswer(page).locator(".slot-content").innerText();
export const act = (page, name, message = lastAnswer(page)) => message.locator(`.actions [aria-label="${name}"]`).click();
export const said = (page) => page.textContent("#said");
export const titles = (page) => page.$$eval(".conversation", (list) => list.map((item) => item.textContent));

export async function until(check, words, ms = 20_000) {
  const end = Date.now() + ms;
  let last;
  while (Date.now() < end) {
    try {
      last = await check();
      if (last) return last;
    } catch (error) {
      last = error;
    }
    await new Promise((resolve) => setTimeout(resolve, 40));
  }
  return assert.fail(`${words}; last: ${last}`);
}

// Chooses an entry of a conversation's menu.
export async function choose(page, title, item) {
  const row = page.locator(".conversations li", { hasText: title }).first();
  await row.hover();
  await row.locator(".icon-button").click();
  await page.click(`.menu button:has-text("${item}")`);
}
