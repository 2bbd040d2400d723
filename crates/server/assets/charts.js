// Small charts of the tab "Model".

import { h, svg } from "./dom.js";

// A line chart of the last values with a filled area.
export function sparkline(values, most = Math.max(...values, 1e-9)) {
  const width = 120;
  const height = 26;
  const x = (i) => (values.length < 2 ? 0 : (i * width) / (values.length - 1));
  const y = (value) => height - 1 - (Math.min(value, most) / most) * (height - 3);
  const line = values.map((value, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const parts = values.length > 1 ? [svg("path", { class: "area", d: `${line}L${width} ${height}L0 ${height}Z` }), svg("path", { d: line })] : [];
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" }, ...parts);
}

const FAMILIES = [
  ["attention", /attend|attention|softmax|rope|combine/],
  ["cache", /store|cache/],
  ["experts", /expert|moe|router|top_?k/],
  ["norm", /norm/],
  ["", /linear|matmul|gemm|gemv|proj|absorb|kv_|gate|up|down|head|ffn|mlp|q_|o_/],
];

// The colour of a phase, chosen by words in its name.
export const familyOf = (name) => FAMILIES.find(([, words]) => words.test(name))?.[0] ?? "other";

export function shareBar(share, most, name) {
  const bar = h("div", { class: `bar-share ${familyOf(name)}`, "aria-hidden": "true" });
  bar.style.width = `${Math.max(0, Math.min(1, share / most)) * 100}%`;
  return bar;
}
