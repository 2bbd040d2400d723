// The view of one message. `update` renders its state. During a stream it changes only what
// differs.

import { rateOf, tokensOf } from "./answer.js";
import { AttachmentList, fileView } from "./attachment-list.js";
import { promptText } from "./attachment.js";
import { copyText, h, icon, iconButton, rate, seconds, whole } from "./dom.js";
import { MarkdownView } from "./markdown-view.js";
import { callView } from "./tool-call.js";

const NAMES = { user: "You", assistant: "Assistant", tool: "Tool result", system: "System" };
const CUT = { length: "The answer stopped early: token limit reached.", full: "The answer stopped early: end of the context reached.", stopped: "Stopped.", lost: "The answer was interrupted." };

// acts: { edit, regenerate, proceed, branch, remove, pick, stop, answerCalls, retry, fits }. The
// first argument of each is the message's id.
export class MessageView {
  constructor(message, acts) {
    this.message = message;
    this.acts = acts;
    this.parts = {};
    this.element = h("article", { class: `message ${message.role}`, dataset: { id: message.id } });
    this.body = h("div", { class: "body", dir: message.role === "assistant" ? null : "auto" });
    this.actions = h("div", { class: "actions" });
    this.title = h("h2", { dir: "auto", class: message.role === "assistant" || message.role === "tool" ? "author" : "hidden" });
    this.files = h("div", { class: "message-files" });
    this.head = h("div", { class: "head" }, this.title);
    this.element.append(this.head, this.files, this.body, this.actions);
    if (message.role === "assistant") {
      this.body.className = "body markdown-body";
      this.slots = ["reasoning", "content", "calls", "state"].map((name) => h("div", { class: `slot-${name}` }));
      this.body.append(...this.slots);
    }
  }

  // branch: [index, count]; live: figures of the running answer, or null; last: whether it is the
  // last message; pair: { chosen } if it is one of two compared answers, or null.
  update({ branch, live, last, pair = null }) {
    const { message } = this;
    const name = NAMES[message.role] ?? message.role;
    const title = message.role === "assistant" && message.model ? message.model : name;
    if (this.title.textContent !== title) this.title.textContent = title;
    this.element.setAttribute("aria-label", branch[1] > 1 ? `${name}, version ${branch[0] + 1} of ${branch[1]}` : name);
    this.element.classList.toggle("streaming", live !== null);
    this.element.classList.toggle("chosen", pair?.chosen === true);
    this.element.setAttribute("aria-busy", String(live !== null));
    if (this.editing) return;
    if (message.role === "assistant") {
      this.showReasoning(live);
      this.showContent();
      this.showCalls(live, last);
      this.showState(live, last);
    } else this.showText();
    this.showActions(branch, live, last, pair);
  }

  showText() {
    const { message } = this;
    this.showFiles();
    if (this.text === message.content) return;
    this.text = message.content;
    this.body.textContent = message.content;
    this.body.hidden = message.content === "" && message.files?.length > 0;
    this.showAll?.remove();
    const long = message.role === "user" && (message.content.length > 2400 || message.content.split("\n").length > 16);
    this.body.classList.toggle("long", long);
    if (!long) return;
    this.showAll = h("button", { type: "button", class: "text-button show-all", "aria-expanded": "false", onclick: () => {
      const open = this.body.classList.toggle("open");
      this.showAll.textContent = open ? "Show less" : "Show all";
      this.showAll.setAttribute("aria-expanded", String(open));
    } }, "Show all");
    this.body.after(this.showAll);
  }

  showFiles() {
    const { files = [] } = this.message;
    if (files === this.shownFiles) return;
    this.shownFiles = files;
    this.fileViews = files.map(fileView);
    this.files.replaceChildren(...this.fileViews.map(({ element }) => element));
  }

  // Opens the files that contain a word of a search.
  openFiles(words) {
    for (const [i, { name, text }] of (this.message.files ?? []).entries()) {
      const all = `${name}\n${text}`.toLowerCase();
      if (words.some((word) => all.includes(word))) this.fileViews[i].open();
    }
  }

  showReasoning(live) {
    const { message } = this;
    const [slot] = this.slots;
    if (!message.reasoning) {
      slot.replaceChildren();
      this.thought = null;
      return;
    }
    this.thought ??= this.makeReasoning(slot);
    const thinking = live !== null && live.reasoningSince !== null && live.reasoningSince !== undefined;
    const time = (message.reasoningMs ?? 0) + (thinking ? Date.now() - live.reasoningSince : 0);
    const words = thinking ? `Thinking… ${seconds(time)}` : message.reasoningMs === undefined ? "Reasoning" : time < 1000 ? "Thought briefly" : `Thought for ${seconds(time)}`;
    if (this.thought.words.textContent !== words) this.thought.words.textContent = words;
    this.thought.dots.hidden = !thinking;
    if (!this.thought.element.open) return;
    const { inside } = this.thought;
    const atEnd = inside.scrollHeight - inside.scrollTop - inside.clientHeight < 40;
    this.thought.view.update(message.reasoning);
    if (thinking && atEnd) inside.scrollTop = inside.scrollHeight;
  }

