// axe-core's findings, focus, and forced colours.
import assert from "node:assert/strict";
import { findings } from "../axe.mjs";
import { askAndWait, done, until } from "./steps.mjs";

const RICH = "# Title\n\ntext `code` [link](http://a.example)\n\n> quote\n\n1. one\n2. [x] two\n\n```rust\nfn f() {}\n```\n\n| a | b |\n|---|---|\n| c | d |\n\n$$x^2$$";

export async function axe_finds_nothing({ mock, open }) {
  mock.scenes = {
    rich: async (stream) => {
      await stream.text("Thinking of it.", { key: "reasoning_content" });
      await stream.text(RICH);
      await stream.delta({ tool_calls: [{ index: 0, id: "a", type: "function", function: { name: "get_weather", arguments: "{}" } }] });
      await stream.finish("tool_calls");
    },
    wrong: (stream) => stream.error(400, { error: { message: "a bad request" } }),
  };
  mock.models = ["small", "large"];
  for (const colorScheme of ["light", "dark"]) {
    const page = await open({ colorScheme, reducedMotion: "reduce" });
    const clean = async (state) => assert.deepEqual(await findings(page), [], `${state}, ${colorScheme}`);
    await clean("a new chat");
    await askAndWait(page, "rich");
    for (const fold of await page.locator("details > summary").all()) await fold.click();
    await clean("an answer");
    await page.click("#settings-button");
    await page.fill("#set-temperature", "9");
    await page.fill("#set-system", "Be brief.");
    await clean("settings");
    await page.fill("#set-temperature", "");
    await page.click("#settings [aria-label='Close settings']");
    await page.click("#keys");
    await clean("keyboard shortcuts");
    await page.keyboard.press("Escape");
    await page.focus(".conversations .icon-button");
    await page.keyboard.press("Enter");
    await clean("a menu");
    await page.keyboard.press("Escape");
    await page.fill(".results textarea", "12 degrees");
    await page.click(".results button");
    await done(page);
    await askAndWait(page, "wrong");
    await page.locator(".message.user").last().hover();
    await page.locator(".message.user").last().locator("[aria-label='Edit and resend']").click();
    await clean("an error, and a message that is edited");
    await page.click("#tab-model");
    await page.waitForSelector(".phases tbody tr");
    await clean("the model");
  }
  const phone = await open({ viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, reducedMotion: "reduce" });
  await askAndWait(phone, "hello");
  await phone.click("#menu-button");
  assert.deepEqual(await findings(phone), [], "the list on a phone");
}

export async function the_focus_stays_in_drawers_of_a_phone({ open }) {
  const page = await open({ viewport: { width: 390, height: 844 }, reducedMotion: "reduce" });
  await askAndWait(page, "hello");
  for (const [button, place] of [["#menu-button", "#sidebar"], ["#settings-button", "#settings"]]) {
    await page.click(button);
    await until(() => page.evaluate((selector) => document.querySelector(selector).contains(document.activeElement), place), `the focus is in ${place}`);
    for (const key of ["Tab", "Shift+Tab"]) {
      for (let i = 0; i < 40; i += 1) {
        await page.keyboard.press(key);
        assert.ok(await page.evaluate((selector) => document.querySelector(selector).contains(document.activeElement), place), `${key} stays in ${place}`);
      }
    }
    await page.keyboard.press("Escape");
    assert.equal(await page.evaluate(() => document.activeElement.id), button.slice(1), "and comes back");
    await page.keyboard.press("Tab");
    assert.ok(await page.evaluate((selector) => !document.querySelector(selector).contains(document.activeElement), place), "closed, it keeps nothing");
  }
}

export async function what_is_selected_is_seen_in_forced_colours({ open, shot }) {
  const page = await open({ forcedColors: "active" });
  await askAndWait(page, "hello");
  await page.click("#new-chat");
  await askAndWait(page, "again");
  await page.click("#settings-button");
  await shot(page, "forced-colours");
  const looks = (selector) => page.locator(selector).first().evaluate((element) => {
    const { borderTopColor, borderTopStyle, backgroundColor, outlineStyle, color } = getComputedStyle(element);
    return [borderTopColor, borderTopStyle, backgroundColor, outlineStyle, color].join();
  });
  for (const [selected, other] of [["#tab-chat", "#tab-model"], [".conversations li.current .conversation", ".conversations li:not(.current) .conversation"], [".scopes label:has(:checked)", ".scopes label:not(:has(:checked))"]]) {
    assert.notEqual(await looks(selected), await looks(other), `${selected} looks like ${other}`);
  }
  const visible = await page.locator(".context-bar").evaluate((element) => getComputedStyle(element).borderTopStyle);
  assert.equal(visible, "solid", "the bar of the context has an edge");
}
