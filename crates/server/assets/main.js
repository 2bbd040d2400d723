// Builds the page: header, tabs, keyboard shortcuts.

import { Chat } from "./chat.js";
import { ChatSettings } from "./chat-settings.js";
import { CompareControl } from "./compare.js";
import { Composer } from "./composer.js";
import { $, h, icon } from "./dom.js";
import { FindBar } from "./find-bar.js";
import { Length } from "./length.js";
import { Library } from "./library.js";
import { showMeter } from "./meter.js";
import { closeMenu } from "./menu.js";
import { ModelTab } from "./model-tab.js";
import { Server } from "./server.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { startTheme } from "./theme.js";
import { trap } from "./trap.js";

const KEYS = [["Enter", "send"], ["Shift+Enter", "new line"], ["Esc", "close what is open; then stop the answer"], ["Ctrl+K", "search conversations"], ["Ctrl+Shift+O", "new chat"], ["Ctrl+Shift+S", "settings"], ["F2, Delete", "rename, delete a conversation in the list"], ["Ctrl+Enter", "send an edited message"]];

const narrow = matchMedia("(max-width: 860px)");
const library = new Library();
const kept = new ChatSettings(library);
const server = new Server(() => showServer(), () => kept.values.model);
const settings = new Settings(server, kept, () => {
  showServer();
  chat.render();
});
settings.toggled = (openIt) => {
  if (narrow.matches) trap(openIt ? "settings" : null);
};
const chat = new Chat(library, kept, server);
chat.length = new Length(chat, async (text, files) => {
  await open(null);
  composer.write(text, files);
});
const compare = new CompareControl(kept, server, () => {
  compare.show();
  settings.show();
  chat.length.typed();
});
const composer = new Composer(chat, library, compare);
const find = new FindBar(chat);
const sidebar = new Sidebar(library, { open, current: () => chat.conversation.id });
const modelTab = new ModelTab(server);

chat.editSystem = () => settings.toggle(true, "system");
chat.changed = () => {
  composer.update();
  showMeter(chat);
};

async function open(id, words = "") {
  const conversation = id === null ? undefined : await library.open(id);
  if (id !== null && !conversation) return;
  chooseTab("chat");
  if (narrow.matches && !$("settings").hidden) settings.toggle(false);
  chat.show(conversation);
  settings.load();
  composer.load();
  compare.show();
  find.close();
  if (words) find.start(words);
  sidebar.render();
  const hash = id === null ? "" : `#${id}`;
  if (location.hash !== hash) history.pushState(null, "", hash || location.pathname + location.search);
  document.title = id === null ? "Latent" : `${conversation.title} – Latent`;
  drawer(false);
  if (!matchMedia("(pointer: coarse)").matches) $("prompt").focus();
}

// The list has changed: the open conversation may have a new title, or its first entry in the list.
library.addEventListener("list", () => {
  const { id } = chat.conversation;
  const known = library.summaries.get(id);
  if (known && location.hash !== `#${id}`) history.replaceState(null, "", `#${id}`);
  document.title = known ? `${known.title} – Latent` : "Latent";
});
// Another tab has changed the open conversation. This tab keeps its draft. A hidden tab updates
// when it becomes visible.
let stale = false;
async function refresh() {
  const { id } = chat.conversation;
  stale = document.hidden;
  if (stale) return;
  if (!library.summaries.has(id)) await open(null);
  else {
    chat.catchUp();
    settings.show();
    compare.show();
  }
}
library.addEventListener("elsewhere", ({ detail }) => detail === chat.conversation.id && refresh());
document.addEventListener("visibilitychange", () => stale && refresh());
addEventListener("popstate", () => {
  const id = location.hash.slice(1);
  if (id === "" || library.summaries.has(id)) open(id || null);
});

