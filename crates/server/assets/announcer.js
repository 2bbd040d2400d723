// Announces an answer to screen readers in whole sentences. Code and formulas are only named.

import { say } from "./dom.js";

const PAUSE = 1500; // ms between two announcements

export class Announcer {
  // heard: number of characters that were announced before.
  constructor(speak = say, heard = 0) {
    this.speak = speak;
    this.done = heard;
    this.last = 0;
  }

  // Announces the complete new sentences of `text`, the answer so far. Makes at most one
  // announcement per PAUSE.
  update(text, now = Date.now()) {
    if (now - this.last < PAUSE) return;
    const end = sentenceEnd(text.slice(this.done));
    if (end === 0) return;
    const words = plain(text.slice(this.done, this.done + end));
    this.done += end;
    this.last = now;
    if (words) this.speak(words);
  }

  // Announces the rest and the ending as one text: a second announcement would replace the first.
  finish(text, ending) {
    this.speak(`${plain(text.slice(this.done))} ${ending}`.trim());
    this.done = text.length;
  }
}

// The offset after the last complete sentence that is not inside a code block.
export function sentenceEnd(text) {
  const fences = [...text.matchAll(/^ {0,3}(```|~~~)/gm)];
  const limit = fences.length % 2 ? fences.at(-1).index : text.length;
  let end = 0;
  for (const match of text.slice(0, limit).matchAll(/[.!?:…](?=\s)|[。！？]|\n\n/g)) end = match.index + match[0].length;
  return end;
}

export function plain(markdown) {
  return markdown
    .replace(/^ {0,3}(```|~~~)[\s\S]*?(?:^ {0,3}\1.*$|$(?![\s\S]))/gm, " Code block. ")
    .replace(/\$\$[\s\S]*?\$\$|\\\[[\s\S]*?\\\]/g, " Formula. ")
    .replace(/!?\[([^\]]*)\]\([^)]*\)/g, "$1")
    .replace(/^\s*(?:#{1,6}|[-+*>]|\d+[.)])\s+/gm, "")
    .replace(/[*_`~]+/g, "")
    .replace(/\|/g, " ")
    .replace(/\s+/g, " ")
    .trim()
    .slice(0, 2000);
}
