// Creates elements without parsing HTML: texts of models and users become text nodes only.

const SVG = "http://www.w3.org/2000/svg";

// Properties: `class`, `on…` handlers, `dataset`, booleans as attributes without value, and other
// attributes.
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child);
  }
}

export const $ = (id) => document.getElementById(id);

// Icon outlines on a grid of 20 × 20.
const ICONS = {
  attach: "M15.500 9.500l-5.700 5.700a3.700 3.700 0 0 1-5.200-5.200l6.300-6.300a2.500 2.500 0 0 1 3.500 3.500l-6.200 6.200a1.200 1.200 0 0 1-1.700-1.700l5.500-5.500",
  columns: "M3.500 4h13v12h-13zM10 4v12",
  file: "M5.500 3h6l3.500 3.500V17h-9.500zM11 3v4h4",
  menu: "M3 5h14M3 10h14M3 15h14",
  plus: "M10 4v12M4 10h12",
  close: "M5 5l10 10M15 5L5 15",
  send: "M10 16V4M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  copy: "M7 7V4h9v9h-3M4 7h9v9H4z",
  check: "M4 11l4 4 8-10",
  edit: "M4 16l1-4 8-8 3 3-8 8zM11 6l3 3",
  again: "M16 10a6 6 0 1 1-2-4.5M16 3v4h-4",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  down: "M5 8l5 5 5-5",
  up: "M5 12l5-5 5 5",
  trash: "M4 6h12M8 6V4h4v2M6 6l1 11h6l1-11",
  dots: "M4 10h.01M10 10h.01M16 10h.01",
  sliders: "M4 6h6M14 6h2M4 14h2M10 14h6M10 6a2 2 0 1 0 4 0 2 2 0 1 0-4 0M6 14a2 2 0 1 0 4 0 2 2 0 1 0-4 0",
  sun: "M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 1 0 0-7M10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M15.7 4.3l-1.1 1.1M5.4 14.6l-1.1 1.1",
  moon: "M16.5 12A7 7 0 0 1 8 3.5a7 7 0 1 0 8.500 8.500z",
  more: "M4 10h10M10 5l5 5-5 5",
  tool: "M12.500 4.500a3.500 3.500 0 0 0-4.300 4.600L3.500 13.800l2.700 2.700 4.700-4.700a3.500 3.500 0 0 0 4.600-4.300l-2.200 2.200-2.500-.5-.5-2.500z",
  think: "M10 3a5 5 0 0 0-3 9c.7.6 1 1.200 1 2h4c0-.8.3-1.400 1-2a5 5 0 0 0-3-9zM8.500 17h3",
  search: "M9 4a5 5 0 1 0 0 10A5 5 0 1 0 9 4M13 13l4 4",
  warn: "M10 3.500L17.500 16h-15zM10 8.500v3.500M10 14v.01",
};

export function icon(name) {
  return svg("svg", { viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true", focusable: "false" }, svg("path", { d: ICONS[name] }));
}

// A button with an icon. Screen readers and the tooltip use its name.
export function iconButton(name, label, onclick, props = {}) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...props }, icon(name));
}

// Copies text and confirms it on the button. Without clipboard permission it copies a selection.
export async function copyText(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button?.focus();
  }
  say(done ? "Copied" : "The browser did not allow copying");
  if (!button) return done;
  const was = [...button.childNodes];
  button.replaceChildren(icon(done ? "check" : "warn"), ...was.slice(1).map(() => document.createTextNode(done ? "Copied" : "Not allowed")));
  setTimeout(() => button.replaceChildren(...was), 1400);
  return done;
}

// Announces a text to screen readers. A new element per call lets them announce equal texts again.
let turn = 0;
export function say(text) {
  const region = $("said");
  if (!region) return;
  turn += 1;
  region.replaceChildren(h("p", { "data-turn": turn }, text));
}

export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const THIN = "\u202f";

export const whole = (value) => String(Math.round(value)).replace(/\B(?=(\d{3})+(?!\d))/g, THIN);

export function seconds(ms) {
  if (ms < 950) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  return s < 60 ? `${s} s` : `${Math.floor(s / 60)} min ${s % 60} s`;
}

export const rate = (value) => (value >= 100 ? whole(value) : value.toFixed(1));

export const finite = (value) => typeof value === "number" && Number.isFinite(value);
