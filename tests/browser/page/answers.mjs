// Questions and answers: stream, reasoning, tools, stop, regenerate, edit, branches, errors.
import assert from "node:assert/strict";
import { pause } from "./mock.mjs";
import { act, answerText, ask, askAndWait, done, lastAnswer, until } from "./steps.mjs";

export async function streams_an_answer_in_odd_pieces({ mock, open }) {
  const text = "Grüße 😀, 日本語 and **bold**.\n\n- a\n- b";
  mock.scenes = { odd: async (stream) => {
    stream.piece = 3;
    await stream.bytes(": a comment\r\n\r\nevent: ping\r\ndata: {\"choices\":[]}\r\n\r\n");
    await stream.delta({ role: "assistant", content: "" });
    await stream.answer(text, { size: 1 });
  } };
  const page = await open();
  assert.ok(await page.isDisabled("#send"), "nothing to send yet");
  await page.fill("#prompt", "odd");
  await page.press("#prompt", "Shift+Enter");
  await page.keyboard.type("second line");
  assert.equal(mock.requests.length, 0, "Shift+Enter is a line");
  await page.press("#prompt", "Enter");
  await until(async () => (await page.locator(".figures").textContent()).includes("prompt"), "figures");
  assert.equal(await answerText(page), "Grüße 😀, 日本語 and bold.\n\na\nb".replace("\n\na", "\n\na"));
  assert.equal(await page.inputValue("#prompt"), "");
  const [body] = mock.requests;
  assert.deepEqual(body.messages, [{ role: "user", content: "odd\nsecond line" }]);
  assert.equal(body.stream_options.include_usage, true);
  assert.equal(body.temperature, undefined, "the server's default");
  const figures = await page.textContent(".figures");
  for (const words of ["41.7 tokens/s", "prompt 120, 64 cached"]) assert.ok(figures.includes(words), figures);
  assert.match(await page.textContent("#meter"), /\/ 4\u202f096/);
  assert.match(await page.textContent("#meter"), /cache 53 %/);
  const meter = page.locator("[role=meter]");
  assert.ok(Number(await meter.getAttribute("aria-valuenow")) > 120);
  assert.equal(await page.title(), "odd – Latent");
}

export async function folds_reasoning_and_streams_inside_it({ mock, open, shot }) {
  let go;
  const gate = new Promise((resolve) => (go = resolve));
  mock.scenes = { think: async (stream) => {
    await stream.text("First I look at **the question**.\n\n", { key: "reasoning_content" });
    await pause(1200);
    await stream.text("- then I answer\n", { key: "reasoning_content" });
    await gate;
    await stream.answer("The answer.");
  } };
  const page = await open();
  await ask(page, "think");
  const fold = page.locator(".reasoning");
  await until(async () => /Thinking… 1 s/.test(await fold.locator("summary").textContent()), "the seconds count");
  assert.equal(await fold.getAttribute("open"), null, "folded");
  await fold.locator("summary").click();
  await until(async () => (await fold.locator("strong").count()) === 1, "Markdown inside");
  await until(async () => (await fold.locator("li").count()) === 1, "it goes on while it is open");
  await shot(page, "reasoning");
  go();
  await done(page);
  assert.match(await fold.locator("summary").textContent(), /^Thought for \d+ s/);
  assert.equal(await answerText(page), "The answer.");
  await askAndWait(page, "again");
  assert.equal(mock.requests[1].messages[1].reasoning_content.slice(0, 7), "First I", "reasoning goes back to the server");
}

