// The page's address names the current view and operation, so that both can be linked to.
const LINKED = ["tab", "stage", "pass", "formulation", "bucket"];

function linkTo(patch = {}) {
  const shownState = { ...state, ...patch };
  const parameters = new URLSearchParams();
  for (const key of LINKED) if (shownState[key] !== null) parameters.set(key, shownState[key]);
  if (shownState.selected) parameters.set("op", `${shownState.selected.block}.${shownState.selected.operation}`);
  return `#${parameters}`;
}

// The state that an address names. Values that this drawing lacks are ignored.
function readLink(hash) {
  const parameters = new URLSearchParams(hash.replace(/^#/, ""));
  const patch = {};
  const known = { tab: TABS, stage: STAGES.map(({ key }) => key), pass: drawing.passes.map(({ key }) => key), formulation: drawing.formulations.map(({ key }) => key), bucket: drawing.buckets.map(({ key }) => key) };
  for (const key of LINKED) if (known[key].includes(parameters.get(key))) patch[key] = parameters.get(key);
  if (patch.stage && patch.stage !== "ir") patch.pass = null;
  const [block, operation] = (parameters.get("op") ?? "").split(".").map(Number);
  patch.selected = drawing.blocks[block]?.operations[operation] ? { block, operation } : null;
  return viewOf(drawing, patch.stage ?? state.stage, patch.formulation ?? state.formulation, patch.bucket ?? state.bucket, patch.pass ?? null) ? patch : {};
}

function startLinks() {
  watchers.push((changed) => {
    if (!changed.some((key) => key === "selected" || LINKED.includes(key)) || location.hash === linkTo()) return;
    try {
      history.replaceState(null, "", linkTo());
    } catch {
      // Some frames may not change the history. The page works without links there.
    }
  });
  addEventListener("hashchange", () => change(readLink(location.hash)));
  if (location.hash.length > 1) change(readLink(location.hash));
}
