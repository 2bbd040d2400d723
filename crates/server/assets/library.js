// All conversations: which there are, which is open, what is still to be written to the store.

import { cleanFiles } from "./attachment.js";
import { forgetDraft, keepDraft, newestDraft } from "./drafts.js";
import { mergeConversation } from "./merge.js";
import { showStorage, showStorageFull } from "./notices.js";
import { Presence } from "./presence.js";
import { found, openStore, summaryOf } from "./store.js";
import { stamp } from "./tree.js";

const SAVE_AFTER = 700; // ms
const NEW_CHAT = "new-chat"; // in the store: what is attached to the draft of a new chat

export class Library extends EventTarget {
  constructor() {
    super();
    this.summaries = new Map();
    this.loaded = new Map(); // open or being answered
    this.dirty = new Set(); // conversations whose messages, title or settings are to be written
    this.drafts = new Map(); // conversation id → a draft that is to be written
    this.answers = new Map(); // conversation id → Answers that run
    this.newFiles = []; // attached to the draft of a new chat
    this.stored = new Set(); // ids that are known to be in the store
    this.deleted = new Set(); // ids that this tab has deleted
    this.presence = new Presence((message) => this.channel?.postMessage(message), (id) => this.answeredElsewhere(id));
    this.timer = null;
    this.leaving = false; // the page is being closed: what fails now was not the server's failure
  }

  async start() {
    this.store = await openStore();
    if (this.store.kind !== "indexeddb") showStorage(this.store.kind);
    this.addEventListener("full", showStorageFull);
    await this.readAll();
    this.newFiles = cleanFiles((await this.store.get(NEW_CHAT))?.files) ?? [];
    if (globalThis.BroadcastChannel) {
      this.channel = new BroadcastChannel("latent");
      this.channel.onmessage = ({ data }) => this.hear(data);
      this.presence.ask();
    }
    const flush = () => this.save();
    addEventListener("pagehide", () => {
      this.leaving = true;
      flush();
      for (const id of this.answers.keys()) this.presence.end(id);
    });
    // back from the browser's cache of pages
    addEventListener("pageshow", () => (this.leaving = false));
    document.addEventListener("visibilitychange", () => document.visibilityState === "hidden" && flush());
  }

  async readAll() {
    const summaries = new Map();
    await this.store.each((entry) => entry?.id && entry.nodes && summaries.set(entry.id, summaryOf(entry)));
    this.summaries = summaries;
    this.stored = new Set(summaries.keys());
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
      conversation.draft = this.drafts.get(id)?.draft ?? newestDraft(conversation);
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
    const { id, draft, draftFiles } = conversation;
    conversation.drafted = stamp();
    this.drafts.set(id, { draft, draftFiles, drafted: conversation.drafted });
    keepDraft(id, draft);
    this.saveSoon();
  }

  // Keeps what is attached to the draft of a new chat.
  async keepNewFiles(files) {
    this.newFiles = files;
    await this.written(() => (files.length > 0 ? this.store.put({ id: NEW_CHAT, files }) : this.store.remove(NEW_CHAT)));
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
    await Promise.all(changed.map((conversation) => this.saveOne(conversation)));
    for (const [id, draft] of drafts) await this.written(() => this.store.putDraft(id, draft));
  }

  async saveOne(conversation) {
    const { id } = conversation;
    const { leaving } = this;
    let merged = { changed: false };
    const written = await this.written(async () => {
      // a page that is being closed has no time to read; a tab that knows more repairs what this overwrites
      if (leaving) await this.store.put(conversation);
      else merged = await this.store.merge(conversation, this.stored.has(id));
    });
    if (!written) {
      if (this.summaries.has(id)) this.dirty.add(id); // the next save tries again
    } else if (merged === null) this.forget(id);
    else {
      if (this.summaries.has(id)) this.stored.add(id);
      this.channel?.postMessage({ changed: id });
      if (merged.changed) this.showNews(conversation);
    }
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

  hear(message) {
    this.presence.hear(message);
    if (message.stop) this.stopOwn(message.stop, message.message);
    if (message.changed || message.removed) this.changedElsewhere(message);
  }

  // Another tab began or ended to answer.
  answeredElsewhere(id) {
    this.tell();
    this.dispatchEvent(new CustomEvent("elsewhere", { detail: id }));
  }

  // This tab writes an answer of its conversation.
  begin(answer) {
    const { id } = answer.conversation;
    this.answers.set(id, [...this.answersOf(id), answer]);
    this.presence.begin(id, answer.message.id);
  }

  // The answer is complete. Other tabs read all of it before they hear that it has ended.
  async end(answer) {
    const { conversation, message } = answer;
    const rest = this.answersOf(conversation.id).filter((other) => other !== answer);
    if (rest.length > 0) this.answers.set(conversation.id, rest);
    else this.answers.delete(conversation.id);
    if (this.summaries.has(conversation.id)) this.touch(conversation);
    await this.save();
    if (!this.answersOf(conversation.id).some((other) => other.message === message)) this.presence.end(conversation.id, message.id);
  }

  // The answers of a conversation that this tab writes.
  answersOf(id) {
    return this.answers.get(id) ?? [];
  }

  // Stops the answers of a conversation, or the one that is written into `message`, wherever they are written.
  stop(id, message) {
    if (this.answers.has(id)) this.stopOwn(id, message);
    else this.channel?.postMessage({ stop: id, message });
  }

  stopOwn(id, message) {
    for (const answer of this.answersOf(id)) if (!message || answer.message.id === message) answer.stop();
  }

  // Another tab wrote: its messages join those of this tab.
  async changedElsewhere({ changed, removed }) {
    if (removed) return this.forget(removed);
    const stored = await this.store.get(changed);
    if (!stored || this.deleted.has(changed)) return undefined;
    this.stored.add(changed);
    const own = this.loaded.get(changed);
    const merged = own && mergeConversation(own, stored);
    if (merged?.behind) {
      this.dirty.add(changed);
      this.saveSoon();
    }
    if (merged) return merged.changed && this.showNews(own);
    this.summarize(stored);
    return undefined;
  }

  showNews(conversation) {
    this.summarize(conversation);
    this.dispatchEvent(new CustomEvent("elsewhere", { detail: conversation.id }));
  }

  summarize(conversation) {
    const before = this.summaries.get(conversation.id);
    this.summaries.set(conversation.id, summaryOf(conversation));
    if (before?.title !== conversation.title || before.updated !== conversation.updated) this.tell();
  }

  // Another tab has deleted it.
  forget(id) {
    this.stopOwn(id);
    for (const known of [this.loaded, this.dirty, this.drafts, this.summaries, this.stored]) known.delete(id);
    this.tell();
    this.dispatchEvent(new CustomEvent("elsewhere", { detail: id }));
  }

  // Returns the conversation, for undo.
  async remove(id) {
    this.stop(id);
    const conversation = await this.open(id);
    this.deleted.add(id);
    for (const known of [this.loaded, this.dirty, this.drafts, this.summaries, this.stored]) known.delete(id);
    forgetDraft(id);
    this.tell();
    await this.store.remove(id);
    this.channel?.postMessage({ removed: id });
    return conversation;
  }

  restore(conversation) {
    this.deleted.delete(conversation.id);
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
