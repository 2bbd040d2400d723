// Arranges the blocks of a view like crates/viz/src/build/arrange.rs, which does it for SVG files.
// The page needs its own code because users fold blocks. tests/browser/reading.mjs compares both.
// Columns of layers are used if they fit at a readable size; otherwise blocks are stacked.
const MARGIN = 24;
const BETWEEN = 56;
const RESIDUAL_X = 44; // x coordinate of the residual stream within a block
const READABLE = 0.85; // the smallest scale at which the labels can be read
const FOLDED = 66; // height of a folded block
const folded = new Set(); // indices into drawing.blocks

// {width, height, blocks: [{block, x, y, folded, …}], joins: paths of the residual stream}
function arrange(view, space) {
  const wide = columnsOf(view);
  const width = (columns) => columns.reduce((sum, column) => sum + Math.max(...column.map((placed) => drawing.blocks[placed.block].width)) + BETWEEN, 2 * MARGIN - BETWEEN);
  const columns = wide.length === 1 || width(wide) * READABLE <= space ? wide : [view.blocks];
  const blocks = [];
  const joins = [];
  let x = MARGIN;
  let height = 0;
  for (const column of columns) {
    let y = MARGIN;
    for (const [i, placed] of column.entries()) {
      const block = drawing.blocks[placed.block];
      const isFolded = folded.has(placed.block);
      const here = { ...placed, x, y, width: block.width, height: isFolded ? FOLDED : block.height, folded: isFolded };
      if (blocks.length > 0) joins.push(join(blocks.at(-1), here, i === 0));
      blocks.push(here);
      y += here.height + BETWEEN;
    }
    height = Math.max(height, y - BETWEEN + MARGIN);
    x += Math.max(...column.map((placed) => drawing.blocks[placed.block].width)) + BETWEEN;
  }
  return { width: x - BETWEEN + MARGIN, height, blocks, joins };
}

// Each run of layers except the first starts a column.
function columnsOf(view) {
  const columns = [];
  let last = -1;
  for (const placed of view.blocks) {
    if (placed.x !== last) columns.push([]);
    last = placed.x;
    columns.at(-1).push(placed);
  }
  return columns;
}

// The residual stream from one block to the next: down, or over to the next column.
function join(before, next, aside) {
  const from = before.x + RESIDUAL_X;
  const to = next.x + RESIDUAL_X;
  const bottom = before.y + before.height;
  if (!aside) return `M${from} ${bottom - 14}V${next.y + 2}`;
  const channel = before.x + before.width + BETWEEN / 2;
  const top = next.y;
  return `M${from} ${bottom - 14}V${bottom + 2}Q${from} ${bottom + 12} ${from + 10} ${bottom + 12}H${channel - 10}Q${channel} ${bottom + 12} ${channel} ${bottom + 2}V${top - 2}Q${channel} ${top - 12} ${channel + 10} ${top - 12}H${to - 10}Q${to} ${top - 12} ${to} ${top - 2}V${top + 2}`;
}

// A folded block: its frame, its title, and the residual stream through it.
function foldedScene(block) {
  const frame = block.scene.find((primitive) => primitive.type === "rect" && primitive.class === "block");
  const words = block.scene.filter((primitive) => /^(block-title|block-about|badge)/.test(primitive.class ?? ""));
  return [{ ...frame, h: FOLDED }, ...words, { type: "path", d: `M${RESIDUAL_X} 2V${FOLDED}`, class: "residual-stream" }];
}

// The button at a block's corner that folds and unfolds it.
function foldButton(placed, block) {
  const label = `${placed.folded ? "Unfold" : "Fold"} ${block.title}`;
  const toggle = () => {
    if (placed.folded) folded.delete(placed.block);
    else folded.add(placed.block);
    redraw();
    $("world").querySelector(`.fold[data-block="${placed.block}"]`)?.focus({ preventScroll: true });
    say(`${block.title} ${placed.folded ? "unfolded" : "folded"}`);
  };
  const badge = block.scene.find((primitive) => primitive.class === "badge");
  const button = svg(
    "g",
    { class: "fold", role: "button", tabindex: 0, "aria-label": label, "aria-expanded": String(!placed.folded), "data-block": placed.block, transform: `translate(${(badge?.x ?? block.width - 8) - 32} 14)`, onclick: toggle },
    svg("title", {}, label),
    svg("rect", { width: 24, height: 24, rx: 7, class: "fold-box" }),
    svg("path", { d: placed.folded ? "M7 12h10M12 7v10" : "M7 12h10", class: "fold-mark" }),
  );
  button.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    toggle();
  });
  return button;
}

function foldAll(fold) {
  for (const placed of currentView().blocks) {
    if (!fold) folded.delete(placed.block);
    else if (drawing.blocks[placed.block].layers.length > 0) folded.add(placed.block);
  }
  redraw();
}
