// The memory view: the arena over the phases, the rows of the cache that each layer writes and reads, bytes per token.
function renderMemory() {
  const pane = $("memory-tab");
  const view = currentPlan();
  const memory = view.memory;
  const rows = bucketInfo().rows;
  const kvLayers = kvLayersOf(view);
  const token = kvLayers.reduce((sum, s) => sum + s.bytes * s.block.count, 0);
  const weights = drawing.model.weight_bytes;
  const cards = [
    [bytes(weights), `weights, ${count(drawing.model.parameters)} elements`],
    [`${whole(token)} B`, "cache per token, all layers"],
    [bytes(token * (state.cached + rows)), `cache after ${whole(state.cached + rows)} tokens`],
    [bytes(memory.arena_bytes), `arena for a batch of ${memory.max_rows === 1 ? "1" : `at most ${whole(memory.max_rows)}`}`],
  ];
  pane.replaceChildren(
    html(
      "div",
      { class: "page" },
      html("h2", {}, "Memory"),
      html("p", {}, `A step with a batch of ${rows}, formulation ${nameOf(state.formulation)}. Change formulation, batch and cached tokens above.`),
      html("div", { class: "cards" }, ...cards.map(([big, small]) => html("div", { class: "card-box" }, html("div", { class: "big" }, big), html("div", { class: "small" }, small)))),
      html("h3", {}, "Arena over the phases"),
      html(
        "p",
        {},
        `Each bar is a buffer, from the phase that writes it to the last that reads it. Buffers whose lifetimes do not overlap share memory. ${memory.repeats ? "Every repetition of a block uses the same places." : "The first layer of each block is shown; later ones use other places."}`,
      ),
      html("div", { class: "chart" }, arenaChart(view, memory)),
      html("details", {}, html("summary", {}, `${memory.buffers.length} buffers as a table`), bufferTable(view, memory)),
      html("h3", {}, "Cache rows of each layer"),
      html("p", {}, "Rows that a step writes, on top of those that it reads: a row is one token's latents (or expanded keys and values) in one layer."),
      html("div", { class: "chart" }, cacheChart(kvLayers, rows)),
      kvLayerTable(kvLayers, rows),
    ),
  );
}

const nameOf = (key) => drawing.formulations.find((card) => card.key === key).name;

// The KV layers of a plan, one per block that has layers.
function kvLayersOf(view) {
  const kvLayers = [];
  for (const placed of view.blocks) {
    const block = drawing.blocks[placed.block];
    const store = block.operations.find((operation) => operation.kv_layer?.writes);
    if (!store) continue;
    const readers = block.operations.filter((operation) => operation.kv_layer && !operation.kv_layer.writes && operation.taken);
    kvLayers.push({
      block,
      kind: store.kv_layer.kind,
      width: store.kv_layer.width,
      bytes: store.kv_layer.row_bytes,
      readers: readers.map((operation) => operation.op),
      reads: readers.reduce((sum, operation) => sum + costOf(operation).cache, 0),
    });
  }
  return kvLayers;
}

function arenaChart(view, memory) {
  const left = 74;
  const top = 44;
  const height = 300;
  const column = Math.max(34, Math.min(90, 1060 / Math.max(1, memory.columns)));
  const width = left + column * memory.columns + 16;
  const y = (offset) => top + (height * offset) / Math.max(1, memory.arena_bytes);
  const parts = [];
  let at = 0;
  view.blocks.forEach((placed, i) => {
    const block = drawing.blocks[placed.block];
    const x = left + at * column;
    const wide = block.phases * column;
    parts.push(svg("rect", { x, y: top - 30, width: wide, height: height + 30, class: i % 2 === 0 ? "band" : "band odd" }));
    const letters = Math.floor((wide - 8) / 7);
    const name = block.title.length > letters ? `${block.title.slice(0, Math.max(1, letters - 1))}…` : block.title;
    parts.push(svg("text", { x: x + 6, y: top - 14, class: "tick" }, svg("title", {}, block.title), name));
    for (let p = 0; p < block.phases; p += 1) {
      parts.push(svg("text", { x: x + (p + 0.5) * column, y: top + height + 16, class: "tick middle" }, String(p)));
      parts.push(svg("path", { d: `M${x + p * column} ${top}v${height}`, class: "axis" }));
    }
    at += block.phases;
  });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const offset = memory.arena_bytes * share;
    parts.push(svg("text", { x: left - 8, y: y(offset) + 4, class: "tick end" }, bytes(offset)));
  }
  const families = familiesOf(view);
  for (const buffer of memory.buffers) {
    const x = left + buffer.first * column + 2;
    const wide = (buffer.last - buffer.first + 1) * column - 4;
    const high = Math.max(3, y(buffer.offset + buffer.bytes) - y(buffer.offset) - 1.5);
    const about = `${buffer.name}, ${buffer.shape}: ${bytes(buffer.bytes)} at ${whole(buffer.offset)}`;
    parts.push(
      svg(
        "g",
        { class: families.get(`${buffer.block} ${buffer.name}`) ?? "sum" },
        svg("title", {}, about),
        svg("rect", { x, y: y(buffer.offset), width: wide, height: high, rx: 4, class: "buffer" }),
        high > 12 && wide > 7 * buffer.name.length ? svg("text", { x: x + 6, y: y(buffer.offset) + Math.min(high / 2 + 4, 15), class: "mark-text" }, buffer.name) : null,
      ),
    );
  }
  return svg(
    "svg",
    { width, height: top + height + 34, viewBox: `0 0 ${width} ${top + height + 34}`, role: "img", "aria-label": `Arena of ${bytes(memory.arena_bytes)} over ${memory.columns} phases; the table below has every buffer` },
    ...parts,
    svg("text", { x: left, y: top + height + 31, class: "tick" }, "phases of each block"),
  );
}