function showServer() {
  showMeter(chat);
  compare.show();
  const place = $("model-name");
  const key = [server.name, server.models.join(), kept.values.model].join("\n");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  if (server.models.length > 1) {
    const chosen = server.models.includes(kept.values.model) ? kept.values.model : server.model;
    const select = h("select", { "aria-label": "Model", onchange: () => chooseModel(select.value) }, server.models.map((id) => h("option", { value: id, selected: id === chosen }, id)));
    place.replaceChildren(select);
  } else place.textContent = server.name;
  settings.show();
  chat.render();
}

function chooseModel(name) {
  // The choice also becomes the default of new chats.
  kept.change("defaults", { model: name });
  if (kept.values.model !== name) kept.change("chat", { model: name });
  showServer();
  server.start();
}

function chooseTab(name) {
  for (const tab of ["chat", "model"]) {
    const chosen = tab === name;
    $(`tab-${tab}`).setAttribute("aria-selected", String(chosen));
    $(`tab-${tab}`).tabIndex = chosen ? 0 : -1;
    $(tab).hidden = !chosen;
  }
  modelTab.show(name === "model");
  if (name === "chat") chat.scroller.follow(() => {});
}

// The list of conversations: a drawer in a narrow window, otherwise a column.
function drawer(openIt) {
  if (narrow.matches) {
    document.body.classList.toggle("drawer", openIt);
    $("shade").hidden = !openIt;
    $("menu-button").setAttribute("aria-expanded", String(openIt));
    trap(openIt ? "sidebar" : null);
    if (openIt) $("new-chat").focus();
  }
}

function toggleSidebar() {
  if (narrow.matches) drawer(!document.body.classList.contains("drawer"));
  else $("menu-button").setAttribute("aria-expanded", String(!document.body.classList.toggle("no-sidebar")));
}

function onKey(event) {
  const command = event.ctrlKey || event.metaKey;
  const key = event.key.toLowerCase();
  if (event.key === "Escape" && !event.defaultPrevented && !event.isComposing) {
    if ($("help").open) return;
    if (document.body.classList.contains("drawer")) {
      drawer(false);
      $("menu-button").focus();
    } else if (!$("settings").hidden) settings.toggle(false);
    else chat.stop();
  } else if (command && key === "k") {
    if (narrow.matches) drawer(true);
    else document.body.classList.remove("no-sidebar");
    $("search").focus();
    $("search").select();
  } else if (command && event.shiftKey && key === "o") open(null);
  else if (command && event.shiftKey && key === "s") settings.toggle();
  else return;
  event.preventDefault();
}

function startHeader() {
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    $("prompt").focus();
  });
  $("menu-button").append(icon("menu"));
  $("menu-button").setAttribute("aria-expanded", String(!narrow.matches));
  $("menu-button").addEventListener("click", toggleSidebar);
  $("shade").addEventListener("click", () => drawer(false));
  narrow.addEventListener("change", () => {
    document.body.classList.remove("drawer");
    $("shade").hidden = true;
    trap(narrow.matches && !$("settings").hidden ? "settings" : null);
    $("menu-button").setAttribute("aria-expanded", String(!narrow.matches && !document.body.classList.contains("no-sidebar")));
  });
  $("settings-button").append(icon("sliders"));
  $("settings-button").addEventListener("click", () => settings.toggle());
  for (const name of ["chat", "model"]) $(`tab-${name}`).addEventListener("click", () => chooseTab(name));
  document.querySelector(".tabs").addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const name = $("tab-chat").tabIndex === 0 ? "model" : "chat";
    chooseTab(name);
    $(`tab-${name}`).focus();
  });
  const help = $("help");
  help.append(h("h2", { id: "help-title" }, "Keyboard shortcuts"), h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Shortcut"), h("th", { scope: "col" }, "Action"))), h("tbody", {}, KEYS.map(([key, about]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, about))))), h("button", { type: "button", class: "button", onclick: () => help.close() }, "Close"));
  $("keys").addEventListener("click", () => help.showModal());
}

startTheme();
startHeader();
document.addEventListener("keydown", onKey);
addEventListener("online", () => server.start());
server.start();
await library.start();
closeMenu();
await open(library.summaries.has(location.hash.slice(1)) ? location.hash.slice(1) : null);
document.documentElement.dataset.ready = "";
