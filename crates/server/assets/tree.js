// A conversation is a tree of messages. Editing and regenerating add siblings, one of which is on
// the visible path. All functions work on plain data, which can be stored and exported unchanged.
//
// conversation: { id, title, named, titled, created, updated, draft, draftFiles, drafted, settings,
//   settingsAt, sentFrom, trimmed, nodes: { [id]: message }, removed: { [id]: stamp } }
// message: { id, parent, rev, role, content, files, reasoning, reasoningMs, calls, callId, finish,
//   error, usage, timings, model, pair, side, created, choice, picked, children }
// files: attached texts, [{ name, text }]. pair, side: set in comparisons of two models (pairOf).
// sentFrom: the first message that is sent to the model. titled, drafted, settingsAt, trimmed, rev
// and picked are stamps of the last change, by which merge.js merges the copies of two tabs.

import { cleanFiles, fenced, promptText } from "./attachment.js";

export const ROOT = "0";

let newest = 0;

// The time, but always later than earlier stamps.
export function stamp(now = Date.now()) {
  newest = Math.max(now, newest + 1);
  return newest;
}

export function newConversation(now = Date.now()) {
  return { id: randomId(), title: "New chat", named: false, created: now, updated: now, draft: "", nodes: { [ROOT]: { id: ROOT, parent: null, role: "root", children: [], choice: 0 } } };
}

export function randomId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Adds a message below `parent` and selects it.
export function addMessage(conversation, parent, message) {
  const id = randomId();
  const above = conversation.nodes[parent];
  conversation.nodes[id] = { content: "", created: Date.now(), ...message, id, parent, rev: stamp(), children: [], choice: 0 };
  above.children.push(id);
  above.choice = above.children.length - 1;
  above.picked = stamp();
  return conversation.nodes[id];
}

// The messages of the visible path, oldest first.
export function pathOf(conversation) {
  const path = [];
  let at = conversation.nodes[ROOT];
  while (at.children.length > 0) {
    at = conversation.nodes[at.children[at.choice]];
    path.push(at);
  }
  return path;
}

export function leafOf(conversation) {
  return pathOf(conversation).at(-1)?.id ?? ROOT;
}

// [index, count] of a message among its siblings: [0, 1] without siblings.
export function branchOf(conversation, id) {
  const above = conversation.nodes[conversation.nodes[id].parent];
  return [above.children.indexOf(id), above.children.length];
}

export function chooseBranch(conversation, id, step) {
  const above = conversation.nodes[conversation.nodes[id].parent];
  const at = above.children.indexOf(id) + step;
  if (at < 0 || at >= above.children.length) return false;
  above.choice = at;
  above.picked = stamp();
  return true;
}

// Selects the branches that lead to a message.
export function showMessage(conversation, id) {
  for (let at = conversation.nodes[id]; at && at.id !== ROOT; at = conversation.nodes[at.parent]) {
    const above = conversation.nodes[at.parent];
    const choice = above.children.indexOf(at.id);
    if (choice === above.choice) continue;
    Object.assign(above, { choice, picked: stamp() });
  }
}

// The two compared answers, left and right, of which a message is one, or null. If the other answer
// was regenerated, its newest version counts.
export function pairOf(conversation, message) {
  if (!message?.pair) return null;
  const siblings = conversation.nodes[message.parent].children.map((id) => conversation.nodes[id]);
  const other = siblings.findLast(({ pair, side }) => pair === message.pair && side !== message.side);
  if (!other) return null;
  return message.side === 0 ? [message, other] : [other, message];
}

// Removes a message and its descendants, and selects a neighbouring sibling. Returns the argument
// of restoreMessage.
export function removeMessage(conversation, id) {
  const { parent } = conversation.nodes[id];
  const above = conversation.nodes[parent];
  const index = above.children.indexOf(id);
  above.children.splice(index, 1);
  above.choice = Math.max(0, Math.min(above.choice >= index ? above.choice - 1 : above.choice, above.children.length - 1));
  above.picked = stamp();
  const gone = [];
  const todo = [id];
  conversation.removed ??= {};
  while (todo.length > 0) {
    const next = conversation.nodes[todo.pop()];
    todo.push(...next.children);
    gone.push(next);
    conversation.removed[next.id] = stamp();
    delete conversation.nodes[next.id];
  }
  return { index, gone };
}