export async function shows_tool_calls_and_takes_their_results({ mock, open, shot }) {
  mock.scenes = { weather: async (stream, body) => {
    if (body.messages.at(-1).role === "tool") return stream.answer(`It is ${body.messages.at(-1).content}.`);
    await stream.text("I will look.");
    await stream.delta({ tool_calls: [{ index: 0, id: "call_a", type: "function", function: { name: "get_weather", arguments: "" } }] });
    for (const piece of ['{"city": "Be', 'rlin", "unit"', ': "c"}']) await stream.delta({ tool_calls: [{ index: 0, function: { arguments: piece } }] });
    await stream.delta({ tool_calls: [{ index: 1, id: "call_b", type: "function", function: { name: "get_time", arguments: "{}" } }] });
    return stream.finish("tool_calls");
  } };
  const page = await open();
  await askAndWait(page, "weather");
  const calls = page.locator("details.call");
  assert.equal(await calls.count(), 2);
  assert.match(await calls.first().locator("summary").textContent(), /get_weather/);
  await calls.first().locator("summary").click();
  assert.equal(await calls.first().locator("pre").textContent(), '{\n  "city": "Berlin",\n  "unit": "c"\n}');
  await shot(page, "tools");
  await page.fill(".results textarea >> nth=0", "12 degrees");
  await page.fill(".results textarea >> nth=1", "noon");
  await page.click(".results button");
  await until(async () => (await answerText(page)) === "It is noon.", "the answer after the results");
  const sent = mock.requests[1].messages;
  assert.deepEqual(sent.map(({ role }) => role), ["user", "assistant", "tool", "tool"]);
  assert.deepEqual(sent[1].tool_calls[0], { id: "call_a", type: "function", function: { name: "get_weather", arguments: '{"city": "Berlin", "unit": "c"}' } });
  assert.equal(sent[2].tool_call_id, "call_a");
  assert.equal(await page.locator(".results").count(), 0, "the form is gone");
  assert.equal(await page.locator(".message.tool").count(), 2, "results are shown");
}

const endless = async (stream) => {
  for (let i = 0; i < 2000 && !stream.gone(); i += 1) {
    await stream.delta({ content: `word${i} ` });
    await pause(15);
  }
};

export async function stops_by_button_and_by_escape_and_continues({ mock, open, shot }) {
  mock.scenes = { endless: async (stream, body) => (body.continue_final_message ? stream.answer("and the end.") : endless(stream)) };
  const page = await open();
  await ask(page, "endless");
  await until(async () => (await answerText(page)).includes("word5 "), "text comes");
  await page.click("#send");
  await done(page);
  await until(() => mock.aborted === 1, "the server saw the connection close");
  const text = await answerText(page);
  await pause(200);
  assert.equal(await answerText(page), text, "nothing comes any more");
  assert.match(await lastAnswer(page).locator(".trouble").textContent(), /Stopped/);
  await shot(page, "stopped");
  await page.click(".trouble button:has-text('Continue')");
  await until(async () => (await answerText(page)).endsWith("and the end."), "it goes on in place");
  assert.ok((await answerText(page)).startsWith("word0 word1"));
  const body = mock.requests[1];
  assert.equal(body.messages.at(-1).role, "assistant");
  assert.ok(body.messages.at(-1).content.startsWith("word0"));
  assert.equal(body.continue_final_message, true);
  assert.equal(await page.locator(".trouble").count(), 0);
  await ask(page, "endless again");
  await until(async () => (await answerText(page)).includes("word3 "), "text comes");
  await page.keyboard.press("Escape");
  await done(page);
  await until(() => mock.aborted === 2, "Escape stops too");
}

export async function continues_an_answer_that_reached_its_limit({ mock, open }) {
  mock.scenes = { long: async (stream, body) => {
    if (body.continue_final_message) return stream.answer(" part two.");
    await stream.text("Part one,");
    return stream.finish("length");
  } };
  const page = await open();
  await askAndWait(page, "long");
  assert.match(await page.textContent(".trouble"), /token limit reached/);
  await page.click(".trouble button");
  await until(async () => (await answerText(page)) === "Part one, part two.", "continued");
}