// The colour of each value is that of the operation that produces it.
function familiesOf(view) {
  const families = new Map();
  view.blocks.forEach((placed, i) => {
    for (const operation of drawing.blocks[placed.block].operations) {
      for (const port of operation.outputs) {
        const key = `${i} ${port.name}`;
        if (!families.has(key)) families.set(key, operation.family);
      }
    }
  });
  return families;
}

function bufferTable(view, memory) {
  const rows = memory.buffers.map((buffer) => [
    html("span", { class: "mono" }, buffer.name),
    drawing.blocks[view.blocks[buffer.block].block].title,
    buffer.shape,
    `${buffer.first}–${buffer.last}`,
    whole(buffer.offset),
    bytes(buffer.bytes),
  ]);
  return wideTable(["value", "block", "shape", "columns alive", "from byte", "size"], rows, ["", "", "", "n", "n", "n"]);
}

function cacheChart(kvLayers, rows) {
  const layers = kvLayers.flatMap((kvLayer) => kvLayer.block.layers.flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_, i) => ({ layer: first + i, kvLayer }))));
  layers.sort((a, b) => a.layer - b.layer);
  const step = Math.max(9, Math.min(34, 1060 / Math.max(1, layers.length)));
  const height = 120;
  const total = state.cached + rows;
  const width = 74 + step * layers.length + 16;
  const fresh = Math.max(3, (height * rows) / Math.max(1, total));
  const parts = [];
  layers.forEach(({ layer, kvLayer }, i) => {
    const x = 74 + i * step;
    const wide = Math.max(4, step - 4);
    const reads = kvLayer.readers.length > 0;
    parts.push(
      svg(
        "g",
        { class: "cache" },
        svg("title", {}, `layer ${layer}: writes ${whole(rows)} rows of ${kvLayer.bytes} B, ${kvLayer.readers.join(", ")} reads ${whole(total)}`),
        svg("rect", { x, y: 14, width: wide, height, rx: 4, class: "buffer" }),
        reads ? svg("rect", { x, y: 14 + fresh, width: wide, height: Math.max(0, height - fresh), rx: 3, fill: "var(--cache)", opacity: 0.4 }) : null,
        svg("rect", { x, y: 14, width: wide, height: fresh, rx: 3, fill: "var(--cache)" }),
      ),
    );
    if (i === 0 || i === layers.length - 1 || layer % 10 === 0) parts.push(svg("text", { x: x + wide / 2, y: height + 30, class: "tick middle" }, String(layer)));
  });
  parts.push(
    svg("text", { x: 66, y: 24, class: "tick end" }, "writes"),
    svg("text", { x: 66, y: 14 + height / 2, class: "tick end" }, "reads"),
    svg("text", { x: 66, y: height + 30, class: "tick end" }, "layer"),
  );
  return svg("svg", { width, height: height + 40, viewBox: `0 0 ${width} ${height + 40}`, role: "img", "aria-label": "Cache rows of each layer; the table below has the figures" }, ...parts);
}

function kvLayerTable(kvLayers, rows) {
  const list = kvLayers.map((kvLayer) => [
    kvLayer.block.title,
    kvLayer.kind,
    whole(kvLayer.width),
    whole(kvLayer.bytes),
    `${whole(rows)} rows, ${bytes(rows * kvLayer.bytes)}`,
    kvLayer.readers.length > 0 ? `${whole(state.cached + rows)} rows, ${bytes(kvLayer.reads)}` : "–",
    kvLayer.readers.join(", "),
  ]);
  return wideTable(["layers", "KV layer", "elements per row", "bytes per token", "written in a step and layer", "read in a step and layer", "by"], list, ["", "", "n", "n", "n", "n", ""]);
}
