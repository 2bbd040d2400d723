// Markdown → a tree of blocks: CommonMark's blocks, and GFM's tables and task lists. Not supported:
// raw HTML (it stays text), link reference definitions, entities in URLs.
//
// Each block has `raw`, its source lines, by which a view detects unchanged blocks.

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^( {0,3})([-+*]|\d{1,9}[.)])(?:( {1,4})(?! )|( *)(?=$)|( )(?= {4}))(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const SETEXT = /^ {0,3}(=+|-{2,})[ \t]*$/;
const DELIMITER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const MATH_OPEN = /^ {0,3}(\$\$|\\\[|\\begin\{((?:equation|align|alignat|gather|multline|eqnarray|displaymath)\*?)\})(.*)$/;
const BLANK = /^[ \t]*$/;

// Deeper quotes and lists remain text, so that recursion is bounded for any input.
const DEEPEST = 12;
const LONGEST_FORMULA = 200; // lines

// Parses `text` into blocks. `start` of a block is the offset of its first line.
export function parseBlocks(text) {
  const lines = text.split("\n");
  const offsets = [];
  let offset = 0;
  for (const line of lines) {
    offsets.push(offset);
    offset += line.length + 1;
  }
  return parseLines(lines.map(expandTabs), 0).map(({ from, ...block }) => ({ ...block, start: offsets[from] }));
}

// Expands tabs of the indentation to tab stops of four columns.
function expandTabs(line) {
  const trimmed = line.endsWith("\r") ? line.slice(0, -1) : line;
  const indent = /^[ ]*\t[ \t]*/.exec(trimmed);
  if (!indent) return trimmed;
  let columns = 0;
  for (const c of indent[0]) columns += c === "\t" ? 4 - (columns % 4) : 1;
  return " ".repeat(columns) + trimmed.slice(indent[0].length);
}

function parseLines(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (BLANK.test(lines[at])) {
      at += 1;
      continue;
    }
    const [block, next] = blockAt(lines, at, depth);
    block.from = at;
    block.raw = lines.slice(at, next).join("\n");
    blocks.push(block);
    at = next;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence && !(fence[2][0] === "`" && fence[3].includes("`"))) return fencedCode(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ type: "heading", level: heading[1].length, text: heading[2] ?? "" }, at + 1];
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  if (depth < DEEPEST) {
    if (QUOTE.test(line)) return quote(lines, at, depth);
    if (ITEM.test(line)) return list(lines, at, depth);
  }
  const math = MATH_OPEN.exec(line);
  if (math) {
    const found = displayMath(lines, at, math);
    if (found) return found;
  }
  if (/^ {4}/.test(line)) return indentedCode(lines, at);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at, depth);
}

function fencedCode(lines, at, [, indent, mark, info]) {
  const close = new RegExp(`^ {0,3}${mark[0] === "`" ? "`" : "~"}{${mark.length},}[ \\t]*$`);
  const strip = indent.length;
  const body = [];
  let next = at + 1;
  let closed = false;
  for (; next < lines.length; next += 1) {
    if (close.test(lines[next])) {
      closed = true;
      break;
    }
    const spaces = /^ */.exec(lines[next])[0].length;
    body.push(lines[next].slice(Math.min(strip, spaces)));
  }
  const block = { type: "code", language: info.trim().split(/[\s{,]/)[0], text: body.join("\n"), closed };
  return [block, closed ? next + 1 : next];
}

function indentedCode(lines, at) {
  const body = [];
  let next = at;
  while (next < lines.length && (/^ {4}/.test(lines[next]) || BLANK.test(lines[next]))) {
    body.push(lines[next].slice(4));
    next += 1;
  }
  while (BLANK.test(body.at(-1))) body.pop();
  return [{ type: "code", language: "", text: body.join("\n"), closed: true }, next];
}

// Display formulas over several lines: `$$ … $$`, `\[ … \]`, `\begin{align} … \end{align}`. While
// an answer is streamed, a formula without its end extends to the end of the text.
function displayMath(lines, at, [, open, name, rest]) {
  const close = name ? `\\end{${name}}` : open === "$$" ? "$$" : "\\]";
  const body = [];
  // The name of an environment is part of the formula.
  const formula = (closed) => ({ type: "math", text: name ? `${open}${body.join("\n")}${closed ? close : ""}` : body.join("\n"), closed });
  for (let next = at; next < lines.length; next += 1) {
    const line = next === at ? rest : lines[next];
    const end = line.indexOf(close);
    if (end >= 0) {
      if (line.slice(end + close.length).trim() !== "") return null;
      body.push(line.slice(0, end));
      return [formula(true), next + 1];
    }
    // Not a formula, but a paragraph that begins like one.
    if (next - at > LONGEST_FORMULA || (next > at && BLANK.test(line) && BLANK.test(lines[next + 1] ?? "x"))) return null;
    body.push(line);
  }
  return [formula(false), lines.length];
}

function quote(lines, at, depth) {
  const body = [];
  let next = at;
  while (next < lines.length) {
    if (QUOTE.test(lines[next])) body.push(lines[next].replace(QUOTE, ""));
    // Lazy continuation: a line without `>` continues a paragraph of the quote.
    else if (!BLANK.test(lines[next]) && !BLANK.test(body.at(-1)) && !interrupts(lines[next]) && isText(body.at(-1))) body.push(lines[next]);
    else break;
    next += 1;
  }
  return [{ type: "quote", blocks: parseLines(body, depth + 1) }, next];
}

const isText = (line) => !FENCE.test(line) && !HEADING.test(line) && !RULE.test(line) && !/^ {4}/.test(line);

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const kind = first[2].at(-1);
  const ordered = /\d/.test(first[2]);
  const items = [];
  let next = at;
  let loose = false;
  while (next < lines.length) {
    const head = ITEM.exec(lines[next]);
    if (!head || head[2].at(-1) !== kind || /\d/.test(head[2]) !== ordered || RULE.test(lines[next])) break;
    const [item, end] = listItem(lines, next, head, depth);
    items.push(item);
    next = end;
    // A blank line between two items makes the list loose.
    let after = next;
    while (after < lines.length && BLANK.test(lines[after])) after += 1;
    const more = after < lines.length ? ITEM.exec(lines[after]) : null;
    const goesOn = more && more[2].at(-1) === kind && /\d/.test(more[2]) === ordered && !RULE.test(lines[after]);
    if (!goesOn) break;
    if (after > next) loose = true;
    next = after;
  }
  loose ||= items.some((item) => item.gap);
  return [{ type: "list", ordered, first: ordered ? Number.parseInt(first[2], 10) : 1, loose, items }, next];
}

