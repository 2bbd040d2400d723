// A subset of TeX's mathematics → a MathML tree of { tag, attributes, children } or
// { tag, attributes, text }. An unknown command is an error: the page then shows the source.

import { environment } from "./math-tables.js";
import { MathError, fence, leaf, node, row } from "./math-tree.js";
import { ACCENTS, DELIMITERS, FUNCTIONS, INTEGRALS, LARGE, LETTERS, LIMIT_FUNCTIONS, OPERATORS, SPACES, UNDERS, inAlphabet, isAlphabet } from "./math-symbols.js";

const DEEPEST = 40;
const LONGEST = 20_000;

const operator = (text, attributes = {}) => leaf("mo", text, attributes);
const space = (em) => node("mspace", [], { width: `${em}em` });

export function parseMath(source, level = 0) {
  if (source.length > LONGEST) throw new MathError("the formula is too long");
  if (level > DEEPEST / 4) throw new MathError("the formula is nested too deeply");
  const parser = new Parser(source, level);
  const children = parser.row(() => false);
  if (parser.at < parser.tokens.length) throw new MathError(`${parser.tokens[parser.at]} was not expected`);
  return row(children);
}

// Tokens: commands as `\name`, numbers, single characters. `space` tokens are kept for text.
function tokenize(source) {
  return source.match(/\\(?:[a-zA-Z]+\*?|[^a-zA-Z])|\d+(?:\.\d+)?|\s+|./gsu) ?? [];
}

// Commands with arguments: name → (parser) → node.
const fraction = (attributes, style) => (p) => {
  const made = node("mfrac", [p.argument(), p.argument()], attributes);
  return style === undefined ? made : node("mstyle", [made], { displaystyle: String(style) });
};
const binomial = (p) => node("mrow", [fence("("), node("mfrac", [p.argument(), p.argument()], { linethickness: "0" }), fence(")")]);
const over = (p) => {
  const above = p.argument();
  return node("mover", [p.argument(), above]);
};
const phantom = (p) => node("mphantom", [p.argument()]);
const same = (p) => p.argument();
const nothing = () => null;
const drop = (p) => void p.raw() ?? null;
const arrow = (character) => (p) => {
  const below = p.optional();
  const above = p.argument();
  const base = operator(character, { stretchy: "true" });
  const padded = (x) => node("mpadded", [x], { width: "+0.6em", lspace: "0.3em" });
  return below ? node("munderover", [base, padded(below), padded(above)]) : node("mover", [base, padded(above)]);
};
const text = (attributes = {}) => (p) => textOf(p, attributes);

const COMMANDS = new Map(Object.entries({
  frac: fraction({}), dfrac: fraction({}, true), tfrac: fraction({}, false), cfrac: fraction({}, true), binom: binomial, dbinom: binomial, tbinom: binomial,
  sqrt: (p) => {
    const index = p.optional();
    return index ? node("mroot", [p.argument(), index]) : node("msqrt", [p.argument()]);
  },
  overset: over, stackrel: over,
  underset: (p) => {
    const below = p.argument();
    return node("munder", [p.argument(), below]);
  },
  xrightarrow: arrow("→"), xleftarrow: arrow("←"), xRightarrow: arrow("⇒"), xleftrightarrow: arrow("↔"), xmapsto: arrow("↦"),
  phantom, hphantom: phantom, vphantom: phantom,
  text: text(), textrm: text(), textnormal: text(), mbox: text(), hbox: text(), textbf: text({ class: "bold" }), textit: text({ class: "italic" }), texttt: text({ class: "mono" }), textsf: text(), emph: text({ class: "italic" }),
  mathrm: (p) => upright(p), mathup: (p) => upright(p), rm: nothing, mathit: same, mathnormal: same,
  operatorname: (p) => ({ ...named(p.raw()), spaced: true }),
  "operatorname*": (p) => ({ ...named(p.raw()), limits: true, spaced: true }),
  mathop: (p) => ({ ...node("mrow", [p.argument()]), limits: true }), mathbin: same, mathrel: same, mathord: same, mathopen: same, mathclose: same, mathpunct: same, mathinner: same, mathstrut: nothing,
  boxed: (p) => node("mrow", [p.argument()], { class: "boxed" }), fbox: (p) => node("mrow", [textOf(p, {})], { class: "boxed" }),
  cancel: (p) => node("mrow", [p.argument()], { class: "cancelled" }), bcancel: (p) => node("mrow", [p.argument()], { class: "cancelled" }), xcancel: (p) => node("mrow", [p.argument()], { class: "cancelled" }),
  pmod: (p) => node("mrow", [space(0.4), operator("(", { stretchy: "false" }), leaf("mtext", "mod"), space(0.3), p.argument(), operator(")", { stretchy: "false" })]),
  mod: () => node("mrow", [space(0.4), leaf("mtext", "mod"), space(0.3)]), bmod: () => node("mrow", [space(0.25), leaf("mtext", "mod"), space(0.25)]),
  not: (p) => {
    const next = p.atom();
    if (next?.text === undefined) throw new MathError("\\not of more than a character");
    return { ...next, text: `${next.text}\u0338` };
  },
  tag: (p) => node("mrow", [space(2), operator("(", { stretchy: "false" }), textOf(p, {}), operator(")", { stretchy: "false" })]),
  "tag*": (p) => node("mrow", [space(2), textOf(p, {})]),
  substack: (p) => p.nested("{", () => environment(p, "substack", "}")),
  label: drop, color: drop, vspace: drop, hspace: (p) => space(Number.parseFloat(p.raw()) > 0 ? 0.5 : 0), textcolor: (p) => void p.raw() ?? p.argument(), mathchoice: same,
  nonumber: nothing, notag: nothing, limits: nothing, nolimits: nothing, displaylimits: nothing, hline: nothing, centering: nothing, allowbreak: nothing, strut: nothing, relax: nothing, "/": nothing,
  scriptstyle: nothing, scriptscriptstyle: nothing, bf: nothing, it: nothing, left: (p) => p.leftRight(), begin: (p) => p.begin(),
}));