  makeReasoning(slot) {
    const inside = h("div", { class: "inside markdown", tabindex: "0", role: "group", "aria-label": "Reasoning" });
    const words = h("span", { class: "live" });
    const dots = h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i"));
    const view = new MarkdownView(inside);
    // Hidden reasoning is rendered only when it is opened.
    const element = h("details", { class: "reasoning", ontoggle: () => element.open && view.update(this.message.reasoning ?? "") }, h("summary", {}, icon("think"), words, dots), inside);
    slot.replaceChildren(element);
    return { element, inside, words, dots, view };
  }

  showContent() {
    const [, slot] = this.slots;
    if (!this.view) {
      slot.classList.add("markdown");
      this.view = new MarkdownView(slot);
    }
    this.view.update(this.message.content);
  }

  showCalls(live, last) {
    const slot = this.slots[2];
    const calls = this.message.calls ?? [];
    this.calls ??= [];
    for (const [i, call] of calls.entries()) {
      if (!this.calls[i]) {
        this.calls[i] = callView(call);
        slot.append(this.calls[i].element);
      }
      this.calls[i].update(call, live !== null && i === calls.length - 1);
    }
    for (const view of this.calls.splice(calls.length)) view.element.remove();
    const wants = last && live === null && calls.length > 0 && !this.message.error;
    if (wants && !this.results) slot.append((this.results = this.resultsForm()));
    if (!wants && this.results) {
      this.results.remove();
      this.results = null;
    }
  }

  // The page does not run tools: the user may enter their results.
  resultsForm() {
    const fields = this.message.calls.map((call, i) => h("textarea", { class: "field mono", rows: "2", "aria-label": `Result of ${call.name || `call ${i + 1}`}`, placeholder: `Result of ${call.name || "the call"}` }));
    return h("form", { class: "call results", onsubmit: (event) => {
      event.preventDefault();
      this.acts.answerCalls(this.message.id, fields.map((field) => field.value));
    } }, h("div", { class: "inside editor" }, h("h3", {}, "Tools do not run on this page. Enter each result to continue."), fields, h("div", {}, h("button", { type: "submit", class: "button" }, "Send results"))));
  }

  // The state below the text: waiting, an error, or a truncated answer.
  showState(live, last) {
    const slot = this.slots[3];
    const { message } = this;
    const empty = !message.content && !message.reasoning && !message.calls?.length;
    const state = live ? (empty ? "waiting" : "") : message.error ? "error" : !message.finish ? "lost" : message.full ? "full" : Object.hasOwn(CUT, message.finish) ? message.finish : "";
    const key = `${state} ${message.error ?? ""} ${last}`;
    if (key !== this.stateKey) {
      this.stateKey = key;
      slot.replaceChildren(...(state === "waiting" ? [this.waiting()] : state === "error" ? [this.trouble(last, empty)] : state ? [this.cut(state, last, empty)] : []));
    }
    if (state === "waiting") this.showProgress(live);
  }

