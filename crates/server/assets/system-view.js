// The system prompt of a chat, above its messages.

import { h, iconButton } from "./dom.js";

export function systemView(edit) {
  const brief = h("span", { class: "brief", dir: "auto" });
  const text = h("p", { dir: "auto" });
  const element = h("details", { class: "system-prompt" }, h("summary", {}, h("strong", {}, "System prompt"), brief), h("div", { class: "inside" }, text, iconButton("edit", "Edit system prompt", edit)));
  const update = (prompt) => {
    if (text.textContent === prompt) return;
    text.textContent = prompt;
    brief.textContent = prompt.trim().split("\n")[0].slice(0, 200);
  };
  return { element, update };
}
