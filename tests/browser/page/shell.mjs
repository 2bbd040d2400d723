// Everything around the chat: loading, tabs, the model's figures, themes, phone width, keys, screen
// readers, print.
import assert from "node:assert/strict";
import { pause } from "./mock.mjs";
import { answerText, ask, askAndWait, done, said, until } from "./steps.mjs";

export async function shows_that_the_model_is_loading({ mock, open, shot }) {
  mock.health = { error: { message: "loading the model", code: 503 }, progress: 0.42 };
  const page = await open();
  await until(async () => /loading the model 42 %/i.test(await page.textContent("#notice")), "progress");
  assert.equal(await page.locator("#notice progress").evaluate((bar) => bar.value), 0.42);
  await shot(page, "loading");
  await page.fill("#prompt", "written meanwhile");
  mock.health = { error: { message: "warming up" } };
  await until(async () => (await page.textContent("#notice")).trim() === "warming up", "without a figure");
  mock.health = null;
  await until(() => page.isHidden("#notice"), "ready");
  await until(async () => (await page.textContent("#model-name")) === "mla-demo-Q4_K_M", "its name");
  assert.equal(await page.inputValue("#prompt"), "written meanwhile");
  assert.equal(await page.locator(".welcome h2").textContent(), "Chat with mla-demo-Q4_K_M");
}

export async function finds_the_server_again({ mock, open }) {
  const page = await open();
  await page.route("**/health", (route) => route.abort());
  await page.evaluate(() => dispatchEvent(new Event("online")));
  await until(async () => /unreachable/.test(await page.textContent("#notice")), "told");
  await page.unroute("**/health");
  await until(() => page.isHidden("#notice"), "found again", 12_000);
  assert.ok(mock.url);
}

export async function offers_a_choice_of_models({ mock, open }) {
  mock.models = ["small", "large"];
  const page = await open();
  await page.selectOption("#model-name select", "large");
  await askAndWait(page, "hello");
  assert.equal(mock.requests[0].model, "large");
  assert.equal(await page.locator(".message.assistant .author").textContent(), "large");
  await page.click("#tab-model");
  const all = (model) => until(() => ["stats", "profile", "graph"].every((what) => mock.watched[`/latent/${what}`] === model), `the model's tab is about ${model}`);
  await all("large");
  await page.selectOption("#model-name select", "small");
  await all("small");
  assert.match(await page.getAttribute("iframe", "src"), /model=small$/);
}

export async function the_model_tab_shows_figures_profile_and_drawing({ mock, open, shot }) {
  const page = await open();
  await page.click("#tab-model");
  assert.ok(await page.isHidden("#chat"));
  await until(() => mock.polls >= 3, "it polls");
  const text = await page.textContent("#model");
  for (const words of ["Generation", "tokens/s", "Running", "of 16", "512 blocks of 64 tokens", "Cached prefixes 200", "attend_latent", "2.62 ms per step, batch of 2"]) assert.ok(text.includes(words), `${words} in ${text}`);
  assert.equal(await page.locator(".phases tbody tr").count(), 14);
  await page.click("#all-phases");
  assert.equal(await page.locator(".phases tbody tr").count(), 18);
  const shares = await page.$$eval(".bar-share", (bars) => bars.map((bar) => bar.getBoundingClientRect().width));
  assert.ok(Math.max(...shares) > 3 * Math.min(...shares), "bars are as long as their shares");
  await page.click("#all-phases");
  assert.equal(await page.frameLocator("iframe").locator("#drawn").textContent(), "the drawing");
  assert.ok((await page.locator(".spark path").count()) >= 4);
  await shot(page, "model");
  await page.click("#tab-chat");
  await pause(300);
  const { polls } = mock;
  await pause(1500);
  assert.equal(mock.polls, polls, "a hidden tab asks nothing");
  await page.focus("#tab-chat");
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.getAttribute("#tab-model", "aria-selected"), "true");
  mock.noProfile = true;
  await until(async () => /No step has run/.test(await page.textContent("#model")), "before the first step");
}

export async function themes_follow_the_system_until_chosen({ open }) {
  const page = await open({ colorScheme: "dark" });
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await paper();
  await page.click("#theme-button");
  const light = await paper();
  assert.notEqual(dark, light);
  await page.reload();
  await page.waitForSelector("html[data-ready]", { state: "attached" });
  assert.equal(await paper(), light, "kept");
  await page.click("#theme-button");
  assert.equal(await paper(), dark);
  await page.emulateMedia({ colorScheme: "light" });
  assert.equal(await paper(), light, "back at the system's theme it follows the system");
}

