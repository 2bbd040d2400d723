// A modal drawer: the rest of the page is inert while it is open.

import { $ } from "./dom.js";

const REACHABLE = "button, input, select, textarea, a[href], summary, [tabindex]:not([tabindex='-1'])";
let open = null;

// Makes everything but the drawer with this id inert. null ends this.
export function trap(id) {
  open = id;
  for (const element of [document.querySelector(".bar"), $("notice"), $("sidebar"), $("main"), $("settings")]) element.inert = id !== null && element.id !== id;
}

// Tab cycles within the drawer.
document.addEventListener("keydown", (event) => {
  if (open === null || event.key !== "Tab" || document.querySelector("dialog[open], .menu")) return;
  const drawer = $(open);
  const reachable = [...drawer.querySelectorAll(REACHABLE)].filter((element) => !element.disabled && element.checkVisibility({ visibilityProperty: true }));
  const [first, last] = [reachable[0], reachable.at(-1)];
  const at = document.activeElement;
  // The browser handles Tab except at the ends: it stops only once per group of radio buttons.
  const end = event.shiftKey ? first : last;
  if (drawer.contains(at) && at !== end) return;
  event.preventDefault();
  (event.shiftKey ? last : first)?.focus();
});
