// The open conversation: its messages on the page, and the actions on them.

import { Answer, tokensOf } from "./answer.js";
import { Announcer } from "./announcer.js";
import { modelsFor, pairView } from "./compare.js";
import { $, h, say } from "./dom.js";
import { MessageView } from "./message.js";
import { askKey, toast } from "./notices.js";
import { problemsOf, requestBody } from "./request.js";
import { Scroller } from "./scroller.js";
import { systemView } from "./system-view.js";
import { ROOT, addMessage, branchOf, chooseBranch, leafOf, newConversation, pairOf, pathOf, randomId, removeMessage, requestMessages, restoreMessage, showMessage, stamp, titleFrom } from "./tree.js";

const STARTERS = ["Explain the KV cache as you would to a new colleague", "Write a regular expression for ISO dates, with tests", "Plan a week of dinners for two"];

export class Chat {
  // library: all conversations; settings: those of the open conversation (chat-settings.js);
  // server: data of /props and /v1/models.
  constructor(library, settings, server) {
    Object.assign(this, { library, settings, server });
    this.views = new Map();
    this.conversation = newConversation();
    this.scroller = new Scroller($("transcript"), $("to-end"));
    this.acts = {
      edit: (id, text, files) => this.edit(id, text, files),
      regenerate: (id) => this.regenerate(id),
      retry: (id) => this.retry(id),
      proceed: (id) => this.proceed(id),
      branch: (id, step) => this.branch(id, step),
      remove: (id) => this.remove(id),
      pick: (id) => this.pick(id),
      stop: (id) => this.library.stop(this.conversation.id, id),
      fits: (id) => this.length.buttons(() => this.length.trim(() => this.retry(id))),
      answerCalls: (id, results) => this.answerCalls(id, results),
    };
    this.unsent = h("div", { class: "unsent", role: "note" }, h("p", {}, "Messages above are not sent to the model."), h("button", { type: "button", class: "text-button", onclick: () => this.sendAll() }, "Send all again"));
    this.systemView = systemView(() => this.editSystem());
    this.pair = pairView();
    this.changed = () => {};
    this.draft = () => ({ role: "user", content: "", files: [] });
    this.editSystem = () => {};
  }

  // The answer that this tab streams into a message.
  answerIn(message) {
    return this.library.answersOf(this.conversation.id).find((answer) => answer.message === message);
  }

  // The answers that another tab streams in this conversation, or null.
  get remote() {
    return this.library.presence.of(this.conversation.id);
  }

  get answering() {
    return this.library.answers.has(this.conversation.id) || this.remote !== null;
  }

  // Shows a conversation, or a new chat.
  show(conversation = newConversation()) {
    this.conversation = conversation;
    this.views.clear();
    $("messages").replaceChildren();
    this.announcer = null;
    this.settings.open(conversation);
    this.render();
    this.scroller.toEnd();
    this.library.keepLoaded(conversation.id);
  }

  render() {
    const { conversation } = this;
    const path = pathOf(conversation);
    const pair = pairOf(conversation, path.at(-1));
    const elements = path.flatMap((message, i) => {
      const last = i === path.length - 1;
      const element = last && pair ? this.renderPair(pair, message) : this.renderMessage(message, { last });
      return message.id === conversation.sentFrom && i > 0 ? [this.unsent, element] : [element];
    });
    const messages = $("messages");
    const system = this.settings.values.system.trim() ? [this.systemView.element] : [];
    this.systemView.update(this.settings.values.system);
    if (elements.length === 0) messages.replaceChildren(...system, this.welcome());
    else {
      elements.unshift(...system);
      const keep = new Set(elements);
      for (const child of [...messages.children]) if (!keep.has(child)) child.remove();
      elements.forEach((element, i) => messages.children[i] !== element && messages.insertBefore(element, messages.children[i] ?? null));
    }
    this.changed();
  }

  // pair: { chosen } if the message is one of two compared answers.
  renderMessage(message, { last, pair = null }) {
    let view = this.views.get(message.id);
    if (view?.message !== message) {
      view = new MessageView(message, this.acts);
      this.views.set(message.id, view);
    }
    view.update({ branch: branchOf(this.conversation, message.id), live: this.liveOf(message), last, pair });
    return view.element;
  }

  renderPair(pair, chosen) {
    this.pair.update(...pair.map((message) => this.renderMessage(message, { last: true, pair: { chosen: message === chosen } })));
    return this.pair.element;
  }

  // The figures of the answer that this tab or another one streams into a message.
  liveOf(message) {
    const answer = this.answerIn(message);
    if (answer) return answer.live;
    return this.remote?.messages.includes(message.id) ? { started: this.remote.since, tokens: 0 } : null;
  }