const BIG = /^(big|Big|bigg|Bigg)[lrm]?$/;
const BIG_SIZES = { big: 1.2, Big: 1.8, bigg: 2.4, Bigg: 3 };
const CHARACTERS = { "-": "−", "*": "∗", "<": "<", ">": ">", "'": "′" };

class Parser {
  // level: nesting depth of formulas within texts.
  constructor(source, level) {
    this.level = level;
    this.tokens = tokenize(source);
    this.at = 0;
    this.depth = 0;
  }

  // The next token that is not a space.
  peek() {
    while (this.at < this.tokens.length && /^\s/.test(this.tokens[this.at])) this.at += 1;
    return this.tokens[this.at];
  }

  take() {
    const token = this.peek();
    if (token === undefined) throw new MathError("the formula ends too early");
    this.at += 1;
    return token;
  }

  expect(token) {
    const found = this.take();
    if (found !== token) throw new MathError(`${token} was expected, not ${found}`);
  }

  nested(open, body) {
    this.depth += 1;
    if (this.depth > DEEPEST) throw new MathError("the formula is nested too deeply");
    if (open) this.expect(open);
    const made = body();
    this.depth -= 1;
    return made;
  }

  row(stop) {
    const children = [];
    for (let token = this.peek(); token !== undefined && token !== "}" && !stop(token); token = this.peek()) {
      if (token === "\\displaystyle" || token === "\\textstyle" || token === "\\scriptstyle") {
        this.at += 1;
        const rest = this.row(stop);
        children.push(node("mstyle", rest, { displaystyle: String(token === "\\displaystyle") }));
        break;
      }
      const made = this.scripted(children);
      if (made === null) continue;
      children.push(made);
      const next = this.peek();
      if (made.spaced && next !== undefined && /^[\\\p{L}\d]/u.test(next) && !/^\\(left|[,;:!]|q?quad|right)/.test(next)) children.push(space(0.167));
    }
    return children;
  }

  // An atom with its superscript and subscript.
  scripted() {
    let base = /^[\^_]$/.test(this.peek()) ? node("mrow", []) : this.atom();
    let sub = null;
    let sup = null;
    let limits = base?.limits ?? false;
    for (;;) {
      const token = this.peek();
      if (token === "\\limits" || token === "\\nolimits") {
        this.at += 1;
        limits = token === "\\limits";
        if (limits && base) base = { ...base, attributes: { ...base.attributes, movablelimits: "false" } };
      } else if (token === "_" && sub === null) {
        this.at += 1;
        sub = this.argument();
      } else if ((token === "^" && (sup === null || sup.primes)) || (token === "'" && sup === null)) {
        sup = this.superscript(token, sup);
      } else break;
    }
    if (sub === null && sup === null) return base;
    base ??= node("mrow", []);
    const parts = [base, sub, sup].filter((part) => part !== null);
    const kind = limits ? (sub && sup ? "munderover" : sub ? "munder" : "mover") : sub && sup ? "msubsup" : sub ? "msub" : "msup";
    return { ...node(kind, parts), spaced: base.spaced };
  }

