// The field for a new message. Its text is a draft of its conversation until it is sent.

import { $, icon } from "./dom.js";

export class Composer {
  constructor(chat, library) {
    Object.assign(this, { chat, library });
    this.field = $("prompt");
    this.button = $("send");
    // on a touch keyboard Enter is a new line
    this.touch = matchMedia("(pointer: coarse)").matches;
    if (this.touch) $("prompt-help").hidden = true;
    this.field.addEventListener("input", () => this.onInput());
    this.field.addEventListener("keydown", (event) => this.onKey(event));
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    $("composer").addEventListener("pointerdown", (event) => {
      if (event.target === $("composer")) {
        event.preventDefault();
        this.field.focus();
      }
    });
    this.update();
  }

  onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    if (this.touch && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    if (!this.chat.answer) this.submit();
  }

  onInput() {
    this.resize();
    const { conversation } = this.chat;
    conversation.draft = this.field.value;
    // a new chat is kept once something was sent; its draft has a place of its own
    if (this.chat.empty) this.saveNewDraft(this.field.value);
    else this.library.touchDraft(conversation);
    this.update();
  }

  saveNewDraft(text) {
    try {
      localStorage.setItem("latent.draft", text);
    } catch {
      // it stays in the field
    }
  }

  submit() {
    if (this.chat.answer) {
      this.chat.stop();
      return;
    }
    const fresh = this.chat.empty;
    if (!this.chat.send(this.field.value)) return;
    if (fresh) this.saveNewDraft("");
    this.field.value = "";
    this.resize();
    this.update();
    if (this.touch) this.field.blur();
  }

  // Shows the draft of the open conversation.
  load() {
    let { draft } = this.chat.conversation;
    try {
      if (this.chat.empty && !draft) draft = localStorage.getItem("latent.draft");
    } catch {
      // none
    }
    this.field.value = draft ?? "";
    this.resize();
    this.update();
  }

  resize() {
    if (CSS.supports("field-sizing", "content")) return;
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
  }

  update() {
    const busy = Boolean(this.chat.answer);
    if (busy !== this.busy) {
      this.busy = busy;
      const label = busy ? "Stop" : "Send";
      this.button.replaceChildren(icon(busy ? "stop" : "send"));
      this.button.setAttribute("aria-label", label);
      this.button.title = busy ? "Stop (Esc)" : "Send (Enter)";
      this.button.classList.toggle("stop", busy);
    }
    this.button.disabled = !busy && this.field.value.trim() === "";
  }
}
