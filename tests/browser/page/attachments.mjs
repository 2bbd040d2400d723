// Text files that are attached to a message: picked, dropped, pasted, refused, sent, shown, kept.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { findings } from "../axe.mjs";
import { act, answerText, ask, askAndWait, choose, done, titles, until } from "./steps.mjs";

const file = (name, text) => ({ name, mimeType: "application/octet-stream", buffer: Buffer.from(text) });
const NOTES = file("notes.md", "# Notes\n\nThe ```fenced``` part.\n");
const CODE = file("main.rs", "fn main() {\n    println!(\"wombat\");\n}\n");
const pick = (page, ...files) => page.setInputFiles("#composer input[type=file]", files);
const chips = (page) => page.locator("#composer .file-name").allTextContents();
const attached = async (page, ...names) => until(async () => (await chips(page)).join() === names.join(), `attached: ${names}`);
const heard = (mock) => {
  mock.scenes = { ...mock.scenes, File: (stream) => stream.answer("I have read it.") };
};

export async function files_are_sent_with_a_message_and_shown_in_it({ mock, open, shot }) {
  heard(mock);
  const page = await open();
  assert.ok(await page.isDisabled("#send"));
  await pick(page, NOTES, CODE);
  await attached(page, "notes.md", "main.rs");
  assert.ok(await page.isEnabled("#send"), "files alone can be sent");
  await page.fill("#prompt", "What do they say?");
  await until(async () => /with this message/.test(await page.textContent("#meter")), "the files are counted");
  const counted = Number(await page.getAttribute("[role=meter]", "aria-valuenow"));
  await shot(page, "attached");
  await page.press("#prompt", "Enter");
  await done(page);
  const sent = mock.requests[0].messages[0].content;
  assert.equal(sent, "File: notes.md\n\n````md\n# Notes\n\nThe ```fenced``` part.\n````\n\nFile: main.rs\n\n```rs\nfn main() {\n    println!(\"wombat\");\n}\n```\n\nWhat do they say?");
  assert.equal(counted, sent.split(/\s+/).length);
  assert.deepEqual(await chips(page), [], "the next message has none");
  const blocks = page.locator(".message.user details.file");
  assert.deepEqual(await blocks.locator(".file-name").allTextContents(), ["notes.md", "main.rs"]);
  assert.equal(await page.locator(".message.user .body").textContent(), "What do they say?");
  assert.equal(await blocks.nth(1).getAttribute("open"), null, "folded");
  assert.match(await blocks.nth(1).locator("summary").textContent(), /3 lines, 38 B/);
  await blocks.nth(1).locator("summary").click();
  await until(async () => (await blocks.nth(1).locator("code").textContent()) === CODE.buffer.toString(), "its text");
  assert.ok((await blocks.nth(1).locator(".t-keyword").count()) > 0, "in colours");
  await shot(page, "attached-sent");
  assert.equal((await titles(page))[0], "What do they say?");
  // Without a question, the title is the name of the first file.
  await page.click("#new-chat");
  await pick(page, CODE);
  await attached(page, "main.rs");
  await page.press("#prompt", "Enter");
  await done(page);
  assert.equal((await titles(page))[0], "main.rs");
  assert.ok(await page.locator(".message.user .body").isHidden(), "no empty bubble");
}

export async function what_is_not_text_or_too_large_is_refused_with_a_reason({ mock, open, shot }) {
  const page = await open();
  const refused = (words) => until(async () => words.test(await page.textContent("#toasts")), String(words));
  await pick(page, file("photo.png", Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0, 0, 0, 13])));
  await refused(/photo\.png is not a text file/);
  await pick(page, file("paper.pdf", "%PDF-1.7\n% text only"));
  await refused(/paper\.pdf is not a text file/);
  await pick(page, file("squeezed.bin", Buffer.from([0x1f, 0x8b, 0xff, 0xfe, 0x02])));
  await refused(/squeezed\.bin is not a text file/);
  await pick(page, file("empty.txt", ""));
  await refused(/empty\.txt is empty/);
  await pick(page, file("big.log", "x".repeat(2_000_001)), file("fits.log", "good"));
  await refused(/big\.log has 2\.0 MB\. An attached file can have up to 2\.0 MB/);
  await shot(page, "refused");
  await attached(page, "fits.log");
  await pick(page, file("fits.log", "good"));
  await refused(/fits\.log is attached already/);
  await pick(page, file("old.txt", Buffer.from("Gr\xfc\xdfe", "latin1")), file("wide.txt", Buffer.from("\ufeffwide €", "utf16le")), file("lines.txt", "a\r\nb"));
  await attached(page, "fits.log", "old.txt", "wide.txt", "lines.txt");
  const half = (name) => file(name, name.repeat(1_900_000 / name.length));
  await pick(page, half("half1.txt"), half("half2.txt"), half("half3.txt"));
  await refused(/half3\.txt is not attached: the files of a message can have up to 4\.0 MB in total/);
  for (const name of ["half1.txt", "half2.txt"]) await page.click(`[aria-label='Remove ${name}']`);
  await page.click("[aria-label='Remove fits.log']");
  await attached(page, "old.txt", "wide.txt", "lines.txt");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), "Remove old.txt", "the focus stays in the list");
  await pick(page, ...Array.from({ length: 19 }, (_, i) => file(`more${i}.txt`, `text ${i}`)));
  await refused(/more17\.txt is not attached: a message can have up to 20 files/);
  assert.equal((await chips(page)).length, 20);
  await page.fill("#prompt", "now");
  await page.press("#prompt", "Enter");
  await done(page);
  const [{ content }] = mock.requests[0].messages;
  for (const text of ["Grüße", "\nwide €\n", "a\nb"]) assert.ok(content.includes(text), text);
}

