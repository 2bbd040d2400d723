// The list of conversations: groups by day, search, rename, delete with undo, import and export.

import { $, download, h, icon, iconButton } from "./dom.js";
import { toggleMenu } from "./menu.js";
import { toast } from "./notices.js";
import { cleanSettings } from "./request.js";
import { cleanTitle, readImport, stamp, toMarkdown } from "./tree.js";

const DAY = 86_400_000;

export class Sidebar {
  // open: (id or null for a new chat, words to find in it) → shows it; current: () → id
  constructor(library, { open, current }) {
    Object.assign(this, { library, open, current });
    this.query = "";
    $("new-chat").append(icon("plus"), "New chat");
    $("new-chat").addEventListener("click", () => open(null));
    $("search").addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.search(), 120);
    });
    $("search").addEventListener("keydown", (event) => this.onSearchKey(event));
    $("import").addEventListener("click", () => $("import-file").click());
    $("import-file").addEventListener("change", () => this.import());
    $("export").addEventListener("click", () => this.exportAll());
    $("conversations").addEventListener("keydown", (event) => this.onKey(event));
    library.addEventListener("list", () => this.render());
  }

  render() {
    if (this.renaming) return;
    const place = $("conversations");
    const focused = document.activeElement?.closest?.("#conversations li")?.dataset.id;
    const list = this.library.list().filter(({ id }) => !this.matches || this.matches.has(id));
    const groups = new Map();
    for (const entry of list) {
      const name = groupOf(entry.updated);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(entry);
    }
    place.replaceChildren(...[...groups].flatMap(([name, entries]) => [h("h2", {}, name), h("ul", {}, entries.map((entry) => this.item(entry)))]));
    if (list.length === 0) place.append(h("p", { class: "empty" }, this.matches ? "No conversations match." : "Conversations are kept here, in this browser only."));
    if (focused) place.querySelector(`li[data-id="${CSS.escape(focused)}"] .conversation`)?.focus();
  }

  item({ id, title }) {
    const current = id === this.current();
    const more = iconButton("dots", `More: ${title}`, () => this.menu(id, more), { "aria-haspopup": "menu", "aria-expanded": "false" });
    const button = h("button", { type: "button", class: "conversation", dir: "auto", title, "aria-current": current ? "true" : null, onclick: () => this.openMatch(id), ondblclick: () => this.rename(id) }, title);
    return h("li", { dataset: { id }, class: [current ? "current" : "", this.library.answers.has(id) || this.library.presence.of(id) ? "running" : ""].join(" ").trim() || null }, button, more);
  }

  menu(id, button) {
    toggleMenu(button, [
      { icon: "edit", label: "Rename", act: () => this.rename(id) },
      { icon: "copy", label: "Export as Markdown", act: () => this.exportOne(id, "md") },
      { icon: "copy", label: "Export as JSON", act: () => this.exportOne(id, "json") },
      { icon: "trash", label: "Delete", act: () => this.remove(id), danger: true },
    ]);
  }

  async rename(id) {
    const item = $("conversations").querySelector(`li[data-id="${CSS.escape(id)}"]`);
    const conversation = await this.library.open(id);
    if (!item || !conversation || this.renaming) return;
    this.renaming = true;
    const field = h("input", { class: "field", dir: "auto", "aria-label": "Title", maxlength: 200 });
    field.value = conversation.title;
    const close = (keep) => {
      if (!this.renaming) return;
      this.renaming = false;
      const title = cleanTitle(field.value);
      if (keep && title && title !== conversation.title) {
        Object.assign(conversation, { title, named: true, titled: stamp() });
        this.library.touch(conversation, true);
      }
      this.render();
      $("conversations").querySelector(`li[data-id="${CSS.escape(id)}"] .conversation`)?.focus();
    };
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter" && !event.isComposing) close(true);
      if (event.key === "Escape") close(false);
    });
    field.addEventListener("blur", () => close(true));
    item.replaceChildren(field);
    field.focus();
    field.select();
  }

  async remove(id) {
    const shown = id === this.current();
    const conversation = await this.library.remove(id);
    if (!conversation) return;
    if (shown) this.open(null);
    toast(`“${conversation.title}” deleted`, () => {
      this.library.restore(conversation);
      if (shown) this.open(id);
    });
  }

  async exportOne(id, kind) {
    const conversation = await this.library.open(id);
    const name = fileName(conversation.title);
    if (kind === "md") download(`${name}.md`, "text/markdown", toMarkdown(conversation));
    else download(`${name}.json`, "application/json", exported([conversation]));
  }

  async exportAll() {
    const all = await this.library.all();
    if (all.length === 0) toast("No conversations to export");
    else download(`latent-${new Date().toISOString().slice(0, 10)}.json`, "application/json", exported(all));
  }

  async import() {
    let count = 0;
    for (const file of $("import-file").files) {
      try {
        for (const [i, conversation] of readImport(await file.text()).entries()) {
          if (conversation.settings) conversation.settings = cleanSettings(conversation.settings);
          this.library.touch(conversation, true);
          count += 1;
          if (i === 0) this.open(conversation.id);
        }
      } catch (error) {
        toast(`${file.name}: ${error.message}`);
      }
    }
    $("import-file").value = "";
    if (count > 0) toast(count === 1 ? "One conversation imported" : `${count} conversations imported`);
  }

  // Opens a conversation; after a search, at the first message that contains its words.
  openMatch(id) {
    this.open(id, this.matches?.has(id) ? this.query : "");
  }

  async search() {
    const query = $("search").value.trim();
    this.query = query;
    const matches = query ? await this.library.search(query) : null;
    if (this.query !== query) return; // a newer search has begun
    this.matches = matches;
    this.render();
    $("search-count").textContent = matches ? `${matches.size} found` : "";
  }

  onSearchKey(event) {
    if (event.key === "Escape") {
      event.stopPropagation();
      if ($("search").value === "") $("prompt").focus();
      $("search").value = "";
      this.search();
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      const first = $("conversations").querySelector(".conversation");
      if (event.key === "Enter") first?.click();
      else first?.focus();
      event.preventDefault();
    }
  }

  onKey(event) {
    const buttons = [...$("conversations").querySelectorAll(".conversation")];
    const at = buttons.indexOf(document.activeElement);
    if (at < 0) return;
    const id = document.activeElement.closest("li").dataset.id;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to !== undefined) (to < 0 ? $("search") : buttons[Math.min(to, buttons.length - 1)]).focus();
    else if (event.key === "Delete") {
      (buttons[at + 1] ?? buttons[at - 1] ?? $("new-chat")).focus();
      this.remove(id);
    } else if (event.key === "F2") this.rename(id);
    else return;
    event.preventDefault();
  }
}

const exported = (conversations) => JSON.stringify({ format: "latent-conversations", version: 1, conversations }, null, 1);

const fileName = (title) => title.replace(/[^\p{L}\p{N} _-]+/gu, "").trim().replace(/\s+/g, "-").slice(0, 60) || "conversation";

function groupOf(time, now = Date.now()) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY) return "Yesterday";
  if (time >= midnight - 6 * DAY) return "Last 7 days";
  if (time >= midnight - 29 * DAY) return "Last 30 days";
  return new Date(time).toLocaleDateString("en", { month: "long", year: "numeric" });
}

