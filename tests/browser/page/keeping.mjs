// Data in the browser: conversations, drafts, settings, the key; search, rename, delete, import,
// export.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { findings } from "../axe.mjs";
import { act, answerText, ask, askAndWait, choose, done, titles, until } from "./steps.mjs";

export async function keeps_conversations_and_drafts({ open }) {
  const page = await open();
  await askAndWait(page, "first question");
  await page.fill("#prompt", "a draft of the first");
  await page.click("#new-chat");
  assert.equal(await page.inputValue("#prompt"), "");
  await page.fill("#prompt", "a draft of a new one");
  await page.waitForTimeout(900);
  await page.reload();
  await page.waitForSelector(".conversation");
  assert.equal(await page.inputValue("#prompt"), "a draft of a new one");
  await page.click(".conversation");
  await until(async () => (await page.inputValue("#prompt")) === "a draft of the first", "its draft");
  assert.equal(await answerText(page), "You said: first question");
  assert.match(page.url(), /#[\da-f]{24}$/);
  await page.reload();
  await page.waitForSelector(".message.assistant");
  assert.equal(await page.getAttribute(".conversation", "aria-current"), "true", "the address names the conversation");
  await page.goBack();
  await until(async () => (await page.locator(".welcome").count()) === 1, "back");
}

export async function what_was_just_typed_survives_a_reload({ open }) {
  const page = await open();
  await askAndWait(page, "a question");
  // The answer is stored.
  await page.waitForTimeout(900);
  for (let round = 0; round < 5; round += 1) {
    const text = `typed just now ${round}`;
    await page.fill("#prompt", text);
    await page.reload();
    await page.waitForSelector(".message.assistant");
    assert.equal(await page.inputValue("#prompt"), text);
  }
  // The separately stored draft becomes part of the conversation, and disappears once it was sent.
  await page.waitForTimeout(900);
  await askAndWait(page, "another question");
  await page.reload();
  await page.waitForSelector(".message.assistant");
  assert.equal(await page.inputValue("#prompt"), "", "what was sent is no draft");
}

export async function what_was_just_sent_survives_a_reload({ mock, open }) {
  mock.scenes = { again: async (stream) => {
    await stream.text("Begun");
    await new Promise((resolve) => stream.response.on("close", resolve));
  } };
  const page = await open();
  await askAndWait(page, "a question");
  await page.waitForTimeout(900);
  for (let round = 0; round < 3; round += 1) {
    await ask(page, `again ${round}`);
    await page.waitForFunction(() => [...document.querySelectorAll(".message.assistant")].at(-1).textContent.includes("Begun"));
    await page.reload();
    await page.waitForSelector(".message.assistant");
    assert.equal(await page.locator(".message.user .body").last().textContent(), `again ${round}`);
    assert.equal(await page.inputValue("#prompt"), "");
  }
}

export async function finds_renames_and_deletes_with_undo({ open, shot }) {
  const page = await open();
  for (const text of ["apples and pears", "red bicycles", "blue bicycles"]) {
    await page.click("#new-chat");
    await askAndWait(page, text);
  }
  assert.deepEqual(await titles(page), ["blue bicycles", "red bicycles", "apples and pears"]);
  await page.keyboard.press("Control+k");
  assert.equal(await page.evaluate(() => document.activeElement.id), "search");
  await page.keyboard.type("said BICYCLES");
  await until(async () => (await titles(page)).length === 2, "found by words of the answers");
  assert.equal(await page.textContent("#search-count"), "2 found");
  await shot(page, "search");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "red bicycles");
  await page.keyboard.press("Enter");
  await until(async () => (await answerText(page)) === "You said: red bicycles", "opened by keys");
  await page.fill("#search", "nothing like it");
  await until(async () => /No conversations match/.test(await page.textContent("#conversations")), "none");
  await page.press("#search", "Escape");
  await until(async () => (await titles(page)).length === 3, "all again");
  await choose(page, "red bicycles", "Rename");
  await page.keyboard.type("Green ones");
  await page.keyboard.press("Enter");
  assert.ok((await titles(page)).includes("Green ones"));
  await askAndWait(page, "more");
  assert.ok((await titles(page)).includes("Green ones"), "a title that was given stays");
  await choose(page, "Green ones", "Delete");
  await until(async () => (await titles(page)).length === 2, "deleted");
  await until(async () => (await page.locator(".welcome").count()) === 1, "the open one is gone");
  await shot(page, "undo");
  await page.click(".toast button:has-text('Undo')");
  await until(async () => (await titles(page)).includes("Green ones"), "undone");
  assert.equal(await answerText(page), "You said: more");
  await page.focus(".conversation >> nth=1");
  await page.keyboard.press("Delete");
  await until(async () => (await titles(page)).length === 2, "deleted by key");
  await page.waitForTimeout(900);
  await page.reload();
  await page.waitForSelector(".conversation");
  assert.equal((await titles(page)).length, 2, "for good");
}