  superscript(token, before) {
    if (token === "^") {
      this.at += 1;
      const above = this.argument();
      return before ? node("mrow", [before, above]) : above;
    }
    let primes = "";
    while (this.peek() === "'") {
      primes += "′";
      this.at += 1;
    }
    return { ...operator(primes), primes: true };
  }

  atom() {
    const token = this.take();
    if (token === "{") return this.nested(null, () => {
      const children = this.row(() => false);
      this.expect("}");
      return row(children);
    });
    if (token[0] === "\\") return this.command(token.slice(1));
    if (/^\d/.test(token)) return leaf("mn", token);
    if (token === "&" || token === "}" || token === "$") throw new MathError(`${token} was not expected`);
    if (token === "~") return space(0.333);
    if (/^\p{L}$/u.test(token)) return /^[\u0000-\u024f\u0370-\u03ff]$/.test(token) ? leaf("mi", token) : leaf("mtext", token);
    if (token === "|") return operator("|", { stretchy: "false", fence: "true", lspace: "0.05em", rspace: "0.05em" });
    if (/^[([{}\])]$/.test(token)) return operator(token, { stretchy: "false" });
    if (token === "/") return operator("/", { lspace: "0", rspace: "0", stretchy: "false" });
    return operator(CHARACTERS[token] ?? token);
  }

