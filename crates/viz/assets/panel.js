// Details of the selected operation.
function renderPanel() {
  const panel = $("panel");
  panel.hidden = state.selected === null || state.tab !== "drawing";
  if (state.selected === null) return;
  const block = drawing.blocks[state.selected.block];
  const operation = block.operations[state.selected.operation];
  const formula = drawing.operations[operation.op];
  const parts = [
    html(
      "div",
      { class: "top" },
      html("div", { class: operation.family }, html("div", { class: "kind" }, place(block, operation)), html("h2", {}, operation.title)),
      html("button", { class: "tool", "aria-label": "Close", title: "Close (Esc)", onclick: closePanel }, "✕"),
    ),
  ];
  if (formula) {
    parts.push(
      html("p", { class: "about" }, formula.about.replaceAll("`", "")),
      html("h3", {}, "Formula"),
      html("div", { class: "formula" }, formula.formula),
      formula.where.length > 0 ? html("ul", {}, ...formula.where.map((line) => html("li", {}, line))) : null,
      html("div", { class: "source" }, `Source: ${formula.source}`),
    );
  }
  if (operation.when?.length > 0) parts.push(html("h3", {}, "Only when"), html("p", {}, operation.when.join(" and ")));
  if (!operation.taken) parts.push(html("p", { class: "about" }, untaken(operation)));
  const around = [...(operation.prologue ?? []).map((words) => `first: ${words}`), ...(operation.epilogue ?? []).map((words) => `then: ${words}`)];
  if (around.length > 0) parts.push(html("h3", {}, "Fused into it"), html("ul", {}, ...around.map((line) => html("li", {}, line))));
  parts.push(...ports("Inputs", operation.inputs), ...ports("Outputs", operation.outputs));
  if (operation.kv_layer) {
    const { kind, writes, recurrent, width, row_bytes } = operation.kv_layer;
    parts.push(
      html("h3", {}, "Cache"),
      recurrent
        ? html("p", {}, `reads and replaces the ${kind}: ${width} elements of f32, ${whole(row_bytes)} bytes a sequence and layer`)
        : html("p", {}, `${writes ? "writes a row per token to" : "reads the rows of"} the ${kind} KV layer: ${width} elements of ${drawing.machine.cache}, ${whole(row_bytes)} bytes a token and layer`),
    );
  }
  if (operation.weights?.length > 0) parts.push(html("h3", {}, "Weights"), ...operation.weights.map(weightPart));
  const free = operation.kernels ?? [];
  if (free.length > 0) parts.push(html("h3", {}, "Kernel"), ...free.map((index) => bindingPart(drawing.bindings[index], "")));
  if (operation.run) parts.push(html("h3", {}, `On ${operation.run.device}`), callTable(operation.run.kernels));
  const cost = costOf(operation);
  if (cost) parts.push(html("h3", {}, `Cost of a step of ${bucketInfo().rows} after ${whole(state.cached)} cached`), costTable(cost, block));
  if (operation.line) parts.push(html("h3", {}, "As latent graph prints it"), html("code", {}, operation.line));
  parts.push(html("p", { class: "source" }, html("a", { href: linkTo() }, "Link to this operation")));
  panel.replaceChildren(...parts.filter((part) => part !== null));
  panel.scrollTop = 0;
}

function place(block, operation) {
  const phase = operation.phase === undefined ? "" : ` · phase ${operation.phase} of ${block.phases}`;
  const path = operation.path ? ` · ${operation.path} rows only` : "";
  return `${block.title}${phase}${path}`;
}

function untaken(operation) {
  if (!operation.path) return "This model does not take this branch.";
  const from = drawing.model.crossover;
  const begin = from ? `the naive formulation begins at ${from} rows` : "the naive formulation never takes less work";
  return `A segment of ${bucketInfo().rows} new rows takes the other attention path: ${begin}.`;
}

