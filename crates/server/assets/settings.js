// The settings panel, for the open chat or the defaults: presets, sampling, system prompt,
// reasoning, output format, tools.

import { $, h, iconButton } from "./dom.js";
import { toast } from "./notices.js";
import { EMPTY, FORMATS, LABELS, MORE_NUMBERS, NUMBERS, PRESETS, REASONING, SAMPLING, cleanSettings, problemOf } from "./request.js";
import { readSetting, writeSetting } from "./store.js";

const LINES = "One per line; \\n is a line break";

export class Settings {
  // kept: the settings of the open conversation and the defaults (chat-settings.js)
  constructor(server, kept, changed) {
    Object.assign(this, { server, kept, changed });
    this.scope = "chat";
    this.toggled = () => {};
    this.own = readSetting("presets", []).filter((preset) => typeof preset?.name === "string").map(({ name, values }) => ({ name, values: cleanSettings(values) }));
    this.fields = new Map();
  }

  // The values in the panel.
  get values() {
    return this.kept.of(this.scope);
  }

  // Called after the chat has shown a conversation and opened its settings.
  load() {
    this.scope = "chat";
    this.show();
  }

  set(key, value) {
    this.change({ [key]: value });
    this.check(key);
    if (key === "format") this.showFormat();
  }

  change(patch) {
    this.kept.change(this.scope, patch);
    this.showScope();
    this.changed();
  }

  // Builds the panel when it is opened for the first time.
  build() {
    if (this.built) return;
    this.built = true;
    $("settings").append(
      h("header", {}, h("h2", {}, "Settings"), iconButton("close", "Close settings", () => this.toggle(false))),
      this.scopes(),
      this.presets(),
      this.text("system", "System prompt", { rows: 3, placeholder: "None" }),
      this.choice("reasoning", "Reasoning", REASONING, "For models that can think before they answer"),
      h("h3", {}, "Sampling"),
      h("div", { class: "pair" }, NUMBERS.map((number) => this.number(number))),
      h("details", { class: "more" }, h("summary", {}, "More samplers"), h("div", { class: "pair" }, MORE_NUMBERS.map((number) => this.number(number))),
        this.text("dry_sequence_breakers", LABELS.dry_sequence_breakers, { rows: 2, about: LINES }),
        this.text("samplers", LABELS.samplers, { rows: 2, mono: true, about: "Names separated by semicolons. Samplers that are not named are off" })),
      this.text("stop", "Stop sequences", { rows: 2, about: LINES }),
      h("h3", {}, "Output"),
      this.choice("format", "Format", FORMATS),
      this.text("schema", "JSON schema", { rows: 6, mono: true, placeholder: '{"type": "object", "properties": { }}' }),
      this.text("grammar", "Grammar", { rows: 6, mono: true, placeholder: 'root ::= "yes" | "no"' }),
      this.text("tools", "Tools (JSON)", { rows: 3, mono: true, placeholder: '[{"name": "weather", "parameters": { }}]', about: "Offered to the model; the page shows the calls and asks you for their results" }),
      this.text("extra", "Request fields (JSON)", { rows: 3, mono: true, placeholder: '{"logit_bias": [[5, -1]]}', about: "Added to every request as they are; see the server's /docs" }),
    );
    this.show();
  }

  toggle(open = $("settings").hidden, field = "preset") {
    if (open) this.build();
    $("settings").hidden = !open;
    $("settings-button").setAttribute("aria-expanded", String(open));
    this.toggled(open);
    if (open) $(field === "preset" ? field : `set-${field}`).focus();
    else $("settings-button").focus();
  }

  // Shows whether the panel edits this chat or the defaults, and the differences between both.
  scopes() {
    const scope = (value, label) => h("label", {}, h("input", { type: "radio", name: "scope", value, onchange: () => {
      this.scope = value;
      this.show();
    } }), label);
    this.difference = h("p", { id: "difference", role: "status" });
    this.adopt = h("button", { type: "button", class: "button", onclick: () => this.makeDefaults() }, "Save as defaults");
    this.reset = h("button", { type: "button", class: "button", onclick: () => this.useDefaults() }, "Reset to defaults");
    this.differs = h("div", { class: "differs" }, this.difference, this.adopt, this.reset);
    return h("div", {}, h("div", { class: "scopes", role: "radiogroup", "aria-label": "Edit" }, scope("chat", "This chat"), scope("defaults", "Defaults for new chats")), this.differs);
  }

  makeDefaults() {
    const before = this.kept.of("defaults");
    this.kept.change("defaults", { ...this.kept.values, model: before.model, second: "" });
    this.show();
    this.changed();
    toast("New chats begin with these settings", () => {
      this.kept.change("defaults", before);
      this.show();
      this.changed();
    });
  }

  useDefaults() {
    const before = this.kept.values;
    this.change({ ...this.kept.of("defaults"), model: before.model, second: before.second });
    this.show();
    toast("This chat uses the defaults", () => {
      this.change(before);
      this.show();
    });
  }

  showScope() {
    const names = this.kept.differences().map((key) => LABELS[key]);
    const button = $("settings-button");
    button.classList.toggle("differs", names.length > 0);
    button.title = names.length > 0 ? `Settings (this chat differs from the defaults: ${names.join(", ")})` : "Settings";
    button.setAttribute("aria-label", button.title);
    if (!this.built) return;
    for (const input of $("settings").querySelectorAll("input[name=scope]")) input.checked = input.value === this.scope;
    this.difference.textContent = this.scope === "defaults" ? "New chats begin with these settings." : names.length > 0 ? `Differs from the defaults: ${names.join(", ")}` : "Same as the defaults.";
    this.adopt.hidden = this.reset.hidden = this.scope === "defaults" || names.length === 0;
  }