function listItem(lines, at, head, depth) {
  const [, indent, mark, space, nothing, code, rest] = head;
  const content = indent.length + mark.length + (nothing !== undefined ? 1 : (space ?? code).length);
  const body = [rest];
  let next = at + 1;
  let blanks = 0;
  let inFence = FENCE.test(body[0]) ? FENCE.exec(body[0])[2] : null;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    if (BLANK.test(line)) {
      blanks += 1;
      if (body.length === 1 && BLANK.test(body[0])) break;
      body.push("");
      continue;
    }
    const indented = /^ */.exec(line)[0].length;
    // Models often indent the content of "1. …" by two columns only. CommonMark requires three.
    const belongs = indented >= content || (indented >= 2 && indented > indent.length && (inFence || blanks === 0 || ITEM.test(line.trimStart())));
    const lazy = blanks === 0 && !inFence && !interrupts(line) && !ITEM.test(line) && isText(body.at(-1));
    if (!belongs && !lazy) break;
    const text = line.slice(Math.min(indented, content));
    const fence = FENCE.exec(text);
    if (fence) inFence = inFence === null ? fence[2] : fence[2].startsWith(inFence) && !fence[3] ? null : inFence;
    body.push(text);
    blanks = 0;
  }
  while (body.length > 1 && BLANK.test(body.at(-1))) {
    body.pop();
    next -= 1;
  }
  const task = /^\[([ xX])\][ \t]+/.exec(body[0]);
  if (task) body[0] = body[0].slice(task[0].length);
  const blocks = parseLines(body, depth + 1);
  const gap = blocks.some((block, i) => i > 0 && block.from > 0 && BLANK.test(body[block.from - 1]));
  return [{ blocks, gap, task: task ? task[1] !== " " : null, raw: lines.slice(at, next).join("\n") }, next];
}

// Whether a line interrupts a paragraph. This must depend on the line alone: while text arrives, a
// view keeps all blocks but the last.
function interrupts(line) {
  if (HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  const fence = FENCE.exec(line);
  if (fence && !(fence[2][0] === "`" && fence[3].includes("`"))) return true;
  if (MATH_OPEN.test(line)) return true;
  const item = ITEM.exec(line);
  return item !== null && item[6] !== "" && (!/\d/.test(item[2]) || Number.parseInt(item[2], 10) === 1);
}

function paragraph(lines, at, depth) {
  let next = at + 1;
  while (next < lines.length && !BLANK.test(lines[next])) {
    const line = lines[next];
    const setext = SETEXT.exec(line);
    if (setext) {
      const text = lines.slice(at, next).join("\n").trim();
      return [{ type: "heading", level: setext[1][0] === "=" ? 1 : 2, text }, next + 1];
    }
    if ((interrupts(line) && depth < DEEPEST) || isTable(lines, next)) break;
    next += 1;
  }
  return [{ type: "paragraph", text: lines.slice(at, next).map((line) => line.replace(/^ +/, "")).join("\n") }, next];
}

function isTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|") || !DELIMITER.test(lines[at + 1])) return false;
  if (!lines[at + 1].includes("|") && !lines[at + 1].includes(":")) return false;
  return cells(lines[at]).length === cells(lines[at + 1]).length;
}

function table(lines, at) {
  const head = cells(lines[at]);
  const align = cells(lines[at + 1]).map((cell) => (cell.startsWith(":") ? (cell.endsWith(":") ? "center" : "") : cell.endsWith(":") ? "right" : ""));
  const rows = [];
  let next = at + 2;
  while (next < lines.length && !BLANK.test(lines[next]) && !interrupts(lines[next])) {
    const row = cells(lines[next]).slice(0, head.length);
    while (row.length < head.length) row.push("");
    rows.push(row);
    next += 1;
  }
  return [{ type: "table", head, align, rows }, next];
}

// Splits a table row at bars, except bars in code or after a backslash.
export function cells(line) {
  const found = [];
  let cell = "";
  let ticks = 0;
  const text = line.trim().replace(/^\|/, "");
  for (let i = 0; i < text.length; i += 1) {
    const c = text[i];
    if (c === "\\" && text[i + 1] === "|") {
      cell += "|";
      i += 1;
    } else if (c === "`") {
      ticks ^= 1;
      cell += c;
    } else if (c === "|" && !(ticks && text.indexOf("`", i) > 0)) {
      found.push(cell.trim());
      cell = "";
      ticks = 0;
    } else cell += c;
  }
  if (cell.trim() !== "" || !text.endsWith("|")) found.push(cell.trim());
  return found;
}
