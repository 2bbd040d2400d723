// A tool call with its name and arguments, which are indented once they are complete JSON.

import { h, icon } from "./dom.js";
import { CodeView } from "./code.js";

export function callView() {
  const name = h("span", { class: "mono" });
  const brief = h("span", {});
  const code = h("code");
  const view = new CodeView(code, "json");
  const element = h("details", { class: "call" },
    h("summary", {}, icon("tool"), name, brief),
    h("div", { class: "inside" }, h("h3", {}, "Arguments"), h("pre", { tabindex: "0" }, code)));
  const update = (call, growing) => {
    const pretty = prettyArguments(call.arguments);
    if (name.textContent !== call.name) name.textContent = call.name;
    const words = growing ? "…" : pretty === null && call.arguments !== "" ? "arguments are not JSON" : "";
    if (brief.textContent !== words) brief.textContent = words;
    view.update(growing ? call.arguments : pretty ?? call.arguments);
  };
  return { element, update };
}

// Indented JSON, or null if the text is not complete JSON.
export function prettyArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}
