// The open conversation: its messages on the page, and everything that can be done with them.

import { Answer } from "./answer.js";
import { Announcer } from "./announcer.js";
import { $, h, say } from "./dom.js";
import { MessageView } from "./message.js";
import { askKey, toast } from "./notices.js";
import { problemsOf, requestBody } from "./request.js";
import { Scroller } from "./scroller.js";
import { ROOT, addMessage, branchOf, chooseBranch, leafOf, newConversation, pathOf, removeMessage, requestMessages, titleFrom } from "./tree.js";

const STARTERS = ["Explain the KV cache as to a new colleague", "Write a regular expression for ISO dates, with tests", "Plan a week of dinners for two"];

export class Chat {
  // library: all conversations; settings: () → the present settings; server: what /props and /v1/models said
  constructor(library, settings, server) {
    Object.assign(this, { library, settings, server });
    this.views = new Map();
    this.conversation = newConversation();
    this.scroller = new Scroller($("transcript"), $("to-end"));
    this.acts = {
      edit: (id, text) => this.edit(id, text),
      regenerate: (id) => this.regenerate(id),
      retry: (id) => this.retry(id),
      proceed: (id) => this.proceed(id),
      branch: (id, step) => this.branch(id, step),
      remove: (id) => this.remove(id),
      answerCalls: (id, results) => this.answerCalls(id, results),
    };
    this.changed = () => {};
  }

  get answer() {
    return this.library.answers.get(this.conversation.id);
  }

  // Shows a conversation, or a new one.
  show(conversation = newConversation()) {
    this.conversation = conversation;
    this.views.clear();
    $("messages").replaceChildren();
    this.announcer = null;
    this.render();
    this.scroller.toEnd();
    this.library.keepLoaded(conversation.id);
  }

  render() {
    const { conversation } = this;
    const path = pathOf(conversation);
    const elements = path.map((message, i) => {
      let view = this.views.get(message.id);
      if (view?.message !== message) {
        view = new MessageView(message, this.acts);
        this.views.set(message.id, view);
      }
      const answer = this.answer?.message === message ? this.answer : null;
      view.update({ branch: branchOf(conversation, message.id), live: answer?.live ?? null, last: i === path.length - 1 });
      return view.element;
    });
    const messages = $("messages");
    if (elements.length === 0) messages.replaceChildren(this.welcome());
    else {
      const keep = new Set(elements);
      for (const child of [...messages.children]) if (!keep.has(child)) child.remove();
      elements.forEach((element, i) => messages.children[i] !== element && messages.insertBefore(element, messages.children[i] ?? null));
    }
    this.changed();
  }

  welcome() {
    const use = (text) => {
      $("prompt").value = text;
      $("prompt").dispatchEvent(new Event("input"));
      $("prompt").focus();
    };
    return h("div", { class: "welcome" }, h("h2", {}, this.server.name ? `Chat with ${this.server.name}` : "A new chat"), h("div", { class: "starters" }, STARTERS.map((text) => h("button", { type: "button", onclick: () => use(text) }, text))));
  }

  // Only the message that is being written, at most once per frame; the pause grows with what a render costs.
  refresh(answer) {
    if (this.pending || answer.conversation !== this.conversation) return;
    this.pending = true;
    const wait = Math.min(400, Math.max(0, (this.cost ?? 0) * 3 - 16));
    const run = () => {
      this.pending = false;
      if (answer.conversation !== this.conversation || this.answer !== answer) return;
      const since = performance.now();
      this.scroller.follow(() => {
        const view = this.views.get(answer.message.id);
        view?.update({ branch: branchOf(this.conversation, answer.message.id), live: answer.live, last: true });
      });
      this.announcer?.update(answer.message.content);
      this.changed();
      this.cost = performance.now() - since;
    };
    // a hidden page draws no frames, but its text goes on
    const frame = () => (document.hidden ? run() : requestAnimationFrame(run));
    setTimeout(frame, document.hidden ? 500 : wait);
  }

  // Sends what was written; false if it cannot be sent, so that the draft stays.
  send(text) {
    if (this.answer || text.trim() === "" || !this.ready()) return false;
    const { conversation } = this;
    addMessage(conversation, leafOf(conversation), { role: "user", content: text });
    if (!conversation.named) {
      const first = pathOf(conversation).find((message) => message.role === "user");
      conversation.title = titleFrom(first.content);
    }
    conversation.draft = "";
    this.reply();
    return true;
  }

  // While an answer is written nothing else may change.
  busy() {
    if (this.answer) toast("An answer is being written. Stop it first.");
    return Boolean(this.answer);
  }

  ready() {
    const [problem] = problemsOf(this.settings());
    if (problem) toast(`A setting is not valid. ${problem[1]}`);
    return !problem;
  }

