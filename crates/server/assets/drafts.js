// Stores typed text in localStorage immediately. IndexedDB is written later, and a page that is
// being closed has no time for a read and a write there.

import { readSetting, removeSetting, writeSetting } from "./store.js";

const nameOf = (id) => `draft.${id}`;

export function keepDraft(id, text, now = Date.now()) {
  writeSetting(nameOf(id), { text, at: now });
}

// The newest draft of a conversation. A draft older than the conversation's last change is already
// part of it, or was sent.
export function newestDraft({ id, draft, updated }) {
  const kept = readSetting(nameOf(id), null);
  if (typeof kept?.text === "string" && kept.at > updated) return kept.text;
  if (kept) forgetDraft(id);
  return draft;
}

export function forgetDraft(id) {
  removeSetting(nameOf(id));
}
