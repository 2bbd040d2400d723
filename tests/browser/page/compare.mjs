// Two models side by side.
import assert from "node:assert/strict";
import { findings } from "../axe.mjs";
import { pause } from "./mock.mjs";
import { act, ask, done, until } from "./steps.mjs";

const column = (page, side) => page.locator(".two-answers > .message").nth(side);
const text = (page, side) => column(page, side).locator(".slot-content").innerText();
const asked = (mock, since = 0) => mock.requests.slice(since).map(({ model }) => model).sort();
const last = (body) => body.messages.map(({ role, content }) => `${role}: ${content}`);

async function comparing(mock, open, options) {
  mock.models = ["small", "large", "third"];
  mock.scenes = { ...mock.scenes, hello: (stream, body) => stream.answer(`from ${body.model}`), next: (stream, body) => stream.answer(`${body.model} goes on`) };
  const page = await open(options);
  await until(() => page.isVisible("[aria-label='Compare two models']"), "several models");
  await page.click("[aria-label='Compare two models']");
  return page;
}

export async function two_models_answer_side_by_side_and_one_goes_on({ mock, open, shot }) {
  const page = await comparing(mock, open, { viewport: { width: 1280, height: 800 } });
  assert.equal(await page.textContent(".compare span"), "Compare small with");
  assert.equal(await page.inputValue(".compare select"), "large");
  await ask(page, "hello");
  await done(page);
  assert.deepEqual(asked(mock), ["large", "small"]);
  assert.deepEqual([await text(page, 0), await text(page, 1)], ["from small", "from large"]);
  const [left, right] = [await column(page, 0).boundingBox(), await column(page, 1).boundingBox()];
  assert.ok(Math.abs(left.y - right.y) < 1 && right.x >= left.x + left.width, "in columns");
  assert.deepEqual(await page.locator(".two-answers .author").allTextContents(), ["small", "large"]);
  for (const side of [0, 1]) assert.match(await column(page, side).locator(".figures").textContent(), /41\.7 tokens\/s.*prompt 120/, "each has its figures");
  assert.equal(await column(page, 0).locator(".pick").getAttribute("aria-pressed"), "true", "the first one, unless another is chosen");
  await column(page, 1).locator(".pick").click();
  assert.deepEqual(await page.locator(".pick").evaluateAll((buttons) => buttons.map((button) => button.getAttribute("aria-pressed"))), ["false", "true"]);
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Continues here", "the focus stays");
  await page.waitForTimeout(900);
  await page.reload();
  await page.waitForSelector(".two-answers");
  assert.equal(await column(page, 1).locator(".pick").getAttribute("aria-pressed"), "true", "kept over a reload");
  await ask(page, "next");
  await done(page);
  assert.deepEqual(asked(mock, 2), ["large", "small"], "it goes on with both models");
  for (const body of mock.requests.slice(2)) assert.deepEqual(last(body), ["user: hello", "assistant: from large", "user: next"], "after the answer that was chosen");
  assert.equal(await page.locator(".two-answers").count(), 1, "the older answers are no columns any more");
  assert.equal(await page.locator(".message.assistant").first().locator(".slot-content").innerText(), "from large");
  assert.equal(await page.locator(".message.assistant").first().locator(".branches span").textContent(), "2/2");
  await page.click("[aria-label='Ask one model only']");
  await ask(page, "hello again");
  await done(page);
  assert.deepEqual(asked(mock, 4), ["small"]);
  assert.equal(await page.locator(".two-answers").count(), 0);
  await page.click("#new-chat");
  assert.ok(await page.isHidden(".compare"), "other chats ask one model");
}

