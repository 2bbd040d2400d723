// Right-to-left text, and bidirectional overrides.
import assert from "node:assert/strict";
import { answerText, askAndWait, titles, until } from "./steps.mjs";

const HEBREW = "שלום עולם";
const direction = (locator) => locator.evaluate((element) => getComputedStyle(element).direction);

export async function each_text_has_its_own_direction({ mock, open, shot }) {
  mock.scenes = { [HEBREW.split(" ")[0]]: (stream) => stream.answer(`${HEBREW} \`code.rs\` 1.\n\nEnglish again.\n\n- ${HEBREW}\n- ${HEBREW}\n\n> ${HEBREW}\n\n\`\`\`js\nlet a = "${HEBREW}";\n\`\`\`\n`) };
  const page = await open();
  await page.fill("#prompt", HEBREW);
  assert.equal(await direction(page.locator("#prompt")), "rtl");
  await page.fill("#prompt", "English");
  assert.equal(await direction(page.locator("#prompt")), "ltr");
  await askAndWait(page, HEBREW);
  const answer = page.locator(".message.assistant .slot-content");
  await shot(page, "right-to-left");
  assert.deepEqual(await answer.locator("> *").evaluateAll((list) => list.map((element) => `${element.tagName} ${getComputedStyle(element).direction}`)), ["P rtl", "P ltr", "UL rtl", "BLOCKQUOTE rtl", "DIV ltr"]);
  assert.equal(await direction(answer.locator("p code")), "ltr");
  assert.equal(await direction(page.locator(".message.user .body")), "rtl");
  assert.equal(await direction(page.locator(".conversation")), "rtl");
  assert.equal(await direction(page.locator(".markdown li").first()), "rtl", "markers are on the right");
}

export async function an_override_of_direction_reorders_nothing_around_it({ mock, open }) {
  mock.scenes = { bidi: (stream) => stream.answer("Go to \u202e[first](https://a.example/) or **\u202eb** [second](https://b.example/) end.\n\n[\u202ekooby](https://c.example/) and text\n\n| \u202ea | b |\n|---|---|\n| c | d |") };
  const page = await open();
  await askAndWait(page, "bidi \u202egnp.exe");
  assert.match(await answerText(page), /Go to/);
  const lefts = await page.locator(".message.assistant p").first().evaluate((paragraph) => {
    const range = document.createRange();
    const places = [];
    const walker = document.createTreeWalker(paragraph, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      range.selectNodeContents(walker.currentNode);
      if (walker.currentNode.textContent.trim()) places.push([walker.currentNode.textContent.replace(/[^a-z]/gi, ""), range.getBoundingClientRect().left]);
    }
    return places;
  });
  assert.deepEqual(lefts.map(([text]) => text), ["Goto", "first", "or", "b", "second", "end"]);
  for (let i = 1; i < lefts.length; i += 1) assert.ok(lefts[i][1] > lefts[i - 1][1], `${lefts[i][0]} stands after ${lefts[i - 1][0]}: ${JSON.stringify(lefts)}`);
  const second = await page.locator(".message.assistant p").nth(1).evaluate((paragraph) => [paragraph.querySelector("a").getBoundingClientRect().left, paragraph.getBoundingClientRect().left]);
  assert.ok(second[0] - second[1] < 2, "an override inside of a link stays in it");
  assert.deepEqual(await titles(page), ["bidi gnp.exe"]);
  await page.focus(".conversation");
  await page.keyboard.press("Delete");
  await until(async () => (await page.textContent("#toasts")).includes("“bidi gnp.exe” deleted"), "the sentence about it reads in order");
}
