// Simple syntax highlighting: comments, strings, numbers, keywords and calls. It works line by line
// with a state, so that streamed code is highlighted as it arrives and no line twice.

import { h } from "./dom.js";

const words = (text) => new Set(text.split(" "));
const C_LIKE = { line: "//", block: ["/*", "*/"], strings: `"'` };

const LANGUAGES = {
  rust: { ...C_LIKE, strings: '"', words: words("as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while") },
  c: { ...C_LIKE, words: words("alignas auto bool break case catch char class const constexpr continue default delete do double else enum explicit extern false float for friend if inline int long namespace new nullptr operator private protected public register return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while include define ifdef ifndef endif NULL") },
  js: { ...C_LIKE, long: ["`"], words: words("any as async await boolean break case catch class const continue declare default delete do else enum export extends false finally for from function if implements import in instanceof interface keyof let new null number of private public readonly return static string super switch this throw true try type typeof undefined unknown var void while with yield") },
  java: { ...C_LIKE, long: ['"""'], words: words("abstract boolean break byte case catch char class const continue data default do double else enum extends false final finally float for fun if implements import in int interface internal is let long namespace new null object open override package private protected public record return sealed short static string super switch this throw throws true try using val var void when while yield func guard init nil self struct protocol extension") },
  go: { ...C_LIKE, long: ["`"], words: words("any bool break byte case chan const continue default defer else error fallthrough false float64 for func go goto if import int int64 interface make map nil package range return rune select string struct switch true type var") },
  python: { line: "#", long: ['"""', "'''"], strings: `"'`, words: words("and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield") },
  ruby: { line: "#", strings: `"'`, words: words("alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo require rescue retry return self super then true undef unless until when while yield local function repeat") },
  lua: { line: "--", strings: `"'`, words: words("and break do else elseif end false for function goto if in local nil not or repeat return then true until while") },
  shell: { line: "#", strings: `"'`, variables: true, words: words("case do done elif else esac export fi for function if in local return set source then until while alias cd echo exit sudo") },
  sql: { line: "--", block: ["/*", "*/"], strings: `'"`, fold: true, words: words("add all alter and as asc between by case check column constraint create cross default delete desc distinct drop else end exists false foreign from full group having if in index inner insert into is join key left like limit not null offset on or order outer primary references right row select set table then true union unique update values view when where with") },
  json: { strings: '"', words: words("true false null") },
  yaml: { line: "#", strings: `"'`, keys: true, words: words("true false null yes no on off") },
  toml: { line: "#", long: ['"""', "'''"], strings: `"'`, keys: true, words: words("true false") },
  css: { block: ["/*", "*/"], strings: `"'`, words: words("important media supports import keyframes from to not and or only root hover focus") },
  html: { block: ["<!--", "-->"], strings: `"'`, tags: true, words: new Set() },
  haskell: { line: "--", block: ["{-", "-}"], strings: '"', words: words("case class data deriving do else forall if import in infixl infixr instance let module newtype of then type where") },
};

const ALIASES = {
  rs: "rust", "c++": "c", cpp: "c", cc: "c", h: "c", hpp: "c", cuda: "c", cu: "c", glsl: "c", wgsl: "rust", objc: "c", zig: "rust",
  javascript: "js", ts: "js", typescript: "js", jsx: "js", tsx: "js", mjs: "js", node: "js", kotlin: "java", kt: "java", csharp: "java", cs: "java", "c#": "java", swift: "java", scala: "java", dart: "java", php: "java",
  golang: "go", py: "python", python3: "python", rb: "ruby", elixir: "ruby", julia: "ruby", bash: "shell", sh: "shell", zsh: "shell", fish: "shell", console: "shell", dockerfile: "shell", docker: "shell", makefile: "shell", powershell: "shell",
  postgres: "sql", mysql: "sql", sqlite: "sql", jsonc: "json", json5: "json", jsonl: "json", yml: "yaml", ini: "toml", conf: "toml", scss: "css", less: "css", xml: "html", svg: "html", vue: "html", hs: "haskell", elm: "haskell",
};

export function languageOf(name) {
  const key = name.toLowerCase();
  return Object.hasOwn(LANGUAGES, key) ? LANGUAGES[key] : Object.hasOwn(ALIASES, key) ? LANGUAGES[ALIASES[key]] : null;
}

const WORD = /[\p{L}_$@][\p{L}\p{N}_$]*/uy;
const NUMBER = /(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)[a-zA-Z]*\d*/y;
const LONGEST_LINE = 2000; // characters; longer lines are not highlighted

