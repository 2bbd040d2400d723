// The settings of the open conversation, and the defaults of this browser, which new conversations begin with. What is changed in
// a chat that nothing was sent in yet is kept beside its draft.

import { EMPTY, cleanSettings } from "./request.js";
import { readSetting, removeSetting, writeSetting } from "./store.js";
import { ROOT, stamp } from "./tree.js";

const UNSENT = "new-settings";
const isUnsent = (conversation) => conversation.nodes[ROOT].children.length === 0;

export class ChatSettings {
  constructor(library) {
    this.library = library;
    this.defaults = cleanSettings(readSetting("settings", null));
    this.conversation = null;
  }

  open(conversation) {
    this.conversation = conversation;
    const kept = isUnsent(conversation) ? readSetting(UNSENT, null) : null;
    if (kept) conversation.settings = cleanSettings(kept);
  }

  // Those of the open conversation.
  get values() {
    return this.valuesOf(this.conversation);
  }

  valuesOf(conversation) {
    return conversation?.settings ? cleanSettings(conversation.settings) : { ...this.defaults };
  }

  of(scope) {
    return scope === "defaults" ? { ...this.defaults } : this.values;
  }

  change(scope, patch) {
    if (scope === "defaults") {
      Object.assign(this.defaults, patch);
      writeSetting("settings", this.defaults);
      return;
    }
    const { conversation } = this;
    Object.assign(conversation, { settings: { ...this.values, ...patch }, settingsAt: stamp() });
    if (!isUnsent(conversation)) this.library.touch(conversation, true);
    else if (JSON.stringify(conversation.settings) !== JSON.stringify(this.defaults)) writeSetting(UNSENT, conversation.settings);
    else {
      // it follows the defaults again
      delete conversation.settings;
      removeSetting(UNSENT);
    }
  }

  // A message of the conversation is sent with these: they are its own from now on.
  sent(conversation) {
    const values = this.valuesOf(conversation);
    if (JSON.stringify(values) !== JSON.stringify(conversation.settings)) Object.assign(conversation, { settings: { ...values }, settingsAt: stamp() });
    removeSetting(UNSENT);
  }

  // Names of the settings in which the conversation differs from the defaults. Which models answer is shown elsewhere.
  differences() {
    const { values, defaults } = this;
    return Object.keys(EMPTY).filter((key) => key !== "model" && key !== "second" && values[key].trim() !== defaults[key].trim());
  }
}
