// How long the next prompt is, counted by the server while it is typed, and what can be done when it does not fit into the context.

import { promptText } from "./attachment.js";
import { getJson, streamChat, tooLongText } from "./api.js";
import { $, h, icon } from "./dom.js";
import { toast } from "./notices.js";
import { requestBody } from "./request.js";
import { ROOT, leafOf, pathOf, requestMessages, stamp } from "./tree.js";

const AFTER = 400; // ms without a key
const ANSWER = 512; // tokens that an answer gets room for, if the settings name no limit
const SUMMARIZE = "Summarize the conversation so far in at most 200 words, so that it can be continued without its text. Keep names, numbers, decisions and open questions. Answer with the summary only.";

export class Length {
  // openNew: (text, files) → a new chat with them in its field
  constructor(chat, openNew) {
    Object.assign(this, { chat, openNew });
    this.count = null; // tokens of the prompt with what is typed
    this.busy = null; // what is being done about a prompt that is too long
  }

  get context() {
    return this.chat.server.contextSize;
  }

  // Tokens that the prompt may have.
  get room() {
    const limit = Number(this.chat.settings.values.max_tokens) || ANSWER;
    return this.context - Math.min(limit, Math.floor(this.context / 4));
  }

  // What is typed, with the files that are attached to it.
  get draft() {
    return promptText(this.chat.draft());
  }

  // Something was typed, attached, sent or opened.
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
      // a server that does not count says no on sending
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

  // Offered below the field, and below an answer that failed for this reason.
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

  // Messages that a prompt could begin with, oldest first: questions after the first one that is sent.
  starts() {
    const path = pathOf(this.chat.conversation);
    const first = Math.max(0, path.findIndex(({ id }) => id === this.chat.conversation.sentFrom));
    const questions = path.slice(first + 1).filter(({ role }) => role === "user");
    return questions.map(({ id }) => id);
  }

  // Leaves out so many of the oldest messages that the rest fits. They stay in the conversation, and are not sent.
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

  // The first of `candidates` from which the messages up to `last`, with `rest` after them, fit; undefined if none does.
  async firstThatFits(candidates, last, rest, signal) {
    let [low, high] = [0, candidates.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((await this.tokens([...this.messages(last, candidates[middle]), ...rest], signal)) <= this.room) high = middle;
      else low = middle + 1;
    }
    return candidates[low];
  }

  // The newest message that has text to be sent.
  lastQuestion() {
    const path = pathOf(this.chat.conversation);
    const failed = path.at(-1);
    return failed?.errorKind === "long" ? failed.parent : (failed?.id ?? ROOT);
  }

  // A new chat that begins with what this one was about, and with the question that did not fit.
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
