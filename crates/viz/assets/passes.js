// Steps through the passes: circuit, IR, the IR after each pass, plan.
const STEPS = [
  { stage: "circuit", pass: null, name: "circuit", about: "" },
  { stage: "ir", pass: null, name: "IR, no pass", about: "" },
  ...drawing.passes.map((pass, i) => ({ stage: "ir", pass: pass.key, name: `${i + 1}. ${pass.name}`, about: pass.about })),
  { stage: "plan", pass: null, name: "plan", about: "" },
];
const stepIndex = () => STEPS.findIndex((step) => step.stage === state.stage && step.pass === state.pass);

function goToStep(index) {
  const step = STEPS[index];
  if (step) change({ tab: "drawing", stage: step.stage, pass: step.pass, selected: null });
}

function startPasses() {
  $("pass").append(...STEPS.map((step, i) => html("option", { value: i }, step.name)));
  $("pass").addEventListener("change", () => goToStep(Number($("pass").value)));
  $("pass-back").addEventListener("click", () => goToStep(stepIndex() - 1));
  $("pass-next").addEventListener("click", () => goToStep(stepIndex() + 1));
}

function markPass() {
  const at = stepIndex();
  $("pass").value = at;
  $("pass-back").disabled = at === 0;
  $("pass-next").disabled = at === STEPS.length - 1;
}

// Marks the operations that the pass changed, and describes the change.
function renderChanges(view) {
  const note = $("pass-note");
  note.hidden = !view.pass;
  if (!view.pass) return;
  for (const item of shown) {
    if (!item.placed.changed?.includes(item.operation)) continue;
    item.element.classList.add("changed");
    item.element.setAttribute("aria-description", "changed by this pass");
    const box = item.element.getBBox();
    item.element.append(svg("circle", { cx: box.x + box.width - 2, cy: box.y + 2, r: 6, class: "changed-dot" }));
  }
  const parts = view.blocks.filter((placed) => placed.changed || placed.removed);
  const count = parts.reduce((sum, placed) => sum + (placed.changed?.length ?? 0), 0);
  const step = STEPS[stepIndex()];
  note.replaceChildren(
    html("strong", {}, step.name),
    html("div", {}, step.about),
    html("div", { id: "pass-count" }, parts.length === 0 ? "Nothing changes here." : `${count} ${count === 1 ? "operation" : "operations"} changed or new`),
    parts.length === 0 ? null : html("details", {}, html("summary", {}, "Before and after"), ...parts.flatMap(changeLines)),
  );
}

function changeLines(placed) {
  const block = drawing.blocks[placed.block];
  const line = (kind, text) => html("div", { class: `mono ${kind}-line` }, `${kind === "minus" ? "−" : "+"} ${text.trim()}`);
  return [
    html("div", { class: "kind" }, block.title),
    ...(placed.removed ?? []).map((text) => line("minus", text)),
    ...(placed.changed ?? []).map((index) => line("plus", block.operations[index].line)),
  ];
}
