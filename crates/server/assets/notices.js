// The line below the header (loading, key, storage), and toasts that may offer to undo.

import { $, h, icon, say } from "./dom.js";
import { hasKey, setKey } from "./api.js";

let shown = "";

// Shows one notice at a time. `kind` identifies it: callers can update a visible notice, and
// `hideNotice` removes only its own kind.
function show(kind, look, ...children) {
  const notice = $("notice");
  shown = kind;
  notice.className = `notice ${look}`;
  notice.replaceChildren(...children);
  notice.hidden = false;
}

export function hideNotice(kind) {
  if (kind !== shown) return;
  shown = "";
  $("notice").hidden = true;
  $("notice").replaceChildren();
}

export function showLoading(text, progress) {
  if (shown === "key") return;
  const known = typeof progress === "number" && progress >= 0;
  if (shown !== "loading") show("loading", "info", h("p", {}), h("progress", { max: 1, "aria-label": "Loading the model" }));
  const [words, bar] = $("notice").children;
  const line = known ? `${text} ${Math.round(100 * Math.min(1, progress))} %` : text;
  if (words.textContent !== line) words.textContent = line;
  if (known) bar.value = Math.min(1, progress);
  else bar.removeAttribute("value");
}

export function showUnreachable() {
  if (shown === "key" || shown === "unreachable") return;
  show("unreachable", "bad", h("p", {}, "Server unreachable. What you write is kept; the page keeps trying."));
}

export function showStorage(kind) {
  const text = kind === "memory"
    ? "Conversations will not be saved in this window (private browsing?). Export anything you want to keep."
    : "Storage is limited in this browser. Export long conversations so you don't lose them.";
  show("storage", "", h("p", {}, text), h("button", { type: "button", class: "button", onclick: () => hideNotice("storage") }, "Got it"));
}

export function showStorageFull() {
  if (shown === "full") return;
  show("full", "bad", h("p", {}, "This browser's storage is full or refused to write: this conversation is not saved. Export it, or delete old ones."), h("button", { type: "button", class: "button", onclick: () => hideNotice("full") }, "Got it"));
}

const waiting = []; // callbacks that need the key

// Asks for the key. `then` runs when the user has entered one.
export function askKey(then) {
  waiting.push(then);
  if (shown === "key") return;
  const wrong = hasKey();
  const field = h("input", { type: "password", class: "field", id: "api-key", autocomplete: "off", spellcheck: "false", required: true, "aria-label": "API key", placeholder: "API key" });
  const remember = h("input", { type: "checkbox", id: "remember-key" });
  const form = h("form", {
    onsubmit: (event) => {
      event.preventDefault();
      if (field.value.trim() === "") return;
      // A header cannot contain other characters.
      const fits = /^[\x20-\x7e\xa0-\xff]+$/.test(field.value.trim());
      field.setCustomValidity(fits ? "" : "An API key has only letters, digits and signs of Latin-1.");
      if (!field.reportValidity()) return;
      setKey(field.value.trim(), remember.checked);
      hideNotice("key");
      for (const next of waiting.splice(0)) next();
    },
    oninput: () => field.setCustomValidity(""),
  }, field, h("label", {}, remember, "Remember on this device"), h("button", { type: "submit", class: "button main" }, "Use key"));
  show("key", "", h("p", {}, wrong ? "That API key was not accepted. Try another:" : "This server requires an API key. It is kept for this tab only unless you choose to remember it."), form);
  field.focus();
}

// Shows a message for some seconds, with a button if `undo` is given.
export function toast(text, undo) {
  const close = () => {
    clearTimeout(timer);
    element.remove();
  };
  const element = h("div", { class: "toast" }, h("span", {}, text), undo ? h("button", { type: "button", onclick: () => {
    close();
    undo();
  } }, "Undo") : null, h("button", { type: "button", "aria-label": "Dismiss", onclick: close }, icon("close")));
  $("toasts").append(element);
  while ($("toasts").children.length > 3) $("toasts").firstElementChild.remove();
  say(undo ? `${text}. You can undo this.` : text);
  let timer = setTimeout(close, 9000);
  // The message stays while the pointer or the focus is on it, so that its buttons can be pressed.
  element.addEventListener("pointerenter", () => clearTimeout(timer));
  element.addEventListener("focusin", () => clearTimeout(timer));
  element.addEventListener("pointerleave", () => (timer = setTimeout(close, 3000)));
}
