// Attached files: text detection, and their form in the prompt.
import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, cleanFiles, decodeText, extensionOf, promptText, readFile } from "../../../crates/server/assets/attachment.js";
import { ROOT, addMessage, newConversation, pairOf, readImport, requestMessages, showMessage, toMarkdown } from "../../../crates/server/assets/tree.js";
import { modelsFor } from "../../../crates/server/assets/compare.js";

const data = (text, encoding) => new Uint8Array(Buffer.from(text, encoding));

test("text is told from other data, whatever its encoding", () => {
  assert.equal(decodeText(data("plain\r\nlines\r")), "plain\nlines\n");
  assert.equal(decodeText(data("\ufeffmarked")), "marked");
  assert.equal(decodeText(data("\ufeffwide", "utf16le")), "wide");
  assert.equal(decodeText(data("\ufeffwide", "utf16le").map((_, i, all) => all[i ^ 1])), "wide", "big-endian");
  assert.equal(decodeText(data("caf\xe9", "latin1")), "café");
  assert.equal(decodeText(data("a\x1b[31mred\x1b[0m log")), "a\x1b[31mred\x1b[0m log", "logs in colour");
  for (const bad of [[0], [0x61, 0, 0x62], [0xff, 0xfe, 0, 0], [0xe9, 0x02], [...data("%PDF-1.4 text")]]) assert.equal(decodeText(new Uint8Array(bad)), null, String(bad));
});

test("fences are longer than every run of backticks in a file", () => {
  const files = [{ name: "a.md", text: "```\n````x" }, { name: "Makefile", text: "all:\n\n" }];
  assert.equal(promptText({ content: "why?", files }), "File: a.md\n\n`````md\n```\n````x\n`````\n\nFile: Makefile\n\n```\nall:\n\n```\n\nwhy?");
  assert.equal(promptText({ content: "", files: [files[1]] }), "File: Makefile\n\n```\nall:\n\n```");
  assert.equal(promptText({ content: "as it is" }), "as it is");
  assert.deepEqual(["a.RS", "x.tar.gz", "noend", ".bashrc", "a.b c"].map(extensionOf), ["rs", "gz", "", "bashrc", ""]);
});

test("names of files are one line and do not reorder what is around them", async () => {
  const read = await readFile(new File(["x"], "a\nb\u202egpj.txt"));
  assert.deepEqual(read, { name: "a b gpj.txt", text: "x" });
  await assert.rejects(readFile(new File([], "none")), /^Error: none is empty\.$/);
  await assert.rejects(readFile(new File([new Uint8Array(2_000_001)], "big")), /big has 2\.0 MB/);
  await assert.rejects(readFile({ name: "folder", size: 0, arrayBuffer: () => Promise.reject(new Error("x")) }), /If it is a folder, attach the files in it/);
  assert.deepEqual([999, 1000, 41_900, 99_950, 999_600].map(bytes), ["999 B", "1.0 KB", "41.9 KB", "100 KB", "1.0 MB"]);
});

test("files go with their message: to the server, into exports and back, and hostile ones are cleaned", () => {
  const made = newConversation();
  const files = [{ name: "a.txt", text: "one" }];
  const question = addMessage(made, ROOT, { role: "user", content: "read", files });
  Object.assign(made, { draft: "next", draftFiles: files });
  assert.deepEqual(requestMessages(made, question.id, ""), [{ role: "user", content: "File: a.txt\n\n```txt\none\n```\n\nread" }]);
  assert.match(toMarkdown(made), /## You\n\nFile: a\.txt/);
  const [read] = readImport(JSON.stringify({ conversations: [made] }));
  assert.deepEqual(Object.values(read.nodes)[1].files, files);
  assert.deepEqual(read.draftFiles, files);
  assert.deepEqual(cleanFiles([{ name: 5, text: "x" }, { name: "<b>\u202e", text: "t", more: 1 }, null]), [{ name: "<b>", text: "t" }]);
  for (const none of [undefined, "x", {}, [], [{ name: "a" }]]) assert.equal(cleanFiles(none), undefined);
});

test("of two answers the shown one and the newest of the other model make a pair", () => {
  const made = newConversation();
  const question = addMessage(made, ROOT, { role: "user", content: "q" });
  const answer = (side, more = {}) => addMessage(made, question.id, { role: "assistant", content: `a${side}`, pair: "p", side, ...more });
  const [left, right] = [answer(0), answer(1)];
  assert.deepEqual(pairOf(made, left), [left, right]);
  assert.deepEqual(pairOf(made, right), [left, right]);
  const again = answer(0);
  assert.deepEqual(pairOf(made, right), [again, right]);
  assert.deepEqual(pairOf(made, left), [left, right], "an older one that is shown");
  assert.equal(pairOf(made, answer(0, { pair: "q" })), null, "one alone");
  assert.equal(pairOf(made, question), null);
  assert.equal(pairOf(made, undefined), null);
  showMessage(made, right.id);
  const [read] = readImport(JSON.stringify({ conversations: [made] }));
  assert.deepEqual(Object.values(read.nodes).filter(({ pair }) => pair === "p").map(({ side }) => side), [0, 1, 0]);
});

test("the models that are asked: what the server lacks is replaced", () => {
  const server = { models: ["a", "b", "c"], model: "a" };
  const of = (model, second) => modelsFor({ model, second }, server);
  assert.deepEqual([of("", ""), of("b", ""), of("b", "c"), of("b", "b"), of("gone", "gone"), of("", "a")], [["a"], ["b"], ["b", "c"], ["b", "a"], ["a", "b"], ["a", "b"]]);
  assert.deepEqual(modelsFor({ model: "", second: "b" }, { models: ["a"], model: "a" }), ["a"]);
});
