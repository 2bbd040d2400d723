// Loads a JSON file that the user chooses: checks it and stores it in the state, or shows the problem.
function fileLoader(key, label, check, refusal) {
  const input = html("input", { type: "file", accept: ".json,application/json", id: `${key}-file` });
  const problem = html("p", { id: `${key}-error`, role: "alert", class: "problem" });
  const refuse = (text) => {
    problem.textContent = text;
    say(text);
  };
  input.addEventListener("change", async () => {
    const file = input.files[0];
    if (!file) return;
    let value;
    try {
      value = JSON.parse(await file.text());
    } catch (error) {
      refuse(`${file.name} is not JSON: ${error.message}`);
      return;
    }
    if (!check(value)) {
      refuse(`${file.name}: ${refusal}`);
      return;
    }
    problem.textContent = "";
    change({ [key]: value });
    say(`${label} loaded`);
  });
  return [html("label", { class: "loader" }, `Load a ${label.toLowerCase()}: `, input), problem];
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const listOf = (value) => (Array.isArray(value) ? value : []);
const textOf = (value) => (typeof value === "string" ? value : "");
// A finite number of a loaded file, or null. JSON writes NaN and infinity as null.
const numberOf = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
const orDash = (value, write) => (value === null ? "–" : write(value));
// Four significant figures.
const short = (n) => (n === 0 ? "0" : Math.abs(n) >= 1e-3 && Math.abs(n) < 1e5 ? String(Number(n.toPrecision(4))) : n.toExponential(2));
const cardBox = (big, small) => html("div", { class: "card-box" }, html("div", { class: "big" }, big), html("div", { class: "small" }, small));
const wideTable = (...parts) => html("div", { class: "scroll", tabindex: 0, role: "group" }, table(...parts));
