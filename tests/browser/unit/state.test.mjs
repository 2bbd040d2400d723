// State and requests: the tree of messages, the store, the request, the stream.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Announcer, plain, sentenceEnd } from "../../../crates/server/assets/announcer.js";
import { SseParser, retryAfter } from "../../../crates/server/assets/api.js";
import { keepDraft } from "../../../crates/server/assets/drafts.js";
import { applyChunk, rateOf, tokensOf, tokensSoFar } from "../../../crates/server/assets/answer.js";
import { CodeView, languageOf, tokenizeLine } from "../../../crates/server/assets/code.js";
import { Library } from "../../../crates/server/assets/library.js";
import { EMPTY, cleanSettings, problemsOf, requestBody } from "../../../crates/server/assets/request.js";
import { found, openStore, readSetting, writeSetting } from "../../../crates/server/assets/store.js";
import { ROOT, addMessage, branchOf, chooseBranch, newConversation, pathOf, readImport, removeMessage, requestMessages, titleFrom, toMarkdown } from "../../../crates/server/assets/tree.js";

const texts = (conversation) => pathOf(conversation).map((message) => message.content).join(" ");

function sample() {
  const conversation = newConversation(1000);
  const question = addMessage(conversation, ROOT, { role: "user", content: "q" });
  const first = addMessage(conversation, question.id, { role: "assistant", content: "a1" });
  const second = addMessage(conversation, question.id, { role: "assistant", content: "a2" });
  const more = addMessage(conversation, second.id, { role: "user", content: "q2" });
  return { conversation, question, first, second, more };
}

test("branches: the newest is shown, others are a step away, and each keeps what follows", () => {
  const { conversation, first, second, question } = sample();
  assert.equal(texts(conversation), "q a2 q2");
  assert.deepEqual(branchOf(conversation, second.id), [1, 2]);
  assert.ok(chooseBranch(conversation, second.id, -1));
  assert.equal(texts(conversation), "q a1");
  assert.ok(!chooseBranch(conversation, first.id, -1), "nothing is before the first");
  assert.ok(chooseBranch(conversation, first.id, 1));
  assert.equal(texts(conversation), "q a2 q2");
  addMessage(conversation, ROOT, { role: "user", content: "edited" });
  assert.equal(texts(conversation), "edited");
  chooseBranch(conversation, pathOf(conversation)[0].id, -1);
  assert.equal(pathOf(conversation)[0].id, question.id);
});

test("a removed message takes what follows with it and shows a neighbour", () => {
  const { conversation, first, second } = sample();
  removeMessage(conversation, second.id);
  assert.equal(texts(conversation), "q a1");
  assert.equal(Object.keys(conversation.nodes).length, 3);
  removeMessage(conversation, first.id);
  assert.equal(texts(conversation), "q");
  removeMessage(conversation, pathOf(conversation)[0].id);
  assert.equal(texts(conversation), "");
});

test("removing a branch that is not shown leaves the shown one", () => {
  const { conversation, first } = sample();
  removeMessage(conversation, first.id);
  assert.equal(texts(conversation), "q a2 q2");
});

test("a request holds the path, reasoning and tool calls in the API's form", () => {
  const { conversation, more } = sample();
  const call = addMessage(conversation, more.id, { role: "assistant", content: "", reasoning: "hm", calls: [{ id: "c1", name: "f", arguments: "{}" }] });
  const result = addMessage(conversation, call.id, { role: "tool", content: "42", callId: "c1" });
  const failed = addMessage(conversation, result.id, { role: "assistant", content: "", error: "lost" });
  assert.deepEqual(requestMessages(conversation, failed.id, "be brief"), [
    { role: "system", content: "be brief" },
    { role: "user", content: "q" },
    { role: "assistant", content: "a2" },
    { role: "user", content: "q2" },
    { role: "assistant", content: null, reasoning_content: "hm", tool_calls: [{ id: "c1", type: "function", function: { name: "f", arguments: "{}" } }] },
    { role: "tool", tool_call_id: "c1", content: "42" },
  ]);
});

