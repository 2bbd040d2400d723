// Comparison of two models: the choice of the second model, and the view of the two answers.

import { h, iconButton } from "./dom.js";

// The models that receive a request: one, or two to compare. "" is the server's default.
export function modelsFor(settings, server) {
  const first = server.models.includes(settings.model) ? settings.model : server.model;
  const others = server.models.filter((model) => model !== first);
  if (!settings.second || others.length === 0) return [first];
  return [first, others.includes(settings.second) ? settings.second : others[0]];
}

// The button in the composer and the line above its field.
export class CompareControl {
  constructor(kept, server, changed) {
    Object.assign(this, { kept, server, changed });
    this.button = iconButton("columns", "Compare two models", () => this.choose(this.kept.values.second ? "" : this.others()[0]), { "aria-pressed": "false", hidden: true });
    this.words = h("span", {});
    this.select = h("select", { "aria-label": "Second model", onchange: () => this.choose(this.select.value) });
    this.line = h("div", { class: "compare", hidden: true }, this.words, this.select, iconButton("close", "Ask one model only", () => this.choose("")));
  }

  others() {
    const [first] = modelsFor(this.kept.values, this.server);
    return this.server.models.filter((model) => model !== first);
  }

  choose(second) {
    const on = Boolean(second);
    this.kept.change("chat", { second });
    this.changed();
    (on ? this.select : this.button).focus();
  }

  show() {
    const [first, second] = modelsFor(this.kept.values, this.server);
    this.button.hidden = this.server.models.length < 2;
    this.button.setAttribute("aria-pressed", String(Boolean(second)));
    this.line.hidden = !second;
    const key = [first, second, ...this.server.models].join("\n");
    if (key === this.key) return;
    this.key = key;
    this.words.textContent = `Compare ${first} with`;
    this.select.replaceChildren(...this.others().map((model) => h("option", { value: model, selected: model === second }, model)));
  }
}

// A box with two answers in columns.
export function pairView() {
  const element = h("div", { class: "two-answers", role: "group", "aria-label": "Two answers to compare" });
  const update = (left, right) => {
    if (element.firstChild !== left || element.lastChild !== right || element.children.length !== 2) element.replaceChildren(left, right);
  };
  return { element, update };
}
