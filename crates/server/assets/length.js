// The length of the next prompt, which the server counts while the user types, and ways to shorten
// a conversation that does not fit into the context.

import { promptText } from "./attachment.js";
import { getJson, streamChat, tooLongText } from "./api.js";
import { $, h, icon } from "./dom.js";
import { toast } from "./notices.js";
import { requestBody } from "./request.js";
import { ROOT, leafOf, pathOf, requestMessages, stamp } from "./tree.js";

const AFTER = 400; // ms since the last key
const ANSWER = 512; // tokens reserved for an answer if the settings have no limit
const SUMMARIZE = "Summarize the conversation so far in at most 200 words, so that it can be continued without its text. Keep names, numbers, decisions and open questions. Answer with the summary only.";

export class Length {
  // openNew: (text, files) → opens a new chat with them as draft.
  constructor(chat, openNew) {
    Object.assign(this, { chat, openNew });
    this.count = null; // tokens of the prompt with the draft
    this.busy = null; // description of the running operation on a too long prompt
  }

  get context() {
    return this.chat.server.contextSize;
  }

  // Maximum number of tokens of the prompt.
  get room() {
    const limit = Number(this.chat.settings.values.max_tokens) || ANSWER;
    return this.context - Math.min(limit, Math.floor(this.context / 4));
  }

  // The draft with its attached files.
  get draft() {
    return promptText(this.chat.draft());
  }

  // Called after typing, attaching, sending or opening.
  typed() {
    clearTimeout(this.timer);
    this.abort?.abort();
    if (this.count !== null) {
      this.count = null;
      this.show();
    }
    if (this.context > 0 && this.draft.trim() !== "" && !this.chat.answering) this.timer = setTimeout(() => this.measure(), AFTER);
  }

  async measure() {
    const { chat } = this;
    const { conversation } = chat;
    this.abort = new AbortController();
    const { signal } = this.abort;
    try {
      const count = await this.tokens([...this.messages(leafOf(conversation)), { role: "user", content: this.draft }], signal);
      if (signal.aborted || chat.conversation !== conversation) return;
      this.count = count;
      this.show();
    } catch {
      // The server cannot count tokens. It will refuse a too long prompt.
    }
  }

  messages(last, from = this.chat.conversation.sentFrom) {
    return requestMessages({ ...this.chat.conversation, sentFrom: from }, last, this.chat.settings.values.system.trim());
  }

  async tokens(messages, signal) {
    const { tools, chat_template_kwargs: template, model } = requestBody(this.chat.requestSettings(), messages, { model: this.chat.server.model });
    const answer = await getJson("v1/chat/completions/input_tokens", { method: "POST", headers: { "Content-Type": "application/json" }, signal, body: JSON.stringify({ model, messages, tools, chat_template_kwargs: template }) });
    if (!Number.isFinite(answer?.input_tokens)) throw new Error("no count");
    return answer.input_tokens;
  }

  show() {
    const place = $("length");
    const long = this.count !== null && this.context > 0 && this.count >= this.context;
    place.hidden = !long && !this.busy;
    const words = this.busy ?? tooLongText(this.count ?? 0, this.context);
    if (!place.hidden) place.replaceChildren(icon("warn"), h("p", {}, this.busy || this.canTrim() ? words : `${words} Shorten it.`), ...(this.busy ? [this.stopButton()] : this.buttons(() => this.trim())));
    this.chat.changed();
  }

  // Buttons below the field, and below an answer that failed because of a too long prompt.
  buttons(trim) {
    if (!this.canTrim()) return [];
    return [
      h("button", { type: "button", class: "button", onclick: trim }, "Remove oldest messages"),
      h("button", { type: "button", class: "button", onclick: () => this.summarize() }, "New chat with a summary"),
    ];
  }

  stopButton() {
    return h("button", { type: "button", class: "button", onclick: () => this.abort.abort() }, "Cancel");
  }

  canTrim() {
    return this.starts().length > 0;
  }

  // Messages that a shorter prompt could begin with: the questions after the first sent message,
  // oldest first.
  starts() {
    const path = pathOf(this.chat.conversation);
    const first = Math.max(0, path.findIndex(({ id }) => id === this.chat.conversation.sentFrom));
    const questions = path.slice(first + 1).filter(({ role }) => role === "user");
    return questions.map(({ id }) => id);
  }

  // Omits the oldest messages from requests until the rest fits. They remain in the conversation.
  async trim(after = () => {}) {
    const { conversation } = this.chat;
    const question = this.draft.trim();
    await this.during("Counting…", async (signal) => {
      const rest = question ? [{ role: "user", content: question }] : [];
      const from = await this.firstThatFits(this.starts(), this.lastQuestion(), rest, signal);
      if (from === undefined) return toast("The last message alone is too long. Shorten it.");
      const before = conversation.sentFrom;
      const apply = (id) => {
        Object.assign(conversation, { sentFrom: id, trimmed: stamp() });
        this.chat.library.touch(conversation, true);
        if (this.chat.conversation === conversation) this.chat.render();
        this.typed();
      };
      apply(from);
      toast("Older messages are kept here and not sent any more", () => apply(before));
      return after();
    });
  }

  // The first of `candidates` from which the messages up to `last`, followed by `rest`, fit.
  // Undefined if no candidate fits. A binary search, since each count is a request to the server.
  async firstThatFits(candidates, last, rest, signal) {
    let [low, high] = [0, candidates.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((await this.tokens([...this.messages(last, candidates[middle]), ...rest], signal)) <= this.room) high = middle;
      else low = middle + 1;
    }
    return candidates[low];
  }

  // The newest message, or its parent if it is an answer that failed because of a too long prompt.
  lastQuestion() {
    const path = pathOf(this.chat.conversation);
    const failed = path.at(-1);
    return failed?.errorKind === "long" ? failed.parent : (failed?.id ?? ROOT);
  }

  // Opens a new chat with a summary of this one and the question that did not fit.
  async summarize() {
    const { chat } = this;
    const path = pathOf(chat.conversation);
    const failed = path.at(-1)?.errorKind === "long";
    const question = failed && this.draft.trim() === "" ? path.findLast(({ role }) => role === "user") : null;
    const last = question ? question.parent : this.lastQuestion();
    await this.during("Writing a summary…", async (signal) => {
      const rest = [{ role: "user", content: SUMMARIZE }];
      const candidates = [chat.conversation.sentFrom ?? ROOT, ...this.starts()].filter((id) => id !== question?.id);
      const from = await this.firstThatFits(candidates, last, rest, signal);
      if (from === undefined) throw new Error("Even the last messages are too long to be summarized.");
      const messages = [...this.messages(last, from), ...rest];
      const settings = { ...chat.requestSettings(), max_tokens: String(Math.min(ANSWER, Math.floor(this.context / 4))), format: "", tools: "", stop: "" };
      let summary = "";
      await streamChat(requestBody(settings, messages, { model: chat.server.model }), (chunk) => {
        summary += chunk.choices?.[0]?.delta?.content ?? "";
      }, signal);
      if (summary.trim() === "") throw new Error("The model wrote no summary.");
      const { content, files = [] } = question ?? chat.draft();
      await this.openNew(`Summary of our conversation so far:\n\n${summary.trim()}\n\n${content}`, files);
    });
  }

  async during(words, work) {
    if (this.busy) return;
    this.busy = words;
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = new AbortController();
    this.show();
    try {
      await work(this.abort.signal);
    } catch (error) {
      if (error.name !== "AbortError") toast(error.message);
    }
    this.busy = null;
    this.show();
  }
}
