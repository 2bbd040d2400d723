// The guide: how to read the drawing, and what its options mean.
function startGuide() {
  const guide = $("guide");
  const entry = (name, about) => html("p", {}, html("strong", {}, `${name}. `), about);
  guide.append(
    html("div", { class: "guide-top" }, html("h2", { id: "guide-title" }, "How to read this"), html("button", { class: "tool", onclick: () => guide.close() }, "Close")),
    html("p", {}, "Data flows from top to bottom. The thick line at the left of each block is the residual stream: operations read from it, and a circle with a plus adds to it."),
    entry("Blocks", "Layers of one structure are one block; a badge such as “58 ×” is their number. The button at the corner of a block folds it."),
    entry("Boxes", "A box is an operation. Its lines are the weights with their shapes, then the kernel that computes it. Italics below a box are what was fused into it. Select a box for its formula, kernels and costs."),
    entry("Wires", "A label on a wire is the name of a value and its width in elements. Green dashed wires are stores to the cache and reads from it; a cylinder is the cache of a layer."),
    entry("Bands", "In a plan, a band is a phase. Between two phases all threads wait for each other (the dotted line)."),
    entry("Pale boxes", "They are not computed for the chosen batch: the other attention path is taken, or the model lacks the branch."),
    entry("Percentages", "With a profile loaded, the share of a step's time that an operation takes."),
    html("h3", {}, "Colours"),
    html("div", { class: "guide-colours" }, ...FAMILIES.map(([family, name]) => html("span", { class: family }, html("i"), name))),
    html("h3", {}, "Stage"),
    ...STAGES.map(({ name, about }) => entry(name, about[0].toUpperCase() + about.slice(1))),
    html("h3", {}, "Formulation"),
    ...drawing.formulations.map((card) => entry(card.name, card.about ?? "")),
    html("h3", {}, "Batch"),
    html("p", {}, "The number of tokens in a step. A plan is made for each range, and costs are counted for one size of it:"),
    html("ul", {}, ...drawing.buckets.map((card) => html("li", {}, `${card.name}: counted for a batch of ${card.rows}`))),
  );
  $("guide-button").addEventListener("click", () => guide.showModal());
}

// Describes the current options in words.
function explain() {
  const stage = STAGES.find(({ key }) => key === state.stage);
  const parts = [`${stage.name}: ${stage.about}`];
  if (state.stage === "plan" || state.pass !== null) {
    const formulation = drawing.formulations.find((card) => card.key === state.formulation);
    if (formulation?.about) parts.push(`${formulation.name}: ${formulation.about}`);
    parts.push(`Costs are counted for a batch of ${bucketInfo().rows}.`);
  }
  $("explain").textContent = parts.join(" ");
  $("options-now").textContent = [stage.name, state.stage === "plan" ? `${nameOf(state.formulation)}, batch ${bucketInfo().name}` : null].filter(Boolean).join(" · ");
}