export async function a_search_leads_to_the_match({ mock, open }) {
  mock.scenes = { filler: (stream) => stream.answer("text\n\n".repeat(60)), needle: (stream) => stream.answer("Here is the **golden** needle.") };
  const page = await open();
  await askAndWait(page, "filler one");
  await askAndWait(page, "needle");
  for (const text of ["filler two", "filler three"]) await askAndWait(page, text);
  await page.click("#new-chat");
  await page.fill("#search", "golden needle");
  await until(async () => (await page.textContent("#search-count")) === "1 found", "found");
  await page.click(".conversation");
  const match = page.locator(".message.assistant", { hasText: "golden" });
  await until(() => match.isVisible(), "the conversation is open");
  const [top, height] = await match.evaluate((element) => [element.getBoundingClientRect().top, innerHeight]);
  assert.ok(top >= 0 && top < height / 2, `the match is in sight: ${top}`);
  assert.equal(await page.evaluate(() => CSS.highlights.get("found").size), 2, "its words are marked");
  assert.ok(await page.isHidden("#find"), "one match needs no way to others");
}

export async function the_other_matches_of_a_search_are_reached({ mock, open, shot }) {
  mock.scenes = { filler: (stream) => stream.answer("text\n\n".repeat(60)), needle: (stream) => stream.answer("Here is the golden needle.") };
  const page = await open();
  for (const text of ["needle one", "filler", "needle two", "filler again"]) await askAndWait(page, text);
  // A match on a hidden branch.
  await act(page, "Edit and resend", page.locator(".message.user").last());
  await page.fill(".editor textarea", "no filler");
  await page.click(".editor button:has-text('Send')");
  await done(page);
  await page.fill("#search", "golden");
  await until(async () => (await page.textContent("#search-count")) === "1 found", "found");
  await page.click(".conversation");
  await until(() => page.isVisible("#find"), "several matches");
  assert.equal(await page.textContent("#find [role=status]"), "Match 1 of 2");
  await shot(page, "matches");
  assert.deepEqual(await findings(page), [], "axe-core");
  const seen = async (index) => {
    const [top, height] = await page.locator(".message.assistant", { hasText: "golden" }).nth(index).evaluate((element) => [element.getBoundingClientRect().top, innerHeight]);
    return top >= 0 && top < height;
  };
  assert.ok((await seen(0)) && !(await seen(1)));
  await page.click("[aria-label='Next match']");
  assert.equal(await page.textContent("#find [role=status]"), "Match 2 of 2");
  assert.ok((await seen(1)) && !(await seen(0)));
  await page.click("[aria-label='Next match']");
  assert.ok(await seen(0), "from the last to the first");
  const search = async (words) => {
    await page.fill("#search", "nothing like it");
    await until(async () => (await page.textContent("#search-count")) === "0 found", "nothing");
    await page.fill("#search", words);
    await until(async () => (await page.textContent("#search-count")) === "1 found", words);
    await page.click(".conversation");
  };
  await search("again");
  await until(async () => /filler again/.test((await page.locator(".message.user .body").allTextContents()).join()), "its branch is shown");
  await search("golden");
  await page.locator("#find [aria-label='Next match']").focus();
  await page.keyboard.press("Escape");
  assert.ok(await page.isHidden("#find"));
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
  assert.equal(await page.evaluate(() => CSS.highlights.has("found")), false);
}

