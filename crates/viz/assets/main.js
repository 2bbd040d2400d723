// Start of the page: its title, its tabs, and what is rendered after a change.
function startHeader() {
  const model = drawing.model;
  $("name").textContent = titleOf(drawing);
  const config = model.config;
  const file = model.file.split(/[\\/]/).pop();
  const facts = [
    file === titleOf(drawing) ? null : file,
    `${config.layers} layers`,
    `${count(model.parameters)} parameters`,
    bytes(model.weight_bytes),
    `${drawing.machine.device ? `shaders of ${drawing.machine.device}` : `kernels up to ${drawing.machine.tier}`}, precision ${drawing.machine.precision}, cache ${drawing.machine.cache}`,
  ];
  $("facts").textContent = facts.filter((fact) => fact !== null).join(" · ");
  if (model.assumed) {
    $("notice").hidden = false;
    $("notice").textContent = `No file with weights: every matrix is assumed to be ${model.assumed}, as the configuration says. Sizes and kernels follow from that.`;
  }
}

const TABS = ["drawing", "memory", "profile", "diff", "weights", "tokenizer", "parity"];
function startTabs() {
  for (const tab of TABS) $(`tab-${tab}`).addEventListener("click", () => change({ tab }));
  $("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = TABS[(TABS.indexOf(state.tab) + step + TABS.length) % TABS.length];
    change({ tab: next });
    $(`tab-${next}`).focus();
  });
}

function markTabs() {
  for (const tab of TABS) {
    const on = tab === state.tab;
    $(`tab-${tab}`).setAttribute("aria-selected", on);
    $(`tab-${tab}`).setAttribute("tabindex", on ? 0 : -1);
    $(`${tab}-tab`).hidden = !on;
  }
  // These tabs show no plan, so they need no stage, formulation or bucket.
  const without = ["weights", "tokenizer", "parity"].includes(state.tab);
  $("options").hidden = without;
  $("bar").hidden = without || !optionsOpen;
  $("options").setAttribute("aria-expanded", String(optionsOpen));
}

// In a frame or a small window, options start closed to leave room for the drawing.
let optionsOpen = !embedded && innerWidth > 860 && innerHeight >= 900;
function startOptions() {
  document.body.classList.toggle("embedded", embedded);
  $("options").addEventListener("click", () => {
    optionsOpen = !optionsOpen;
    markTabs();
  });
  $("fold-all").addEventListener("click", () => foldAll(true));
  $("unfold-all").addEventListener("click", () => foldAll(false));
}

const RENDER = { memory: renderMemory, profile: renderProfile, diff: renderDiff, weights: renderWeights, tokenizer: renderTokenizer, parity: renderParity };

watchers.push((changed) => {
  const has = (...names) => names.some((name) => changed.includes(name));
  if (has("tab")) {
    markTabs();
    if (state.tab === "drawing") {
      if (!measured) {
        renderView();
        search();
      }
      if (camera.fitted) fit(camera.fitted);
    }
  }
  if (has("stage", "pass", "formulation", "bucket", "tab")) {
    markChoices();
    markPass();
    explain();
  }
  if (has("stage", "pass", "formulation", "bucket", "profile")) {
    renderView();
    search();
    if (has("stage", "pass", "formulation", "bucket")) {
      fit(camera.fitted && camera.fitted !== "reset" ? camera.fitted : "width");
      const view = currentView();
      say(`${view.pass ? STEPS[stepIndex()].name : view.stage}${view.formulation ? `, ${nameOf(view.formulation)}, batch ${bucketInfo().name}` : ""}: ${shown.length} operations`);
    }
  }
  if (has("selected", "cached", "bucket", "tab")) {
    markSelected();
    renderPanel();
    if (has("selected") && state.selected) {
      const chosen = shown.find((item) => item.element.classList.contains("selected"));
      if (chosen) requestAnimationFrame(() => reveal(chosen.element));
      say(chosen ? `${chosen.data.title} opened` : "");
    }
  }
  if (RENDER[state.tab] && has("tab", "stage", "formulation", "bucket", "cached", "profile", "weights", "parity")) RENDER[state.tab]();
});

startHeader();
startLegend();
startOptions();
startChoices();
startGuide();
startPasses();
startCamera();
startSearch();
startTabs();
startDiff();
startKeys();
startMap();
startExport();
$("theme").addEventListener("click", toggleTheme);
markTabs();
markChoices();
markPass();
explain();
renderView();
fit("width");
startLinks();
// Marks the end of the first rendering, which the browser test measures.
performance.mark("latent-drawn");