function ports(title, list) {
  if (list.length === 0) return [];
  const rows = list.map((port) => [html("span", { class: "mono" }, port.name), port.shape, port.place ?? ""]);
  return [html("h3", {}, title), table(["value", "shape", "where"], rows)];
}

function weightPart(used) {
  const weight = drawing.weights[used.weight];
  const rows = weight.formats.filter((format) => format.count > 0);
  const parts = [html("summary", {}, html("strong", {}, weight.slot), ` ${weight.shape.join(" × ")} `, rows.map((format) => format.format).join(", "))];
  parts.push(html("div", { class: "mono" }, weight.tensor));
  if (rows.length > 0) {
    parts.push(
      table(
        ["format", "layers", "bytes per layer"],
        rows.map((format) => [format.format, format.layers || "–", `${bytes(format.bytes)}`]),
        ["", "", "n"],
      ),
    );
  } else {
    parts.push(html("div", { class: "mono" }, `[${weight.formats[0].layers}]`));
  }
  used.kernels.forEach((index, i) => parts.push(bindingPart(drawing.bindings[index], weight.formats.length > 1 ? weight.formats[i].format : "")));
  return html("details", { open: true }, ...parts);
}

function bindingPart(binding, title) {
  const others = binding.others.map((other) =>
    html("li", { class: other.matches ? "" : "lost" }, html("span", { class: "mono" }, other.kernel), `: ${other.why}`),
  );
  return html(
    "div",
    { class: "binding" },
    html("div", {}, title ? `${title}: ` : "", "bound to ", html("span", { class: "mono won" }, binding.kernel)),
    html("ul", { class: "why" }, ...binding.why.map((line) => html("li", {}, line))),
    others.length > 0
      ? html("details", { class: "others" }, html("summary", {}, `${others.length} other kernel${others.length > 1 ? "s" : ""} of ${binding.operation}`), html("ul", {}, ...others))
      : html("p", { class: "source" }, "It is the only kernel of this operation."),
  );
}

// The device's kernel calls for the operation in one layer.
function callTable(kernels) {
  const rows = kernels.map((call) => [
    html("span", { class: "mono" }, call.kernel),
    whole(call.calls),
    call.threads > 0 ? `${whole(call.workgroups)} × ${whole(call.threads)}` : "–",
    call.memory > 0 ? bytes(call.memory) : "–",
    call.accesses > 0 ? `${call.conflicting} of ${call.accesses}${call.conflicting > 0 ? `, ${call.worst_conflict}-fold` : ""}` : "–",
  ]);
  const head = ["kernel", "calls", "workgroups × threads", "workgroup memory", "bank conflicts"];
  const align = ["", "n", "n", "n", "n"];
  // Only some drivers report instructions and registers.
  if (kernels.some((call) => call.instructions !== undefined)) {
    head.push("instructions", "registers");
    align.push("n", "n");
    const stated = (number) => (number === undefined ? "–" : whole(number));
    const spilled = (call) => (call.spilled > 0 ? `, ${whole(call.spilled)} in memory` : "");
    rows.forEach((row, i) => row.push(stated(kernels[i].instructions), stated(kernels[i].registers) + spilled(kernels[i])));
  }
  return table(head, rows, align);
}

function costTable(cost, block) {
  const each = (value, write) => [write(value), write(value * block.count)];
  return table(
    ["", "per layer", `× ${block.count}`],
    [
      ["weights read", ...each(cost.weight, bytes)],
      ["cache moved", ...each(cost.cache, bytes)],
      ["operations", ...each(cost.flops, (n) => count(n, "FLOP"))],
      ["FLOP per byte", cost.weight + cost.cache > 0 ? (cost.flops / (cost.weight + cost.cache)).toPrecision(3) : "–", ""],
    ],
    ["", "n", "n"],
  );
}

function closePanel() {
  const was = shown.find((item) => item.element.classList.contains("selected"));
  change({ selected: null });
  was?.element.focus({ preventScroll: true });
}
