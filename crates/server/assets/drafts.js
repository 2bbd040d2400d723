// What is being typed, kept at once: the store is written only later, and a page that is being closed has no time to read and write there.

import { readSetting, removeSetting, writeSetting } from "./store.js";

const nameOf = (id) => `draft.${id}`;

export function keepDraft(id, text, now = Date.now()) {
  writeSetting(nameOf(id), { text, at: now });
}

// The draft of a conversation out of the store. One that was typed before the conversation last changed is in it, or was sent.
export function newestDraft({ id, draft, updated }) {
  const kept = readSetting(nameOf(id), null);
  if (typeof kept?.text === "string" && kept.at > updated) return kept.text;
  if (kept) forgetDraft(id);
  return draft;
}

export function forgetDraft(id) {
  removeSetting(nameOf(id));
}
