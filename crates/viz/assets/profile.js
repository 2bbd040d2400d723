// The profile view: the results of `latent profile --json`, compared with the limits of its
// machine.
const isProfile = (value) =>
  value !== null &&
  typeof value === "object" &&
  typeof value.limits?.read_bandwidth === "number" &&
  Array.isArray(value.steps) &&
  value.steps.every((step) => typeof step.rows === "number" && Array.isArray(step.phases));

// The step of the profile whose batch bucket is shown.
function profileStep() {
  const rows = (step) => (step.rows <= 1 ? "decode" : step.rows <= 16 ? "small_batch" : "prefill");
  return state.profile?.steps.find((step) => rows(step) === state.bucket) ?? null;
}

const inBlock = (phase, block) =>
  phase.layers === null ? block.layers.length === 0 : block.layers.some(([first, last]) => phase.layers[0] <= last && phase.layers[1] >= first);

// The share of a step's time that an operation's phase took; null if the profile has no such phase.
function shareOf(step, item) {
  const words = item.data.op === "split" ? null : item.data.weights?.length > 0 ? `${item.data.op} ${item.data.title.slice(item.data.op.length + 1).replaceAll(" + ", "+")}` : item.data.op;
  const block = drawing.blocks[item.block];
  const phases = step.phases.filter((phase) => phase.operations[0] === words && inBlock(phase, block));
  if (phases.length === 0) return null;
  return phases.reduce((sum, phase) => sum + phase.share, 0);
}

function renderProfile() {
  const pane = $("profile-tab");
  const parts = [
    html("h2", {}, "Profile"),
    html("p", {}, "Time per phase against the hardware limit, measured with ", html("code", {}, "latent profile --json > profile.json"), "."),
    ...fileLoader("profile", "Profile", isProfile, "not a profile: it has no limits and steps. Make one with latent profile --json."),
  ];
  if (!state.profile) {
    parts.push(html("div", { class: "empty" }, "No profile loaded. Choose the JSON file of a profile, or build this page with --profile FILE."));
  } else {
    const savable = state.profile.steps.some(hasTimeline);
    parts.push(html("p", {}, html("button", { class: "tool", id: "save-timeline", disabled: !savable, onclick: () => saveFile("timeline.json", new Blob([JSON.stringify(timelineOf(state.profile.steps))], { type: "application/json" })) }, "Save timeline"), savable ? " Open the file in ui.perfetto.dev." : " This profile has no timeline. Make a new one with latent profile --json."));
    for (const [i, step] of state.profile.steps.entries()) parts.push(...profileStepParts(step, state.profile.limits, i));
  }
  pane.replaceChildren(html("div", { class: "page" }, ...parts));
}

function profileStepParts(step, limits) {
  const title = step.rows === 1 ? "Decoding" : `A prompt of ${whole(step.rows)}`;
  const order = [...step.phases].sort((a, b) => b.share - a.share);
  const most = Math.max(...order.map((phase) => phase.share), 1e-9);
  const rows = order.map((phase) => [
    html("span", { class: familyOfWords(phase.operations) }, html("span", { class: "meter", role: "presentation", width: 0 })),
    phase.operations.join(", "),
    phase.layers === null ? "–" : phase.layers[0] === phase.layers[1] ? `${phase.layers[0]}` : `${phase.layers[0]}–${phase.layers[1]}`,
    phase.micros >= 1000 ? whole(phase.micros) : figures(phase.micros),
    whole(phase.count),
    `${(100 * phase.share).toFixed(1)} %`,
    figures(phase.gb_per_s),
    figures(phase.gflop_per_s),
    phase.bound,
    `${(100 * phase.of_limit).toFixed(0)} %`,
  ]);
  const times = wideTable(["", "phase", "layers", "µs", "×", "time", "GB/s", "GFLOP/s", "limit", "of it"], rows, ["", "", "", "n", "n", "n", "n", "n", "", "n"]);
  times.querySelectorAll(".meter").forEach((meter, i) => {
    meter.style.width = `${(120 * order[i].share) / most}px`;
    meter.style.background = "var(--f)";
  });
  return [
    html("h3", {}, title),
    html("p", {}, `After ${whole(step.cached)} ${step.cached === 1 ? "token" : "tokens"}: ${step.millis.toFixed(2)} ms per step, ${step.tokens_per_s.toFixed(1)} tokens per second; ${whole(step.barriers)} phases and barriers, ${whole(step.kernels)} kernels.`),
    html("div", { class: "chart" }, rooflineChart(step, limits, title)),
    ...(hasTimeline(step) ? [html("div", { class: "chart" }, timelineChart(step, title))] : []),
    times,
  ];
}