  // Shows changes that another tab made to the open conversation.
  catchUp() {
    this.scroller.follow(() => this.render());
  }

  welcome() {
    const use = (text) => {
      $("prompt").value = text;
      $("prompt").dispatchEvent(new Event("input"));
      $("prompt").focus();
    };
    return h("div", { class: "welcome" }, h("h2", {}, this.server.name ? `Chat with ${this.server.name}` : "New chat"), h("div", { class: "starters" }, STARTERS.map((text) => h("button", { type: "button", onclick: () => use(text) }, text))));
  }

  // Renders the streamed message, at most once per frame. The pause is about three times the
  // duration of the last render, at most 400 ms, so that long answers do not block the page.
  refresh(answer) {
    if (this.pending || answer.conversation !== this.conversation) return;
    this.pending = true;
    const wait = Math.min(400, Math.max(0, (this.cost ?? 0) * 3 - 16));
    const run = () => {
      this.pending = false;
      const answers = this.library.answersOf(this.conversation.id);
      if (answer.conversation !== this.conversation || answers.length === 0) return;
      const since = performance.now();
      const last = pathOf(this.conversation).at(-1);
      this.scroller.follow(() => {
        for (const { message } of answers) {
          const pair = pairOf(this.conversation, message) ? { chosen: message === last } : null;
          if (this.views.has(message.id)) this.renderMessage(message, { last: true, pair });
        }
      });
      this.announcer?.update(answer.message.content);
      this.changed();
      this.cost = performance.now() - since;
    };
    // requestAnimationFrame does not run on a hidden page, so a timer updates the text there.
    const frame = () => (document.hidden ? run() : requestAnimationFrame(run));
    setTimeout(frame, document.hidden ? 500 : wait);
  }

  // Sends a message. Returns false if it cannot be sent; the composer then keeps the draft.
  send(text, files = []) {
    if (this.answering || (text.trim() === "" && files.length === 0) || !this.ready()) return false;
    const { conversation } = this;
    addMessage(conversation, leafOf(conversation), files.length > 0 ? { role: "user", content: text, files } : { role: "user", content: text });
    if (!conversation.named) {
      const first = pathOf(conversation).find((message) => message.role === "user");
      conversation.title = titleFrom(first.content.trim() || (first.files?.[0].name ?? ""));
    }
    Object.assign(conversation, { draft: "", draftFiles: [], drafted: stamp() });
    this.reply();
    return true;
  }

  // Refuses changes, with a message, while an answer is streamed.
  busy() {
    if (this.answering) toast("Wait for the answer to finish, or stop it first.");
    return this.answering;
  }

  // The same for regenerating an answer. The other answer of a comparison may still be streamed.
  busyBeside(id) {
    const message = this.conversation.nodes[id];
    const others = this.library.answersOf(this.conversation.id);
    const pair = pairOf(this.conversation, message);
    const free = pair && this.remote === null && others.every((answer) => answer.message !== message && pair.includes(answer.message));
    return !free && this.busy();
  }

  ready() {
    const [problem] = problemsOf(this.settings.values);
    if (problem) toast(`A setting is not valid. ${problem[1]}`);
    return !problem;
  }

  // Requests an answer to the newest message, or one from each of two models.
  reply(parent = leafOf(this.conversation)) {
    const models = modelsFor(this.requestSettings(), this.server);
    const pair = randomId();
    const messages = models.map((model, side) => addMessage(this.conversation, parent, { role: "assistant", model, ...(models.length > 1 ? { pair, side } : {}) }));
    showMessage(this.conversation, messages[0].id);
    for (const message of messages) this.stream(message, parent, false);
  }

  requestSettings(conversation = this.conversation) {
    const settings = this.settings.valuesOf(conversation);
    // The conversation may have used a model that this server does not have.
    if (!this.server.models.includes(settings.model)) settings.model = "";
    return settings;
  }

  // The context length of the model that writes this message.
  contextOf(message) {
    return this.server.contexts.get(message.pair ? message.model : this.server.chosen) ?? this.server.contextSize;
  }