export async function regenerates_edits_and_keeps_branches({ mock, open, shot }) {
  let count = 0;
  mock.scenes = { pick: (stream) => stream.answer(`Answer ${(count += 1)}.`) };
  const page = await open();
  await askAndWait(page, "pick one");
  await act(page, "Regenerate");
  await until(async () => (await answerText(page)) === "Answer 2.", "a second answer");
  await done(page);
  const branches = () => lastAnswer(page).locator(".branches span").textContent();
  assert.equal(await branches(), "2/2");
  await act(page, "Previous version");
  assert.equal(await answerText(page), "Answer 1.");
  assert.equal(await branches(), "1/2");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), "Next version", "focus stays with the versions");
  await askAndWait(page, "pick more");
  assert.deepEqual(mock.requests.at(-1).messages.map(({ content }) => content), ["pick one", "Answer 1.", "pick more"]);
  // An edited question starts a branch.
  const question = page.locator(".message.user").first();
  await question.hover();
  await act(page, "Edit and resend", question);
  await page.fill(".editor textarea", "pick another");
  await shot(page, "edit");
  await page.press(".editor textarea", "Control+Enter");
  await until(async () => (await answerText(page)) === "Answer 4.", "the edited question is answered");
  await done(page);
  assert.deepEqual(mock.requests.at(-1).messages, [{ role: "user", content: "pick another" }]);
  assert.equal(await question.locator(".branches span").textContent(), "2/2");
  await shot(page, "branches");
  await page.waitForTimeout(900);
  await page.reload();
  await page.waitForSelector(".message.user");
  assert.equal(await question.locator(".body").textContent(), "pick another");
  await question.hover();
  await act(page, "Previous version", question);
  assert.equal(await page.locator(".message").count(), 4, "the other branch is whole");
  // An edited answer is a sibling of the first.
  await act(page, "Edit", lastAnswer(page));
  await page.fill(".editor textarea", "My own words");
  await page.click(".editor button:has-text('Save')");
  assert.equal(await answerText(page), "My own words");
  assert.equal(await branches(), "2/2");
  assert.equal(mock.requests.length, 4, "nothing was asked for it");
}

export async function nothing_changes_while_an_answer_is_written({ mock, open }) {
  mock.scenes = { endless };
  const page = await open();
  await askAndWait(page, "hello");
  await ask(page, "endless");
  await until(async () => (await answerText(page)).includes("word2 "), "text comes");
  const first = page.locator(".message.user").first();
  await first.hover();
  await act(page, "Edit and resend", first);
  await page.fill(".editor textarea", "a long thought");
  await page.click(".editor button:has-text('Send')");
  await until(async () => /stop it first/.test(await page.textContent("#toasts")), "told why not");
  assert.equal(await page.inputValue(".editor textarea"), "a long thought", "what was written stays");
  await page.click("#send");
  await done(page);
  await page.click(".editor button:has-text('Send')");
  await until(async () => (await answerText(page)) === "You said: a long thought", "now it is sent");
}