test("what is exported is imported, branches and all", () => {
  const { conversation } = sample();
  conversation.title = "T";
  const file = JSON.stringify({ format: "latent-conversations", version: 1, conversations: [conversation] });
  const [back] = readImport(file);
  assert.notEqual(back.id, conversation.id, "an import replaces nothing");
  assert.equal(back.title, "T");
  assert.equal(texts(back), "q a2 q2");
  assert.deepEqual(branchOf(back, pathOf(back)[1].id), [1, 2]);
});

test("messages of other programs are imported", () => {
  const [made] = readImport(JSON.stringify([{ role: "system", content: "s" }, { role: "user", content: [{ type: "text", text: "hello" }] }, { role: "assistant", content: "hi", reasoning_content: "r", tool_calls: [{ id: "1", function: { name: "f", arguments: "{}" } }] }, { role: "tool", tool_call_id: "1", content: "x" }]));
  assert.equal(texts(made), "hello hi x");
  assert.equal(pathOf(made)[1].reasoning, "r");
  assert.deepEqual(pathOf(made)[1].calls, [{ id: "1", name: "f", arguments: "{}" }]);
});

test("a damaged or hostile import is refused or cleaned, never believed", () => {
  for (const text of ["", "{", "[]", "{}", "null", "7", '"x"', '{"messages":[]}', '{"conversations":[]}', '{"nodes":{}}']) assert.throws(() => readImport(text), /./, text);
  const nodes = { 0: { children: ["1", "1", "9", 7, "2"], choice: 99 }, 1: { role: "user", content: { a: 1 }, children: ["0", "1", "2"], usage: { prompt: "x", completion: 3 }, calls: "no", evil: 1 }, 2: { role: "admin", content: "x", children: [] }, __proto__: { children: [] } };
  const [made] = readImport(JSON.stringify({ nodes, title: 7, id: "<img>" }));
  assert.equal(pathOf(made).length, 1);
  const [message] = pathOf(made);
  assert.equal(message.content, "");
  assert.equal(message.evil, undefined);
  assert.deepEqual(message.usage, { completion: 3 });
  assert.match(made.id, /^[\da-f]{24}$/);
  let deep = { role: "user", content: "x", children: [] };
  const many = { 0: { children: ["1"], choice: 0 } };
  for (let i = 1; i < 20_000; i += 1) many[i] = { ...deep, children: [String(i + 1)] };
  assert.equal(pathOf(readImport(JSON.stringify({ nodes: many }))[0]).length, 19_999, "a long one does not overflow");
});

test("an export of ChatGPT becomes conversations, with its branches", () => {
  const node = (id, parent, children, role, text) => [id, { id, parent, children, message: role ? { author: { role }, create_time: 1700000000.5, content: { content_type: "text", parts: [text] }, metadata: { model_slug: "gpt" } } : null }];
  const mapping = Object.fromEntries([node("r", null, ["s"]), node("s", "r", ["q"], "system", ""), node("q", "s", ["a", "b"], "user", "question"), node("a", "q", ["c"], "assistant", "first"), node("b", "q", [], "assistant", "second"), node("c", "a", ["q"], "user", "more")]);
  const [made] = readImport(JSON.stringify([{ title: "Old", create_time: 1700000000, update_time: 1700000009, current_node: "c", mapping }]));
  assert.deepEqual([made.title, made.created, made.updated], ["Old", 1700000000000, 1700000009000]);
  assert.deepEqual(pathOf(made).map(({ role, content }) => `${role} ${content}`), ["user question", "assistant first", "user more"], "the branch that was shown");
  assert.deepEqual(branchOf(made, pathOf(made)[1].id), [0, 2]);
  assert.equal(pathOf(made)[1].model, "gpt");
  for (const mapping of [{}, [], { a: null }, { a: { message: 5, children: "x" } }, { a: { children: ["a"] } }]) assert.throws(() => readImport(JSON.stringify([{ mapping }])), /no conversation/);
});

