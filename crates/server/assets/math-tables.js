// Environments of TeX: matrices, cases, aligned lines.

import { MathError, fence, node, row } from "./math-tree.js";

const FENCES = { pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", matrix: "", smallmatrix: "", cases: "{ ", dcases: "{ ", rcases: " }" };
const ALIGNED = new Set(["align", "aligned", "alignat", "split", "eqnarray", "alignedat"]);
const CENTERED = new Set(["gather", "gathered", "equation", "multline", "substack", "displaymath", "math"]);

// Parses the rows of an environment up to `\end{name}` or the given token.
export function environment(parser, full, end) {
  const name = full.replace(/\*$/, "");
  const known = name === "array" || Object.hasOwn(FENCES, name) || ALIGNED.has(name) || CENTERED.has(name);
  if (!known) throw new MathError(`the environment ${full} is not known`);
  const columns = name === "array" ? parser.raw() : "";
  if (name.startsWith("alignat") || name === "alignedat") parser.raw();
  if (name === "array" || name === "aligned" || name === "gathered") parser.peek() === "[" && parser.optional();
  const rows = readRows(parser, end);
  if (end === "\\end") {
    const closed = parser.raw();
    if (closed !== full) throw new MathError(`\\begin{${full}} ends with \\end{${closed}}`);
  }
  if ((name === "equation" || name === "displaymath" || name === "math") && rows.length === 1 && rows[0].length === 1) return rows[0][0];
  return fenced(name, table(rows, name, columns));
}

function readRows(parser, end) {
  const rows = [[]];
  for (;;) {
    const cell = row(parser.row((token) => token === "&" || token === "\\\\" || token === end || token === "\\cr" || token === "\\newline"));
    rows.at(-1).push(cell);
    const token = parser.take();
    if (token === end) break;
    if (token === "&") continue;
    if (token !== "\\\\" && token !== "\\cr" && token !== "\\newline") throw new MathError(`${token} was not expected`);
    // Skip the distance of \\[2pt].
    if (parser.tokens[parser.at] === "[") parser.optional();
    rows.push([]);
  }
  // The last line may end with \\.
  const last = rows.at(-1);
  if (rows.length > 1 && last.length === 1 && last[0].tag === "mrow" && last[0].children.length === 0) rows.pop();
  return rows;
}

function table(rows, name, columns) {
  const letters = columns.replace(/[^lcr]/g, "");
  const side = (i) => {
    if (ALIGNED.has(name)) return i % 2 === 0 ? "right" : "left";
    if (name.endsWith("cases")) return "left";
    return { l: "left", r: "right" }[letters[i]] ?? null;
  };
  const body = rows.map((cells) => node("mtr", cells.map((cell, i) => node("mtd", [cell], side(i) ? { class: side(i) } : {}))));
  const display = ALIGNED.has(name) || name === "gather" || name === "gathered" || name === "dcases";
  const kind = ALIGNED.has(name) ? "aligned" : name === "smallmatrix" || name === "substack" ? "small" : "";
  return node("mtable", body, { displaystyle: String(display), ...(kind ? { class: kind } : {}) });
}

function fenced(name, made) {
  const pair = [...(FENCES[name] ?? "")];
  if (pair.length === 0) return made;
  const parts = [made];
  if (pair[0] !== " ") parts.unshift(fence(pair[0]));
  if (pair[1] !== " ") parts.push(fence(pair[1]));
  return node("mrow", parts);
}
