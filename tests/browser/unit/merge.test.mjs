// Merging two copies of a conversation, and presence of answering tabs.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Library } from "../../../crates/server/assets/library.js";
import { mergeConversation } from "../../../crates/server/assets/merge.js";
import { Presence } from "../../../crates/server/assets/presence.js";
import { openStore } from "../../../crates/server/assets/store.js";
import { ROOT, addMessage, chooseBranch, newConversation, pathOf, removeMessage, restoreMessage, stamp } from "../../../crates/server/assets/tree.js";

const texts = (conversation) => pathOf(conversation).map((message) => message.content).join(" ");
const contents = (conversation) => Object.values(conversation.nodes).map((message) => message.content).filter(Boolean).sort().join(" ");

function sample() {
  const mine = newConversation(1000);
  const question = addMessage(mine, ROOT, { role: "user", content: "q" });
  const answer = addMessage(mine, question.id, { role: "assistant", content: "a" });
  return { mine, theirs: structuredClone(mine), question, answer };
}

test("messages of both copies are kept, and the objects of mine stay the same", () => {
  const { mine, theirs, answer } = sample();
  addMessage(mine, answer.id, { role: "user", content: "mine" });
  addMessage(theirs, answer.id, { role: "user", content: "theirs" });
  assert.deepEqual(mergeConversation(mine, theirs), { changed: true, behind: true });
  assert.equal(contents(mine), "a mine q theirs");
  assert.equal(mine.nodes[answer.id], answer);
  mergeConversation(theirs, mine);
  assert.equal(texts(theirs), texts(mine), "both copies show the same");
  assert.deepEqual(theirs.nodes[answer.id].children, mine.nodes[answer.id].children);
  assert.deepEqual(mergeConversation(mine, theirs), { changed: false, behind: false }, "there is nothing left to exchange");
});

test("the newer text of a message is kept, whichever copy is read", () => {
  const { mine, theirs, answer } = sample();
  Object.assign(theirs.nodes[answer.id], { content: "a longer answer", finish: "stop", rev: stamp() });
  mergeConversation(mine, theirs);
  assert.equal(answer.content, "a longer answer");
  const old = structuredClone(mine);
  Object.assign(answer, { content: "longer still", rev: stamp() });
  delete answer.finish;
  assert.equal(mergeConversation(mine, old).changed, false);
  assert.equal(answer.content, "longer still");
  mergeConversation(old, mine);
  assert.equal(old.nodes[answer.id].finish, undefined, "what the newer one lacks is not left over");
});

test("a deleted message does not return, its undoing does", () => {
  const { mine, theirs, answer } = sample();
  addMessage(theirs, answer.id, { role: "user", content: "below" });
  const removed = removeMessage(mine, answer.id);
  const copy = structuredClone(theirs);
  mergeConversation(theirs, mine);
  assert.equal(texts(theirs), "q", "what was written below it goes with it");
  mergeConversation(mine, copy);
  assert.equal(texts(mine), "q");
  assert.ok(restoreMessage(mine, removed));
  mergeConversation(theirs, mine);
  assert.equal(texts(theirs), "q a");
  assert.ok(!restoreMessage(mine, removed), "once");
});

test("title, settings and draft each are of the copy that changed them last", () => {
  const { mine, theirs } = sample();
  Object.assign(mine, { title: "given", named: true, titled: stamp() });
  Object.assign(theirs, { settings: { seed: "1" }, settingsAt: stamp(), title: "automatic", draft: "typed", drafted: stamp() });
  assert.deepEqual(mergeConversation(mine, theirs), { changed: true, behind: true });
  assert.deepEqual([mine.title, mine.named, mine.settings, mine.draft], ["given", true, { seed: "1" }, "typed"]);
});

test("the version that was chosen last is shown", () => {
  const { mine, question } = sample();
  addMessage(mine, question.id, { role: "assistant", content: "a2" });
  const theirs = structuredClone(mine);
  chooseBranch(theirs, pathOf(theirs).at(-1).id, -1);
  assert.equal(mergeConversation(mine, theirs).changed, true);
  assert.equal(texts(mine), "q a");
});

test("conversations of before there were stamps are merged too", () => {
  const { mine, answer } = sample();
  for (const message of Object.values(mine.nodes)) {
    delete message.rev;
    delete message.picked;
  }
  const theirs = structuredClone(mine);
  addMessage(theirs, answer.id, { role: "user", content: "new" });
  mergeConversation(mine, theirs);
  assert.equal(texts(mine), "q a new");
  assert.equal(mergeConversation(mine, structuredClone(mine)).changed, false);
});

test("a tab that writes what another one has deleted writes nothing, and hears of it", async () => {
  const store = await openStore({ indexedDB: undefined, localStorage: null });
  const { mine } = sample();
  await store.put(mine);
  const [deleting, writing] = [new Library(), new Library()];
  for (const tab of [deleting, writing]) {
    tab.store = store;
    await tab.readAll();
  }
  const copy = await writing.open(mine.id);
  const removed = await deleting.remove(mine.id);
  addMessage(copy, ROOT, { role: "user", content: "late" });
  writing.touch(copy);
  let told = 0;
  writing.addEventListener("elsewhere", () => (told += 1));
  await writing.save();
  assert.equal(await store.get(mine.id), undefined);
  assert.deepEqual([told, writing.list().length], [1, 0]);
  deleting.restore(removed);
  await deleting.save();
  assert.equal(texts(await store.get(mine.id)), "q a", "undo brings it back");
});

test("a tab tells which conversation it answers, and silence or the end of its lock ends that", async () => {
  const heard = [];
  const changed = [];
  let held = [];
  const locks = { request: (name, run) => Promise.resolve(run()), query: async () => ({ held: held.map((name) => ({ name })) }) };
  const writer = new Presence((message) => heard.push(message), () => {}, locks);
  const reader = new Presence(() => {}, (id) => changed.push(id), locks);
  writer.begin("c", "m");
  assert.deepEqual(heard, [{ answering: "c", messages: ["m"] }]);
  writer.say(Date.now() + 10);
  assert.equal(heard.length, 1, "not for every piece");
  reader.hear(heard[0], 1000);
  reader.hear(heard[0], 2000);
  assert.deepEqual(changed, ["c"], "once");
  assert.deepEqual(reader.of("c"), { messages: ["m"], since: 1000, seen: 2000 });
  held = ["latent.answer.c"];
  await reader.check(60_000);
  assert.ok(reader.of("c"), "a silent tab that holds its lock lives");
  held = [];
  await reader.check(60_000);
  assert.equal(reader.of("c"), null);
  reader.hear(heard[0], 60_000);
  reader.hear({ answered: "c" });
  assert.equal(reader.of("c"), null);
  writer.hear({ who: true });
  assert.equal(heard.length, 2, "a new tab is answered");
  writer.begin("c", "second");
  assert.deepEqual(heard.at(-1), { answering: "c", messages: ["m", "second"] });
  writer.end("c", "m");
  assert.deepEqual(heard.at(-1), { answering: "c", messages: ["second"] }, "of two answers one has ended");
  writer.end("c", "second");
  assert.deepEqual(heard.at(-1), { answered: "c" });
  for (const presence of [writer, reader]) {
    clearTimeout(presence.beat);
    clearInterval(presence.timer);
  }
});