// Tokens [class, text] of one line. `state` is the end marker of the comment or string that the
// line begins in, or null.
export function tokenizeLine(line, language, state) {
  const tokens = [];
  const push = (kind, text) => {
    if (text === "") return;
    const last = tokens.at(-1);
    if (last && last[0] === kind) last[1] += text;
    else tokens.push([kind, text]);
  };
  if (!language || line.length > LONGEST_LINE) return { tokens: line === "" ? [] : [["", line]], state };
  let at = 0;
  if (state !== null) {
    const end = line.indexOf(state.mark);
    push(state.kind, end < 0 ? line : line.slice(0, end + state.mark.length));
    if (end < 0) return { tokens, state };
    at = end + state.mark.length;
  }
  while (at < line.length) {
    const [kind, length, open] = tokenAt(line, at, language);
    push(kind, line.slice(at, at + length));
    at += length;
    if (open) return { tokens, state: open };
  }
  return { tokens, state: null };
}

function tokenAt(line, at, language) {
  const c = line[at];
  if (language.line && line.startsWith(language.line, at) && !(language.line === "#" && at > 0 && /[\w$&]/.test(line[at - 1]))) return ["comment", line.length - at];
  if (language.block && line.startsWith(language.block[0], at)) return longToken(line, at, language.block, "comment");
  for (const mark of language.long ?? []) if (line.startsWith(mark, at)) return longToken(line, at, [mark, mark], "string");
  if (language.strings?.includes(c)) {
    const length = stringLength(line, at);
    return [language === LANGUAGES.json && /^\s*:/.test(line.slice(at + length)) ? "name" : "string", length];
  }
  if (language.variables && c === "$") return ["name", /^\$(?:\w+|\{[^}]*\}|.)?/.exec(line.slice(at))[0].length];
  if (language.tags && c === "<") return ["keyword", (/^<\/?[\w:-]*/.exec(line.slice(at)) ?? ["<"])[0].length];
  NUMBER.lastIndex = at;
  if (/\d/.test(c)) return ["number", NUMBER.exec(line)[0].length];
  WORD.lastIndex = at;
  const word = WORD.exec(line);
  if (word) return [wordKind(line, at, word[0], language), word[0].length];
  return ["", 1];
}

function wordKind(line, at, word, language) {
  if (language.words.has(language.fold ? word.toLowerCase() : word)) return "keyword";
  const next = line[at + word.length] ?? "";
  if (language.keys && /^\s*(-\s+)?$/.test(line.slice(0, at)) && /^[\w.-]*\s*[:=]/.test(line.slice(at + word.length))) return "name";
  if (next === "(" || (next === "!" && line[at + word.length + 1] !== "=")) return "call";
  return /^[A-Z]/.test(word) && /[a-z]/.test(word) && language !== LANGUAGES.html ? "type" : "";
}

function longToken(line, at, [open, close], kind) {
  const end = line.indexOf(close, at + open.length);
  return end < 0 ? [kind, line.length - at, { mark: close, kind }] : [kind, end + close.length - at, null];
}

// A quote that is not closed on its line counts as an apostrophe.
function stringLength(line, at) {
  for (let i = at + 1; i < line.length; i += 1) {
    if (line[i] === "\\") i += 1;
    else if (line[i] === line[at]) return i + 1 - at;
  }
  return 1;
}

const TOGETHER = 60; // lines per box; after an update the browser lays out only the last box

// Appends text to a <code>. Complete lines are highlighted once; the incomplete line is replaced.
export class CodeView {
  constructor(element, name) {
    this.element = element;
    this.language = languageOf(name);
    this.text = "";
    this.done = 0; // characters in complete lines
    this.state = null;
    this.box = null;
    this.lines = 0; // lines in the last box
    this.blank = false; // whether its last line is blank
    this.tail = [];
  }

  update(text) {
    if (text === this.text) return;
    if (!text.startsWith(this.text.slice(0, this.done))) {
      this.element.replaceChildren();
      this.done = 0;
      this.state = null;
      this.box = null;
    }
    for (const node of this.tail) node.remove();
    this.text = text;
    for (let end = text.indexOf("\n", this.done); end >= 0; end = text.indexOf("\n", this.done)) {
      const { tokens, state } = tokenizeLine(text.slice(this.done, end), this.language, this.state);
      this.state = state;
      append(this.boxOfNextLine(), this.lines > 0 ? "\n" : "", tokens);
      this.lines += 1;
      this.blank = end === this.done;
      this.done = end + 1;
    }
    const box = this.boxOfNextLine();
    const before = box.childNodes.length;
    append(box, this.lines > 0 ? "\n" : "", tokenizeLine(text.slice(this.done), this.language, this.state).tokens);
    this.tail = [...box.childNodes].slice(before);
  }

  // The edge between two boxes is a line break. A blank line at the end of a box would vanish, so
  // no box ends with one.
  boxOfNextLine() {
    if (this.box === null || (this.lines >= TOGETHER && !this.blank)) {
      this.box = h("span", { class: "lines" });
      this.lines = 0;
      this.element.append(this.box);
    }
    return this.box;
  }
}

function append(parts, plain, tokens) {
  for (const [kind, text] of tokens) {
    if (kind === "") plain += text;
    else {
      if (plain) parts.append(plain);
      plain = "";
      parts.append(h("span", { class: `t-${kind}` }, text));
    }
  }
  if (plain) parts.append(plain);
}