  command(name) {
    const made = COMMANDS.get(name);
    if (made) return made(this);
    if (LETTERS.has(name)) return letter(name);
    if (OPERATORS.has(name)) return operator(OPERATORS.get(name), name === "mid" ? { stretchy: "false" } : {});
    if (LARGE.has(name)) return { ...operator(LARGE.get(name), { movablelimits: "true", largeop: "true" }), limits: true };
    if (INTEGRALS.has(name)) return operator(INTEGRALS.get(name), { largeop: "true" });
    if (LIMIT_FUNCTIONS.has(name)) return { ...operator(LIMIT_FUNCTIONS.get(name), { movablelimits: "true", lspace: "0", rspace: "0" }), limits: true, spaced: true };
    if (FUNCTIONS.has(name)) return { ...leaf("mi", name), spaced: true };
    if (ACCENTS.has(name)) return this.accent("mover", name, ACCENTS.get(name));
    if (UNDERS.has(name)) return this.accent("munder", name, UNDERS.get(name));
    if (SPACES.has(name) || /^\s$/.test(name)) return space(SPACES.get(name) ?? 0.333);
    if (DELIMITERS.has(name)) return operator(DELIMITERS.get(name), { stretchy: "false" });
    if (/^[%$#&_]$/.test(name)) return leaf("mi", name, { mathvariant: "normal" });
    if (isAlphabet(name)) return this.alphabet(name);
    const big = BIG.exec(name);
    if (big) {
      const size = `${BIG_SIZES[big[1]]}em`;
      return operator(this.delimiter(), { stretchy: "true", symmetric: "true", minsize: size, maxsize: size });
    }
    throw new MathError(`\\${name} is not known`);
  }

  accent(tag, name, character) {
    const wide = /^(wide|over|under|bar)/.test(name) && name !== "bar";
    const brace = name.endsWith("brace");
    const made = node(tag, [this.argument(), operator(character, { stretchy: wide ? "true" : "false" })], brace ? {} : { [tag === "mover" ? "accent" : "accentunder"]: "true" });
    return brace ? { ...made, limits: true } : made;
  }

  alphabet(name) {
    const restyle = (part) => {
      if (part.children) return { ...part, children: part.children.map(restyle) };
      const text = [...part.text].map((c) => inAlphabet(c, name)).join("");
      return text === part.text ? part : { ...part, text, attributes: { ...part.attributes, ...(part.tag === "mi" ? { mathvariant: "normal" } : {}) } };
    };
    return restyle(this.argument());
  }

  // An argument: `{…}`, or the next atom (one digit of a number).
  argument() {
    const token = this.peek();
    if (/^\d./.test(token ?? "")) {
      this.tokens[this.at] = token.slice(1);
      return leaf("mn", token[0]);
    }
    return this.nested(null, () => this.atom()) ?? node("mrow", []);
  }

  optional() {
    if (this.peek() !== "[") return null;
    this.at += 1;
    const children = this.row((token) => token === "]");
    this.expect("]");
    return row(children);
  }

  // The source of `{…}` with its spaces.
  raw() {
    this.expect("{");
    let depth = 1;
    let found = "";
    for (; this.at < this.tokens.length; this.at += 1) {
      const token = this.tokens[this.at];
      if (token === "{") depth += 1;
      if (token === "}") depth -= 1;
      if (depth === 0) {
        this.at += 1;
        return found;
      }
      found += token;
    }
    throw new MathError("} is missing");
  }

  delimiter() {
    const token = this.take();
    if (token === ".") return "";
    const name = token[0] === "\\" ? token.slice(1) : "";
    if (name) {
      const found = DELIMITERS.get(name);
      if (found === undefined) throw new MathError(`${token} is no delimiter`);
      return found;
    }
    if (/^[()[\]|/]$/.test(token)) return token;
    if (token === "<" || token === ">") return token === "<" ? "⟨" : "⟩";
    throw new MathError(`${token} is no delimiter`);
  }

  leftRight() {
    return this.nested(null, () => {
      const parts = [];
      const put = (text, attributes) => text && parts.push(operator(text, { fence: "true", stretchy: "true", ...attributes }));
      put(this.delimiter(), { form: "prefix" });
      for (;;) {
        parts.push(...this.row((token) => token === "\\right" || token === "\\middle"));
        const token = this.take();
        if (token === "\\right") break;
        if (token !== "\\middle") throw new MathError("\\right is missing");
        put(this.delimiter(), { form: "infix", lspace: "0.2em", rspace: "0.2em" });
      }
      put(this.delimiter(), { form: "postfix" });
      return node("mrow", parts);
    });
  }

  begin() {
    const name = this.raw();
    return this.nested(null, () => environment(this, name, "\\end"));
  }
}

function letter(name) {
  const character = LETTERS.get(name);
  if (/^[ld]?dots/.test(name) || /dots$/.test(name)) return leaf("mo", character, { lspace: "0.1em", rspace: "0.1em" });
  // Small Greek letters are italic like variables. Capitals and symbols are upright.
  return leaf("mi", character, /^[α-ωϵϑϕϖϱς]$/.test(character) ? {} : { mathvariant: "normal" });
}

const plainOf = (source) => source.replace(/\\[,;: ]|~/g, " ").replace(/\\[!]/g, "").replace(/\\(?:text|mathrm|mathit|mathbf)\s*/g, "").replace(/[{}]/g, "");

// In \mathrm{…}, the letters of a word form one element. Everything else is a formula.
function upright(parser) {
  const source = parser.raw();
  if (/^[\p{L}\d\s]*$/u.test(source)) return leaf("mi", source.replace(/\s+/g, ""), { mathvariant: "normal" });
  const straighten = (part) => (part.children ? { ...part, children: part.children.map(straighten) } : part.tag === "mi" ? { ...part, attributes: { ...part.attributes, mathvariant: "normal" } } : part);
  return straighten(parseMath(source, parser.level + 1));
}

const named = (source) => {
  const name = plainOf(source).trim();
  if (name.includes("\\")) throw new MathError(`\\operatorname{${source}} is not known`);
  return operator(name, { lspace: "0", rspace: "0", movablelimits: "true", form: "prefix" });
};

// Text that contains formulas between dollars.
function textOf(parser, attributes) {
  const parts = parser.raw().split(/(?<!\\)\$/);
  if (parts.length % 2 === 0) throw new MathError("$ in \\text is not closed");
  const plain = (text) => leaf("mtext", text.replace(/\\([%$#&_{} ])/g, "$1").replace(/\\textbf|\\textit|\\,/g, "").replace(/[{}]/g, "").replace(/~/g, " ").replace(/^\s|\s$/g, "\u00a0"), attributes);
  return row(parts.map((part, i) => (i % 2 ? parseMath(part, parser.level + 1) : plain(part))).filter((part) => part.text !== ""));
}
