// Prompts that do not fit into the context.
import assert from "node:assert/strict";
import { answerText, ask, askAndWait, done, until } from "./steps.mjs";

const words = (count, name) => `${name} ${"word ".repeat(count - 1)}`.trim();

async function filled(mock, open) {
  mock.context = 200;
  mock.scenes = Object.fromEntries(["one", "two", "three", "four"].map((name) => [name, (stream) => stream.answer(`reply to ${name}`)]));
  const page = await open();
  await until(async () => /\/ 200/.test(await page.textContent("#meter")), "the context is known");
  for (const name of ["one", "two", "three"]) await askAndWait(page, words(50, name));
  return page;
}

const sentTo = (body) => body.messages.map(({ content }) => content.split(" ").slice(0, 3).join(" "));

export async function a_prompt_that_is_too_long_is_told_before_it_is_sent_and_can_be_trimmed({ mock, open, shot }) {
  const page = await filled(mock, open);
  await page.fill("#prompt", "four short");
  await until(async () => /161 \/ 200\s*with this message/.test(await page.textContent("#meter")), "what is typed is counted");
  assert.ok(await page.isHidden("#length"));
  await page.fill("#prompt", words(60, "four"));
  await until(() => page.isVisible("#length"), "warned");
  assert.match(await page.textContent("#length"), /has 219 tokens, and the context holds 200/);
  await shot(page, "too-long");
  const asked = mock.requests.length;
  await page.click("#length button:has-text('Remove oldest messages')");
  await until(() => page.isHidden("#length"), "it fits now");
  assert.match(await page.locator(".unsent").evaluate((element) => element.nextElementSibling.textContent), /^\s*You\s*three/, "the line is above the first message that is sent");
  await shot(page, "trimmed");
  await page.press("#prompt", "Enter");
  await done(page);
  assert.deepEqual(sentTo(mock.requests[asked]), ["three word word", "reply to three", "four word word"]);
  await page.waitForTimeout(900);
  await page.reload();
  await page.waitForSelector(".unsent");
  assert.equal(await page.locator(".message.user").count(), 4, "nothing was deleted");
  await page.click(".unsent button");
  assert.equal(await page.locator(".unsent").count(), 0);
}

export async function an_answer_that_failed_for_length_offers_what_helps({ mock, open, shot }) {
  const page = await filled(mock, open);
  // Sent before the server has counted the tokens.
  await ask(page, words(60, "four"));
  await done(page);
  assert.match(await page.textContent(".trouble"), /too long: with the conversation it has 219 tokens, and the context holds 200/);
  assert.equal(await page.locator(".trouble button:has-text('Try again')").count(), 0, "the same would fail again");
  await shot(page, "failed-for-length");
  await page.click(".trouble button:has-text('Remove oldest messages')");
  await until(async () => (await answerText(page)) === "reply to four", "it is sent again without them");
  await page.click("#new-chat");
  await askAndWait(page, words(300, "one"));
  assert.match(await page.textContent(".trouble"), /too long/);
  assert.equal(await page.locator(".trouble button").count(), 0, "a single message can only be shortened");
}

export async function a_new_chat_takes_a_summary_along({ mock, open }) {
  const page = await filled(mock, open);
  mock.scenes.Summarize = (stream) => stream.answer("We counted to three.");
  await page.fill("#prompt", words(60, "four"));
  await until(() => page.isVisible("#length"), "warned");
  await page.click("#length button:has-text('New chat with a summary')");
  await until(async () => (await page.inputValue("#prompt")).startsWith("Summary of our conversation so far:\n\nWe counted to three.\n\nfour word"), "a draft with the summary");
  assert.equal(await page.locator(".message").count(), 0, "in a new chat");
  const body = mock.requests.at(-1);
  assert.deepEqual([body.max_tokens, body.messages.at(-1).content.split(" ")[0]], [50, "Summarize"]);
  await until(async () => (await page.locator(".conversation").count()) === 1, "the old one stays");
}
