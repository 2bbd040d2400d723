// The theme: light, dark, or the system's. The switch selects the other one and stores the choice.

import { $, icon } from "./dom.js";
import { writeSetting } from "./store.js";

const system = matchMedia("(prefers-color-scheme: dark)");

const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

export function startTheme() {
  show();
  $("theme-button").addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    const { dataset } = document.documentElement;
    // If the choice equals the system's theme, the page follows the system again.
    if (next === (system.matches ? "dark" : "light")) delete dataset.theme;
    else dataset.theme = next;
    writeSetting("theme", dataset.theme ?? null);
    show();
  });
  system.addEventListener("change", show);
}

function show() {
  const label = isDark() ? "Light theme" : "Dark theme";
  $("theme-button").replaceChildren(icon(isDark() ? "sun" : "moon"));
  $("theme-button").setAttribute("aria-label", label);
  $("theme-button").title = label;
}