export async function exports_and_imports({ open }) {
  const page = await open();
  await askAndWait(page, "keep **this**");
  const [json] = await Promise.all([page.waitForEvent("download"), page.click("#export")]);
  assert.match(json.suggestedFilename(), /^latent-\d{4}-\d\d-\d\d\.json$/);
  const file = readFileSync(await json.path(), "utf8");
  assert.equal(JSON.parse(file).conversations.length, 1);
  const [markdown] = await Promise.all([page.waitForEvent("download"), choose(page, "keep this", "Export as Markdown")]);
  assert.equal(markdown.suggestedFilename(), "keep-this.md");
  assert.match(readFileSync(await markdown.path(), "utf8"), /^# keep this\n\n## You\n\nkeep \*\*this\*\*\n\n## mla-demo\n\nYou said: keep/);
  const give = (name, text) => page.setInputFiles("#import-file", { name, mimeType: "application/json", buffer: Buffer.from(text) });
  await give("copy.json", file);
  await until(async () => (await titles(page)).length === 2, "imported beside the first");
  assert.equal(await answerText(page), "You said: keep this");
  await give("messages.json", JSON.stringify([{ role: "user", content: "from elsewhere" }, { role: "assistant", content: "yes" }]));
  await until(async () => (await titles(page)).length === 3, "a list of messages");
  await until(async () => (await answerText(page)) === "yes", "it is opened");
  const node = (id, parent, children, role, text) => [id, { id, parent, children, message: role && { author: { role }, content: { content_type: "text", parts: [text] } } }];
  const mapping = Object.fromEntries([node("r", null, ["q"]), node("q", "r", ["a", "b"], "user", "asked of ChatGPT"), node("a", "q", [], "assistant", "its first answer"), node("b", "q", [], "assistant", "its second answer")]);
  await give("conversations.json", JSON.stringify([{ title: "Of ChatGPT", create_time: 1, update_time: 2, current_node: "a", mapping }]));
  await until(async () => (await answerText(page)) === "its first answer", "an export of ChatGPT, with the answer that was shown there");
  assert.equal(await page.locator(".message.assistant .branches span").textContent(), "1/2", "and its other versions");
  assert.ok((await titles(page)).includes("Of ChatGPT"));
  await give("bad.json", "{");
  await until(async () => /bad\.json: The file is not JSON/.test(await page.textContent("#toasts")), "refused with a reason");
  assert.equal((await titles(page)).length, 4);
}

export async function settings_are_sent_checked_and_kept({ mock, open, shot }) {
  const page = await open();
  await page.click("#settings-button");
  assert.equal(await page.getAttribute("#set-temperature", "placeholder"), "0.8", "the server's default");
  await page.selectOption("#preset", "Creative");
  assert.equal(await page.inputValue("#set-temperature"), "1.1");
  await page.fill("#set-temperature", "0.3");
  assert.equal(await page.$eval("#preset", (select) => select.selectedOptions[0].textContent), "Custom");
  await page.press("#set-temperature", "ArrowUp");
  assert.equal(await page.inputValue("#set-temperature"), "0.35");
  await page.fill("#set-system", "Be brief.");
  await page.fill("#set-max_tokens", "100");
  await page.fill("#set-stop", "END");
  await page.click("#settings .more summary");
  assert.equal(await page.getAttribute("#set-samplers", "placeholder"), "penalties; top_k; temperature", "the server's order");
  await page.fill("#set-samplers", "top_k; min_p, temperature");
  await page.fill("#set-dry_sequence_breakers", "\\n\n:");
  assert.ok(await page.locator("#settings").evaluate((panel) => panel.scrollWidth <= panel.clientWidth), "nothing is cut off at the side");
  await shot(page, "more-samplers");
  await page.selectOption("#set-reasoning", "low");
  await page.selectOption("#set-format", "schema");
  assert.ok(await page.isHidden("#set-grammar"));
  await page.fill("#set-schema", '{"type": ');
  assert.equal(await page.getAttribute("#set-schema", "aria-invalid"), "true");
  await ask(page, "not yet");
  await until(async () => /A schema is needed/.test(await page.textContent("#toasts")), "a wrong setting is named");
  assert.equal(mock.requests.length, 0);
  assert.equal(await page.inputValue("#prompt"), "not yet", "the text stays");
  await page.fill("#set-schema", '{"type": "object"}');
  await shot(page, "settings");
  await page.click("#settings [aria-label='Save as a preset']");
  await page.keyboard.type("Mine");
  await page.keyboard.press("Enter");
  assert.equal(await page.inputValue("#preset"), "Mine");
  await page.press("#prompt", "Enter");
  await done(page);
  await until(() => mock.requests.length === 1, "sent");
  const [body] = mock.requests;
  assert.deepEqual([body.temperature, body.max_tokens, body.stop, body.reasoning_effort, body.min_p, body.top_p], [0.35, 100, ["END"], "low", 0.05, 1]);
  assert.deepEqual([body.samplers, body.dry_sequence_breakers], [["top_k", "min_p", "temperature"], ["\n", ":"]]);
  assert.deepEqual(body.messages[0], { role: "system", content: "Be brief." });
  assert.deepEqual(body.response_format.json_schema.schema, { type: "object" });
  await page.selectOption("#preset", "Server defaults");
  assert.equal(await page.inputValue("#set-temperature"), "");
  assert.equal(await page.inputValue("#set-system"), "Be brief.", "a built-in preset leaves the system prompt");
  await page.selectOption("#preset", "Mine");
  await page.reload();
  await page.waitForSelector(".message.assistant");
  await page.click("#settings-button");
  assert.equal(await page.inputValue("#preset"), "Mine", "kept");
  await page.click("#settings [aria-label='Delete this preset']");
  assert.equal(await page.locator("#preset option:has-text('Mine')").count(), 0);
  await page.click(".toast button:has-text('Undo')");
  assert.equal(await page.locator("#preset option:has-text('Mine')").count(), 1);
  await page.click("#settings [aria-label='Close settings']");
  assert.equal(await page.evaluate(() => document.activeElement.id), "settings-button");
}

export async function asks_for_the_key_and_keeps_it_as_wished({ mock, open, shot }) {
  mock.key = "secret key/ä";
  const page = await open();
  await page.waitForSelector("#api-key");
  await shot(page, "key");
  await page.fill("#api-key", "wrong");
  await page.press("#api-key", "Enter");
  await until(async () => /was not accepted/.test(await page.textContent("#notice")), "a wrong key is refused");
  await page.fill("#api-key", mock.key.replace("ä", ""));
  assert.equal(await page.getAttribute("#api-key", "type"), "password");
  mock.key = "secret key/";
  await page.press("#api-key", "Enter");
  await until(async () => (await page.textContent("#model-name")) === "mla-demo-Q4_K_M", "in");
  assert.ok(await page.isHidden("#notice"));
  await askAndWait(page, "hello");
  assert.equal(await answerText(page), "You said: hello");
  assert.equal(await page.evaluate(() => localStorage.getItem("latent.key")), null, "this tab only");
  assert.equal(await page.evaluate(() => sessionStorage.getItem("latent.key")), "secret key/");
  await page.click("#tab-model");
  await page.waitForSelector("iframe");
  assert.equal(await page.frameLocator("iframe").locator("#drawn").textContent(), "the drawing", "the frame is let in by the cookie");
  await page.click("#tab-chat");
  // A key that becomes invalid during a chat.
  mock.key = "another";
  await askAndWait(page, "and now");
  await page.waitForSelector("#api-key");
  await page.fill("#api-key", "another");
  await page.check("#remember-key");
  await page.click("#notice button");
  await until(async () => (await answerText(page)) === "You said: and now", "the question is sent again by itself");
  assert.equal(await page.evaluate(() => localStorage.getItem("latent.key")), "another");
}

export async function a_message_that_was_sent_without_a_key_is_sent_again({ mock, open }) {
  mock.key = "secret";
  const page = await open();
  await page.waitForSelector("#api-key");
  await askAndWait(page, "too early");
  const trouble = await page.textContent(".trouble");
  assert.match(trouble, /requires an API key/);
  assert.doesNotMatch(trouble, /no valid API key|Bearer|header/, "no text about headers");
  await page.fill("#api-key", "schlüssel€");
  await page.press("#api-key", "Enter");
  assert.ok(await page.isVisible("#api-key"), "characters that no header holds are refused here");
  await page.fill("#api-key", "secret");
  await page.press("#api-key", "Enter");
  await until(async () => (await answerText(page)) === "You said: too early", "it is sent again by itself");
  assert.equal(await page.locator(".message.user").count(), 1);
  await until(async () => (await page.textContent("#model-name")) === "mla-demo-Q4_K_M", "and the server is read");
}

export async function without_a_database_it_keeps_less_and_says_so({ open }) {
  const page = await open({ init: () => Object.defineProperty(window, "indexedDB", { value: { open() { throw new Error("refused"); } } }) });
  assert.match(await page.textContent("#notice"), /Storage is limited/);
  await page.click("#notice button");
  await askAndWait(page, "hello");
  await page.waitForTimeout(900);
  await page.reload();
  await page.waitForSelector(".conversation");
  assert.deepEqual(await titles(page), ["hello"]);
  const bare = await open({ init: () => {
    for (const name of ["indexedDB", "localStorage", "sessionStorage"]) Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
  } });
  assert.match(await bare.textContent("#notice"), /will not be saved/);
  await askAndWait(bare, "hello");
  assert.equal(await answerText(bare), "You said: hello");
  await bare.click("#theme-button");
}

export async function a_full_disk_is_told({ open }) {
  const page = await open({ init: () => {
    IDBObjectStore.prototype.put = () => {
      throw new DOMException("full", "QuotaExceededError");
    };
  } });
  await askAndWait(page, "hello");
  await until(async () => /not saved/.test(await page.textContent("#notice")), "told");
  assert.equal(await answerText(page), "You said: hello");
}
