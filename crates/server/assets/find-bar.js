// Shows the matches of a search in the open conversation, one at a time.

import { $, h, iconButton } from "./dom.js";
import { clearMarks, markWords } from "./marks.js";
import { pathOf, searchText, searchWords, showMessage } from "./tree.js";

export class FindBar {
  constructor(chat) {
    Object.assign(this, { chat, words: [], matches: [], at: 0 });
    this.count = h("span", { role: "status" });
    this.next = iconButton("down", "Next match", () => this.step(1));
    $("find").append(this.count, iconButton("up", "Previous match", () => this.step(-1)), this.next, iconButton("close", "Close the search in this conversation", () => {
      this.close();
      $("prompt").focus();
    }));
    $("find").addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.close();
      $("prompt").focus();
    });
  }

  // Shows the first message with all words of the search, or with any of them. Messages on hidden
  // branches come last.
  start(query) {
    this.words = searchWords(query);
    const { conversation } = this.chat;
    const path = pathOf(conversation);
    const others = Object.values(conversation.nodes).filter((message) => message.parent !== null && !path.includes(message)).sort((a, b) => a.created - b.created);
    const having = (test) => [...path, ...others].filter((message) => test((word) => searchText(message).includes(word)));
    const whole = having((has) => this.words.every(has));
    this.matches = whole.length > 0 ? whole : having((has) => this.words.some(has));
    this.at = 0;
    if (this.words.length === 0 || this.matches.length === 0) this.close();
    else this.show();
  }

  step(way) {
    const { nodes } = this.chat.conversation;
    // Some messages may have been deleted since the search.
    this.matches = this.matches.filter(({ id }) => Object.hasOwn(nodes, id));
    const count = this.matches.length;
    if (count === 0) this.close();
    else {
      this.at = (this.at + way + count) % count;
      this.show();
    }
  }

  show() {
    const { chat, matches, at, words } = this;
    const { id } = matches[at];
    showMessage(chat.conversation, id);
    chat.render();
    const view = chat.views.get(id);
    chat.scroller.following = false;
    view.openFiles(words);
    view.element.scrollIntoView({ block: "start" });
    markWords(view.element, words);
    $("find").hidden = matches.length < 2;
    this.count.textContent = `Match ${at + 1} of ${matches.length}`;
  }

  close() {
    this.matches = [];
    $("find").hidden = true;
    clearMarks();
  }
}