// The colour of a phase by the words of its operations.
function familyOfWords(words) {
  const first = words[0]?.split(" ")[0] ?? "";
  for (const block of drawing.blocks) {
    const exact = block.operations.find((operation) => operation.title.replaceAll(" + ", "+") === words[0]) ?? block.operations.find((operation) => operation.op === first);
    if (exact) return exact.family;
  }
  return "sum";
}

// A roofline: operations per second over operations per byte, both logarithmic, under the machine's
// limits.
function rooflineChart(step, limits, title) {
  const width = 1080;
  const height = 400;
  const box = { left: 70, right: 24, top: 34, bottom: 46 };
  const points = step.phases.filter((phase) => phase.bytes > 0 && phase.gflop_per_s > 0).map((phase) => ({ phase, x: phase.gflop_per_s / phase.gb_per_s, y: phase.gflop_per_s }));
  const integer = (2 * limits.int8_macs) / 1e9;
  const float = (2 * limits.f32_macs) / 1e9;
  const bandwidth = limits.read_bandwidth / 1e9;
  const xs = [...points.map((p) => p.x), 0.1, (2 * integer) / bandwidth];
  const ys = [...points.map((p) => p.y), integer * 1.6, (bandwidth * Math.min(...xs)) / 2];
  const span = (list) => [Math.floor(Math.log10(Math.min(...list))), Math.ceil(Math.log10(Math.max(...list)))];
  const [x0, x1] = span(xs);
  const [y0, y1] = span(ys);
  const x = (value) => box.left + ((Math.log10(value) - x0) / (x1 - x0)) * (width - box.left - box.right);
  const y = (value) => height - box.bottom - ((Math.log10(value) - y0) / (y1 - y0)) * (height - box.top - box.bottom);
  const parts = [];
  for (let p = x0; p <= x1; p += 1) {
    parts.push(svg("path", { d: `M${x(10 ** p)} ${box.top}V${height - box.bottom}`, class: "axis" }), svg("text", { x: x(10 ** p), y: height - box.bottom + 17, class: "tick middle" }, String(Number(10 ** p))));
  }
  for (let p = y0; p <= y1; p += 1) {
    parts.push(svg("path", { d: `M${box.left} ${y(10 ** p)}H${width - box.right}`, class: "axis" }), svg("text", { x: box.left - 8, y: y(10 ** p) + 4, class: "tick end" }, String(Number(10 ** p))));
  }
  const roof = (peak, name, second) => {
    const knee = peak / bandwidth;
    const start = Math.max(10 ** x0, 10 ** y0 / bandwidth);
    parts.push(svg("path", { d: `M${x(start)} ${y(start * bandwidth)}L${x(knee)} ${y(peak)}H${width - box.right}`, class: second ? "roof second" : "roof" }));
    parts.push(svg("text", { x: width - box.right - 4, y: y(peak) - 6, class: "tick end" }, `${name} ${figures(peak)} GFLOP/s`));
  };
  roof(integer, "8-bit", false);
  roof(float, "f32", true);
  if (limits.f16_macs > 0) roof((2 * limits.f16_macs) / 1e9, "f16", true);
  const slant = 10 ** (x0 + 0.35);
  parts.push(svg("text", { x: x(slant) + 8, y: y(slant * bandwidth) + 16, class: "tick" }, `memory ${figures(bandwidth)} GB/s`));
  // Names of the costliest phases, each on its own line.
  const named = [...points].sort((a, b) => b.phase.share - a.phase.share).slice(0, 6).sort((a, b) => b.y - a.y);
  const lines = new Map();
  let above = 0;
  for (const point of named) {
    above = Math.max(above + 14, y(point.y) + 4);
    lines.set(point.phase, above);
  }
  for (const { phase, x: px, y: py } of points) {
    const name = phase.operations.join(", ");
    parts.push(
      svg(
        "g",
        { class: familyOfWords(phase.operations) },
        svg("title", {}, `${name}: ${figures(phase.gflop_per_s)} GFLOP/s, ${figures(phase.gb_per_s)} GB/s, ${(100 * phase.share).toFixed(1)} % of the time`),
        svg("circle", { cx: x(px), cy: y(py), r: 5 + 26 * Math.sqrt(phase.share), class: "dot" }),
        lines.has(phase) ? svg("path", { d: `M${x(px)} ${y(py)}L${x(px) + 44} ${lines.get(phase) - 4}h8`, class: "leader" }) : null,
        lines.has(phase) ? svg("text", { x: x(px) + 56, y: lines.get(phase), class: "mark-text" }, `${name}, ${(100 * phase.share).toFixed(0)} %`) : null,
      ),
    );
  }
  parts.push(
    svg("text", { x: (width + box.left) / 2, y: height - 8, class: "tick middle" }, "operations per byte"),
    svg("text", { x: 14, y: 18, class: "tick" }, "GFLOP/s"),
  );
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Roofline of ${title}: the table below has the figures`, class: "roofline" }, ...parts);
}