test("further samplers and fields of the user's own are sent; the page's own fields are not theirs", () => {
  const body = requestBody({ ...EMPTY, dry_multiplier: "0.8", xtc_probability: "0.5", extra: '{"logit_bias": [[5, -1]], "temperature": 0.1}', temperature: "1" }, []);
  assert.deepEqual([body.dry_multiplier, body.xtc_probability, body.logit_bias, body.temperature], [0.8, 0.5, [[5, -1]], 0.1]);
  for (const extra of ["[]", "{", '{"stream": false}', '{"messages": []}']) assert.deepEqual(problemsOf({ ...EMPTY, extra }).map(([key]) => key), ["extra"], extra);
  assert.deepEqual(problemsOf({ ...EMPTY, extra: '{"a": 1}', mirostat: "3" }).map(([key]) => key), ["mirostat"]);
});

test("Markdown export: who said what, with fences that hold", () => {
  const { conversation, second } = sample();
  second.calls = [{ id: "1", name: "f", arguments: '"```"' }];
  second.reasoning = "because";
  const text = toMarkdown(conversation);
  assert.match(text, /^# New chat\n\n## You\n\nq\n\n## Assistant/);
  assert.match(text, /````json\n"```"\n````/);
  assert.match(text, /because/);
});

test("titles come from the first line", () => {
  assert.equal(titleFrom("  # **Hello** `x`\nmore"), "Hello x");
  assert.equal(titleFrom("\n\n"), "New chat");
  assert.ok(titleFrom("word ".repeat(40)).length <= 50);
});

// A storage with a quota, as in browsers.
function fakeStorage(limit = Infinity) {
  const kept = new Map();
  return { get length() { return kept.size; }, key: (i) => [...kept.keys()][i], getItem: (key) => kept.get(key) ?? null, removeItem: (key) => kept.delete(key), setItem(key, value) { if (value.length > limit) throw new Error("quota"); kept.set(key, value); } };
}

test("without IndexedDB localStorage keeps conversations, without both memory does", async () => {
  const refusing = { open() { throw new Error("refused"); } };
  const store = await openStore({ indexedDB: refusing, localStorage: fakeStorage(2000) });
  assert.equal(store.kind, "localstorage");
  const { conversation } = sample();
  await store.put(conversation);
  assert.deepEqual(await store.get(conversation.id), conversation);
  assert.equal((await store.all()).length, 1);
  const seen = [];
  await store.each(({ id }) => seen.push(id));
  assert.deepEqual(seen, [conversation.id]);
  await assert.rejects(store.put({ ...conversation, big: "x".repeat(3000) }), /quota/);
  await store.remove(conversation.id);
  assert.equal(await store.get(conversation.id), undefined);
  const memory = await openStore({ indexedDB: undefined, localStorage: null });
  assert.equal(memory.kind, "memory");
  await memory.put(conversation);
  conversation.title = "changed later";
  assert.equal((await memory.get(conversation.id)).title, "New chat", "a copy was kept");
});

// Two tabs with one store and without a channel: the test decides when a tab learns of the other's
// writes.
async function twoTabs() {
  const store = await openStore({ indexedDB: undefined, localStorage: null });
  const { conversation } = sample();
  await store.put(conversation);
  const tabs = [new Library(), new Library()];
  for (const tab of tabs) {
    tab.store = store;
    await tab.readAll();
  }
  return { store, id: conversation.id, tabs };
}

test("a conversation that the store refuses keeps no other, and no draft, from being written", async () => {
  const { store, id, tabs: [tab] } = await twoTabs();
  const put = store.put.bind(store);
  store.put = (conversation) => {
    if (conversation.title === "too large") throw new Error("the disk is full");
    return put(conversation);
  };
  const [refused, kept] = [newConversation(2000), newConversation(3000)];
  refused.title = "too large";
  for (const conversation of [refused, kept]) tab.touch(conversation);
  tab.touchDraft(Object.assign(await tab.open(id), { draft: "typed" }));
  let full = 0;
  tab.addEventListener("full", () => (full += 1));
  await tab.save();
  assert.equal(full, 1);
  assert.ok(await store.get(kept.id));
  assert.equal(await store.get(refused.id), undefined);
  assert.equal((await store.get(id)).draft, "typed");
  store.put = put;
  await tab.save();
  assert.equal((await store.get(refused.id)).title, "too large", "once there is room, it is written");
});

test("typing in a tab keeps what another tab wrote, before and after it is told", async () => {
  const { store, id, tabs: [typing, writing] } = await twoTabs();
  const [seen, other] = [await typing.open(id), await writing.open(id)];
  addMessage(other, addMessage(other, ROOT, { role: "user", content: "elsewhere" }).id, { role: "assistant", content: "answered" });
  writing.touch(other);
  await writing.save();
  seen.draft = "half a sentence";
  typing.touchDraft(seen);
  await typing.save();
  assert.equal(texts(await store.get(id)), "elsewhere answered");
  assert.equal((await store.get(id)).draft, "half a sentence");

  seen.draft = "half a sentence more";
  typing.touchDraft(seen);
  let told = "";
  typing.addEventListener("elsewhere", ({ detail }) => (told = detail));
  await typing.changedElsewhere({ changed: id });
  assert.equal(told, id, "a draft does not keep the other tab's text out");
  const read = await typing.open(id);
  assert.equal(texts(read), "elsewhere answered");
  assert.equal(read.draft, "half a sentence more");
  clearTimeout(typing.timer);
});

test("a draft that was typed last is found again, one that was sent is not", async () => {
  const { store, id, tabs: [typing] } = await twoTabs();
  const conversation = await typing.open(id);
  typing.touchDraft(Object.assign(conversation, { draft: "typed" }));
  // The page is closed before it has saved.
  clearTimeout(typing.timer);
  const reopened = async () => {
    const tab = new Library();
    tab.store = store;
    return (await tab.open(id)).draft;
  };
  const { updated } = await store.get(id);
  keepDraft(id, "typed", updated + 1);
  assert.equal(await reopened(), "typed");
  typing.touch(Object.assign(conversation, { draft: "", updated: updated + 2 }), true);
  await typing.save();
  assert.equal((await store.get(id)).draft, "", "what is still to be written of a draft does not come after it was sent");
  assert.equal(await reopened(), "");
});

test("damaged entries of localStorage are passed over", async () => {
  const storage = fakeStorage();
  storage.setItem("latent.conversation.x", "{");
  const store = await openStore({ indexedDB: null, localStorage: storage });
  assert.deepEqual(await store.all(), []);
});

test("settings live on without storage", () => {
  assert.equal(readSetting("none", 5), 5);
  writeSetting("a", { b: 1 });
  assert.deepEqual(readSetting("a", null), { b: 1 });
});

test("a search finds all words in titles and messages, whatever their case", () => {
  const { conversation } = sample();
  assert.ok(found(conversation, "A1 new"));
  assert.ok(!found(conversation, "a1 missing"));
});

test("empty settings leave the server's defaults", () => {
  const body = requestBody(EMPTY, [], { model: "m" });
  assert.deepEqual(Object.keys(body).sort(), ["messages", "model", "return_progress", "stream", "stream_options", "timings_per_token"]);
});

test("settings become the fields of the API", () => {
  const settings = { ...EMPTY, temperature: "0,7", top_k: "40", seed: "5", stop: "END\n\\n\\n\n", reasoning: "high", format: "schema", schema: '{"type":"object"}', tools: '[{"name":"f"}]', model: "other" };
  const body = requestBody(settings, [], { model: "m", prefill: true });
  assert.equal(body.temperature, 0.7);
  assert.equal(body.top_k, 40);
  assert.equal(body.seed, 5);
  assert.equal(body.model, "other");
  assert.deepEqual(body.stop, ["END", "\n\n"]);
  assert.equal(body.reasoning_effort, "high");
  assert.equal(body.chat_template_kwargs.enable_thinking, true);
  assert.deepEqual(body.response_format.json_schema.schema, { type: "object" });
  assert.deepEqual(body.tools, [{ type: "function", function: { name: "f" } }]);
  assert.equal(body.continue_final_message, true);
  assert.equal(body.add_generation_prompt, false);
  assert.equal(requestBody({ ...EMPTY, reasoning: "off" }, []).chat_template_kwargs.enable_thinking, false);
  assert.equal(requestBody({ ...EMPTY, format: "grammar", grammar: "root ::= x" }, []).grammar, "root ::= x");
});

test("wrong settings are named", () => {
  const wrong = (values) => problemsOf({ ...EMPTY, ...values }).map(([key]) => key).join();
  assert.equal(wrong({ temperature: "hot", top_p: "2", top_k: "1.5", seed: "-1", min_p: "0.1" }), "temperature,top_p,top_k,seed");
  assert.equal(wrong({ format: "schema", schema: "{" }), "schema");
  assert.equal(wrong({ format: "schema", schema: "[]" }), "schema");
  assert.equal(wrong({ format: "", schema: "{" }), "", "what is not sent is not checked");
  assert.equal(wrong({ format: "grammar" }), "grammar");
  assert.equal(wrong({ tools: "{}" }), "tools");
  assert.deepEqual(cleanSettings({ temperature: 5, evil: "x", seed: "1" }), { ...EMPTY, seed: "1" });
});

test("SSE events come out whole, whatever the pieces and line ends", () => {
  for (const end of ["\n", "\r\n", "\r"]) {
    const stream = [": comment", "data: {\"a\":", "data: 1}", "", "event: x", "data:two", "id: 7", "", "data", "", "data: ü😀", "", ""].join(end);
    for (let size = 1; size < 12; size += 1) {
      const parser = new SseParser();
      const events = [];
      for (let at = 0; at < stream.length; at += size) events.push(...parser.push(stream.slice(at, at + size)));
      assert.deepEqual(events.map(({ event, data }) => [event, data]), [["", '{"a":\n1}'], ["x", "two"], ["", ""], ["", "ü😀"]], `${JSON.stringify(end)}, ${size}`);
    }
  }
});

test("Retry-After in both forms", () => {
  assert.equal(retryAfter("7"), 7);
  assert.equal(retryAfter("Thu, 01 Jan 1970 00:00:10 GMT", 4000), 6);
  for (const none of [null, "", "soon", "-5"]) assert.equal(retryAfter(none), 0);
  assert.equal(retryAfter("999999999"), 3600);
});

const chunk = (delta, more) => ({ choices: [{ delta }], ...more });

test("chunks fill a message: reasoning with its time, text, tool calls in parts", () => {
  const message = { content: "" };
  const live = { tokens: 0, callBase: 0 };
  applyChunk(message, chunk({ role: "assistant", content: null }), live, 0);
  applyChunk(message, chunk({ reasoning_content: "a" }), live, 1000);
  applyChunk(message, chunk({ reasoning: "b" }), live, 2000);
  applyChunk(message, chunk({ content: "x" }), live, 4000);
  assert.deepEqual([message.reasoning, message.reasoningMs, message.content], ["ab", 3000, "x"]);
  applyChunk(message, chunk({ tool_calls: [{ index: 1, id: "2", function: { name: "g", arguments: "" } }] }), live, 5000);
  applyChunk(message, chunk({ tool_calls: [{ index: 0, id: "1", function: { name: "f", arguments: '{"a"' } }] }), live, 5000);
  applyChunk(message, chunk({ tool_calls: [{ index: 0, function: { arguments: ":1}" } }, { index: 1, function: { arguments: { b: 2 } } }] }), live, 5000);
  assert.deepEqual(message.calls, [{ id: "1", name: "f", arguments: '{"a":1}' }, { id: "2", name: "g", arguments: '{"b":2}' }]);
  applyChunk(message, { choices: [{ delta: {}, finish_reason: "tool_calls" }] }, live, 6000);
  applyChunk(message, { choices: [], usage: { prompt_tokens: 9, completion_tokens: 4, prompt_tokens_details: { cached_tokens: 5 } } }, live, 6000);
  assert.equal(message.finish, "tool_calls");
  assert.deepEqual(tokensOf(message), { prompt: 9, completion: 4, cached: 5, reasoning: 0 });
  assert.deepEqual(tokensOf({ timings: { cache_n: 3, prompt_n: 4, predicted_n: 5 } }), { prompt: 7, cached: 3, completion: 5, reasoning: 0 });
  assert.equal(rateOf({}, { tokens: 11, firstToken: 0, lastToken: 1000 }), 10);
  applyChunk(message, {}, live, 1);
  applyChunk(message, { choices: [{}] }, live, 1);
});

test("the context fills while the prompt is read and the answer written, with the server's figures or without", () => {
  const message = { content: "" };
  const live = { tokens: 0 };
  const used = (chunk) => {
    applyChunk(message, chunk, live, 0);
    const tokens = tokensSoFar(message, live);
    return tokens && [tokens.prompt, tokens.cached, tokens.completion];
  };
  assert.equal(used({ choices: [{ delta: { role: "assistant" } }] }), null);
  assert.deepEqual(used({ choices: [], prompt_progress: { total: 300, cache: 64, processed: 20 } }), [20, 20, 0]);
  assert.deepEqual(used({ choices: [], prompt_progress: { total: 300, cache: 64, processed: 300 } }), [300, 64, 0]);
  for (const content of ["a", "b"]) used({ choices: [{ delta: { content } }] });
  assert.deepEqual(used({ choices: [{ delta: { content: "c" } }] }), [300, 64, 3]);
  assert.deepEqual(used({ choices: [{ delta: { content: "d" } }], timings: { cache_n: 64, prompt_n: 236, predicted_n: 7 } }), [300, 64, 7]);
  assert.deepEqual(used({ choices: [], usage: { prompt_tokens: 300, completion_tokens: 9, prompt_tokens_details: { cached_tokens: 64 } } }), [300, 64, 9]);
});

test("a screen reader hears sentences, and code by name", () => {
  const said = [];
  const announcer = new Announcer((text) => said.push(text));
  announcer.update("Hel", 10_000);
  announcer.update("Hello **you**. And", 10_100);
  announcer.update("Hello **you**. And more. Yes", 10_200);
  assert.deepEqual(said, ["Hello you."], "not twice within the pause");
  announcer.update("Hello **you**. And more. Yes", 12_000);
  announcer.finish("Hello **you**. And more. Yes", "Complete.");
  assert.deepEqual(said, ["Hello you.", "And more.", "Yes Complete."]);
  assert.equal(sentenceEnd("a. b\n```\nx. y\n"), 2, "not inside code");
  assert.equal(plain("See\n```js\nlet a;\n```\n$$x$$ [b](http://c)"), "See Code block. Formula. b");
});

test("code is coloured by line with a state, and no character is lost", () => {
  const kinds = (line, name, state = null) => tokenizeLine(line, languageOf(name), state);
  assert.deepEqual(kinds("let a = \"x\"; // c", "rust").tokens.filter(([kind]) => kind), [["keyword", "let"], ["string", '"x"'], ["comment", "// c"]]);
  const open = kinds("a /* b", "js");
  assert.equal(open.state.kind, "comment");
  assert.deepEqual(kinds("c */ d", "js", open.state).tokens[0], ["comment", "c */"]);
  assert.deepEqual(kinds('{"a": 1}', "json").tokens.filter(([kind]) => kind), [["name", '"a"'], ["number", "1"]]);
  assert.equal(languageOf("constructor"), null);
  for (const name of ["rust", "c", "js", "python", "shell", "sql", "json", "yaml", "toml", "css", "html", "haskell", "lua", "go", "nothing"]) {
    for (const line of ["", "  x = 'a' + \"b\\\" # // -- /* <b c='1'> $x ${y} `z", "0x1F 1e-5 1_000u8 .5 'it", "@a::b!(c) é ü_1 😀", "\"\"\"a", "<!-- x"]) {
      assert.equal(tokenizeLine(line, languageOf(name), null).tokens.map(([, text]) => text).join(""), line, `${name}: ${line}`);
    }
  }
  assert.ok(CodeView);
});