// Undoes a removal, unless the parent was removed too.
export function restoreMessage(conversation, { index, gone }) {
  const [top] = gone;
  const above = conversation.nodes[top.parent];
  if (!above || conversation.nodes[top.id]) return false;
  for (const message of gone) conversation.nodes[message.id] = Object.assign(message, { rev: stamp() });
  above.children.splice(index, 0, top.id);
  above.choice = above.children.indexOf(top.id);
  above.picked = stamp();
  return true;
}

// The messages of a request for the path up to and including `last`.
export function requestMessages(conversation, last, system) {
  const path = [];
  for (let at = conversation.nodes[last]; at && at.id !== ROOT; at = conversation.nodes[at.parent]) path.unshift(at);
  const messages = system ? [{ role: "system", content: system }] : [];
  const first = Math.max(0, path.findIndex(({ id }) => id === conversation.sentFrom));
  for (const message of path.slice(first)) messages.push(...sent(message));
  return messages;
}

function sent(original) {
  const { role, content, reasoning, calls, callId } = original;
  if (role === "tool") return [{ role, tool_call_id: callId, content }];
  if (role !== "assistant") return [{ role, content: promptText(original) }];
  // An answer that failed before its first token is empty: omit it.
  if (!content && !reasoning && !calls?.length) return [];
  const message = { role, content: content || (calls?.length ? null : "") };
  if (reasoning) message.reasoning_content = reasoning;
  if (calls?.length) message.tool_calls = calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  return [message];
}

// Removes bidirectional overrides from a title, which would reorder the sentences that contain it.
export const cleanTitle = (text) => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, "").trim();

// A title from the first message, used until the user sets one.
export function titleFrom(text) {
  const line = cleanTitle(text).replace(/[`*_#>$\\]/g, "").trim().split(/\n/)[0].replace(/\s+/g, " ");
  if (line === "") return "New chat";
  if (line.length <= 48) return line;
  const cut = line.slice(0, 48);
  return `${cut.slice(0, Math.max(24, cut.lastIndexOf(" ")))}…`;
}

export function toMarkdown(conversation) {
  const parts = [`# ${conversation.title}`];
  for (const message of pathOf(conversation)) {
    const name = { user: "You", assistant: message.model || "Assistant", tool: "Tool result", system: "System" }[message.role] ?? message.role;
    parts.push(`## ${name}`);
    if (message.reasoning) parts.push(`<details><summary>Reasoning</summary>\n\n${message.reasoning.trim()}\n\n</details>`);
    const text = promptText(message).trim();
    if (text) parts.push(text);
    for (const call of message.calls ?? []) parts.push(`Tool call \`${call.name}\`:\n\n${fenced(call.arguments, "json")}`);
  }
  return `${parts.join("\n\n")}\n`;
}

// The words of a search.
export const searchWords = (query) => query.toLowerCase().split(/\s+/).filter(Boolean);

// The searchable text of a message.
export const searchText = ({ content, files }) => [content ?? "", ...(files ?? []).flatMap(({ name, text }) => [name, text])].join("\n").toLowerCase();

// Reads conversations from an exported file. Each field is validated and copied: files are
// untrusted.
export function readImport(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON. Import accepts files made with \"Export as JSON\", and lists of messages.");
  }
  const list = Array.isArray(data?.conversations) ? data.conversations : Array.isArray(data) && data.every((entry) => entry?.nodes || entry?.mapping) ? data : [data];
  const found = list.map((entry) => (entry?.nodes ? readConversation(entry) : entry?.mapping ? readMapping(entry) : readMessages(entry))).filter(Boolean);
  if (found.length === 0) throw new Error("The file holds no conversation: neither \"conversations\" nor \"messages\" was found.");
  return found;
}

const string = (value) => (typeof value === "string" ? value : "");
const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : undefined);
const ROLES = ["user", "assistant", "tool", "system"];

function readConversation(entry) {
  const made = newConversation(number(entry.created));
  made.title = cleanTitle(string(entry.title)).slice(0, 200) || "Imported chat";
  made.named = entry.named === true;
  made.updated = number(entry.updated) ?? made.created;
  made.draft = string(entry.draft);
  const draftFiles = cleanFiles(entry.draftFiles);
  if (draftFiles) made.draftFiles = draftFiles;
  if (entry.settings && typeof entry.settings === "object") made.settings = entry.settings; // validated by their readers
  const copy = (from, to) => {
    const old = Object.hasOwn(entry.nodes, from) ? entry.nodes[from] : null;
    const children = Array.isArray(old?.children) ? old.children : [];
    const seen = [];
    for (const child of children) {
      const message = typeof child === "string" && Object.hasOwn(entry.nodes, child) ? entry.nodes[child] : null;
      if (!message || !ROLES.includes(message.role) || done.has(child)) continue;
      done.add(child);
      seen.push([child, addMessage(made, to, readMessage(message)).id]);
    }
    made.nodes[to].choice = Math.max(0, seen.findIndex(([child]) => child === children[old?.choice]));
    todo.push(...seen);
  };
  const done = new Set();
  const todo = [[ROOT, ROOT]];
  while (todo.length > 0) copy(...todo.shift());
  return made.nodes[ROOT].children.length > 0 ? made : null;
}

