// All conversations: which there are, which is open, what is still to be written to the store.

import { forgetDraft, keepDraft, newestDraft } from "./drafts.js";
import { showStorage, showStorageFull } from "./notices.js";
import { found, openStore, summaryOf } from "./store.js";

const SAVE_AFTER = 700; // ms

export class Library extends EventTarget {
  constructor() {
    super();
    this.summaries = new Map();
    this.loaded = new Map(); // open or being answered
    this.dirty = new Set(); // conversations whose messages, title or settings are to be written
    this.drafts = new Map(); // conversation id → a draft that is to be written
    this.answers = new Map(); // conversation id → Answer that runs
    this.timer = null;
    this.leaving = false; // the page is being closed: what fails now was not the server's failure
  }

  async start() {
    this.store = await openStore();
    if (this.store.kind !== "indexeddb") showStorage(this.store.kind);
    this.addEventListener("full", showStorageFull);
    await this.readAll();
    if (globalThis.BroadcastChannel) {
      this.channel = new BroadcastChannel("latent");
      this.channel.onmessage = ({ data }) => this.changedElsewhere(data);
    }
    const flush = () => this.save();
    addEventListener("pagehide", () => {
      this.leaving = true;
      flush();
    });
    // back from the browser's cache of pages
    addEventListener("pageshow", () => (this.leaving = false));
    document.addEventListener("visibilitychange", () => document.visibilityState === "hidden" && flush());
  }

  async readAll() {
    const summaries = new Map();
    await this.store.each((entry) => entry?.id && entry.nodes && summaries.set(entry.id, summaryOf(entry)));
    this.summaries = summaries;
    this.tell();
  }

  tell() {
    this.dispatchEvent(new Event("list"));
  }

  // Newest first.
  list() {
    return [...this.summaries.values()].sort((a, b) => b.updated - a.updated);
  }

  async open(id) {
    if (!this.loaded.has(id)) {
      const conversation = await this.store.get(id);
      if (!conversation) return null;
      conversation.draft = this.drafts.get(id) ?? newestDraft(conversation);
      this.loaded.set(id, conversation);
    }
    return this.loaded.get(id);
  }

  // Forgets what is neither shown nor being answered.
  keepLoaded(id) {
    for (const known of this.loaded.keys()) if (known !== id && !this.answers.has(known) && !this.dirty.has(known)) this.loaded.delete(known);
  }

  // Notes a change; it is written soon. `quiet` leaves the order of the list as it is.
  touch(conversation, quiet = false) {
    if (!quiet) conversation.updated = Date.now();
    this.loaded.set(conversation.id, conversation);
    const before = this.summaries.get(conversation.id);
    this.summaries.set(conversation.id, summaryOf(conversation));
    this.dirty.add(conversation.id);
    // its draft is written with it: what was typed before it was sent is none any more
    this.drafts.delete(conversation.id);
    this.saveSoon();
    if (!before || before.title !== conversation.title || !quiet) this.tell();
  }

  // Notes what is being typed. It is written by itself: another tab may have changed the conversation since this one read it.
  touchDraft(conversation) {
    this.drafts.set(conversation.id, conversation.draft);
    keepDraft(conversation.id, conversation.draft);
    this.saveSoon();
  }

  saveSoon() {
    this.timer ??= setTimeout(() => this.save(), SAVE_AFTER);
  }

  async save() {
    clearTimeout(this.timer);
    this.timer = null;
    // taken now: while one is written another may be forgotten
    const changed = [...this.dirty].map((id) => this.loaded.get(id)).filter(Boolean);
    const drafts = [...this.drafts];
    this.dirty.clear();
    this.drafts.clear();
    // all begin now: a page that is being closed comes back to none of them
    await Promise.all(changed.map(async (conversation) => {
      const { id } = conversation;
      if (await this.written(() => this.store.put(conversation))) this.channel?.postMessage({ changed: id });
      else if (this.summaries.has(id)) this.dirty.add(id); // the next save tries again
    }));
    for (const [id, draft] of drafts) await this.written(() => this.store.putDraft(id, draft));
  }

  // What cannot be written keeps nothing else from being written.
  async written(write) {
    try {
      await write();
      return true;
    } catch {
      this.dispatchEvent(new Event("full"));
      return false;
    }
  }

  // Another tab wrote: show its list, and its text unless this tab is answering there.
  async changedElsewhere({ changed, removed }) {
    const id = changed ?? removed;
    if (this.answers.has(id) || this.dirty.has(id)) return;
    const conversation = removed ? undefined : await this.store.get(id);
    if (conversation) this.summaries.set(id, summaryOf(conversation));
    else this.summaries.delete(id);
    const shown = this.loaded.delete(id);
    this.tell();
    if (shown) this.dispatchEvent(new CustomEvent("elsewhere", { detail: id }));
  }

  // Returns the conversation, for undo.
  async remove(id) {
    this.answers.get(id)?.stop();
    const conversation = await this.open(id);
    this.loaded.delete(id);
    this.dirty.delete(id);
    this.drafts.delete(id);
    forgetDraft(id);
    this.summaries.delete(id);
    this.tell();
    await this.store.remove(id);
    this.channel?.postMessage({ removed: id });
    return conversation;
  }

  restore(conversation) {
    this.loaded.set(conversation.id, conversation);
    this.touch(conversation, true);
    this.tell();
  }

  async all() {
    await this.save();
    return (await this.store.all()).filter((entry) => entry?.nodes).sort((a, b) => b.updated - a.updated);
  }

  // Ids of the conversations that hold every word.
  async search(query) {
    await this.save();
    const ids = new Set();
    await this.store.each((conversation) => conversation?.nodes && found(conversation, query) && ids.add(conversation.id));
    return ids;
  }
}
