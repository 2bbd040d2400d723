// The diff view: two plans side by side, of this model or of another.
const sides = { a: { model: "this", formulation: "absorbed", bucket: null }, b: { model: null, formulation: null, bucket: null } };
const sourceOf = (side) => (side.model === "other" ? against : drawing);

function startDiff() {
  sides.b.model = against ? "other" : "this";
  sides.a.formulation = against ? state.formulation : "absorbed";
  sides.b.formulation = against ? state.formulation : "naive";
  sides.a.bucket = sides.b.bucket = state.bucket;
}

function renderDiff() {
  const pane = $("diff-tab");
  const views = ["a", "b"].map((key) => ({ source: sourceOf(sides[key]), view: viewOf(sourceOf(sides[key]), "plan", sides[key].formulation, sides[key].bucket) }));
  const [a, b] = views;
  pane.replaceChildren(
    html(
      "div",
      { class: "page" },
      html("h2", {}, "Diff of two plans"),
      html("p", {}, "Changes from left to right. Use --against MODEL to compare with a second model."),
      html("div", { class: "cards" }, picker("a", "Left"), picker("b", "Right")),
      html("h3", {}, `Totals of a step after ${whole(state.cached)} cached tokens`),
      totals(a, b),
      ...blockDiffs(a, b),
    ),
  );
}

function picker(key, title) {
  const side = sides[key];
  const choose = (name, cards, label) => {
    const list = html("select", { "aria-label": `${title}: ${label}`, id: `diff-${key}-${name}` }, ...cards.map((card) => html("option", { value: card.key, selected: side[name] === card.key }, card.name)));
    list.addEventListener("change", () => {
      side[name] = list.value;
      renderDiff();
      $(list.id).focus();
    });
    return list;
  };
  const models = [{ key: "this", name: titleOf(drawing) }, ...(against ? [{ key: "other", name: titleOf(against) }] : [])];
  return html(
    "div",
    { class: "card-box" },
    html("div", { class: "small" }, title),
    models.length > 1 ? choose("model", models, "model") : html("div", {}, models[0].name),
    html("div", {}, choose("formulation", sourceOf(side).formulations, "formulation"), " ", choose("bucket", sourceOf(side).buckets, "rows")),
  );
}

function changeOf(from, to) {
  if (from === to) return "=";
  if (from === 0) return "new";
  const ratio = to / from;
  return ratio >= 2 || ratio <= 0.5 ? `× ${figures(ratio)}` : `${ratio > 1 ? "+" : "−"}${figures(Math.abs(100 * (ratio - 1)))} %`;
}

function totals(a, b) {
  const cost = (side) => totalOf(side.source, side.view);
  const [ca, cb] = [cost(a), cost(b)];
  const token = (side) =>
    side.view.blocks.reduce((sum, placed) => {
      const block = side.source.blocks[placed.block];
      const store = block.operations.find((operation) => operation.kv_layer?.writes);
      return sum + (store ? store.kv_layer.row_bytes * block.count : 0);
    }, 0);
  const row = (name, va, vb, write) => [name, write(va), write(vb), changeOf(va, vb)];
  return wideTable(
    ["", "left", "right", "change"],
    [
      row("operations", ca.operations, cb.operations, whole),
      row("phases", a.view.phases, b.view.phases, whole),
      row("FLOP", ca.flops, cb.flops, (n) => count(n)),
      row("weights read", ca.weight, cb.weight, bytes),
      row("cache moved", ca.cache, cb.cache, bytes),
      row("cache per token", token(a), token(b), bytes),
      row("arena", a.view.memory.arena_bytes, b.view.memory.arena_bytes, bytes),
      row("weights", a.source.model.weight_bytes, b.source.model.weight_bytes, bytes),
    ],
    ["", "n", "n", "n"],
  );
}

// Pairs of corresponding blocks: before the layers, each kind of layers, and after them.
function blockDiffs(a, b) {
  const list = (side) => side.view.blocks.map((placed) => side.source.blocks[placed.block]);
  const key = (block) => (block.layers.length > 0 ? block.subtitle.replace(/\d+/g, "") : block.title);
  const pairs = align(list(a), list(b), key);
  return pairs.flatMap(([left, right]) => {
    const title = (block) => (block ? `${block.title}${block.count > 1 ? ` (${block.count} ×)` : ""}` : "nothing");
    const name = title(left) === title(right) ? title(left) : `${title(left)} → ${title(right)}`;
    const lines = align(left?.operations ?? [], right?.operations ?? [], (operation) => operation.title);
    const rows = lines.map(([x, y]) => diffRow(a.source, b.source, x, y));
    const changed = rows.filter((row) => row.class).length;
    const lists = wideTable(["left", "right", "FLOP", "", "bytes", ""], rows, ["", "", "n", "n", "n", "n"]);
    return [
      html("h3", {}, name),
      changed === 0
        ? html("details", {}, html("summary", {}, `The same: ${rows.length} ${rows.length === 1 ? "operation" : "operations"}`), lists)
        : html("div", {}, html("p", { class: "source" }, `${changed} of ${rows.length} operations differ.`), lists),
    ];
  });
}

function diffRow(sa, sb, x, y) {
  const words = (source, operation) => {
    if (!operation) return "";
    const kernels = [...(operation.weights ?? []).flatMap((used) => used.kernels), ...(operation.kernels ?? [])].map((index) => source.bindings[index].kernel);
    const formats = (operation.weights ?? []).map((used) => source.weights[used.weight]).map((weight) => `${weight.shape.join("×")} ${weight.formats.map((format) => format.format).join("/")}`);
    return [...new Set([...formats, ...kernels])].join(" · ");
  };
  const cell = (source, operation) => (operation ? [html("strong", {}, operation.title), html("div", { class: "mono" }, words(source, operation))] : "");
  const flops = (operation) => (operation ? costOf(operation).flops : null);
  const moved = (operation) => (operation ? costOf(operation).weight + costOf(operation).cache : null);
  const show = (value, write) => (value === null ? "" : write(value));
  const row = [
    html("div", {}, ...[cell(sa, x)].flat()),
    html("div", {}, ...[cell(sb, y)].flat()),
    show(flops(x), (n) => count(n)),
    show(flops(y), (n) => count(n)),
    show(moved(x), bytes),
    show(moved(y), bytes),
  ];
  const same = x && y && words(sa, x) === words(sb, y) && flops(x) === flops(y) && moved(x) === moved(y) && x.phase === y.phase && x.path === y.path;
  row.class = !x ? "plus-row" : !y ? "minus-row" : same ? "" : "change-row";
  return row;
}

// The longest common subsequence by key, with the elements of only one side in between.
function align(left, right, key) {
  const [n, m] = [left.length, right.length];
  const best = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; i -= 1) {
    for (let j = m - 1; j >= 0; j -= 1) {
      best[i][j] = key(left[i]) === key(right[j]) ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  const pairs = [];
  let [i, j] = [0, 0];
  while (i < n || j < m) {
    if (i < n && j < m && key(left[i]) === key(right[j])) pairs.push([left[i++], right[j++]]);
    else if (j >= m || (i < n && best[i + 1][j] >= best[i][j + 1])) pairs.push([left[i++], null]);
    else pairs.push([null, right[j++]]);
  }
  return pairs;
}
