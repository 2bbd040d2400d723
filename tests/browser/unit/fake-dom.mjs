// A minimal DOM for tests of the views without a browser: elements, text, serialization.

class Node {
  childNodes = [];
  parentNode = null;

  get isConnected() {
    return true;
  }
  get parts() {
    return this.childNodes;
  }
  append(...children) {
    for (const child of children) {
      if (child instanceof Fragment) this.append(...child.childNodes.splice(0));
      else this.adopt(typeof child === "string" ? new Text(child) : child);
    }
  }
  adopt(node) {
    node.remove();
    node.parentNode = this;
    this.childNodes.push(node);
  }
  remove() {
    if (!this.parentNode) return;
    const { childNodes } = this.parentNode;
    childNodes.splice(childNodes.indexOf(this), 1);
    this.parentNode = null;
  }
  replaceWith(node) {
    const { parentNode } = this;
    node.remove();
    parentNode.childNodes[parentNode.childNodes.indexOf(this)] = node;
    node.parentNode = parentNode;
    this.parentNode = null;
  }
  replaceChildren(...children) {
    for (const child of [...this.childNodes]) child.remove();
    this.append(...children);
  }
}

class Text extends Node {
  constructor(text) {
    super();
    this.text = text;
  }
  get textContent() {
    return this.text;
  }
  get html() {
    return this.text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  }
}

class Fragment extends Node {}

class Element extends Node {
  attributes = {};
  dataset = {};

  constructor(tag) {
    super();
    this.tag = tag;
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  addEventListener() {}
  get textContent() {
    return this.childNodes.map((child) => child.textContent).join("");
  }
  set textContent(text) {
    this.replaceChildren(new Text(text));
  }
  // Adjacent text nodes are merged, as in a normalized document.
  get inner() {
    return this.childNodes.map((child) => child.html).join("");
  }
  get html() {
    // page/direction.mjs tests directions in a browser.
    const attributes = Object.entries(this.attributes).filter(([name]) => name !== "dir").map(([name, value]) => ` ${name}="${value}"`).join("");
    return `<${this.tag}${attributes}>${this.inner}</${this.tag}>`;
  }
}

export function installDocument() {
  globalThis.document = {
    createElement: (tag) => new Element(tag),
    createElementNS: (_, tag) => new Element(tag),
    createTextNode: (text) => new Text(text),
    createDocumentFragment: () => new Fragment(),
  };
}

export const element = (tag = "div") => new Element(tag);
