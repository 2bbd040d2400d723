// Hostile texts in all places, and a very long answer.
import assert from "node:assert/strict";
import { answerText, ask, askAndWait, choose, done, lastAnswer, until } from "./steps.mjs";

const EVIL = "<script>window.pwned=1</script><img src=x onerror=window.pwned=1><svg onload=window.pwned=1></svg><iframe srcdoc='<script>parent.pwned=1</script>'></iframe>";
const LINKS = "[a](javascript:window.pwned=1) [b](data:text/html,x) [c](JaVaScRiPt:window.pwned=1) <javascript:window.pwned=1> ![d](javascript:window.pwned=1) ![e](https://evil.example/x.png) [f](vbscript:x) [g](https://ok.example/)";

export async function nothing_that_arrives_becomes_markup({ mock, open, shot }) {
  mock.model = EVIL;
  mock.models = [EVIL, `${EVIL}2`];
  mock.scenes = {
    evil: async (stream) => {
      await stream.text(`${EVIL}\n\n**${EVIL}**`, { key: "reasoning_content" });
      await stream.text(`# ${EVIL}\n\n${EVIL}\n\n${LINKS}\n\n> - ${EVIL}\n\n| ${EVIL} |\n|---|\n| ${LINKS} |\n\n\`\`\`${EVIL.replace(/ /g, "")}\n${EVIL}</code></pre>${EVIL}\n\`\`\`\n\n$\\text{${EVIL}}$ $$${EVIL}$$ \\(\\href{javascript:1}{x}\\)\n`, { size: 5 });
      await stream.delta({ tool_calls: [{ index: 0, id: EVIL, function: { name: EVIL, arguments: JSON.stringify({ [EVIL]: EVIL }) } }] });
      await stream.finish("tool_calls");
    },
    error: (stream) => stream.error(400, { error: { message: EVIL } }),
  };
  const page = await open();
  await askAndWait(page, `evil ${EVIL}`);
  for (const fold of await page.locator("details > summary").all()) await fold.click();
  await until(async () => (await page.locator(".reasoning strong").count()) > 0, "reasoning is open");
  await shot(page, "hostile");
  await page.fill(".results textarea", EVIL);
  await page.click(".results button");
  await done(page);
  await askAndWait(page, `error ${EVIL}`);
  await choose(page, "evil", "Rename");
  await page.keyboard.type(EVIL);
  await page.keyboard.press("Enter");
  await page.click("#settings-button");
  await page.fill("#set-system", EVIL);
  await page.setInputFiles("#import-file", { name: `${EVIL.slice(0, 8)}.json`, mimeType: "application/json", buffer: Buffer.from(JSON.stringify([{ role: "user", content: EVIL }, { role: "assistant", content: `${EVIL}\n\n${LINKS}`, reasoning: EVIL, tool_calls: [{ id: EVIL, function: { name: EVIL, arguments: EVIL } }] }])) });
  await until(async () => (await page.locator(".conversation").count()) === 2, "imported");
  await page.waitForTimeout(300);
  const found = await page.evaluate(() => ({
    pwned: window.pwned,
    elements: [...document.querySelectorAll("script, img, iframe, object, embed, svg:not(.icon, .brand svg, .spark), [srcdoc], [style*=url]")].filter((element) => !element.src?.startsWith(location.origin)).map((element) => element.outerHTML.slice(0, 200)),
    handlers: [...document.querySelectorAll("*")].filter((element) => [...element.attributes].some(({ name }) => name.startsWith("on"))).length,
    links: [...new Set([...document.querySelectorAll("#messages a")].map((link) => `${link.href} ${link.target} ${link.rel}`))],
  }));
  assert.equal(found.pwned, undefined);
  assert.deepEqual(found.elements, []);
  assert.equal(found.handlers, 0);
  assert.deepEqual(found.links.sort(), ["https://evil.example/x.png _blank noopener noreferrer nofollow", "https://ok.example/ _blank noopener noreferrer nofollow"]);
  assert.ok((await lastAnswer(page).textContent()).includes("<script>window.pwned=1</script>"), "it is shown as it is");
}

export async function the_policy_stops_what_is_inline({ open, problems }) {
  const page = await open();
  const stopped = await page.evaluate(() => new Promise((resolve) => {
    document.addEventListener("securitypolicyviolation", (event) => resolve(event.violatedDirective));
    const script = document.createElement("script");
    script.textContent = "window.pwned = 2";
    document.body.append(script);
    setTimeout(() => resolve("nothing stopped it"), 3000);
  }));
  assert.match(stopped, /script-src/);
  assert.equal(await page.evaluate(() => window.pwned), undefined);
  // This violation is expected.
  assert.match(problems.splice(0).join(), /Content Security Policy/);
}

