// Storage of conversations: IndexedDB, otherwise localStorage, otherwise memory (which the page
// reports). Settings are in localStorage or memory.

import { mergeConversation } from "./merge.js";
import { searchText, searchWords } from "./tree.js";

const DATABASE = "latent";
const STORE = "conversations";
const PREFIX = "latent.conversation.";

// The first kind of storage that works.
export async function openStore({ indexedDB: database = browserDatabase(), localStorage: storage = safeStorage() } = {}) {
  try {
    if (database) return await IndexedStore.open(database);
  } catch {
    // Private windows and full disks refuse storage.
  }
  return storage ? new LocalStore(storage) : new MemoryStore();
}

// If storage is denied, access to `localStorage` throws.
function browserDatabase() {
  try {
    return globalThis.indexedDB;
  } catch {
    return null;
  }
}

export function safeStorage(name = "localStorage") {
  try {
    const storage = globalThis[name];
    storage.setItem("latent.probe", "1");
    storage.removeItem("latent.probe");
    return storage;
  } catch {
    return null;
  }
}

const promised = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

class IndexedStore {
  kind = "indexeddb";

  static async open(factory) {
    const request = factory.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    const store = new IndexedStore();
    store.database = await Promise.race([promised(request), new Promise((_, reject) => setTimeout(() => reject(new Error("no answer")), 4000))]);
    // Close the database, so that a newer version of the page in another tab can upgrade it.
    store.database.onversionchange = () => store.database.close();
    return store;
  }

  objects(mode) {
    return this.database.transaction(STORE, mode).objectStore(STORE);
  }

  all() {
    return promised(this.objects("readonly").getAll());
  }

  // One at a time, so that not all conversations are in memory.
  each(visit) {
    const request = this.objects("readonly").openCursor();
    return new Promise((resolve, reject) => {
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor) return resolve();
        visit(cursor.value);
        return cursor.continue();
      };
    });
  }

  get(id) {
    return promised(this.objects("readonly").get(id));
  }

  // Commits explicitly: a page that is being closed receives no events, and its open transactions
  // are rolled back.
  put(conversation) {
    const objects = this.objects("readwrite");
    const written = promised(objects.put(conversation));
    objects.transaction.commit();
    return written;
  }

  // Merges with the stored copy and writes the result in one transaction. Returns the result of
  // mergeConversation, or null if another tab has deleted the conversation: it was `known` to be
  // stored.
  async merge(conversation, known) {
    const objects = this.objects("readwrite");
    const merged = mergeStored(conversation, await promised(objects.get(conversation.id)), known);
    if (merged) await promised(objects.put(conversation));
    return merged;
  }

  // Changes only the draft, in one transaction, so that changes by other tabs are kept.
  async putDraft(id, draft) {
    const objects = this.objects("readwrite");
    const conversation = withDraft(await promised(objects.get(id)), draft);
    if (conversation) await promised(objects.put(conversation));
  }

  remove(id) {
    return promised(this.objects("readwrite").delete(id));
  }
}

// Merges a conversation with its stored copy. Null if it was `known` to be stored and was deleted.
function mergeStored(conversation, stored, known) {
  if (!stored) return known ? null : { changed: false, behind: true };
  return mergeConversation(conversation, stored);
}

// A stored conversation with a newer draft { draft, draftFiles, drafted }, or null if it is older.
function withDraft(conversation, draft) {
  return conversation && (conversation.drafted ?? 0) <= draft.drafted ? { ...conversation, ...draft } : null;
}

class SmallStore {
  async merge(conversation, known) {
    const merged = mergeStored(conversation, await this.get(conversation.id), known);
    if (merged) await this.put(conversation);
    return merged;
  }

  async putDraft(id, draft) {
    const conversation = withDraft(await this.get(id), draft);
    if (conversation) await this.put(conversation);
  }

  async each(visit) {
    for (const conversation of await this.all()) visit(conversation);
  }
}

class LocalStore extends SmallStore {
  kind = "localstorage";

  constructor(storage) {
    super();
    this.storage = storage;
  }

  async all() {
    const found = [];
    for (let i = 0; i < this.storage.length; i += 1) {
      const key = this.storage.key(i);
      if (key?.startsWith(PREFIX)) found.push(this.read(key));
    }
    return found.filter(Boolean);
  }

  read(key) {
    try {
      return JSON.parse(this.storage.getItem(key));
    } catch {
      return null;
    }
  }

  async get(id) {
    return this.read(PREFIX + id) ?? undefined;
  }

  async put(conversation) {
    this.storage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
  }

  async remove(id) {
    this.storage.removeItem(PREFIX + id);
  }
}

class MemoryStore extends SmallStore {
  kind = "memory";
  kept = new Map();

  async all() {
    return [...this.kept.values()].map((conversation) => structuredClone(conversation));
  }

  async get(id) {
    return structuredClone(this.kept.get(id));
  }

  async put(conversation) {
    this.kept.set(conversation.id, structuredClone(conversation));
  }

  async remove(id) {
    this.kept.delete(id);
  }
}

// The data of a conversation for the list.
export const summaryOf = ({ id, title, created, updated }) => ({ id, title, created, updated });

// Whether each word of a search occurs in the title or in a message.
export function found(conversation, query) {
  const text = [conversation.title.toLowerCase(), ...Object.values(conversation.nodes).map(searchText)].join("\n");
  return searchWords(query).every((word) => text.includes(word));
}

const memory = new Map();

// Reads a small setting `latent.NAME`. A damaged or missing one has the default.
export function readSetting(name, otherwise) {
  try {
    const text = memory.get(name) ?? globalThis.localStorage?.getItem(`latent.${name}`);
    return text === null || text === undefined ? otherwise : JSON.parse(text);
  } catch {
    return memory.has(name) ? JSON.parse(memory.get(name)) : otherwise;
  }
}

export function removeSetting(name) {
  memory.delete(name);
  try {
    globalThis.localStorage.removeItem(`latent.${name}`);
  } catch {
    // No storage.
  }
}

export function writeSetting(name, value) {
  const text = JSON.stringify(value);
  try {
    globalThis.localStorage.setItem(`latent.${name}`, text);
    memory.delete(name);
  } catch {
    memory.set(name, text);
  }
}
