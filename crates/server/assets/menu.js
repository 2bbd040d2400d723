// A menu below a button. Arrow keys move in it; Escape or a click elsewhere closes it.

import { h, icon } from "./dom.js";

let open = null;

// items: [{ icon, label, act, danger }]
export function toggleMenu(button, items) {
  const again = open?.button === button;
  closeMenu();
  if (again) return;
  const menu = h("div", { class: "menu", role: "menu", "aria-label": button.getAttribute("aria-label") },
    items.map(({ icon: name, label, act, danger }) => h("button", { type: "button", role: "menuitem", tabindex: "-1", class: danger ? "danger" : null, onclick: () => {
      closeMenu();
      act();
    } }, icon(name), label)));
  (button.closest("nav, main") ?? document.body).append(menu);
  place(menu, button);
  button.setAttribute("aria-expanded", "true");
  open = { menu, button };
  menu.addEventListener("keydown", onKey);
  menu.firstElementChild.focus();
}

function place(menu, button) {
  const at = button.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = menu;
  menu.style.left = `${Math.max(6, Math.min(at.right - width, innerWidth - width - 6))}px`;
  menu.style.top = `${at.bottom + height + 8 > innerHeight ? Math.max(6, at.top - height - 4) : at.bottom + 4}px`;
}

export function closeMenu(focus = false) {
  if (!open) return;
  const { menu, button } = open;
  open = null;
  menu.remove();
  button.setAttribute("aria-expanded", "false");
  if (focus) button.focus();
}

function onKey(event) {
  const items = [...open.menu.children];
  const at = items.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
  if (to !== undefined) items.at(to % items.length).focus();
  else if (event.key === "Escape" || event.key === "Tab") closeMenu(true);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

document.addEventListener("pointerdown", (event) => {
  if (open && !open.menu.contains(event.target) && !open.button.contains(event.target)) closeMenu();
});
addEventListener("resize", () => closeMenu());
