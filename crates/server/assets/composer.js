// The input field for a new message. Its text is the draft of the conversation until it is sent.

import { AttachmentList, acceptDrops } from "./attachment-list.js";
import { $, icon } from "./dom.js";
import { toast } from "./notices.js";

const LONG_PASTE = 2500; // characters; longer texts are attached as a file

export class Composer {
  // compare: the control for the second model (compare.js).
  constructor(chat, library, compare) {
    Object.assign(this, { chat, library });
    this.field = $("prompt");
    this.attached = new AttachmentList(() => this.onFiles());
    $("attached").append(compare.line, this.attached.element);
    this.field.before(this.attached.button, this.attached.input, compare.button);
    chat.draft = () => this.message;
    acceptDrops($("chat"), $("drop"), (files) => this.attached.add(files));
    this.field.addEventListener("paste", (event) => this.onPaste(event));
    this.button = $("send");
    // On a touch keyboard Enter inserts a new line.
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
    if (!this.chat.answering) this.submit();
  }

  onInput() {
    this.resize();
    const { conversation } = this.chat;
    conversation.draft = this.field.value;
    // A new chat is not stored before its first message, so its draft is stored separately.
    if (this.chat.empty) this.saveNewDraft(this.field.value);
    else this.library.touchDraft(conversation);
    this.chat.length.typed();
    this.update();
  }

  // Saves files immediately: they are too large for localStorage, which holds unsaved draft texts.
  onFiles() {
    const { conversation } = this.chat;
    const { files } = this.attached;
    if (this.chat.empty) this.library.keepNewFiles(files);
    else {
      conversation.draftFiles = files;
      this.library.touchDraft(conversation);
      this.library.save();
    }
    this.chat.length.typed();
    this.update();
  }

  // Attaches pasted files, and texts that are so long that they would hide the question.
  onPaste(event) {
    const { files } = event.clipboardData;
    const text = event.clipboardData.getData("text/plain");
    if (text === "" && files.length > 0) {
      event.preventDefault();
      this.attached.add([...files]);
    } else if (text.length > LONG_PASTE) {
      event.preventDefault();
      const file = this.attached.addText("Pasted text.txt", text.replace(/\r\n?/g, "\n"));
      if (file) toast("The pasted text is attached as a file", () => this.insert(file));
    }
  }

  // Replaces an attached file by its text in the field.
  insert(file) {
    if (!this.attached.files.includes(file)) return;
    this.attached.remove(file);
    this.field.setRangeText(file.text, this.field.selectionStart, this.field.selectionEnd, "end");
    this.onInput();
    this.field.focus();
  }

  saveNewDraft(text) {
    try {
      localStorage.setItem("latent.draft", text);
    } catch {
      // Without storage the draft exists only in the field.
    }
  }

  submit() {
    if (this.chat.answering) {
      this.chat.stop();
      return;
    }
    const fresh = this.chat.empty;
    if (this.attached.reading > 0) {
      toast("A file is still being read. Send the message again in a moment.");
      return;
    }
    if (!this.chat.send(this.field.value, this.attached.files)) return;
    if (fresh) {
      this.saveNewDraft("");
      this.library.keepNewFiles([]);
    }
    this.attached.set([]);
    this.field.value = "";
    this.chat.length.typed();
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
      // No stored draft.
    }
    this.field.value = draft ?? "";
    this.attached.set(this.chat.empty ? this.library.newFiles : (this.chat.conversation.draftFiles ?? []));
    this.chat.length.typed();
    this.resize();
    this.update();
  }

  // Sets the field's text and the attached files, as a user would.
  write(text, files) {
    this.attached.set(files);
    this.onFiles();
    this.field.value = text;
    this.onInput();
    this.field.focus();
  }

  resize() {
    if (CSS.supports("field-sizing", "content")) return;
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
  }

  update() {
    const busy = this.chat.answering;
    if (busy !== this.busy) {
      this.busy = busy;
      const label = busy ? "Stop" : "Send";
      this.button.replaceChildren(icon(busy ? "stop" : "send"));
      this.button.setAttribute("aria-label", label);
      this.button.title = busy ? "Stop (Esc)" : "Send (Enter)";
      this.button.classList.toggle("stop", busy);
    }
    this.button.disabled = !busy && this.empty;
  }

  // The message in the form in which it would be sent.
  get message() {
    return { role: "user", content: this.field.value, files: this.attached.files };
  }

  get empty() {
    return this.field.value.trim() === "" && this.attached.files.length === 0;
  }
}
