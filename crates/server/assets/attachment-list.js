// The files of a draft: removable chips, the file picker, dropped files. Also the view of the files
// of a sent message.

import { MAX_FILES, MAX_TOTAL, bytes, extensionOf, readFile } from "./attachment.js";
import { CodeView } from "./code.js";
import { copyText, h, icon, iconButton, say, whole } from "./dom.js";
import { toast } from "./notices.js";

const COLOURED = 200_000; // characters; longer texts are not highlighted

export class AttachmentList {
  // changed: called after a change by the user
  constructor(changed = () => {}) {
    this.changed = changed;
    this.files = [];
    this.round = 0; // counts calls of `set`, so that `add` discards files of an earlier message
    this.reading = 0;
    this.element = h("ul", { class: "files", "aria-label": "Attached files", hidden: true });
    this.input = h("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files to attach", onchange: () => this.pick() });
    this.button = iconButton("attach", "Attach text files", () => this.input.click());
  }

  set(files) {
    this.round += 1;
    this.files = [...files];
    this.show();
  }

  // Clear the input immediately: otherwise picking the same file again fires no change event.
  pick() {
    const picked = [...this.input.files];
    this.input.value = "";
    this.add(picked);
    this.button.focus();
  }

  // Reads files and adds them. Shows an error for each file that cannot be attached.
  async add(list) {
    const { round } = this;
    this.reading += 1;
    const added = [];
    for (const file of list) {
      try {
        const read = await readFile(file);
        if (this.round !== round) break;
        if (this.accept(read)) added.push(read.name);
        else if (this.files.length >= MAX_FILES) break; // `accept` has shown the error once
      } catch (error) {
        toast(error.message);
      }
    }
    this.reading -= 1;
    if (added.length > 0) say(`Attached: ${added.join(", ")}`);
  }

  // Adds a text under an unused name. Returns the file, or null.
  addText(name, text) {
    const [, stem, end] = /^(.*?)(\.\w+)?$/.exec(name);
    let file = { name, text };
    for (let i = 2; this.files.some((other) => other.name === file.name); i += 1) file = { name: `${stem} ${i}${end ?? ""}`, text };
    return this.accept(file) ? file : null;
  }

  accept(file) {
    if (this.files.some(({ name, text }) => name === file.name && text === file.text)) {
      toast(`${file.name} is attached already`);
      return false;
    }
    if (this.files.length >= MAX_FILES) {
      toast(`${file.name} is not attached: a message can have up to ${MAX_FILES} files`);
      return false;
    }
    if (this.files.reduce((sum, { text }) => sum + text.length, file.text.length) > MAX_TOTAL) {
      toast(`${file.name} is not attached: the files of a message can have up to ${bytes(MAX_TOTAL)} in total`);
      return false;
    }
    this.files = [...this.files, file];
    this.show();
    this.changed();
    return true;
  }

  remove(file) {
    const at = this.files.indexOf(file);
    if (at < 0) return;
    this.files = this.files.filter((other) => other !== file);
    this.show();
    this.changed();
    say(`Removed: ${file.name}`);
    const buttons = this.element.querySelectorAll("button");
    (buttons[Math.min(at, buttons.length - 1)] ?? this.button).focus();
  }

  show() {
    this.element.hidden = this.files.length === 0;
    this.element.replaceChildren(...this.files.map((file) => h("li", { class: "file-chip" }, icon("file"), h("span", { class: "file-name", dir: "auto", title: file.name }, file.name), h("span", { class: "file-size" }, sizeOf(file.text)), iconButton("close", `Remove ${file.name}`, () => this.remove(file)))));
  }
}

const sizeOf = (text) => bytes(new TextEncoder().encode(text).length);

// Accepts files dropped on an element. Elsewhere on the page a drop is ignored: by default the
// browser would open the file and leave the page.
export function acceptDrops(element, hint, take) {
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const over = (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    const inside = element.contains(event.target);
    event.dataTransfer.dropEffect = inside ? "copy" : "none";
    hint.hidden = !inside;
  };
  addEventListener("dragenter", over);
  addEventListener("dragover", over);
  // The pointer has left the window.
  addEventListener("dragleave", (event) => event.relatedTarget || (hint.hidden = true));
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    hint.hidden = true;
    if (element.contains(event.target)) take([...event.dataTransfer.files]);
  });
}

// A collapsed file of a sent message. Its text is rendered when it is opened.
export function fileView({ name, text }) {
  const code = h("code");
  const lines = text.replace(/\n$/, "").split("\n").length;
  const fill = () => {
    if (!element.open || code.firstChild) return;
    if (text.length > COLOURED) code.textContent = text;
    else new CodeView(code, extensionOf(name)).update(text);
  };
  const copy = iconButton("copy", `Copy ${name}`, () => copyText(text, copy));
  const element = h("details", { class: "file", ontoggle: fill },
    h("summary", {}, icon("file"), h("span", { class: "file-name", dir: "auto" }, name), h("span", { class: "file-size" }, `${whole(lines)} ${lines === 1 ? "line" : "lines"}, ${sizeOf(text)}`)),
    h("div", { class: "inside" }, h("pre", { tabindex: "0", role: "group", "aria-label": name }, code), copy));
  const open = () => {
    element.open = true;
    fill();
  };
  return { element, open };
}