  // A new answer below the newest message.
  reply(parent = leafOf(this.conversation)) {
    const message = addMessage(this.conversation, parent, { role: "assistant", model: this.settings().model || this.server.model || "" });
    this.stream(message, parent, false);
  }

  stream(message, last, prefill) {
    const { conversation } = this;
    const settings = { ...this.settings() };
    conversation.settings = { ...settings };
    // a conversation may have been held with a model that this server lacks
    if (!this.server.models.includes(settings.model)) settings.model = "";
    const messages = requestMessages(conversation, last, settings.system.trim());
    const body = requestBody(settings, messages, { model: this.server.model, prefill });
    let heard = false;
    const answer = new Answer(conversation, message, body, () => {
      if (!heard) this.server.answers();
      heard = true;
      this.library.touch(conversation, true);
      this.refresh(answer);
    });
    this.library.answers.set(conversation.id, answer);
    this.library.touch(conversation);
    this.announcer = new Announcer(say, message.content.length);
    this.render();
    this.scroller.toEnd();
    say("The answer is being written");
    const tick = setInterval(() => this.refresh(answer), 1000);
    answer.run().then(() => {
      clearInterval(tick);
      this.finish(answer);
    });
  }

  finish(answer) {
    const { conversation, message } = answer;
    // cut off here, not by the server: opened again, it can be continued
    if (this.library.leaving) for (const key of ["error", "errorKind", "retryAt"]) delete message[key];
    this.library.answers.delete(conversation.id);
    if (this.library.summaries.has(conversation.id)) this.library.touch(conversation);
    this.library.save();
    if (message.errorKind === "key") askKey(() => this.conversation === conversation && this.retry(message.id));
    if (conversation !== this.conversation) return;
    this.scroller.follow(() => this.render());
    const ending = message.error ? "The answer failed." : message.finish === "stopped" ? "Stopped." : "The answer is complete.";
    if (this.announcer) this.announcer.finish(message.content, ending);
    else say(ending);
  }

  stop() {
    this.answer?.stop();
  }

  // Another answer beside this one.
  regenerate(id) {
    if (this.busy() || !this.ready()) return;
    this.reply(this.conversation.nodes[id].parent);
  }

  // An answer without a word is tried again in its place, another one beside it.
  retry(id) {
    if (this.busy() || !this.ready()) return;
    const message = this.conversation.nodes[id];
    if (!message) return;
    if (message.content || message.reasoning || message.calls?.length) this.regenerate(id);
    else this.stream(message, message.parent, false);
  }

  // Goes on with an answer that was cut.
  proceed(id) {
    if (this.busy() || !this.ready()) return;
    this.stream(this.conversation.nodes[id], id, true);
  }

  // A changed question is sent beside the old one; a changed answer is kept beside it.
  // Returns whether it was done.
  edit(id, text) {
    if (this.busy()) return false;
    const { conversation } = this;
    const old = conversation.nodes[id];
    if (text === old.content) return true;
    if (old.role === "user" && !this.ready()) return false;
    const copy = { role: old.role, content: text };
    for (const key of ["reasoning", "reasoningMs", "calls", "callId", "model", "finish"]) if (old[key] !== undefined) copy[key] = old[key];
    const made = addMessage(conversation, old.parent, old.role === "assistant" ? { ...copy, finish: "stop" } : copy);
    if (made.role === "user") this.reply(made.id);
    else {
      this.library.touch(conversation);
      this.render();
    }
    return true;
  }

  branch(id, step) {
    if (this.busy() || !chooseBranch(this.conversation, id, step)) return;
    const [at, count] = branchOf(this.conversation, id);
    this.library.touch(this.conversation, true);
    this.render();
    say(`Version ${at + step + 1} of ${count}`);
    const above = this.conversation.nodes[this.conversation.nodes[id].parent];
    const view = this.views.get(above.children[above.choice]);
    const buttons = [...(view?.element.querySelectorAll(".branches button:not(:disabled)") ?? [])];
    (step < 0 ? buttons[0] : buttons.at(-1))?.focus();
  }

  remove(id) {
    if (this.busy()) return;
    const { conversation } = this;
    const before = structuredClone(conversation);
    removeMessage(conversation, id);
    this.library.touch(conversation);
    this.render();
    toast("Message deleted", () => {
      Object.assign(conversation, before);
      this.library.touch(conversation);
      if (this.conversation === conversation) this.show(conversation);
    });
  }

  // Results of tool calls, given by hand, as messages of the role tool.
  answerCalls(id, results) {
    if (this.busy() || !this.ready()) return;
    let parent = id;
    this.conversation.nodes[id].calls.forEach((call, i) => {
      call.id ||= `call_${i}`;
      parent = addMessage(this.conversation, parent, { role: "tool", content: results[i], callId: call.id }).id;
    });
    this.reply(parent);
  }

  get empty() {
    return this.conversation.nodes[ROOT].children.length === 0;
  }
}
