// Renders blocks of Markdown while text arrives. Only the last block can change, so only that one
// is rendered again. In a growing list, table or code block only new parts are rendered.

import { CodeView } from "./code.js";
import { copyText, h, icon } from "./dom.js";
import { parseBlocks } from "./markdown-blocks.js";
import { parseInline, safeUrl } from "./markdown-inline.js";
import { renderMath } from "./math-view.js";

export class MarkdownView {
  constructor(root) {
    this.root = root;
    this.text = "";
    this.views = []; // { block, element, … } per block
    this.firm = 0; // blocks that no further text can change
    this.firmOffset = 0;
  }

  update(text) {
    if (text === this.text) return;
    if (!text.startsWith(this.text)) {
      this.firm = 0;
      this.firmOffset = 0;
    }
    this.text = text;
    const blocks = parseBlocks(text.slice(this.firmOffset));
    for (const [i, block] of blocks.entries()) {
      block.start += this.firmOffset;
      this.put(this.firm + i, block);
    }
    while (this.views.length > this.firm + blocks.length) this.views.pop().element.remove();
    this.settle(text, blocks);
  }

  // The last block is open. A block that begins in the incomplete line may still become a part of
  // the block before it.
  settle(text, blocks) {
    const line = text.lastIndexOf("\n") + 1;
    let last = blocks.length - 1;
    if (last > 0 && blocks[last].start >= line) last -= 1;
    if (last <= 0) return;
    this.firm += last;
    this.firmOffset = blocks[last].start;
  }

  put(index, block) {
    const old = this.views[index];
    if (!old) {
      const view = topView(block);
      this.root.append(view.element);
      this.views.push(view);
    } else if (old.block.raw !== block.raw || old.block.type !== block.type) {
      if (old.patch?.(block)) {
        old.block = block;
        return;
      }
      const view = topView(block);
      old.element.replaceWith(view.element);
      this.views[index] = view;
    }
  }
}

// Renders a complete text.
export function renderMarkdown(text) {
  const root = h("div", { class: "markdown" });
  new MarkdownView(root).update(text);
  return root;
}

// Each block has the direction of its first letter, which its content inherits.
function topView(block) {
  const view = viewOf(block);
  if (!["code", "math"].includes(block.type)) view.element.setAttribute("dir", "auto");
  return view;
}

function viewOf(block) {
  switch (block.type) {
    case "code": return codeView(block);
    case "list": return listView(block);
    case "table": return tableView(block);
    case "quote": return { block, element: h("blockquote", {}, blocksOf(block.blocks)) };
    case "heading": return { block, element: h(`h${Math.min(6, block.level + 2)}`, { class: `md-h${block.level}` }, inline(block.text)) };
    case "rule": return { block, element: h("hr") };
    case "math": return { block, element: h("div", { class: "display-math", dir: "ltr" }, block.closed ? renderMath(block.text, true) : h("code", { class: "math-source" }, block.text)) };
    default: return { block, element: h("p", {}, inline(block.text)) };
  }
}

const blocksOf = (blocks) => blocks.map((block) => viewOf(block).element);

function codeView(block) {
  const code = h("code");
  const content = new CodeView(code, block.language);
  content.update(block.text);
  const copy = h("button", { type: "button", class: "code-copy", onclick: () => copyText(content.text, copy) }, icon("copy"), "Copy");
  const name = block.language || "text";
  const element = h("div", { class: "code-block", dir: "ltr" },
    h("div", { class: "code-head" }, h("span", { class: "code-language" }, name), copy),
    h("pre", { tabindex: "0", role: "group", "aria-label": `Code, ${name}` }, code));
  const patch = (next) => {
    if (next.type !== "code" || next.language !== block.language) return false;
    content.update(next.text);
    return true;
  };
  return { block, element, patch };
}

function listView(block) {
  const element = h(block.ordered ? "ol" : "ul", { start: block.ordered && block.first !== 1 ? block.first : null });
  let items = [];
  const show = (next) => {
    for (const [i, item] of next.items.entries()) {
      const known = items[i];
      if (known && known.raw === item.raw && known.loose === next.loose) continue;
      const made = listItem(item, next.loose);
      if (known) known.element.replaceWith(made);
      else element.append(made);
      items[i] = { raw: item.raw, loose: next.loose, element: made };
    }
    for (const { element: gone } of items.splice(next.items.length)) gone.remove();
  };
  show(block);
  const patch = (next) => {
    if (next.type !== "list" || next.ordered !== block.ordered || next.first !== block.first) return false;
    show(next);
    return true;
  };
  return { block, element, patch };
}

function listItem({ blocks, task }, loose) {
  // A tight list has no <p> elements.
  const content = blocks.map((block) => (block.type === "paragraph" && !loose ? inline(block.text) : viewOf(block).element));
  if (task === null) return h("li", {}, content);
  return h("li", { class: "task" }, h("input", { type: "checkbox", disabled: true, checked: task, "aria-label": task ? "done" : "not done" }), content);
}

function tableView(block) {
  const body = h("tbody");
  const cell = (tag, text, i) => h(tag, { class: block.align[i] || null, scope: tag === "th" ? "col" : null }, inline(text));
  const element = h("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
    h("table", {}, h("thead", {}, h("tr", {}, block.head.map((text, i) => cell("th", text, i)))), body));
  const rows = [];
  const show = (next) => {
    for (const [i, row] of next.rows.entries()) {
      const key = row.join("\u0000");
      if (rows[i]?.key === key) continue;
      const made = h("tr", {}, row.map((text, column) => cell("td", text, column)));
      if (rows[i]) rows[i].element.replaceWith(made);
      else body.append(made);
      rows[i] = { key, element: made };
    }
    for (const { element: gone } of rows.splice(next.rows.length)) gone.remove();
  };
  show(block);
  const patch = (next) => {
    if (next.type !== "table" || next.head.join("\u0000") !== block.head.join("\u0000") || next.align.join() !== block.align.join()) return false;
    show(next);
    return true;
  };
  return { block, element, patch };
}

// Isolates bidirectional overrides and embeddings, so that they do not reorder text around them.
const BIDI = /[\u202a-\u202e\u2066-\u2069]/;

export const inline = (text) => nodes(parseInline(text.trim()));

const nodes = (list) => list.map(nodeOf);

function nodeOf(node) {
  switch (node.type) {
    case "text": return BIDI.test(node.text) ? h("bdi", {}, node.text) : document.createTextNode(node.text);
    case "code": return h("code", { dir: "ltr" }, node.text);
    case "break": return h("br");
    case "em": case "strong": case "del": return h(node.type, {}, nodes(node.children));
    case "math": return h("span", { class: node.display ? "display-math" : "math", dir: "ltr" }, renderMath(node.text, node.display));
    case "image": return linkOf(node, ["Image: ", ...nodes(node.children)]);
    default: return linkOf(node, nodes(node.children));
  }
}

// Shows an image as a link: loading it would inform its server.
function linkOf(node, children) {
  const url = safeUrl(node.address);
  if (url === null) return h("bdi", { class: "dead-link", title: `No link is made to ${node.address.slice(0, 200)}` }, children);
  return h("a", { dir: "auto", href: url, target: "_blank", rel: "noopener noreferrer nofollow", title: node.title || null }, children);
}
