// Rules for all files of the page.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const FOLDER = join(dirname(fileURLToPath(import.meta.url)), "../../../crates/server/assets");
const files = new Map(readdirSync(FOLDER).map((name) => [name, readFileSync(join(FOLDER, name), "utf8")]));
const scripts = [...files.keys()].filter((name) => name.endsWith(".js"));
const importsOf = (name) => [...files.get(name).matchAll(/^import (?:.* from )?"\.\/([\w-]+\.js)";$/gm)].map(([, other]) => other);

test("no text is ever parsed as HTML or run as code", () => {
  for (const name of scripts) assert.doesNotMatch(files.get(name), /innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc|\beval\(|new Function|setAttribute\("style"/, name);
});

test("nothing is inline that the policy forbids", () => {
  assert.doesNotMatch(files.get("index.html"), /<style|\sstyle=|\son\w+=|<script(?![^>]*src=)/);
});

test("nothing is asked of another server", () => {
  for (const [name, text] of files) assert.doesNotMatch(text.replaceAll("http://www.w3.org/", ""), /(?:src|href|from|url\()\s*=?\s*["']?(?:https?:)?\/\/[a-z]/, name);
});

test("files import existing files, and none in a circle", () => {
  const state = new Map();
  const visit = (name, path) => {
    assert.ok(files.has(name), `${path.at(-1)} imports ${name}`);
    assert.notEqual(state.get(name), "open", `a circle: ${[...path, name].join(" → ")}`);
    if (state.has(name)) return;
    state.set(name, "open");
    for (const other of importsOf(name)) visit(other, [...path, name]);
    state.set(name, "done");
  };
  visit("main.js", []);
  const unused = scripts.filter((name) => !state.has(name) && !files.get("index.html").includes(`assets/${name}`));
  assert.deepEqual(unused, [], "files that nothing loads");
});

test("all modules are loaded at once, not one after the other", () => {
  const page = files.get("index.html");
  for (const name of scripts) assert.ok(page.includes(`href="assets/${name}"`) || page.includes(`src="assets/${name}"`), `${name} is not preloaded`);
  for (const [, name] of page.matchAll(/"assets\/([^"]+)"/g)) assert.ok(files.has(name), `${name} does not exist`);
});

test("a file has one subject and at most 400 lines", () => {
  for (const [name, text] of files) assert.ok(text.split("\n").length <= 401, name);
});
