// The drawing: the blocks of the current view, and selection of their operations.
const shown = []; // {element, block, operation, data} in the order of reading

// False if the view was rendered while its tab was hidden. `getBBox` measures nothing there, so the
// view is rendered again when the tab is shown.
let measured = true;

let arranged = { width: 1, height: 1, blocks: [], joins: [] };

// Arranges the blocks again after the window's size or the folded blocks changed.
function redraw() {
  renderView();
  search();
  if (camera.fitted) fit(camera.fitted);
  else applyCamera();
}

function renderView() {
  measured = state.tab === "drawing";
  const view = currentView();
  const world = $("world");
  shown.length = 0;
  arranged = arrange(view, canvasSize().w);
  const parts = arranged.joins.map((d) => svg("path", { d, class: "residual-stream" }));
  for (const placed of arranged.blocks) {
    const block = drawing.blocks[placed.block];
    const enter = (element, operation) => {
      const data = block.operations[operation];
      shown.push({ element, block: placed.block, operation, data, placed });
      element.dataset.block = placed.block;
      element.dataset.operation = operation;
      element.addEventListener("click", () => select(placed.block, operation));
    };
    const primitives = (placed.folded ? foldedScene(block) : block.scene).map((primitive) => renderPrimitive(primitive, enter));
    parts.push(
      svg("g", { transform: `translate(${placed.x} ${placed.y})`, role: "group", "aria-label": `${block.title}, ${block.subtitle}` }, ...primitives, foldButton(placed, block)),
    );
  }
  renderMap();
  world.replaceChildren(...parts);
  if (shown.length > 0) shown[0].element.setAttribute("tabindex", 0);
  renderHeat(view);
  renderChanges(view);
  markSelected();
}

function select(block, operation) {
  change({ selected: { block, operation } });
}

function markSelected() {
  for (const item of shown) {
    const here = state.selected !== null && state.selected.block === item.block && state.selected.operation === item.operation;
    item.element.classList.toggle("selected", here);
    if (here) rove(item.element);
  }
}

// Only one operation is in the tab order; arrow keys move from it to the others.
function rove(element) {
  for (const item of shown) item.element.setAttribute("tabindex", item.element === element ? 0 : -1);
}

function stepFocus(from, step) {
  const at = shown.findIndex((item) => item.element === from);
  const next = shown[Math.min(shown.length - 1, Math.max(0, at + step))];
  if (!next) return;
  rove(next.element);
  next.element.focus({ preventScroll: true });
  reveal(next.element);
}

// Labels operations with their share of the step's time.
function renderHeat(view) {
  if (view.stage !== "plan" || !state.profile) return;
  const step = profileStep();
  if (!step) return;
  for (const item of shown) {
    const share = shareOf(step, item);
    if (share === null) continue;
    const box = item.element.getBBox();
    const text = `${(100 * share).toPrecision(2)} %`;
    const width = 14 + 7 * text.length;
    const x = box.x + box.width - width + 8;
    item.element.append(
      svg("rect", { x, y: box.y - 11, width, height: 20, rx: 10, class: "heat" }),
      svg("text", { x: x + width / 2, y: box.y + 3, class: "heat-text" }, text),
    );
  }
}

const STAGES = [
  { key: "circuit", name: "Circuit", about: "what the architecture computes, with its conditions." },
  { key: "ir", name: "IR", about: "the circuit for this model, before any pass." },
  { key: "plan", name: "Plan", about: "after all passes: phases between barriers, a kernel for every operation." },
];

// The options: stage, formulation and batch.
function startChoices() {
  const segments = (id, cards) => {
    const buttons = cards.map((card) =>
      html(
        "button",
        { role: "radio", "data-key": card.key, onclick: () => change({ [id]: card.key, selected: null, ...(id === "stage" ? { pass: null } : {}) }) },
        card.name,
      ),
    );
    $(id).append(...buttons);
    $(id).addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      const at = buttons.findIndex((button) => button.getAttribute("aria-checked") === "true");
      const next = buttons[(at + step + buttons.length) % buttons.length];
      next.click();
      next.focus();
    });
  };
  segments("stage", STAGES);
  segments("formulation", drawing.formulations);
  segments("bucket", drawing.buckets);
  $("cached").addEventListener("input", () => {
    const cached = Number($("cached").value);
    if (Number.isFinite(cached) && cached >= 0) change({ cached });
  });
}

function markChoices() {
  for (const id of ["stage", "formulation", "bucket"]) {
    for (const button of $(id).children) {
      const on = button.dataset.key === state[id];
      button.setAttribute("aria-checked", on);
      button.setAttribute("tabindex", on ? 0 : -1);
      // The circuit and the IR before any pass do not depend on formulation and bucket.
      button.disabled = id !== "stage" && state.stage !== "plan" && state.pass === null && state.tab === "drawing";
    }
  }
}

const FAMILIES = [
  ["io", "embedding and head"],
  ["norm", "norm"],
  ["linear", "projections"],
  ["position", "positions and views"],
  ["attention", "attention"],
  ["cache", "cache"],
  ["experts", "experts"],
  ["sum", "sums"],
];
function startLegend() {
  $("legend").append(...FAMILIES.map(([family, name]) => html("span", { class: family }, html("i"), name)));
}
