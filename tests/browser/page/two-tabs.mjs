// The same conversations in two tabs.
import assert from "node:assert/strict";
import { pause } from "./mock.mjs";
import { act, answerText, ask, askAndWait, choose, done, lastAnswer, titles, until } from "./steps.mjs";

// Opens a second tab with the newest conversation.
async function another(page, init) {
  const other = await page.context().newPage();
  other.setDefaultTimeout(30_000);
  if (init) await other.addInitScript(init);
  await other.goto(page.url().split("#")[0]);
  await other.waitForSelector(".conversation");
  await other.click(".conversation");
  await other.waitForSelector(".message.user");
  return other;
}

// Tabs without a BroadcastChannel share data only through the store.
const deaf = () => {
  delete window.BroadcastChannel;
};

// An answer that continues until the test ends it.
function gated(mock) {
  let go;
  const gate = new Promise((resolve) => (go = resolve));
  mock.scenes = { slow: async (stream) => {
    for (let i = 0; i < 400 && !stream.gone(); i += 1) {
      await stream.delta({ content: `word${i} ` });
      if (await Promise.race([gate, pause(50)])) break;
    }
    if (!stream.gone()) await stream.answer("the end.");
  } };
  return () => go(true);
}

const userTexts = (page) => page.locator(".message.user .body").allTextContents();

export async function two_tabs_agree({ open }) {
  const page = await open();
  await askAndWait(page, "from the first tab");
  const other = await another(page);
  // Text typed before the store has answered goes into a new chat.
  await until(async () => (await answerText(other)) === "You said: from the first tab", "it is open");
  await askAndWait(other, "from the second tab");
  await page.fill("#prompt", "typed in the first");
  await until(async () => (await answerText(page)) === "You said: from the second tab", "the first tab follows");
  assert.equal(await page.inputValue("#prompt"), "typed in the first");
  await choose(page, "from the first tab", "Delete");
  await until(async () => (await titles(other)).length === 0, "the second tab follows");
}

export async function an_answer_of_another_tab_is_shown_and_can_be_stopped({ mock, open, shot }) {
  gated(mock);
  const page = await open();
  await askAndWait(page, "first");
  await ask(page, "slow one");
  await until(async () => (await answerText(page)).includes("word3 "), "it is being written");
  const other = await another(page);
  await until(async () => (await other.getAttribute("#send", "aria-label")) === "Stop", "the second tab knows");
  // The button changes before the message shows the answer.
  await until(() => lastAnswer(other).evaluate((element) => element.classList.contains("streaming")), "it is shown as being written");
  assert.equal(await other.locator(".trouble").count(), 0, "nothing is called interrupted");
  assert.equal(await other.locator(".conversations .running").count(), 1);
  await shot(other, "second-tab");
  const before = (await answerText(other)).length;
  await until(async () => (await answerText(other)).length > before, "its text grows");
  await act(other, "Delete this message and everything after it", other.locator(".message.user").first());
  await until(async () => /Wait for the answer/.test(await other.textContent("#toasts")), "nothing else changes meanwhile");
  await other.click("#send");
  await done(page);
  await until(() => mock.aborted === 1, "the server saw it end");
  assert.match(await lastAnswer(page).locator(".trouble").textContent(), /Stopped/);
  await until(async () => /Stopped/.test((await lastAnswer(other).locator(".trouble").allTextContents()).join()), "the second tab shows that it was stopped");
  await done(other);
  assert.equal(await answerText(other), await answerText(page));
}

export async function what_a_tab_changes_while_another_one_answers_stays({ mock, open }) {
  const finish = gated(mock);
  const page = await open();
  await askAndWait(page, "first");
  await ask(page, "slow one");
  await until(async () => (await answerText(page)).includes("word3 "), "it is being written");
  const other = await another(page);
  await choose(other, "first", "Rename");
  await other.keyboard.type("Given by hand");
  await other.keyboard.press("Enter");
  await until(async () => (await titles(page)).includes("Given by hand"), "the first tab has the title");
  // Wait for some saves of the answering tab.
  await pause(1600);
  finish();
  await done(page);
  await until(async () => (await answerText(other)).endsWith("the end."), "the whole answer");
  assert.deepEqual(await titles(other), ["Given by hand"]);
  await page.reload();
  await page.waitForSelector(".message.assistant");
  assert.deepEqual(await titles(page), ["Given by hand"]);
  assert.deepEqual(await userTexts(page), ["first", "slow one"]);
}

export async function a_closed_tab_leaves_its_answer_interrupted({ mock, open }) {
  gated(mock);
  const page = await open();
  await askAndWait(page, "first");
  const other = await another(page);
  await ask(other, "slow one");
  await until(async () => (await page.getAttribute("#send", "aria-label")) === "Stop", "the first tab knows");
  await until(async () => (await answerText(page)).includes("word3 "), "and shows the text");
  await other.close();
  await done(page);
  await until(async () => /interrupted/.test(await lastAnswer(page).locator(".trouble").textContent()), "it says so");
  assert.ok(await lastAnswer(page).locator(".trouble button:has-text('Continue')").isVisible());
}

export async function tabs_that_hear_nothing_of_each_other_lose_no_message({ open }) {
  const page = await open({ init: deaf });
  await askAndWait(page, "first");
  await pause(900);
  const other = await another(page, deaf);
  await askAndWait(other, "of the second tab");
  await pause(900);
  await askAndWait(page, "of the first tab");
  await pause(900);
  for (const tab of [page, other]) {
    await tab.reload();
    await tab.waitForSelector(".message.assistant");
    const branches = lastAnswer(tab);
    assert.equal(await answerText(tab), "You said: of the first tab");
    assert.equal(await branches.count(), 1);
    const second = tab.locator(".message.user").nth(1);
    assert.equal(await second.locator(".branches span").textContent(), "2/2", "both are kept, as versions");
  }
  // A later save of one tab does not restore what the other tab has deleted.
  await act(page, "Delete this message and everything after it", page.locator(".message.user").nth(1));
  await pause(900);
  await askAndWait(other, "and more");
  await pause(900);
  await page.reload();
  await page.waitForSelector(".message.assistant");
  assert.ok(!(await userTexts(page)).includes("of the first tab"));
  await choose(page, "first", "Delete");
  await pause(300);
  await other.fill("#prompt", "a draft");
  await askAndWait(other, "for a deleted conversation");
  await pause(900);
  await page.reload();
  await page.waitForSelector(".empty");
  assert.deepEqual(await titles(page), [], "a deleted conversation stays deleted");
}