  presets() {
    this.select = h("select", { class: "field", id: "preset", onchange: () => this.usePreset(this.select.value) });
    this.removeButton = iconButton("trash", "Delete this preset", () => this.removePreset());
    this.place = h("div");
    const save = iconButton("plus", "Save as a preset", () => this.askName());
    return h("div", { class: "setting" }, h("label", { for: "preset" }, "Preset"), h("div", { class: "presets" }, this.select, save, this.removeButton), this.place);
  }

  showPresets() {
    const name = this.presetName();
    const option = (preset) => h("option", { value: preset.name, selected: preset.name === name }, preset.name);
    this.select.replaceChildren(
      ...(name === null ? [h("option", { value: "", selected: true }, "Custom")] : []),
      h("optgroup", { label: "Built in" }, PRESETS.map(option)),
      ...(this.own.length > 0 ? [h("optgroup", { label: "Yours" }, this.own.map(option))] : []),
    );
    this.removeButton.disabled = !this.own.some((preset) => preset.name === name);
  }

  // The preset with these values.
  presetName() {
    const present = this.values;
    const same = (keys, values) => keys.every((key) => present[key].trim() === (values[key] ?? "").trim());
    const own = this.own.find((preset) => same(Object.keys(EMPTY).filter((key) => key !== "second"), preset.values));
    return own?.name ?? PRESETS.find((preset) => same(SAMPLING, preset.values))?.name ?? null;
  }

  usePreset(name) {
    const own = this.own.find((preset) => preset.name === name);
    const preset = own ?? PRESETS.find((entry) => entry.name === name);
    if (!preset) return;
    this.change(own ? { ...own.values, second: this.values.second } : Object.fromEntries(SAMPLING.map((key) => [key, preset.values[key] ?? ""])));
    this.show();
  }

  askName() {
    const field = h("input", { class: "field", "aria-label": "Name of the preset", placeholder: "Name", maxlength: 60 });
    const form = h("form", { class: "preset-name", onsubmit: (event) => {
      event.preventDefault();
      const name = field.value.trim();
      if (!name || PRESETS.some((preset) => preset.name === name)) return field.focus();
      this.own = [...this.own.filter((preset) => preset.name !== name), { name, values: { ...this.values } }];
      writeSetting("presets", this.own);
      this.place.replaceChildren();
      this.showPresets();
      return this.select.focus();
    } }, field, h("button", { type: "submit", class: "button" }, "Save"));
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.place.replaceChildren();
      this.select.focus();
    });
    this.place.replaceChildren(form);
    field.focus();
  }

  removePreset() {
    const preset = this.own.find(({ name }) => name === this.presetName());
    if (!preset) return;
    const save = (list) => {
      this.own = list;
      writeSetting("presets", list);
      this.showPresets();
    };
    save(this.own.filter((entry) => entry !== preset));
    toast(`Preset “${preset.name}” deleted`, () => save([...this.own, preset]));
  }

  number({ key, label, min, max, step, about }) {
    const field = h("input", { class: "field", id: `set-${key}`, type: "text", inputmode: step < 1 || min < 0 ? "decimal" : "numeric", autocomplete: "off", title: about ?? null, "data-min": min, "data-max": max });
    field.addEventListener("keydown", (event) => {
      const way = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (!way || field.value.trim() === "" || !Number.isFinite(Number(field.value))) return;
      event.preventDefault();
      const next = Math.min(max, Math.max(min, Number(field.value) + way * step));
      field.value = String(Number(next.toFixed(4)));
      this.set(key, field.value);
    });
    return this.setting(key, label, field);
  }

  text(key, label, { rows, mono, placeholder, about }) {
    return this.setting(key, label, h("textarea", { class: mono ? "field mono" : "field", id: `set-${key}`, rows, placeholder: placeholder ?? null, spellcheck: mono ? "false" : null, dir: mono ? null : "auto" }), about);
  }

  choice(key, label, options, about) {
    return this.setting(key, label, h("select", { class: "field", id: `set-${key}` }, options.map(([value, name]) => h("option", { value }, name))), about);
  }

  setting(key, label, field, about) {
    const wrong = h("p", { class: "wrong", id: `wrong-${key}`, role: "alert" });
    const note = about ? h("p", { class: "about", id: `about-${key}` }, about) : null;
    field.setAttribute("aria-describedby", `wrong-${key}${note ? ` about-${key}` : ""}`);
    field.addEventListener("input", () => this.set(key, field.value));
    const element = h("div", { class: "setting" }, h("label", { for: `set-${key}` }, label), field, note, wrong);
    this.fields.set(key, { field, wrong, element });
    return element;
  }

  show() {
    this.showScope();
    if (!this.built) return;
    const { values } = this;
    for (const [key, { field }] of this.fields) {
      if (field.value !== values[key]) field.value = values[key];
      const standard = this.server.defaults?.[key];
      if (field.type === "text" && standard !== undefined) field.placeholder = typeof standard === "number" ? String(Number(standard.toFixed(4))) : "";
      if (key === "samplers" && Array.isArray(standard)) field.placeholder = standard.join("; ");
      this.check(key);
    }
    this.showFormat();
    this.showPresets();
  }

  showFormat() {
    for (const key of ["schema", "grammar"]) {
      this.fields.get(key).element.hidden = this.values.format !== key;
      this.check(key);
    }
  }

  check(key) {
    const entry = this.fields.get(key);
    if (!entry) return;
    const problem = problemOf(key, this.values);
    entry.wrong.textContent = problem ?? "";
    entry.field.setAttribute("aria-invalid", String(problem !== null));
    this.showPresets();
  }
}
