// Puts the page together: header, tabs, keys.

import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { $, h, icon } from "./dom.js";
import { Library } from "./library.js";
import { showMeter } from "./meter.js";
import { closeMenu } from "./menu.js";
import { ModelTab } from "./model-tab.js";
import { Server } from "./server.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { startTheme } from "./theme.js";

const KEYS = [["Enter", "send"], ["Shift Enter", "new line"], ["Esc", "stop the answer; close what is open"], ["Ctrl K", "search conversations"], ["Ctrl Shift O", "new chat"], ["Ctrl Shift S", "settings"], ["F2, Delete", "rename, delete a conversation in the list"], ["Ctrl Enter", "send an edited message"]];

const narrow = matchMedia("(max-width: 860px)");
const library = new Library();
const server = new Server(() => showServer(), () => settings.values.model);
const settings = new Settings(server, () => showServer());
const chat = new Chat(library, () => settings.values, server);
const composer = new Composer(chat, library);
const sidebar = new Sidebar(library, { open, current: () => chat.conversation.id });
const modelTab = new ModelTab(server);

chat.changed = () => {
  composer.update();
  showMeter(chat);
};

async function open(id) {
  const conversation = id === null ? undefined : await library.open(id);
  if (id !== null && !conversation) return;
  chooseTab("chat");
  chat.show(conversation);
  settings.load(chat.conversation);
  composer.load();
  sidebar.render();
  const hash = id === null ? "" : `#${id}`;
  if (location.hash !== hash) history.pushState(null, "", hash || location.pathname + location.search);
  document.title = id === null ? "Latent" : `${conversation.title} – Latent`;
  drawer(false);
  if (!matchMedia("(pointer: coarse)").matches) $("prompt").focus();
}

// A list that changed: the open conversation may have got its title and its place in the address.
library.addEventListener("list", () => {
  const { id } = chat.conversation;
  const known = library.summaries.get(id);
  if (known && location.hash !== `#${id}`) history.replaceState(null, "", `#${id}`);
  document.title = known ? `${known.title} – Latent` : "Latent";
});
// Another tab changed the open conversation. What is being typed here stays; a hidden tab waits until it is seen.
let stale = false;
async function refresh() {
  const { id } = chat.conversation;
  stale = document.hidden;
  if (stale) return;
  if (!library.summaries.has(id)) await open(null);
  else {
    const conversation = await library.open(id);
    if (conversation && id === chat.conversation.id) chat.show(Object.assign(conversation, { draft: $("prompt").value }));
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
  const place = $("model-name");
  const key = [server.name, server.models.join(), settings.values.model].join("\n");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  if (server.models.length > 1) {
    const chosen = server.models.includes(settings.values.model) ? settings.values.model : server.model;
    const select = h("select", { "aria-label": "Model", onchange: () => chooseModel(select.value) }, server.models.map((id) => h("option", { value: id, selected: id === chosen }, id)));
    place.replaceChildren(select);
  } else place.textContent = server.name;
  settings.show();
  chat.render();
}

function chooseModel(name) {
  settings.set("model", name);
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

// The list of conversations: a drawer where the window is narrow, else a column.
function drawer(openIt) {
  if (narrow.matches) {
    document.body.classList.toggle("drawer", openIt);
    $("shade").hidden = !openIt;
    $("menu-button").setAttribute("aria-expanded", String(openIt));
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
    } else if (chat.answer) chat.stop();
    else if (!$("settings").hidden) settings.toggle(false);
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
  help.append(h("h2", { id: "help-title" }, "Keys"), h("table", {}, h("tbody", {}, KEYS.map(([key, about]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, about))))), h("button", { type: "button", class: "button", onclick: () => help.close() }, "Close"));
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
