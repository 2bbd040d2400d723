// Search over operations, weights, tensors, formats, kernels and values.
let hits = [];
let hit = -1;

function wordsOf(item) {
  const operation = item.data;
  const words = [operation.title, operation.op, operation.family, operation.path ?? "", operation.line ?? ""];
  for (const port of [...operation.inputs, ...operation.outputs]) words.push(port.name);
  for (const used of operation.weights ?? []) {
    const weight = drawing.weights[used.weight];
    words.push(weight.slot, weight.tensor, ...weight.formats.map((format) => format.format));
    for (const index of used.kernels) words.push(drawing.bindings[index].kernel);
  }
  for (const index of operation.kernels ?? []) words.push(drawing.bindings[index].kernel);
  if (operation.kv_layer) words.push(operation.kv_layer.kind, "cache");
  return words.join(" ").toLowerCase();
}

function search() {
  const wantedWords = $("search").value.trim().toLowerCase().split(/\s+/).filter((word) => word !== "");
  hits = [];
  hit = -1;
  for (const item of shown) {
    const text = wantedWords.length > 0 ? wordsOf(item) : "";
    const found = wantedWords.length > 0 && wantedWords.every((word) => text.includes(word));
    item.element.classList.toggle("found", found);
    if (found) hits.push(item);
  }
  $("canvas").classList.toggle("searching", wantedWords.length > 0);
  $("found").textContent = wantedWords.length === 0 ? "" : hits.length === 1 ? "1 found" : `${hits.length} found`;
}

function nextHit(step) {
  if (hits.length === 0) return;
  hit = (hit + step + hits.length) % hits.length;
  $("found").textContent = `${hit + 1} of ${hits.length}`;
  select(hits[hit].block, hits[hit].operation);
  reveal(hits[hit].element);
}

function clearSearch() {
  $("search").value = "";
  search();
}

function startSearch() {
  $("search").addEventListener("input", search);
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      nextHit(event.shiftKey ? -1 : 1);
    }
  });
}
