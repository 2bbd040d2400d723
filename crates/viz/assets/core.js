// Shared by all parts of the page: data, state, element construction and number formats.
const $ = (id) => document.getElementById(id);
const read = (id) => JSON.parse($(id).textContent);
const drawing = read("drawing");
const against = read("against");
const wanted = read("wanted");
const fileInfo = read("file-info");

const state = {
  stage: wanted.stage,
  pass: null, // for stage "ir": the last pass that ran
  formulation: wanted.formulation,
  bucket: wanted.bucket,
  cached: 4096,
  tab: "drawing",
  selected: null, // {block, operation}: indices into drawing.blocks and its operations
  profile: read("profile"),
  weights: read("weights"),
  parity: read("parity"),
};

// Functions that update the page. Each is called with the names of the changed fields.
const watchers = [];
function change(patch) {
  const changed = Object.keys(patch).filter((key) => state[key] !== patch[key]);
  Object.assign(state, patch);
  if (changed.length > 0) for (const watcher of watchers) watcher(changed);
}

// Elements are created and never parsed from text, so a name in a model file cannot become markup.
function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}
const html = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const SVG = "http://www.w3.org/2000/svg";
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// A number below 1000 with three significant figures.
function figures(n) {
  const digits = Math.abs(n) >= 99.95 ? 0 : Math.abs(n) >= 9.995 ? 1 : 2;
  return n.toFixed(digits);
}
function scaled(n, units) {
  let at = 0;
  while (Math.abs(n) >= 999.5 && at < units.length - 1) {
    n /= 1000;
    at += 1;
  }
  return `${at === 0 && Number.isInteger(n) ? n : figures(n)} ${units[at]}`.trim();
}
const bytes = (n) => scaled(Math.round(n), ["B", "kB", "MB", "GB", "TB", "PB"]);
const count = (n, unit = "") => scaled(n, ["", "k", "M", "G", "T", "P"].map((prefix) => prefix + unit));
const whole = (n) => Math.round(n).toLocaleString("en").replaceAll(",", "\u202f");

const bucketInfo = () => drawing.buckets.find((card) => card.key === state.bucket);
function viewOf(source, stage, formulation, bucket, pass = null) {
  const any = stage === "circuit" || (stage === "ir" && pass === null);
  return source.views.find(
    (view) => view.stage === stage && (view.pass ?? null) === pass && (any || (view.formulation === formulation && view.bucket === bucket)),
  );
}
const currentView = () => viewOf(drawing, state.stage, state.formulation, state.bucket, state.pass);
// The plan of the current formulation and bucket, for costs and memory.
const currentPlan = () => viewOf(drawing, "plan", state.formulation, state.bucket);

// Bytes and FLOPs of one operation in one layer, with `cached` tokens in the cache.
function costOf(operation, cached = state.cached) {
  const cost = operation.cost;
  if (!cost) return null;
  return {
    weight: cost.weight_bytes,
    cache: cost.cache_bytes + cached * cost.cache_bytes_per_cached,
    flops: cost.flops + cached * cost.flops_per_cached,
  };
}

// The cost of a whole plan. Each row takes one attention path, so the other one's operations are
// skipped.
function totalOf(source, view, cached = state.cached) {
  const total = { weight: 0, cache: 0, flops: 0, operations: 0 };
  for (const placed of view.blocks) {
    const block = source.blocks[placed.block];
    for (const operation of block.operations) {
      if (!operation.taken) continue;
      const cost = costOf(operation, cached) ?? { weight: 0, cache: 0, flops: 0 };
      total.weight += cost.weight * block.count;
      total.cache += cost.cache * block.count;
      total.flops += cost.flops * block.count;
      total.operations += block.count;
    }
  }
  return total;
}

// The model's name, or its file's name without one.
function titleOf(source) {
  const file = source.model.file.split(/[\\/]/).pop();
  return source.model.name ?? (file === "config.json" ? `${source.model.config.architecture} (config.json)` : file);
}

function say(text) {
  $("said").textContent = text;
}

function table(head, rows, classes = []) {
  // A column without a name gets a plain cell, because a header needs a text.
  const cell = (tag, value, i) => (tag === "th" && value === "" ? html("td", { class: classes[i] }) : html(tag, { class: classes[i], scope: tag === "th" ? "col" : null }, value));
  return html(
    "table",
    {},
    html("thead", {}, html("tr", {}, ...head.map((name, i) => cell("th", name, i)))),
    html("tbody", {}, ...rows.map((row) => html("tr", { class: row.class }, ...row.map((value, i) => cell("td", value, i))))),
  );
}