export async function fits_a_phone({ mock, open, shot }) {
  mock.scenes = { wide: (stream) => stream.answer(`A ${"long".repeat(60)} word, \`${"code".repeat(40)}\`, https://example.org/${"path/".repeat(30)}\n\n| a | b | c | d | e |\n|---|---|---|---|---|\n| ${"cell ".repeat(9)}| ${"cell ".repeat(9)}| c | d | e |\n\n\`\`\`rust\nlet x = "${"text ".repeat(40)}";\n\`\`\`\n\n$$${"a + ".repeat(60)} b$$\n\n1. one\n   - two\n     - three\n       - four`) };
  const page = await open({ viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });
  await page.fill("#prompt", "wide");
  await page.click("#send");
  await done(page);
  await until(async () => (await page.locator(".figures").count()) === 1, "answered");
  const fits = async (what) => {
    const wide = await page.evaluate(() => [document.scrollingElement.scrollWidth, document.getElementById("transcript").scrollWidth - document.getElementById("transcript").clientWidth]);
    assert.ok(wide[0] <= 360 && wide[1] <= 0, `${what}: ${wide}`);
  };
  await fits("an answer with wide things");
  await shot(page, "phone");
  assert.ok(await page.isHidden("#sidebar"));
  await page.click("#menu-button");
  await page.waitForTimeout(300);
  assert.equal(await page.getAttribute("#menu-button", "aria-expanded"), "true");
  await shot(page, "phone-list");
  await page.keyboard.press("Escape");
  await page.waitForTimeout(300);
  assert.ok(await page.isHidden("#sidebar"));
  await page.click("#settings-button");
  await fits("settings");
  await shot(page, "phone-settings");
  await page.click("#settings [aria-label='Close settings']");
  await page.click("#tab-model");
  await page.waitForSelector(".phases tbody tr");
  await fits("the model");
  await shot(page, "phone-model");
  // On a touch keyboard, Enter inserts a new line.
  await page.click("#tab-chat");
  await page.fill("#prompt", "a");
  await page.press("#prompt", "Enter");
  assert.equal(await page.inputValue("#prompt"), "a\n");
  const small = await page.$$eval("button:visible", (list) => list.map((button) => [button.getAttribute("aria-label") ?? button.textContent, button.getBoundingClientRect()]).filter(([, box]) => box.height < 24 || box.width < 24).map(([name]) => name));
  assert.deepEqual(small, [], "targets that are too small to touch");
}

export async function keys_reach_everything({ open }) {
  const page = await open();
  await askAndWait(page, "hello");
  // From the top of the page.
  await page.evaluate(() => {
    document.body.tabIndex = -1;
    document.body.focus();
    document.body.removeAttribute("tabindex");
  });
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip", "the skip link is first");
  assert.ok((await page.locator(".skip").boundingBox()).y >= 0, "and visible with focus");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
  await page.evaluate(() => document.activeElement.blur());
  const order = [];
  await page.focus("#menu-button");
  for (let i = 0; i < 22; i += 1) {
    order.push(await page.evaluate(() => document.activeElement.id || document.activeElement.getAttribute("aria-label") || document.activeElement.className));
    const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    if (!["prompt"].includes(order.at(-1))) assert.notEqual(ring, "none", `focus is visible on ${order.at(-1)}`);
    await page.keyboard.press("Tab");
    if (order.at(-1) === "prompt") break;
  }
  const at = (name) => order.findIndex((entry) => entry.includes(name));
  for (const [first, second] of [["menu-button", "tab-chat"], ["tab-chat", "settings-button"], ["settings-button", "new-chat"], ["new-chat", "search"], ["search", "conversation"], ["conversation", "Copy message"], ["Copy message", "Regenerate"], ["Regenerate", "prompt"]]) {
    assert.ok(at(first) >= 0 && at(first) < at(second), `${first} before ${second}: ${order}`);
  }
  await page.keyboard.press("Control+Shift+O");
  await until(async () => (await page.locator(".welcome").count()) === 1, "a new chat");
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
  await page.keyboard.press("Control+Shift+S");
  assert.ok(await page.isVisible("#settings"));
  await page.keyboard.press("Escape");
  assert.ok(await page.isHidden("#settings"));
  await page.click("#keys");
  assert.ok(await page.isVisible("#help"));
  await page.keyboard.press("Escape");
  assert.ok(await page.isHidden("#help"));
  // The menu of a conversation.
  await page.focus(".conversations .icon-button");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Rename");
  await page.keyboard.press("ArrowUp");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Delete");
  await page.keyboard.press("Escape");
  assert.equal(await page.locator(".menu").count(), 0);
  assert.match(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), /^More/);
}