export async function files_are_dropped_and_long_texts_are_pasted({ open, shot }) {
  const page = await open();
  const transfer = (name, text) => page.evaluateHandle(([fileName, content]) => {
    const data = new DataTransfer();
    if (fileName) data.items.add(new File([content], fileName));
    else data.setData("text/plain", content);
    return data;
  }, [name, text]);
  const dropped = await transfer("dropped.txt", "dropped text");
  await page.dispatchEvent("#transcript", "dragover", { dataTransfer: dropped });
  assert.ok(await page.isVisible("#drop"));
  await shot(page, "drop");
  await page.dispatchEvent("#sidebar", "dragover", { dataTransfer: dropped });
  assert.ok(await page.isHidden("#drop"), "not there");
  assert.equal(await page.evaluate((data) => document.getElementById("sidebar").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })), dropped), false, "the browser does not open it");
  assert.deepEqual(await chips(page), []);
  await page.dispatchEvent("#transcript", "drop", { dataTransfer: dropped });
  await attached(page, "dropped.txt");
  const paste = async (name, text) => page.evaluate((data) => document.getElementById("prompt").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })), await transfer(name, text));
  assert.equal(await paste("", "a short text"), true, "short texts are pasted as ever");
  assert.equal(await paste("pasted.csv", "a,b"), false);
  await attached(page, "dropped.txt", "pasted.csv");
  const long = `${"many words ".repeat(300)}end`;
  assert.equal(await paste("", long), false);
  await attached(page, "dropped.txt", "pasted.csv", "Pasted text.txt");
  assert.equal(await page.inputValue("#prompt"), "");
  assert.equal(await paste("", `${long}.`), false);
  await attached(page, "dropped.txt", "pasted.csv", "Pasted text.txt", "Pasted text 2.txt");
  await page.locator(".toast", { hasText: "pasted text is attached" }).last().locator("button:has-text('Undo')").click();
  await attached(page, "dropped.txt", "pasted.csv", "Pasted text.txt");
  assert.equal(await page.inputValue("#prompt"), `${long}.`, "in the field instead");
}