export async function what_is_no_stream_is_read_or_named({ mock, open }) {
  mock.scenes = {
    whole: (stream) => stream.error(200, { choices: [{ message: { role: "assistant", content: "All at once.", reasoning_content: "hm" }, finish_reason: "stop" }], usage: { prompt_tokens: 3, completion_tokens: 4 } }),
    page: (stream) => {
      stream.response.writeHead(200, { "Content-Type": "text/html" });
      stream.response.end("<html>a proxy</html>");
    },
    broken: async (stream) => {
      await stream.bytes("data: {not json\n\n");
      stream.response.end();
    },
  };
  const page = await open();
  await askAndWait(page, "whole");
  assert.equal(await answerText(page), "All at once.");
  await askAndWait(page, "page");
  assert.match(await lastAnswer(page).locator(".trouble").textContent(), /Unexpected reply/);
  await askAndWait(page, "broken");
  assert.match(await lastAnswer(page).locator(".trouble").textContent(), /not JSON: \{not json/);
}

export async function deletes_a_message_and_takes_it_back({ open }) {
  const page = await open();
  await askAndWait(page, "hello");
  await askAndWait(page, "world");
  const second = page.locator(".message.user").nth(1);
  await second.hover();
  await act(page, "Delete this message and everything after it", second);
  assert.equal(await page.locator(".message").count(), 2);
  await page.click(".toast button:has-text('Undo')");
  assert.equal(await page.locator(".message").count(), 4);
}

export async function shows_errors_in_place_with_retry({ mock, open, shot }) {
  let tries = 0;
  mock.scenes = {
    bad: (stream) => stream.error(400, { error: { message: "the schema is not valid: <b>x</b>", type: "invalid_request_error" } }),
    busy: (stream) => ((tries += 1) === 1 ? stream.error(429, { error: { message: "16 requests are waiting" } }, { "Retry-After": "2" }) : stream.answer("Now there is room.")),
    crash: (stream) => stream.error(500, "<html>proxy</html>"),
    late: async (stream) => {
      await stream.text("Half of it");
      await stream.bytes('data: {"error":{"message":"the engine failed","code":500}}\n\n');
      stream.response.end();
    },
  };
  const page = await open();
  await askAndWait(page, "bad");
  assert.match(await page.textContent(".trouble p"), /the schema is not valid: <b>x<\/b>/);
  assert.equal(await page.locator(".trouble b").count(), 0);
  await askAndWait(page, "busy");
  const trouble = lastAnswer(page).locator(".trouble");
  assert.match(await trouble.textContent(), /16 requests are waiting/);
  const retry = trouble.locator("button");
  assert.ok(await retry.isDisabled(), "not before the server's time");
  assert.match(await retry.textContent(), /Try again in [12] s/);
  await shot(page, "busy");
  await until(async () => (await retry.isEnabled()) && (await retry.textContent()) === "Try again", "the time has passed");
  await retry.click();
  await until(async () => (await answerText(page)) === "Now there is room.", "the retry");
  assert.equal(await page.locator(".message.assistant").count(), 2, "in its place");
  await askAndWait(page, "crash");
  assert.match(await lastAnswer(page).locator(".trouble").textContent(), /The server failed/);
  await askAndWait(page, "late");
  assert.equal(await answerText(page), "Half of it");
  assert.match(await lastAnswer(page).locator(".trouble").textContent(), /the engine failed/);
}

export async function keeps_what_came_when_the_connection_is_lost({ mock, open, shot }) {
  mock.scenes = { cut: async (stream, body) => {
    if (body.continue_final_message) return stream.answer("second half.");
    await stream.text("The first half and the ");
    await pause(100);
    return stream.response.destroy();
  }, quiet: async (stream) => {
    await stream.text("No reason to finish");
    stream.response.end();
  } };
  const page = await open();
  await askAndWait(page, "cut");
  assert.equal((await answerText(page)).trim(), "The first half and the");
  assert.match(await lastAnswer(page).locator(".trouble").textContent(), /connection was lost/);
  await shot(page, "lost");
  await page.click(".trouble button:has-text('Continue')");
  await until(async () => (await answerText(page)) === "The first half and the second half.", "continued");
  await done(page);
  await askAndWait(page, "quiet");
  assert.match(await lastAnswer(page).locator(".trouble").textContent(), /connection was lost/);
  const text = await answerText(page);
  await page.waitForTimeout(900);
  await page.reload();
  await page.waitForSelector(".message.assistant");
  assert.equal(await answerText(page), text, "kept over a reload");
  await mock.close();
  await askAndWait(page, "nobody there");
  assert.match(await lastAnswer(page).locator(".trouble").textContent(), /cannot be reached/);
  assert.equal(await page.locator(".message.user").last().locator(".body").textContent(), "nobody there", "the question is kept");
}

export async function shows_how_far_the_prompt_is_read({ mock, open, shot }) {
  mock.scenes = { prompt: async (stream) => {
    for (const processed of [2048, 8192]) {
      await stream.event({ choices: [{ index: 0, delta: { role: "assistant" } }], prompt_progress: { total: 16_384, cache: 0, processed, time_ms: 5 } });
      await pause(300);
    }
    await pause(500);
    await stream.answer("Read.");
  } };
  const page = await open();
  await ask(page, "prompt");
  await until(async () => /8\u202f192 of 16\u202f384 tokens/.test(await page.textContent(".waiting")), "the progress");
  assert.equal(await page.locator(".waiting progress").evaluate((bar) => bar.value), 0.5);
  await shot(page, "prompt");
  await done(page);
  assert.equal(await page.locator(".waiting").count(), 0);
}

export async function the_context_fills_while_a_model_is_loaded_and_answers({ mock, open }) {
  const steps = [];
  const step = () => new Promise((resolve) => steps.push(resolve));
  mock.sleeping = true;
  mock.scenes = { fill: async (stream) => {
    await stream.bytes(": loading\n\n");
    await step();
    mock.sleeping = false;
    await stream.event({ choices: [], prompt_progress: { total: 1000, cache: 64, processed: 600, time_ms: 5 } });
    await step();
    await stream.event({ choices: [], prompt_progress: { total: 1000, cache: 64, processed: 1000, time_ms: 9 } });
    await stream.delta({ content: "a" });
    await stream.delta({ content: "b" });
    await step();
    await stream.delta({ content: "c" }, { timings: { cache_n: 64, prompt_n: 936, predicted_n: 40 } });
    await step();
    Object.assign(stream, { prompt: 1000, tokens: 41 });
    await stream.finish();
  } };
  const page = await open();
  const meter = page.locator("[role=meter]");
  await ask(page, "fill");
  await until(() => steps.length === 1, "asked");
  assert.equal(await meter.count(), 0, "a model that is not loaded has no context yet");
  for (const [count, used] of [[1, 600], [2, 1002], [3, 1040], [4, 1041]]) {
    await until(() => steps.length === count, `step ${count}`);
    steps.at(-1)();
    await until(async () => (await meter.count()) === 1 && (await meter.getAttribute("aria-valuenow")) === String(used), `${used} tokens`);
  }
  assert.match(await page.textContent("#meter"), /1\u202f041 \/ 4\u202f096.*cache 6 %/);
}

export async function answers_go_on_in_the_background({ mock, open }) {
  let go;
  const gate = new Promise((resolve) => (go = resolve));
  mock.scenes = { wait: async (stream) => {
    await stream.text("Begun ");
    await gate;
    await stream.answer("and ended.");
  } };
  const page = await open();
  await ask(page, "wait for it");
  await until(async () => (await answerText(page)).includes("Begun"), "text comes");
  await page.click("#new-chat");
  assert.equal(await page.locator(".welcome").count(), 1);
  assert.equal(await page.locator(".running").count(), 1, "the list shows that it runs");
  await askAndWait(page, "meanwhile");
  assert.equal(await answerText(page), "You said: meanwhile");
  go();
  await until(async () => (await page.locator(".running").count()) === 0, "it ended");
  await page.click(".conversation:has-text('wait for it')");
  await until(async () => (await answerText(page)) === "Begun and ended.", "it is open");
}

export async function an_answer_cut_by_a_reload_can_be_continued({ mock, open }) {
  mock.scenes = { endless: async (stream, body) => (body.continue_final_message ? stream.answer("END") : endless(stream)) };
  const page = await open();
  await ask(page, "endless");
  await until(async () => (await answerText(page)).includes("word80"), "text comes", 15_000);
  await page.reload();
  await page.waitForSelector(".message.assistant");
  assert.match(await answerText(page), /word20/, "what was written is there");
  assert.match(await page.textContent(".trouble"), /interrupted/);
  await page.click(".trouble button");
  await until(async () => (await answerText(page)).endsWith("END"), "continued");
}
