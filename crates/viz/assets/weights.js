// Weights by type: sizes from the drawing, and the statistics of `latent verify --weights --json`.
const isWeights = (value) => isObject(value) && Array.isArray(value.tensors) && value.tensors.every((tensor) => isObject(tensor) && typeof tensor.name === "string" && typeof tensor.type === "string" && "rms" in tensor);
const MAX_TENSORS = 400; // rows of a table of tensors

function renderWeights() {
  const parts = [
    html("h2", {}, "Weights by type"),
    html("p", {}, "Load the output of ", html("code", {}, "latent verify --weights --json"), ", or build this page with --weights FILE."),
    ...fileLoader("weights", "File of statistics", isWeights, "it has no tensors with statistics: make it with latent verify --weights --json."),
    html("h3", {}, "Stored in the file"),
    ...storedParts(),
  ];
  if (state.weights) parts.push(...statisticsParts(state.weights));
  else parts.push(html("div", { class: "empty" }, "No statistics loaded."));
  $("weights-tab").replaceChildren(html("div", { class: "page" }, ...parts));
}

// Bytes per type of the weights that plans use.
function storedParts() {
  const types = new Map();
  for (const weight of drawing.weights) {
    for (const format of weight.formats.filter((format) => format.count > 0)) {
      const sum = types.get(format.format) ?? { weights: 0, bytes: 0 };
      sum.weights += format.count;
      sum.bytes += format.bytes * format.count;
      types.set(format.format, sum);
    }
  }
  const list = [...types].sort((a, b) => b[1].bytes - a[1].bytes);
  const total = list.reduce((sum, [, type]) => sum + type.bytes, 0) || 1;
  const rows = list.map(([name, type]) => [html("span", { class: "mono" }, name), whole(type.weights), bytes(type.bytes), `${((100 * type.bytes) / total).toFixed(1)} %`, meter(type.bytes / total)]);
  return [wideTable(["type", "weights", "bytes", "share", ""], rows, ["", "n", "n", "n", "meter-cell"])];
}

function meter(share) {
  const bar = html("span", { class: "meter", role: "presentation" });
  bar.style.width = `${Math.max(1, 120 * share)}px`;
  return bar;
}

const problemsOf = (tensor) => [...listOf(tensor.wrong), ...listOf(tensor.odd)].map((text) => (typeof text === "string" ? text : JSON.stringify(text)));
const elementsOf = (tensor) => listOf(tensor.shape).reduce((product, n) => product * (numberOf(n) ?? 0), 1);

// Combined statistics of several tensors: extremes, and means weighted by elements.
function pooled(tensors) {
  const sum = { tensors: tensors.length, elements: 0, weighed: 0, mean: 0, square: 0, zeros: 0, min: null, max: null, bad: 0, problems: 0 };
  for (const tensor of tensors) {
    const n = elementsOf(tensor);
    sum.elements += n;
    sum.bad += (numberOf(tensor.nan) ?? 0) + (numberOf(tensor.infinite) ?? 0);
    sum.problems += problemsOf(tensor).length;
    const [min, max] = [numberOf(tensor.min), numberOf(tensor.max)];
    if (min !== null) sum.min = Math.min(sum.min ?? min, min);
    if (max !== null) sum.max = Math.max(sum.max ?? max, max);
    const rms = numberOf(tensor.rms);
    if (rms === null) continue;
    sum.weighed += n;
    sum.mean += n * (numberOf(tensor.mean) ?? 0);
    sum.square += n * rms * rms;
    sum.zeros += n * (numberOf(tensor.zero_share) ?? 0);
  }
  const per = (total) => (sum.weighed > 0 ? total / sum.weighed : null);
  const square = per(sum.square);
  return { ...sum, mean: per(sum.mean), rms: square === null ? null : Math.sqrt(square), zeros: per(sum.zeros) };
}

function statisticsParts(file) {
  const types = new Map();
  for (const tensor of file.tensors) types.set(tensor.type, [...(types.get(tensor.type) ?? []), tensor]);
  const list = [...types].map(([name, tensors]) => ({ name, tensors, all: pooled(tensors) })).sort((a, b) => b.all.elements - a.all.elements);
  const all = pooled(file.tensors);
  const rows = list.map(({ name, all: of }) => [html("span", { class: "mono" }, name), whole(of.tensors), count(of.elements), ...figuresOf(of), whole(of.bad), whole(of.problems)]);
  const odd = file.tensors.filter((tensor) => problemsOf(tensor).length > 0);
  return [
    html("h3", {}, `Statistics of ${textOf(file.file) || "a file"}`),
    html("div", { class: "cards" }, cardBox(whole(all.tensors), "tensors"), cardBox(count(all.elements), "elements"), cardBox(whole(all.bad), "NaN or infinite"), cardBox(whole(odd.length), "tensors with findings")),
    wideTable(["type", "tensors", "elements", "min", "max", "mean", "rms", "zeros", "NaN, ∞", "findings"], rows, ["", "n", "n", "n", "n", "n", "n", "n", "n", "n"]),
    ...(odd.length > 0 ? [html("h3", {}, "Findings"), html("ul", { class: "findings" }, ...odd.slice(0, MAX_TENSORS).map((tensor) => html("li", {}, html("span", { class: "mono" }, tensor.name), `: ${problemsOf(tensor).join("; ")}`)))] : []),
    html("h3", {}, "Every tensor, by type"),
    ...list.map(({ name, tensors }) => tensorList(name, tensors)),
  ];
}

const figuresOf = (of) => [orDash(of.min, short), orDash(of.max, short), orDash(of.mean, short), orDash(of.rms, short), orDash(of.zeros, (n) => `${(100 * n).toFixed(2)} %`)];

// Filled when it is opened, because a large model has tens of thousands of tensors.
function tensorList(name, tensors) {
  const details = html("details", {}, html("summary", {}, `${name}: ${whole(tensors.length)} ${tensors.length === 1 ? "tensor" : "tensors"}`));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const order = [...tensors].sort((a, b) => problemsOf(b).length - problemsOf(a).length);
    const rows = order.slice(0, MAX_TENSORS).map((tensor) => [html("span", { class: "mono" }, tensor.name), listOf(tensor.shape).join(" × "), ...figuresOf(pooled([tensor])), problemsOf(tensor).join("; ")]);
    details.append(wideTable(["tensor", "shape", "min", "max", "mean", "rms", "zeros", "findings"], rows, ["", "", "n", "n", "n", "n", "n", ""]));
    if (tensors.length > MAX_TENSORS) details.append(html("p", { class: "source" }, `The first ${MAX_TENSORS} of ${whole(tensors.length)}.`));
  });
  return details;
}