// A conversation of ChatGPT's export: a tree by ids, without its system messages and empty nodes.
function readMapping(entry) {
  if (typeof entry.mapping !== "object") return null;
  const node = (id) => (typeof id === "string" && Object.hasOwn(entry.mapping, id) ? entry.mapping[id] : null);
  const seconds = (value) => (number(value) === undefined ? undefined : Math.round(value * 1000));
  const made = newConversation(seconds(entry.create_time));
  made.title = cleanTitle(string(entry.title)).slice(0, 200) || "Imported chat";
  made.updated = seconds(entry.update_time) ?? made.created;
  const shown = new Set();
  for (let id = entry.current_node; node(id) && !shown.has(id); id = node(id).parent) shown.add(id);
  const done = new Set();
  const todo = Object.keys(entry.mapping).filter((id) => !node(node(id)?.parent)).map((id) => [id, ROOT]);
  while (todo.length > 0) {
    const [id, parent] = todo.shift();
    if (done.has(id) || !node(id)) continue;
    done.add(id);
    const { message, children } = node(id);
    const role = message?.author?.role;
    const parts = Array.isArray(message?.content?.parts) ? message.content.parts.filter((part) => typeof part === "string") : [string(message?.content?.text)];
    const content = parts.join("\n").trim();
    let below = parent;
    if (["user", "assistant"].includes(role) && content !== "") {
      const above = made.nodes[parent];
      const before = above.choice;
      const added = addMessage(made, parent, readMessage({ role, content, created: seconds(message.create_time), model: message.metadata?.model_slug, finish: role === "assistant" ? "stop" : undefined }));
      if (!shown.has(id) && above.children.length > 1) above.choice = before;
      below = added.id;
    }
    for (const child of Array.isArray(children) ? children : []) todo.push([child, below]);
  }
  return made.nodes[ROOT].children.length > 0 ? made : null;
}

// A list of messages in the form of the APIs.
function readMessages(entry) {
  const list = Array.isArray(entry) ? entry : Array.isArray(entry?.messages) ? entry.messages : null;
  if (!list) return null;
  const made = newConversation();
  for (const message of list) {
    if (!ROLES.includes(message?.role)) continue;
    if (message.role === "system") continue;
    addMessage(made, leafOf(made), readMessage({ ...message, reasoning: message.reasoning ?? message.reasoning_content, callId: message.tool_call_id, calls: message.tool_calls?.map?.((call) => ({ id: call?.id, name: call?.function?.name, arguments: call?.function?.arguments })) }));
  }
  const first = pathOf(made).find((message) => message.role === "user");
  made.title = cleanTitle(string(entry.title)).slice(0, 200) || titleFrom(first?.content ?? "");
  return pathOf(made).length > 0 ? made : null;
}

function readMessage(message) {
  const content = Array.isArray(message.content) ? message.content.map((part) => string(part?.text)).join("\n") : string(message.content);
  const read = { role: message.role, content, created: number(message.created) ?? Date.now() };
  if (message.reasoning) read.reasoning = string(message.reasoning);
  if (number(message.reasoningMs) !== undefined) read.reasoningMs = message.reasoningMs;
  for (const key of ["finish", "model", "callId", "error"]) if (string(message[key])) read[key] = message[key];
  const files = cleanFiles(message.files);
  if (files) read.files = files;
  if (string(message.pair)) Object.assign(read, { pair: message.pair, side: message.side === 1 ? 1 : 0 });
  if (Array.isArray(message.calls)) read.calls = message.calls.map((call) => ({ id: string(call?.id), name: string(call?.name), arguments: string(call?.arguments) }));
  for (const key of ["usage", "timings"]) if (message[key] && typeof message[key] === "object") read[key] = numbersOf(message[key]);
  return read;
}

const numbersOf = (object) => Object.fromEntries(Object.entries(object).filter(([, value]) => number(value) !== undefined));
