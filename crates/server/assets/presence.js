// Tracks which conversations other tabs are answering. A tab announces its answers every second,
// and holds a Web Lock, which the browser releases when the tab ends. Without locks, a tab that is
// silent for some seconds counts as closed.

const EVERY = 1000; // ms
const SILENT = 4000;
const lockOf = (id) => `latent.answer.${id}`;

export class Presence {
  // post: sends to other tabs. changed: called with the id of a conversation when another tab
  // starts or finishes an answer in it.
  constructor(post, changed, locks = globalThis.navigator?.locks) {
    Object.assign(this, { post, changed, locks });
    this.own = new Map(); // conversation id → { messages: ids of streamed messages, release }
    this.others = new Map(); // conversation id → { messages, since, seen }
  }

  // This tab starts an answer in a message.
  begin(id, message) {
    const known = this.own.get(id);
    if (known) {
      known.messages = [...new Set([...known.messages, message])];
      this.tellAll();
      return;
    }
    const entry = { messages: [message], release: () => {} };
    this.own.set(id, entry);
    const held = new Promise((resolve) => (entry.release = resolve));
    this.locks?.request(lockOf(id), () => held).catch(() => {});
    this.say();
  }

  // The answer in a message, or in all messages of the conversation, has ended.
  end(id, message) {
    const entry = this.own.get(id);
    const rest = message && entry ? entry.messages.filter((other) => other !== message) : [];
    if (rest.length > 0) {
      entry.messages = rest;
      this.tellAll();
      return;
    }
    entry?.release();
    this.own.delete(id);
    this.post({ answered: id });
  }

  // Announces this tab's answers. Also called for each chunk, since browsers slow down timers of
  // hidden tabs.
  say(now = Date.now()) {
    if (this.own.size === 0 || now - (this.said ?? 0) < EVERY) return;
    this.tellAll(now);
    clearTimeout(this.beat);
    this.beat = setTimeout(() => this.say(), EVERY + 1);
  }

  tellAll(now = Date.now()) {
    this.said = now;
    for (const [id, { messages }] of this.own) this.post({ answering: id, messages });
  }

  // Asks other tabs for their answers after this tab was opened.
  ask() {
    this.post({ who: true });
  }

  hear({ answering, answered, messages, who }, now = Date.now()) {
    if (who) this.tellAll(now);
    if (answering !== undefined) {
      const known = this.others.get(answering);
      this.others.set(answering, { messages, since: known?.since ?? now, seen: now });
      this.watch();
      if (known?.messages.join() !== messages.join()) this.changed(answering);
    }
    if (answered !== undefined && this.others.delete(answered)) this.changed(answered);
  }

  of(id) {
    return this.others.get(id) ?? null;
  }

  watch() {
    this.timer ??= setInterval(() => this.check(), EVERY);
  }

  async check(now = Date.now()) {
    const held = this.locks ? new Set((await this.locks.query()).held.map(({ name }) => name)) : null;
    for (const [id, entry] of this.others) {
      if (now - entry.seen < SILENT || held?.has(lockOf(id))) continue;
      this.others.delete(id);
      this.changed(id);
    }
    if (this.others.size > 0) return;
    clearInterval(this.timer);
    this.timer = null;
  }
}