export async function escape_closes_what_is_open_before_it_stops({ mock, open }) {
  mock.scenes = { slow: async (stream) => {
    for (let i = 0; i < 1000 && !stream.gone(); i += 1) {
      await stream.delta({ content: `word${i} ` });
      await pause(20);
    }
  } };
  const page = await open();
  await ask(page, "slow");
  await until(async () => (await answerText(page)).includes("word3 "), "it is being written");
  await page.click("#settings-button");
  await page.keyboard.press("Escape");
  assert.ok(await page.isHidden("#settings"));
  assert.equal(await page.getAttribute("#send", "aria-label"), "Stop", "the answer goes on");
  assert.equal(mock.aborted, 0);
  await page.keyboard.press("Escape");
  await done(page);
  await until(() => mock.aborted === 1, "then it is stopped");
}

export async function screen_readers_hear_sentences_and_find_names({ mock, open }) {
  mock.scenes = { speak: async (stream) => {
    await stream.text("This is the first sentence. ", { size: 4, wait: 20 });
    await pause(400);
    await stream.answer("And the second one\n\n```js\nlet x = 1;\n```", { size: 4 });
  } };
  const page = await open();
  await page.evaluate(() => {
    window.heard = [];
    new MutationObserver(() => window.heard.push(document.getElementById("said").textContent)).observe(document.getElementById("said"), { childList: true });
  });
  await ask(page, "speak");
  await page.waitForSelector("#send[aria-label=Stop]");
  await done(page);
  const heard = await page.evaluate(() => window.heard);
  assert.ok(heard.length <= 6, `few announcements, not one per token: ${heard.join(" | ")}`);
  assert.ok(heard.some((text) => text.includes("This is the first sentence.")), heard.join(" | "));
  assert.ok(heard.some((text) => text.includes("And the second one Code block.")), heard.join(" | "));
  assert.match(await said(page), /The answer is complete\.$/);
  assert.equal(await page.getAttribute("#messages", "aria-live"), "off");
  assert.equal(await page.getAttribute(".message.assistant", "aria-busy"), "false");
  // Every control has a name.
  for (const open of ["#settings-button", "#tab-model", "#tab-chat"]) await page.click(open);
  const nameless = await page.$$eval("button, input, select, textarea, iframe, a, [role=region], [role=meter]", (list) => list.filter((element) => !(element.getAttribute("aria-label") || element.textContent.trim() || element.title || (element.labels && [...element.labels].some((label) => label.textContent.trim())))).map((element) => element.outerHTML.slice(0, 120)));
  assert.deepEqual(nameless, []);
  const ids = await page.$$eval("[id]", (list) => list.map((element) => element.id));
  assert.equal(new Set(ids).size, ids.length, "ids are unique");
  const dangling = await page.$$eval("[aria-controls], [aria-labelledby], [aria-describedby], label[for]", (list) => list.flatMap((element) => ["aria-controls", "aria-labelledby", "aria-describedby", "for"].flatMap((name) => (element.getAttribute(name) ?? "").split(" ").filter((id) => id && !document.getElementById(id)))));
  assert.deepEqual(dangling, []);
  assert.equal(await page.locator("h1").count(), 1);
}

export async function contrast_is_enough_in_both_themes({ mock, open }) {
  mock.scenes = { colours: (stream) => stream.answer("# T\n\ntext `code` [l](http://a.b)\n\n> quote\n\n```rust\n// c\nfn f() -> Vec<u8> { let s = \"x\"; 12 }\n```\n\n| a |\n|---|\n| b |") };
  for (const colorScheme of ["light", "dark"]) {
    const page = await open({ colorScheme });
    await askAndWait(page, "colours");
    await page.click("#settings-button");
    const poor = await page.evaluate(() => {
      const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
      };
      const luminance = (colour) => {
        const [r, g, b] = colour.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
          const colour = rgba(getComputedStyle(at).backgroundColor);
          if (colour[3] > 250) return colour;
        }
        return [255, 255, 255, 255];
      };
      const found = new Set();
      const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || element.closest("option, :disabled, [aria-disabled], .hidden")) continue;
        const [a, b] = [luminance(rgba(getComputedStyle(element).color)), luminance(behind(element))].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) found.add(`${element.tagName}.${element.className} “${walker.currentNode.textContent.trim().slice(0, 20)}” ${ratio.toFixed(2)}`);
      }
      return [...found];
    });
    assert.deepEqual(poor, [], `${colorScheme}: text with less contrast than 4.5`);
  }
}

export async function reduced_motion_and_print({ open, shot }) {
  const page = await open({ reducedMotion: "reduce" });
  await askAndWait(page, "hello");
  const moving = await page.evaluate(() => document.getAnimations().length);
  assert.equal(moving, 0, "nothing moves");
  await page.emulateMedia({ media: "print" });
  for (const selector of [".bar", "#sidebar", ".dock", ".actions"]) assert.ok(await page.locator(selector).first().isHidden(), `${selector} is not printed`);
  assert.ok(await page.locator(".message.assistant").isVisible());
  await shot(page, "print");
  assert.equal(await answerText(page), "You said: hello");
}