  waiting() {
    this.progress = h("progress", { max: 1, hidden: true, "aria-label": "Prompt" });
    this.progressWords = h("span", {}, "");
    return h("div", { class: "waiting" }, h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i")), this.progressWords, this.progress);
  }

  showProgress({ progress, started }) {
    const waited = Date.now() - started;
    const known = progress && progress.total > 0;
    this.progress.hidden = !known;
    if (known) this.progress.value = Math.min(1, progress.processed / progress.total);
    const words = known ? `Reading the prompt: ${whole(progress.processed)} of ${whole(progress.total)} tokens` : waited > 2500 ? `Waiting ${seconds(waited)}` : "";
    if (this.progressWords.textContent !== words) this.progressWords.textContent = words;
  }

  trouble(last, empty) {
    const { message } = this;
    const words = h("p", {}, message.error);
    const retry = h("button", { type: "button", class: "button", onclick: () => this.acts.retry(message.id) }, icon("again"), "Try again");
    // A too long prompt fails again, so "Try again" is not offered for it.
    const ways = message.errorKind === "long" ? this.acts.fits(message.id) : [last && !empty ? this.proceedButton() : null, retry];
    const element = h("div", { class: "trouble", role: "alert" }, icon("warn"), words, last ? ways : null);
    const wait = () => {
      const left = Math.ceil(((message.retryAt ?? 0) - Date.now()) / 1000);
      retry.disabled = left > 0;
      retry.replaceChildren(icon("again"), left > 0 ? `Try again in ${left} s` : "Try again");
      if (left > 0 && (element.isConnected || left === Math.ceil(left))) setTimeout(wait, 500);
    };
    if (message.retryAt) wait();
    return element;
  }

  cut(state, last, empty) {
    const wished = state === "stopped";
    return h("div", { class: wished ? "trouble wished" : "trouble cut" }, wished ? null : icon("warn"), h("p", {}, CUT[state]), last && !empty && !this.message.calls?.length ? this.proceedButton() : null);
  }

  proceedButton() {
    return h("button", { type: "button", class: "button", onclick: () => this.acts.proceed(this.message.id) }, icon("more"), "Continue");
  }

  showActions([index, count], live, last, pair) {
    const { message, acts } = this;
    const key = [index, count, live !== null, last, pair?.chosen, message.finish, message.error].join();
    if (key !== this.actionsKey) {
      this.actionsKey = key;
      const { id, role } = message;
      const copy = live === null ? iconButton("copy", "Copy message", () => copyText(message.content || promptText(message), copy)) : null;
      this.figures = role === "assistant" ? h("span", { class: "figures" }) : null;
      // The stop button is above the text: the growing text would move it.
      this.head.replaceChildren(this.title, ...(pair && live !== null ? [iconButton("stop", "Stop this answer", () => acts.stop(id))] : []));
      this.actions.replaceChildren(...[
        pair ? this.pickButton(pair.chosen) : null,
        count > (pair ? 2 : 1) ? this.branches(index, count, live !== null) : null,
        copy,
        live === null ? iconButton("edit", role === "user" ? "Edit and resend" : "Edit", () => this.edit()) : null,
        live === null && role === "assistant" ? iconButton("again", "Regenerate", () => acts.regenerate(id)) : null,
        live === null ? iconButton("trash", "Delete this message and everything after it", () => acts.remove(id)) : null,
        this.figures,
      ].filter(Boolean));
    }
    if (this.figures) {
      const text = figuresOf(message, live);
      if (this.figures.textContent !== text) this.figures.textContent = text;
    }
  }

  // In a comparison: whether the conversation continues from this answer.
  pickButton(chosen) {
    return h("button", { type: "button", class: "button pick", "aria-pressed": String(chosen), onclick: () => {
      this.acts.pick(this.message.id);
      this.actions.querySelector(".pick")?.focus();
    } }, chosen ? icon("check") : null, chosen ? "Continues here" : "Continue here");
  }

  branches(index, count, busy) {
    const { id } = this.message;
    return h("span", { class: "branches", role: "group", "aria-label": "Versions" },
      iconButton("left", "Previous version", () => this.acts.branch(id, -1), { disabled: index === 0 || busy }),
      h("span", {}, `${index + 1}/${count}`),
      iconButton("right", "Next version", () => this.acts.branch(id, 1), { disabled: index === count - 1 || busy }));
  }

  edit() {
    const { message } = this;
    this.editing = true;
    const field = h("textarea", { class: "field", dir: "auto", "aria-label": "Message text" });
    field.value = message.content;
    const files = message.role === "user" ? new AttachmentList() : null;
    files?.set(message.files ?? []);
    const close = (focus = true) => {
      this.editing = false;
      this.files.hidden = false;
      editor.replaceWith(this.body);
      this.actions.hidden = false;
      this.element.classList.remove("editing");
      if (focus) this.actions.querySelector("[aria-label^=Edit]")?.focus();
    };
    const save = () => {
      const text = field.value;
      if ((text.trim() === "" && !files?.files.length) || files?.reading) return;
      if (this.acts.edit(message.id, text, files?.files)) close(false);
    };
    const editor = h("div", { class: "editor" }, files?.element, field, h("div", {}, files?.button, files?.input, h("button", { type: "button", class: "button", onclick: close }, "Cancel"), h("button", { type: "button", class: "button main", onclick: save }, message.role === "user" ? "Send" : "Save")));
    editor.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.isComposing) save();
    });
    this.showAll?.remove();
    this.element.classList.add("editing");
    this.files.hidden = true;
    this.body.replaceWith(editor);
    this.actions.hidden = true;
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}

// "41.2 tokens/s · 312 tokens · prompt 1 024, 960 cached"
export function figuresOf(message, live) {
  const speed = rateOf(message, live);
  const tokens = tokensOf(message);
  const parts = [];
  if (speed) parts.push(`${rate(speed)} tokens/s`);
  if (tokens?.completion) parts.push(`${whole(tokens.completion)} ${tokens.completion === 1 ? "token" : "tokens"}`);
  if (message.timings?.draft_n > 0) parts.push(`drafts ${whole(message.timings.draft_n_accepted ?? 0)} of ${whole(message.timings.draft_n)} accepted`);
  if (tokens?.prompt) parts.push(`prompt ${whole(tokens.prompt)}${tokens.cached ? `, ${whole(tokens.cached)} cached` : ""}`);
  return parts.join(" · ");
}
