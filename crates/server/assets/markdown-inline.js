// Inline Markdown → nodes: text, code, em, strong, del, link, image, break, math. One pass from
// left to right. Failed searches are remembered, so that the time is linear for any input.

const PLAIN = /[^\\`*_~[\]!<$&h\n]+/y;
const URL_HERE = /https?:\/\/[^\s<>`"']+/y;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]*|[\w.+-]+@[\w-]+(?:\.[\w-]+)+)>/y;
const BREAK_TAG = /<br\s*\/?>/iy;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([a-zA-Z]{2,8}));/y;
const TARGET = /^\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?:\s+(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|\(([^()]*)\)))?\s*\)/;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const SPACE = /^[\s\u00a0]?$/;
const PUNCTUATION = /[\p{P}\p{S}]/u;
// Chinese, Japanese and Korean texts have no spaces around emphasis.
const IDEOGRAPH = /[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]/;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", ndash: "–", mdash: "—", hellip: "…", copy: "©", times: "×", deg: "°", rarr: "→", larr: "←", le: "≤", ge: "≥", ne: "≠", euro: "€", middot: "·", bull: "•" };
const DEEPEST = 24;
const LONGEST = 4000; // characters of a link's target, of a formula

// Returns an address that may become a link: http, https or mailto. Others (javascript:, data:, …)
// give null.
export function safeUrl(address) {
  // eslint-disable-next-line no-control-regex
  if (/[\u0000-\u0020\u007f-\u00a0]/.test(address)) return null;
  if (!/^(https?:\/\/[^/\\]|mailto:[^/\\])/i.test(address)) return null;
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

export const unescapeText = (text) => text.replace(/\\([!-/:-@[-`{-~])/g, "$1");

export function parseInline(text) {
  return new Inline(text).run();
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.out = [];
    this.runs = []; // open runs of * _ ~, with their index in `out`
    this.brackets = []; // open [ and ![
    this.missing = new Set(); // closers that do not occur any more
    this.bottoms = new Map(); // below these depths of `runs` no opener was found
  }

  run() {
    const { text } = this;
    while (this.at < text.length) {
      PLAIN.lastIndex = this.at;
      const plain = PLAIN.exec(text);
      if (plain) {
        this.push(plain[0]);
        this.at = PLAIN.lastIndex;
      } else this.special(text[this.at]);
    }
    return this.out.filter((node) => node.type !== "text" || node.text !== "");
  }

  special(c) {
    switch (c) {
      case "\\": return this.backslash();
      case "`": return this.code();
      case "*": case "_": case "~": return this.delimiters(c);
      case "$": return this.dollar();
      case "!": case "[": return this.open(c);
      case "]": return this.close();
      case "<": return this.angle();
      case "&": return this.entity();
      case "h": return this.bareUrl();
      default: return this.newline();
    }
  }

  push(text, length = 0) {
    const last = this.out.at(-1);
    if (last?.type === "text" && !last.run) last.text += text;
    else this.out.push({ type: "text", text, depth: 0 });
    this.at += length;
  }

  node(node, length) {
    this.out.push({ depth: 0, ...node });
    this.at += length;
  }

  // The next position of `mark`. A result of -1 is remembered.
  find(mark, from) {
    if (this.missing.has(mark)) return -1;
    const found = this.text.indexOf(mark, from);
    if (found < 0) this.missing.add(mark);
    return found;
  }

  newline() {
    const last = this.out.at(-1);
    if (last?.type === "text" && !last.run) last.text = last.text.replace(/ +$/, "");
    this.node({ type: "break" }, 1);
  }

  backslash() {
    const next = this.text[this.at + 1] ?? "";
    if (next === "(" || next === "[") {
      const end = this.find(next === "(" ? "\\)" : "\\]", this.at + 2);
      const body = end < 0 ? "" : this.text.slice(this.at + 2, end);
      if (body.trim() !== "" && body.length <= LONGEST) return this.node({ type: "math", text: body, display: next === "[" }, body.length + 4);
    }
    if (next === "\n") return this.node({ type: "break" }, 2);
    if (next !== "" && ESCAPABLE.test(next)) return this.push(next, 2);
    return this.push("\\", 1);
  }

  code() {
    const ticks = /`+/y;
    ticks.lastIndex = this.at;
    const mark = ticks.exec(this.text)[0];
    const key = `code ${mark.length}`;
    let end = this.missing.has(key) ? -1 : this.at + mark.length;
    while (end >= 0) {
      end = this.text.indexOf(mark, end);
      if (end < 0) break;
      let over = end + mark.length;
      while (this.text[over] === "`") over += 1;
      if (over === end + mark.length) break;
      end = over;
    }
    if (end < 0) {
      this.missing.add(key);
      return this.push(mark, mark.length);
    }
    let body = this.text.slice(this.at + mark.length, end).replaceAll("\n", " ");
    if (/^ .*[^ ].* $/.test(body) || /^ [^ ] $/.test(body)) body = body.slice(1, -1);
    return this.node({ type: "code", text: body }, end + mark.length - this.at);
  }

  // $x$ is a formula only without spaces inside the marks and without a digit after them, so that
  // prices remain text. $$x$$ is a display formula.
  dollar() {
    const { text, at } = this;
    if (text[at + 1] === "$") {
      const end = this.find("$$", at + 2);
      const body = end < 0 ? "" : text.slice(at + 2, end);
      if (body.trim() !== "" && body.length <= LONGEST) return this.node({ type: "math", text: body, display: true }, body.length + 4);
      return this.push("$$", 2);
    }
    if (!/\s/.test(text[at + 1] ?? " ")) {
      let end = this.find("$", at + 1);
      for (let tries = 0; end >= 0 && end - at <= LONGEST && tries < 8; tries += 1) {
        const closes = !/[\s\\]/.test(text[end - 1]) && !/\d/.test(text[end + 1] ?? "");
        const body = text.slice(at + 1, end);
        if (closes && !body.includes("`") && !body.includes("\n\n")) return this.node({ type: "math", text: body, display: false }, body.length + 2);
        // A `$` after a space is more likely the next price than the end of this formula.
        if (/\s/.test(text[end - 1])) break;
        end = this.find("$", end + 1);
      }
    }
    return this.push("$", 1);
  }

  open(c) {
    const image = c === "!";
    if (image && this.text[this.at + 1] !== "[") return this.push("!", 1);
    if (this.find("](", this.at) < 0) return this.push(image ? "![" : "[", image ? 2 : 1);
    this.brackets.push({ index: this.out.length, image, runs: this.runs.length });
    // A separate node, which is not merged with text.
    this.out.push({ type: "text", text: image ? "![" : "[", run: true, depth: 0 });
    this.at += image ? 2 : 1;
  }

  close() {
    const bracket = this.brackets.pop();
    const target = bracket && this.text[this.at + 1] === "(" ? TARGET.exec(this.text.slice(this.at + 1, this.at + 1 + LONGEST)) : null;
    if (!target) return this.push("]", 1);
    const children = this.out.splice(bracket.index).slice(1);
    this.cutRuns(bracket.runs);
    const address = unescapeText(target[1] ?? target[2] ?? "");
    const title = unescapeText(target[3] ?? target[4] ?? target[5] ?? "");
    this.wrap({ type: bracket.image ? "image" : "link", address, title }, children);
    this.at += 1 + target[0].length;
    // Links do not nest.
    if (!bracket.image) this.brackets = this.brackets.filter((open) => open.image);
  }

  wrap(node, children) {
    const depth = 1 + children.reduce((most, child) => Math.max(most, child.depth), 0);
    if (depth <= DEEPEST) this.out.push({ ...node, children, depth });
    else for (const child of children) this.out.push(child);
  }

  cutRuns(length) {
    this.runs.length = Math.min(this.runs.length, length);
    for (const [key, bottom] of this.bottoms) this.bottoms.set(key, Math.min(bottom, length));
  }

  angle() {
    BREAK_TAG.lastIndex = this.at;
    const tag = BREAK_TAG.exec(this.text);
    if (tag) return this.node({ type: "break" }, tag[0].length);
    ANGLE.lastIndex = this.at;
    const link = ANGLE.exec(this.text);
    if (!link) return this.push("<", 1);
    const address = link[1].includes(":") ? link[1] : `mailto:${link[1]}`;
    return this.node({ type: "link", address, title: "", children: [{ type: "text", text: link[1], depth: 0 }] }, link[0].length);
  }

  entity() {
    ENTITY.lastIndex = this.at;
    const found = ENTITY.exec(this.text);
    if (!found) return this.push("&", 1);
    const code = found[1] ? Number.parseInt(found[1], 10) : found[2] ? Number.parseInt(found[2], 16) : 0;
    const character = found[3] ? ENTITIES[found[3]] : code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000) ? String.fromCodePoint(code) : "\ufffd";
    return this.push(character ?? found[0], found[0].length);
  }

  bareUrl() {
    URL_HERE.lastIndex = this.at;
    const found = /[\w]/.test(this.text[this.at - 1] ?? "") || this.brackets.some((open) => !open.image) ? null : URL_HERE.exec(this.text);
    if (!found) return this.push("h", 1);
    // Exclude from the address: punctuation at its end, a closing bracket that was opened before
    // it, and marks of emphasis.
    let url = found[0].replace(/(?:[.,;:!?*_~]|\*\*)+$/, "").replace(/\]\(.*$/, "");
    while (/[)\]]$/.test(url) && url.split(/[)\]]/).length > url.split(/[([]/).length) url = url.slice(0, -1);
    url = url.replace(/[.,;:!?*_~]+$/, "");
    return this.node({ type: "link", address: url, title: "", children: [{ type: "text", text: url, depth: 0 }] }, url.length);
  }

  // CommonMark's rules for opening and closing emphasis.
  delimiters(c) {
    let over = this.at;
    while (this.text[over] === c) over += 1;
    let length = over - this.at;
    const before = previousCharacter(this.text, this.at);
    const after = nextCharacter(this.text, over);
    const edge = (x) => SPACE.test(x) || PUNCTUATION.test(x) || IDEOGRAPH.test(x);
    const left = !SPACE.test(after) && (!PUNCTUATION.test(after) || edge(before));
    const right = !SPACE.test(before) && (!PUNCTUATION.test(before) || edge(after));
    const canOpen = c === "_" ? left && (!right || PUNCTUATION.test(before)) : left;
    const canClose = c === "_" ? right && (!left || PUNCTUATION.test(after)) : right;
    this.at = over;
    if (c === "~" && length !== 2) return this.push("~".repeat(length));
    if (canClose) length = this.closeRuns(c, length, canOpen);
    if (length === 0) return undefined;
    if (!canOpen) return this.push(c.repeat(length));
    this.runs.push({ c, length, index: this.out.length, canClose });
    this.out.push({ type: "text", text: c.repeat(length), run: true, depth: 0 });
    return undefined;
  }

  // Wraps the nodes between an opening run and this one. Returns the remaining length of this run.
  closeRuns(c, length, canOpen) {
    const floor = this.brackets.at(-1)?.runs ?? 0;
    while (length > 0) {
      const key = `${c}${canOpen}${length % 3}`;
      const bottom = Math.max(floor, Math.min(this.bottoms.get(key) ?? 0, this.runs.length));
      let top = this.runs.length - 1;
      while (top >= bottom && !matches(this.runs[top], c, length, canOpen)) top -= 1;
      if (top < bottom) {
        this.bottoms.set(key, this.runs.length);
        break;
      }
      const opener = this.runs[top];
      const used = c === "~" ? 2 : Math.min(opener.length, length, 2);
      this.cutRuns(top + 1);
      const children = this.out.splice(opener.index + 1);
      opener.length -= used;
      this.out[opener.index].text = c.repeat(opener.length);
      length -= used;
      if (opener.length === 0) this.cutRuns(top);
      this.wrap({ type: c === "~" ? "del" : used === 2 ? "strong" : "em" }, children);
    }
    return length;
  }
}

function matches(opener, c, length, canOpen) {
  if (opener.c !== c || (c === "~" && opener.length !== 2)) return false;
  // CommonMark's "multiple of 3" rule.
  return !((opener.canClose || canOpen) && (opener.length + length) % 3 === 0 && (opener.length % 3 !== 0 || length % 3 !== 0));
}

function previousCharacter(text, at) {
  if (at === 0) return "";
  const low = text.charCodeAt(at - 1);
  return low >= 0xdc00 && low < 0xe000 && at > 1 ? text.slice(at - 2, at) : text[at - 1];
}

function nextCharacter(text, at) {
  return at >= text.length ? "" : String.fromCodePoint(text.codePointAt(at));
}
