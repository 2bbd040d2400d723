// The comparison of two runs, as `latent diff --json` prints it.
const isParity = (value) =>
  isObject(value) && typeof value.a === "string" && isObject(value.report) && Array.isArray(value.report.points) && value.report.points.every((point) => isObject(point) && typeof point.name === "string" && typeof point.verdict === "string");
const VERDICTS = new Map([
  ["same", ["cache", "same", "every bit agrees"]],
  ["within", ["linear", "within", "within the tolerance"]],
  ["follows", ["norm", "follows", "explained by the errors of the inputs"]],
  ["not_finite", ["experts", "NaN", "not finite on either side"]],
  ["parts", ["attention", "PARTS", "beyond the tolerance and the errors of the inputs"]],
]);
const verdictOf = (point) => VERDICTS.get(point.verdict) ?? ["sum", point.verdict, ""];
const MAX_POINTS = 2000; // rows of the table

function renderParity() {
  const parts = [
    html("h2", {}, "Parity of two runs"),
    html("p", {}, "Where two runs of a model diverge. Load the output of ", html("code", {}, "latent diff --json"), ", or build this page with --parity FILE."),
    ...fileLoader("parity", "Comparison", isParity, "it has no report with points: make it with latent diff --json."),
  ];
  if (state.parity) parts.push(...parityParts(state.parity));
  else parts.push(html("div", { class: "empty" }, "No comparison loaded."));
  $("parity-tab").replaceChildren(html("div", { class: "page" }, ...parts));
}

function parityParts(parity) {
  const { points, tolerance } = parity.report;
  const level = numberOf(tolerance?.level);
  const tally = new Map();
  for (const point of points) tally.set(verdictOf(point)[1], (tally.get(verdictOf(point)[1]) ?? 0) + 1);
  const largest = Math.max(0, ...points.map((point) => numberOf(point.relative) ?? 0));
  const parted = points[numberOf(parity.report.parted) ?? -1];
  const kept = points.slice(0, MAX_POINTS);
  const rows = kept.map((point) => {
    const [family, word] = verdictOf(point);
    const row = [
      html("span", { class: "mono" }, point.name),
      textOf(point.operation),
      orDash(numberOf(point.relative), short),
      orDash(numberOf(point.worst_relative), short),
      orDash(numberOf(point.inputs_error), short),
      orDash(numberOf(point.cosine), (n) => n.toFixed(6)),
      orDash(numberOf(point.max_abs), short),
      html("span", { class: `verdict ${family}` }, html("i"), word),
    ];
    row.class = point.verdict === "parts" || point.verdict === "not_finite" ? "minus-row" : null;
    return row;
  });
  const missing = listOf(parity.report.not_compared).filter((name) => typeof name === "string");
  return [
    html("div", { class: "sides" }, html("div", {}, html("strong", {}, "A "), textOf(parity.a)), html("div", {}, html("strong", {}, "B "), textOf(parity.b))),
    html(
      "div",
      { class: "cards" },
      cardBox(parted ? "They part" : "They agree", parted ? `first at ${parted.name}` : `within ${orDash(level, short)}, over ${whole(listOf(parity.tokens).length)} tokens`),
      cardBox(whole(points.length), `values compared: ${[...tally].map(([word, n]) => `${n} ${word}`).join(", ")}`),
      cardBox(short(largest), "largest relative error |b − a| ÷ |a|"),
    ),
    ...(parted ? [html("h3", {}, "Where they part"), html("ul", { class: "findings" }, ...listOf(parted.made_by).map((line, i) => html("li", {}, html("strong", {}, i === 0 ? "A " : "B "), html("span", { class: "mono" }, textOf(line).trim()))))] : []),
    html("h3", {}, "Relative error in the order of the model"),
    html("div", { class: "chart", tabindex: 0, role: "group", "aria-label": "Chart of the relative errors" }, parityChart(kept, level)),
    html("div", { class: "verdicts" }, ...[...VERDICTS.values()].map(([family, word, about]) => html("span", { class: `verdict ${family}` }, html("i"), `${word}: ${about}`))),
    html("h3", {}, "Values"),
    wideTable(["value", "operation", "relative", "worst row", "of its inputs", "cosine", "largest |b − a|", "verdict"], rows, ["", "", "n", "n", "n", "n", "n", ""]),
    ...(points.length > kept.length ? [html("p", { class: "source" }, `The first ${whole(MAX_POINTS)} of ${whole(points.length)}.`)] : []),
    ...(missing.length > 0 ? [html("details", {}, html("summary", {}, `${whole(missing.length)} values that a side did not keep`), html("p", { class: "mono" }, missing.join(", ")))] : []),
  ];
}

// Errors on a logarithmic scale. Exact values are on the lowest line.
function parityChart(points, level) {
  const [left, right, top, bottom, high] = [64, 16, 16, 34, 240];
  const step = Math.max(3, Math.min(12, 1000 / Math.max(1, points.length)));
  const width = left + right + step * points.length;
  const errors = points.map((point) => numberOf(point.relative)).filter((n) => n !== null && n > 0);
  const low = Math.floor(Math.log10(Math.min(1e-3, ...errors, level ?? 1)));
  const most = Math.max(low + 1, Math.ceil(Math.log10(Math.max(1e-3, ...errors, level ?? 0))));
  const y = (n) => (n > 0 ? top + ((most - Math.log10(n)) / (most - low)) * high : top + high + 18);
  const parts = [];
  for (let p = low; p <= most; p += Math.max(1, Math.ceil((most - low) / 8))) {
    parts.push(svg("path", { d: `M${left} ${y(10 ** p)}H${width - right}`, class: "axis" }), svg("text", { x: left - 8, y: y(10 ** p) + 4, class: "tick end" }, p === 0 ? "1" : `1e${p}`));
  }
  parts.push(svg("text", { x: left - 8, y: top + high + 22, class: "tick end" }, "exact"));
  if (level !== null && level > 0) parts.push(svg("path", { d: `M${left} ${y(level)}H${width - right}`, class: "roof second" }), svg("text", { x: left + 4, y: y(level) - 5, class: "tick" }, `tolerance ${short(level)}`));
  points.forEach((point, i) => {
    const [family, word] = verdictOf(point);
    const error = numberOf(point.relative);
    const r = point.verdict === "parts" || point.verdict === "not_finite" ? 5 : 3;
    parts.push(svg("g", { class: family }, svg("title", {}, `${point.name}: ${orDash(error, short)}, ${word}`), svg("circle", { cx: left + (i + 0.5) * step, cy: error === null ? top : y(error), r, class: "dot" })));
  });
  const height = top + high + bottom;
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Relative errors in the order of the model; the table below has the figures" }, ...parts);
}
