// The settings of the open conversation, and this browser's defaults for new conversations. Changes
// in a chat without messages are stored with its draft.

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

  // The settings of the open conversation.
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
      // The settings equal the defaults again, so the chat follows later changes of the defaults.
      delete conversation.settings;
      removeSetting(UNSENT);
    }
  }

  // Stores the settings in the conversation when its first message is sent with them.
  sent(conversation) {
    const values = this.valuesOf(conversation);
    if (JSON.stringify(values) !== JSON.stringify(conversation.settings)) Object.assign(conversation, { settings: { ...values }, settingsAt: stamp() });
    removeSetting(UNSENT);
  }

  // Names of the settings that differ from the defaults. Models are omitted: they have their own
  // view.
  differences() {
    const { values, defaults } = this;
    return Object.keys(EMPTY).filter((key) => key !== "model" && key !== "second" && values[key].trim() !== defaults[key].trim());
  }
}