  stream(message, last, prefill) {
    const { conversation } = this;
    this.settings.sent(conversation);
    const settings = this.requestSettings(conversation);
    if (message.pair && this.server.models.includes(message.model)) settings.model = message.model;
    const messages = requestMessages(conversation, last, settings.system.trim());
    const body = requestBody(settings, messages, { model: this.server.model, prefill });
    let heard = false;
    const answer = new Answer(conversation, message, body, () => {
      if (!heard) this.server.answers();
      heard = true;
      message.rev = stamp();
      this.library.presence.say();
      this.library.touch(conversation, true);
      this.refresh(answer);
    });
    message.rev = stamp();
    this.library.begin(answer);
    this.library.touch(conversation);
    // Alternating sentences of two answers could not be told apart, so they are not announced.
    this.announcer = message.pair ? null : new Announcer(say, message.content.length);
    this.render();
    this.scroller.toEnd();
    say(message.pair ? "Two answers are being written" : "The answer is being written");
    const tick = setInterval(() => this.refresh(answer), 1000);
    answer.run().then(() => {
      clearInterval(tick);
      this.finish(answer);
    });
  }

  finish(answer) {
    const { conversation, message } = answer;
    // The page was closed during the stream. This is not an error: the answer can be continued
    // later.
    if (this.library.leaving) for (const key of ["error", "errorKind", "retryAt"]) delete message[key];
    const tokens = tokensOf(message);
    const context = this.contextOf(message);
    if (message.finish === "length" && tokens && context > 0) message.full = tokens.prompt + tokens.completion >= context;
    message.rev = stamp();
    this.library.end(answer);
    if (message.errorKind === "key") askKey(() => this.conversation === conversation && this.retry(message.id));
    if (conversation !== this.conversation) return;
    this.scroller.follow(() => this.render());
    const name = message.pair ? `The answer of ${message.model}` : "The answer";
    const ending = message.error ? `${name} failed.` : message.finish === "stopped" ? "Stopped." : `${name} is complete.`;
    if (this.announcer && !message.pair) this.announcer.finish(message.content, ending);
    else say(ending);
  }

  sendAll() {
    Object.assign(this.conversation, { sentFrom: null, trimmed: stamp() });
    this.library.touch(this.conversation, true);
    this.render();
    this.length.typed();
  }

  stop() {
    if (this.answering) this.library.stop(this.conversation.id);
  }

  // Adds a sibling answer. In a comparison, only the model of this answer is asked again.
  regenerate(id) {
    if (this.busyBeside(id) || !this.ready()) return;
    const { conversation } = this;
    const message = conversation.nodes[id];
    if (!pairOf(conversation, message)) this.reply(message.parent);
    else {
      const { parent, model, pair, side } = message;
      this.stream(addMessage(conversation, parent, { role: "assistant", model, pair, side }), parent, false);
    }
  }

  // Chooses which of two compared answers the conversation continues from.
  pick(id) {
    showMessage(this.conversation, id);
    this.library.touch(this.conversation, true);
    this.render();
    say("The conversation continues from this answer");
  }

  // Retries an empty answer in place. For any other answer, adds a sibling.
  retry(id) {
    const message = this.conversation.nodes[id];
    if (!message || this.busyBeside(id) || !this.ready()) return;
    if (message.content || message.reasoning || message.calls?.length) this.regenerate(id);
    else this.stream(message, message.parent, false);
  }

  // Continues a truncated answer.
  proceed(id) {
    if (this.busyBeside(id) || !this.ready()) return;
    this.stream(this.conversation.nodes[id], id, true);
  }

  // Adds an edited question as a sibling and sends it. An edited answer is only added as a sibling.
  // Returns whether this was possible.
  edit(id, text, files = []) {
    if (this.busy()) return false;
    const { conversation } = this;
    const old = conversation.nodes[id];
    if (text === old.content && JSON.stringify(files) === JSON.stringify(old.files ?? [])) return true;
    if (old.role === "user" && !this.ready()) return false;
    const copy = { role: old.role, content: text };
    if (files.length > 0) copy.files = files;
    for (const key of ["reasoning", "reasoningMs", "calls", "callId", "model", "pair", "side", "finish"]) if (old[key] !== undefined) copy[key] = old[key];
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
    const removed = removeMessage(conversation, id);
    this.library.touch(conversation);
    this.render();
    toast("Message deleted", () => {
      if (!restoreMessage(conversation, removed)) return;
      this.library.touch(conversation);
      if (this.conversation === conversation) this.show(conversation);
    });
  }

  // Adds the tool results that the user has entered, as messages of the role `tool`.
  answerCalls(id, results) {
    if (this.busy() || !this.ready()) return;
    let parent = id;
    showMessage(this.conversation, id);
    this.conversation.nodes[id].calls.forEach((call, i) => {
      call.id ||= `call_${i}`;
      this.conversation.nodes[id].rev = stamp();
      parent = addMessage(this.conversation, parent, { role: "tool", content: results[i], callId: call.id }).id;
    });
    this.reply(parent);
  }

  get empty() {
    return this.conversation.nodes[ROOT].children.length === 0;
  }
}
