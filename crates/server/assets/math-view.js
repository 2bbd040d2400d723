// Renders a formula as MathML elements, or its source if it cannot be parsed.

import { h } from "./dom.js";
import { parseMath } from "./math.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";

export function renderMath(source, display) {
  let tree;
  try {
    tree = parseMath(source);
  } catch {
    return h("code", { class: "math-source" }, source.trim());
  }
  const math = document.createElementNS(MATHML, "math");
  if (display) math.setAttribute("display", "block");
  math.setAttribute("alttext", source.trim());
  math.append(elementOf(tree));
  return math;
}

function elementOf({ tag, attributes, children, text }) {
  const element = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  else for (const child of children) element.append(elementOf(child));
  return element;
}