// The text of a long answer: prose, lists, code, tables, mathematics.
function longText(size) {
  const part = (i) => `## Part ${i}\n\nA paragraph with **bold**, *italic* and \`code\` about number ${i}: ${"words that go on ".repeat(12)}and $x_${i}^2$.\n\n- first\n- second\n  - nested\n\n\`\`\`rust\nfn part_${i}(x: u32) -> u32 {\n    // a comment\n    x * ${i} + 1\n}\n\`\`\`\n\n| a | b |\n|---|---|\n| ${i} | ${i * i} |\n\n`;
  let text = "";
  for (let i = 1; text.length < size; i += 1) text += part(i);
  return text;
}

// Counts tasks that blocked the page for 200 ms or more while `text` is streamed in small chunks.
async function longTasks(mock, open, text, size) {
  mock.scenes = { long: async (stream) => {
    stream.piece = 4096;
    for (let at = 0; at < text.length; at += size) {
      await stream.delta({ content: text.slice(at, at + size) });
      if ((at / size) % 40 === 0) await new Promise((resolve) => setTimeout(resolve, 4));
    }
    await stream.finish();
  } };
  const page = await open();
  await page.evaluate(() => {
    window.tasks = [];
    new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => Math.round(entry.duration)))).observe({ type: "longtask" });
  });
  await ask(page, "long");
  await page.waitForSelector("#send[aria-label=Stop]");
  await page.fill("#prompt", "typed while it streams");
  await page.waitForSelector("#send[aria-label=Send]", { timeout: 90_000 });
  assert.equal(await page.inputValue("#prompt"), "typed while it streams");
  const tasks = await page.evaluate(() => window.tasks);
  return { page, tasks, slow: tasks.filter((duration) => duration >= 200) };
}

export async function a_long_answer_keeps_the_page_responsive({ mock, open, shot }) {
  const text = longText(200_000);
  const { page, tasks, slow } = await longTasks(mock, open, text, 9);
  console.log(`     200 KB of mixed Markdown: ${tasks.length} tasks over 50 ms, ${slow.length} over 200 ms, longest ${Math.max(0, ...tasks)} ms`);
  // The cores of a test machine are shared, so this limits the number of long tasks, not their
  // time.
  assert.ok(slow.length <= 12, `${slow.length} tasks of 200 ms and more: ${slow}`);
  const parts = text.match(/^## /gm).length;
  assert.equal(await page.locator(".slot-content > h4").count(), parts, "all of it is there");
  assert.equal(await page.locator(".slot-content .code-block").count(), parts);
  await shot(page, "long");
  const end = await page.evaluate(() => document.getElementById("transcript").scrollHeight - document.getElementById("transcript").scrollTop - document.getElementById("transcript").clientHeight);
  assert.ok(end < 5, "it stayed at the end");
}

export async function one_long_code_block_keeps_the_page_responsive({ mock, open }) {
  const text = `\`\`\`js\n${Array.from({ length: 4200 }, (_, i) => i % 7 === 3 ? "" : `const value${i} = compute("${i}") + ${i}; // line ${i}`).join("\n")}\n\`\`\`\n`;
  const { page, tasks, slow } = await longTasks(mock, open, text, 9);
  console.log(`     ${Math.round(text.length / 1000)} KB of code: ${tasks.length} tasks over 50 ms, ${slow.length} over 200 ms, longest ${Math.max(0, ...tasks)} ms`);
  assert.ok(slow.length <= 12, `${slow.length} tasks of 200 ms and more: ${slow}`);
  const code = text.slice(6, -5);
  // The boxes of lines add no line breaks: a selection copies exactly the code.
  assert.equal((await page.locator("pre code").innerText()).trimEnd(), code);
}

export async function reading_above_is_not_disturbed({ mock, open }) {
  let go;
  const gate = new Promise((resolve) => (go = resolve));
  mock.scenes = { grow: async (stream) => {
    await stream.text("line\n\n".repeat(60), { size: 60 });
    await gate;
    await stream.text("more\n\n".repeat(60), { size: 30, wait: 5 });
    await stream.finish();
  } };
  const page = await open();
  await ask(page, "grow");
  await until(async () => (await answerText(page)).split("line").length > 60, "text is there");
  await page.locator("#transcript").hover();
  await page.mouse.wheel(0, -900);
  await page.waitForTimeout(300);
  const top = await page.evaluate(() => document.getElementById("transcript").scrollTop);
  go();
  await done(page);
  assert.equal(await page.evaluate(() => document.getElementById("transcript").scrollTop), top, "the place that is read stays");
  assert.ok(await page.isVisible("#to-end"));
  await page.click("#to-end");
  await until(() => page.isHidden("#to-end"), "at the end");
}

export async function code_can_be_copied({ mock, open }) {
  mock.scenes = { code: (stream) => stream.answer("```sh\necho 'a < b'\n\n```") };
  const page = await open();
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await askAndWait(page, "code");
  await page.click(".code-copy");
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "echo 'a < b'\n");
  assert.match(await page.textContent(".code-copy"), /Copied/);
  await page.click(".message.assistant [aria-label='Copy message']");
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "```sh\necho 'a < b'\n\n```");
}
