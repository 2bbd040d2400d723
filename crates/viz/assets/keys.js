// Keyboard shortcuts of the page.
const KEYS = [
  ["W", "fit width"],
  ["H", "fit height"],
  ["0", "original size"],
  ["+  −", "zoom in, zoom out (or the wheel; inside another page after a click, or with Ctrl)"],
  ["/", "search; Enter: next, Shift+Enter: previous"],
  ["Esc", "close the panel, clear the search"],
  ["← ↑ → ↓", "on an operation: to the next one; on the canvas: pan"],
  ["Enter", "open the operation"],
  ["N  P", "next and previous step: the circuit, the IR after each pass, the plan"],
  ["1 … 7", "drawing, memory, profile, diff, weights, tokenizer, parity"],
  ["F", "full screen"],
  ["T", "light or dark"],
  ["?", "this list"],
];

function startKeys() {
  const help = $("help");
  help.append(
    html("h2", { id: "help-title" }, "Keyboard shortcuts"),
    table(["Shortcut", "Action"], KEYS.map(([key, about]) => [html("kbd", {}, key), about])),
    html("p", {}, html("button", { class: "tool", onclick: () => help.close() }, "Close")),
  );
  $("help-button").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (help.open || $("guide").open || event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.closest("input, select, textarea");
    if (event.key === "Escape") {
      // Otherwise the browser clears a search field by itself.
      event.preventDefault();
      escape(field);
      return;
    }
    if (field) return;
    const operation = event.target.closest(".op");
    if (operation && onOperation(event, operation)) return;
    const act = ACTIONS[event.key.toLowerCase()];
    if (act) {
      event.preventDefault();
      act();
    } else if (event.target === $("canvas")) {
      const way = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
      if (way) {
        event.preventDefault();
        panBy(...way);
      }
    }
  });
}

const ACTIONS = {
  w: () => fit("width"),
  h: () => fit("height"),
  0: () => fit("reset"),
  "+": () => zoomMiddle(1.25),
  "=": () => zoomMiddle(1.25),
  "-": () => zoomMiddle(0.8),
  "/": () => {
    change({ tab: "drawing" });
    $("search").focus();
    $("search").select();
  },
  "?": () => $("help").showModal(),
  n: () => goToStep(stepIndex() + 1),
  p: () => goToStep(stepIndex() - 1),
  t: () => toggleTheme(),
  f: () => $("full-screen").click(),
  1: () => change({ tab: "drawing" }),
  2: () => change({ tab: "memory" }),
  3: () => change({ tab: "profile" }),
  4: () => change({ tab: "diff" }),
  5: () => change({ tab: "weights" }),
  6: () => change({ tab: "tokenizer" }),
  7: () => change({ tab: "parity" }),
};

function escape(field) {
  if (state.selected !== null) closePanel();
  else if ($("search").value !== "") clearSearch();
  if (field) $("canvas").focus();
}

function onOperation(event, element) {
  const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -1e6, End: 1e6 }[event.key];
  if (step) {
    event.preventDefault();
    stepFocus(element, step);
    return true;
  }
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    select(Number(element.dataset.block), Number(element.dataset.operation));
    $("panel").focus();
    return true;
  }
  return false;
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}