export async function each_of_two_answers_is_stopped_and_tried_again_by_itself({ mock, open, shot }) {
  let broken = true;
  mock.scenes = {
    endless: async (stream, body) => {
      for (let i = 0; i < 2000 && !stream.gone(); i += 1) {
        await stream.delta({ content: `${body.model}${i} ` });
        await pause(15);
      }
    },
    fail: (stream, body) => {
      if (body.model === "large" && broken) return stream.error(400, { error: { message: "large does not want to" } });
      return stream.answer(`fine, ${body.model}`);
    },
  };
  const page = await comparing(mock, open, { viewport: { width: 1280, height: 800 } });
  await ask(page, "endless");
  await until(async () => (await text(page, 0)).includes("small5 ") && (await text(page, 1)).includes("large5 "), "both are written");
  await shot(page, "compare-streaming");
  await until(async () => (await text(page, 0)).includes("small140 "), "they are longer than the window");
  const stop = column(page, 0).locator("[aria-label='Stop this answer']");
  const places = [];
  for (let i = 0; i < 3; i += 1) {
    places.push(Math.round((await stop.boundingBox()).y));
    await pause(200);
  }
  assert.deepEqual(places, Array(3).fill(places[0]), "the button stays where it is while the text grows");
  assert.ok(places[0] > 0 && places[0] < 400, String(places));
  await stop.click();
  await until(async () => /Stopped/.test(await column(page, 0).textContent()), "one is stopped");
  await until(() => mock.aborted === 1, "the server saw that");
  const [stopped, going] = [await text(page, 0), await text(page, 1)];
  await until(async () => (await text(page, 1)).length > going.length, "the other goes on");
  assert.equal(await text(page, 0), stopped);
  assert.equal(await page.getAttribute("#send", "aria-label"), "Stop");
  await page.click("#send");
  await done(page);
  await until(() => mock.aborted === 2, "the other is stopped as well");
  const since = mock.requests.length;
  await ask(page, "fail");
  await done(page);
  assert.equal(await text(page, 0), "fine, small");
  assert.match(await column(page, 1).locator(".trouble").textContent(), /large does not want to/);
  broken = false;
  await column(page, 1).locator(".trouble button:has-text('Try again')").click();
  await until(async () => (await text(page, 1)) === "fine, large", "tried again");
  assert.deepEqual(asked(mock, since), ["large", "large", "small"]);
  await act(page, "Regenerate", column(page, 0));
  await until(() => mock.requests.length === since + 4, "asked again");
  await done(page);
  assert.equal(mock.requests.at(-1).model, "small", "the same model");
  assert.equal(await page.locator(".two-answers > .message").count(), 2);
  assert.equal(await column(page, 0).locator(".branches span").textContent(), "3/3", "the first answer is kept");
}

export async function two_answers_are_seen_and_stopped_in_another_tab({ mock, open }) {
  mock.scenes = { slow: async (stream, body) => {
    for (let i = 0; i < 1000 && !stream.gone(); i += 1) {
      await stream.delta({ content: `${body.model}${i} ` });
      await pause(30);
    }
  } };
  const page = await comparing(mock, open);
  await ask(page, "hello");
  await done(page);
  await ask(page, "slow");
  await until(async () => (await text(page, 1)).includes("large3 "), "both are written");
  const other = await page.context().newPage();
  await other.goto(page.url());
  await other.waitForSelector(".two-answers");
  await until(async () => (await other.locator(".two-answers > .streaming").count()) === 2, "both are seen as written");
  await column(other, 1).locator("[aria-label='Stop this answer']").click();
  await until(async () => /Stopped/.test(await column(page, 1).textContent()), "stopped where it is written");
  await until(async () => /Stopped/.test(await column(other, 1).textContent()), "which is seen");
  await until(async () => (await other.locator(".two-answers > .streaming").count()) === 1, "the other one goes on");
  await other.click("#send");
  await done(page);
  await done(other);
}

export async function on_a_phone_answers_are_below_each_other({ mock, open, shot }) {
  for (const colorScheme of ["light", "dark"]) {
    for (const options of [{ viewport: { width: 1280, height: 800 } }, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true }]) {
      const page = await comparing(mock, open, { ...options, colorScheme, reducedMotion: "reduce" });
      mock.scenes.explain = (stream, body) => stream.answer(`**${body.model}** says:\n\n- one thing\n- another thing${body.model === "large" ? "\n\n```rust\nfn main() {\n    let a_rather_long_line_of_code = \"that does not fit into a column of a narrow window\";\n}\n```\n\nAnd more words, so that the answers have different lengths." : ""}`);
      const name = `${options.viewport.width}-${colorScheme}`;
      await page.fill("#prompt", "explain how the two of you differ");
      assert.deepEqual(await findings(page), [], `the second model, ${name}`);
      await page.click("#send");
      await done(page);
      assert.deepEqual(await findings(page), [], `two answers, ${name}`);
      await shot(page, `compare-${name}`);
      const [first, second] = [await column(page, 0).boundingBox(), await column(page, 1).boundingBox()];
      if (options.isMobile) assert.ok(second.y >= first.y + first.height && Math.abs(first.x - second.x) < 1, "one below the other");
      else assert.ok(second.x >= first.x + first.width, "side by side");
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing is wider than the window");
    }
  }
}

export async function both_models_are_asked_again_with_the_key({ mock, open }) {
  const page = await comparing(mock, open);
  mock.key = "secret";
  await ask(page, "hello");
  await done(page);
  await page.fill("#api-key", "secret");
  await page.press("#api-key", "Enter");
  await until(async () => (await text(page, 0)) === "from small" && (await text(page, 1)) === "from large", "both are asked again");
  assert.deepEqual(asked(mock), ["large", "small"]);
}

export async function one_model_offers_no_comparison({ open }) {
  const page = await open();
  await until(async () => (await page.textContent("#model-name")) !== "", "the server is read");
  assert.ok(await page.isHidden("[aria-label='Compare two models']"));
}
