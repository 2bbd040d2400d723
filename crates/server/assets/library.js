// All conversations: the list, the loaded ones, and changes that are not stored yet.

import { cleanFiles } from "./attachment.js";
import { forgetDraft, keepDraft, newestDraft } from "./drafts.js";
import { mergeConversation } from "./merge.js";
import { showStorage, showStorageFull } from "./notices.js";
import { Presence } from "./presence.js";
import { found, openStore, summaryOf } from "./store.js";
import { stamp } from "./tree.js";

const SAVE_AFTER = 700; // ms
const NEW_CHAT = "new-chat"; // store key of the files of a new chat's draft

export class Library extends EventTarget {
  constructor() {
    super();
    this.summaries = new Map();
    this.loaded = new Map(); // conversations that are open or being answered
    this.dirty = new Set(); // ids of conversations with unsaved messages, title or settings
    this.drafts = new Map(); // conversation id → unsaved draft
    this.answers = new Map(); // conversation id → running Answers
    this.newFiles = []; // files of a new chat's draft
    this.stored = new Set(); // ids that are in the store
    this.deleted = new Set(); // ids that this tab has deleted
    this.presence = new Presence((message) => this.channel?.postMessage(message), (id) => this.answeredElsewhere(id));
    this.timer = null;
    this.leaving = false; // the page is being closed, so failed requests are expected
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
    // The page was restored from the browser's back/forward cache.
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

  // Unloads conversations that are not open, not being answered and saved.
  keepLoaded(id) {
    for (const known of this.loaded.keys()) if (known !== id && !this.answers.has(known) && !this.dirty.has(known)) this.loaded.delete(known);
  }

  // Schedules a save of a changed conversation. `quiet` keeps its place in the list.
  touch(conversation, quiet = false) {
    if (!quiet) conversation.updated = Date.now();
    this.loaded.set(conversation.id, conversation);
    const before = this.summaries.get(conversation.id);
    this.summaries.set(conversation.id, summaryOf(conversation));
    this.dirty.add(conversation.id);
    // The conversation is saved with its draft. A pending older draft must not overwrite it.
    this.drafts.delete(conversation.id);
    this.saveSoon();
    if (!before || before.title !== conversation.title || !quiet) this.tell();
  }

  // Schedules a save of the draft only: another tab may have changed the rest of the conversation.
  touchDraft(conversation) {
    const { id, draft, draftFiles } = conversation;
    conversation.drafted = stamp();
    this.drafts.set(id, { draft, draftFiles, drafted: conversation.drafted });
    keepDraft(id, draft);
    this.saveSoon();
  }

  // Stores the files of a new chat's draft.
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
    // Collect them first: `forget` may unload a conversation while another one is written.
    const changed = [...this.dirty].map((id) => this.loaded.get(id)).filter(Boolean);
    const drafts = [...this.drafts];
    this.dirty.clear();
    this.drafts.clear();
    // Start all writes at once: code after an await may not run while the page is being closed.
    await Promise.all(changed.map((conversation) => this.saveOne(conversation)));
    for (const [id, draft] of drafts) await this.written(() => this.store.putDraft(id, draft));
  }

  async saveOne(conversation) {
    const { id } = conversation;
    const { leaving } = this;
    let merged = { changed: false };
    const written = await this.written(async () => {
      // A page that is being closed has no time to read and merge. Another tab with newer data
      // restores what this overwrites.
      if (leaving) await this.store.put(conversation);
      else merged = await this.store.merge(conversation, this.stored.has(id));
    });
    if (!written) {
      if (this.summaries.has(id)) this.dirty.add(id); // retried by the next save
    } else if (merged === null) this.forget(id);
    else {
      if (this.summaries.has(id)) this.stored.add(id);
      this.channel?.postMessage({ changed: id });
      if (merged.changed) this.showNews(conversation);
    }
  }

  // Catches errors of one write, so that other writes still run.
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

  // Another tab has started or finished an answer.
  answeredElsewhere(id) {
    this.tell();
    this.dispatchEvent(new CustomEvent("elsewhere", { detail: id }));
  }

  // Registers an answer that this tab streams.
  begin(answer) {
    const { id } = answer.conversation;
    this.answers.set(id, [...this.answersOf(id), answer]);
    this.presence.begin(id, answer.message.id);
  }

  // Saves a complete answer before other tabs learn that it has ended, so that they read all of it.
  async end(answer) {
    const { conversation, message } = answer;
    const rest = this.answersOf(conversation.id).filter((other) => other !== answer);
    if (rest.length > 0) this.answers.set(conversation.id, rest);
    else this.answers.delete(conversation.id);
    if (this.summaries.has(conversation.id)) this.touch(conversation);
    await this.save();
    if (!this.answersOf(conversation.id).some((other) => other.message === message)) this.presence.end(conversation.id, message.id);
  }

  // The answers that this tab streams into a conversation.
  answersOf(id) {
    return this.answers.get(id) ?? [];
  }

  // Stops all answers of a conversation, or the one of `message`, in this tab or another one.
  stop(id, message) {
    if (this.answers.has(id)) this.stopOwn(id, message);
    else this.channel?.postMessage({ stop: id, message });
  }

  stopOwn(id, message) {
    for (const answer of this.answersOf(id)) if (!message || answer.message.id === message) answer.stop();
  }

  // Another tab has saved: merge its messages with those of this tab.
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

  // Another tab has deleted the conversation.
  forget(id) {
    this.stopOwn(id);
    for (const known of [this.loaded, this.dirty, this.drafts, this.summaries, this.stored]) known.delete(id);
    this.tell();
    this.dispatchEvent(new CustomEvent("elsewhere", { detail: id }));
  }

  // Deletes a conversation and returns it, for undo.
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

  // Ids of the conversations that contain all words.
  async search(query) {
    await this.save();
    const ids = new Set();
    await this.store.each((conversation) => conversation?.nodes && found(conversation, query) && ids.add(conversation.id));
    return ids;
  }
}
