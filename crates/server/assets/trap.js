// A drawer over the page: the rest of the page cannot be reached while it is open.

import { $ } from "./dom.js";

const REACHABLE = "button, input, select, textarea, a[href], summary, [tabindex]:not([tabindex='-1'])";
let open = null;

// The drawer with this id is the only thing that can be reached; null ends that.
export function trap(id) {
  open = id;
  for (const element of [document.querySelector(".bar"), $("notice"), $("sidebar"), $("main"), $("settings")]) element.inert = id !== null && element.id !== id;
}

// Tab goes round within the drawer.
document.addEventListener("keydown", (event) => {
  if (open === null || event.key !== "Tab" || document.querySelector("dialog[open], .menu")) return;
  const drawer = $(open);
  const reachable = [...drawer.querySelectorAll(REACHABLE)].filter((element) => !element.disabled && element.checkVisibility({ visibilityProperty: true }));
  const [first, last] = [reachable[0], reachable.at(-1)];
  const at = document.activeElement;
  // of radio buttons of one group only one is a stop
  const end = event.shiftKey ? first : last;
  if (drawer.contains(at) && at !== end) return;
  event.preventDefault();
  (event.shiftKey ? last : first)?.focus();
});