export async function attached_files_are_kept({ mock, open, shot }) {
  heard(mock);
  const page = await open();
  // The draft of a new chat.
  await pick(page, NOTES);
  await attached(page, "notes.md");
  await page.fill("#prompt", "about it");
  await page.waitForTimeout(300);
  await page.reload();
  await page.waitForSelector("html[data-ready]", { state: "attached" });
  await attached(page, "notes.md");
  assert.equal(await page.inputValue("#prompt"), "about it");
  await pick(page, CODE);
  await attached(page, "notes.md", "main.rs");
  await page.press("#prompt", "Enter");
  await done(page);
  await page.click("#new-chat");
  assert.deepEqual(await chips(page), [], "what was sent is no draft");
  await page.click(".conversation");
  await page.waitForSelector(".message.user");
  // The draft of a conversation.
  await pick(page, file("later.txt", "later"));
  await attached(page, "later.txt");
  await page.click("#new-chat");
  assert.deepEqual(await chips(page), []);
  await page.reload();
  await page.waitForSelector(".conversation");
  await page.click(".conversation");
  await attached(page, "later.txt");
  const names = page.locator(".message.user details.file .file-name");
  assert.deepEqual(await names.allTextContents(), ["notes.md", "main.rs"], "the message has its files after a reload");
  // Edit.
  await act(page, "Edit and resend", page.locator(".message.user"));
  await page.click(".editor [aria-label='Remove notes.md']");
  await page.setInputFiles(".editor input[type=file]", file("third.txt", "three"));
  await until(async () => (await page.locator(".editor .file-name").allTextContents()).join() === "main.rs,third.txt", "the files of the edited message");
  await shot(page, "attached-edit");
  await page.click(".editor button:has-text('Send')");
  await done(page);
  assert.match(mock.requests.at(-1).messages[0].content, /^File: main\.rs\n\n```rs\n[^]*File: third\.txt\n\n```txt\nthree\n```\n\nabout it$/);
  assert.deepEqual(await names.allTextContents(), ["main.rs", "third.txt"]);
  await act(page, "Previous version", page.locator(".message.user"));
  assert.deepEqual(await names.allTextContents(), ["notes.md", "main.rs"]);
  // Export and import.
  const [json] = await Promise.all([page.waitForEvent("download"), page.click("#export")]);
  const [markdown] = await Promise.all([page.waitForEvent("download"), choose(page, "about it", "Export as Markdown")]);
  assert.match(readFileSync(await markdown.path(), "utf8"), /## You\n\nFile: notes\.md\n\n````md\n# Notes/);
  await page.setInputFiles("#import-file", await json.path());
  await until(async () => (await titles(page)).length === 2, "imported");
  await attached(page, "later.txt");
  assert.deepEqual(await names.allTextContents(), ["notes.md", "main.rs"]);
}

export async function a_search_opens_the_file_that_has_the_words({ mock, open }) {
  heard(mock);
  const page = await open();
  await pick(page, NOTES, CODE);
  await attached(page, "notes.md", "main.rs");
  await ask(page, "read them");
  await done(page);
  await page.click("#new-chat");
  await page.fill("#search", "wombat");
  await until(async () => (await page.textContent("#search-count")) === "1 found", "found by a word of the file");
  await page.click(".conversation");
  await until(async () => (await page.locator("details.file[open] .file-name").allTextContents()).join() === "main.rs", "the file is open");
  await until(() => page.evaluate(() => CSS.highlights.get("found")?.size === 1), "and the word marked");
}

export async function a_summary_takes_the_files_of_the_question_along({ mock, open }) {
  mock.context = 200;
  mock.scenes = { one: (stream) => stream.answer("reply to one"), Summarize: (stream) => stream.answer("We counted.") };
  const page = await open();
  await until(async () => /\/ 200/.test(await page.textContent("#meter")), "the context is known");
  await askAndWait(page, `one ${"word ".repeat(60)}`);
  await askAndWait(page, `one ${"word ".repeat(60)}`);
  await pick(page, file("long.txt", "word ".repeat(100)));
  await until(() => page.isVisible("#length"), "the file makes the prompt too long");
  await page.click("#length button:has-text('New chat with a summary')");
  await until(async () => (await page.inputValue("#prompt")).startsWith("Summary of our conversation so far:\n\nWe counted."), "a draft with the summary");
  await attached(page, "long.txt");
  assert.equal(await page.locator(".message").count(), 0);
}

export async function axe_finds_nothing_in_attached_files({ mock, open, shot }) {
  heard(mock);
  for (const options of [{ viewport: { width: 1280, height: 800 } }, { viewport: { width: 1280, height: 800 }, colorScheme: "dark" }, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true }, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, colorScheme: "dark" }]) {
    const page = await open({ reducedMotion: "reduce", ...options });
    const name = `${options.viewport.width}-${options.colorScheme ?? "light"}`;
    await pick(page, NOTES, CODE, file("a file with quite a long name that does not fit into a chip.json", '{"a": [1, 2, {"b": null}]}\n'));
    await until(async () => (await chips(page)).length === 3, "attached");
    await page.fill("#prompt", "What is in these files, and which of them is the longest?");
    assert.deepEqual(await findings(page), [], `files of a draft, ${name}`);
    await shot(page, `files-draft-${name}`);
    await page.click("#send");
    await done(page);
    assert.equal(await answerText(page), "I have read it.");
    await page.locator(".message.user details.file summary").nth(1).click();
    assert.deepEqual(await findings(page), [], `files of a message, ${name}`);
    await shot(page, `files-sent-${name}`);
    await page.locator(".message.user").hover();
    await act(page, "Edit and resend", page.locator(".message.user"));
    assert.deepEqual(await findings(page), [], `files of an edited message, ${name}`);
    await shot(page, `files-edit-${name}`);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing is wider than the window");
  }
}
