// Sampling settings, presets, and the request body. Values are strings as typed; an empty field
// means the server's default.

export const NUMBERS = [
  { key: "temperature", label: "Temperature", min: 0, max: 5, step: 0.05, about: "0 always takes the likeliest token" },
  { key: "top_p", label: "Top-p", min: 0, max: 1, step: 0.01 },
  { key: "top_k", label: "Top-k", min: 0, max: 1_000_000, step: 1, whole: true },
  { key: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01 },
  { key: "repeat_penalty", label: "Repeat penalty", min: 0.01, max: 10, step: 0.05 },
  { key: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { key: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
  { key: "max_tokens", label: "Max tokens", min: 1, max: 10_000_000, step: 1, whole: true },
  { key: "seed", label: "Seed", min: 0, max: 4_294_967_295, step: 1, whole: true },
];

// Rarely used settings, which are collapsed.
export const MORE_NUMBERS = [
  { key: "typical_p", label: "Typical-p", min: 0, max: 1, step: 0.01 },
  { key: "top_n_sigma", label: "Top-n sigma", min: -1, max: 100, step: 0.1 },
  { key: "xtc_probability", label: "XTC probability", min: 0, max: 1, step: 0.05 },
  { key: "xtc_threshold", label: "XTC threshold", min: 0, max: 1, step: 0.01 },
  { key: "repeat_last_n", label: "Repeat last n", min: -1, max: 1_000_000, step: 1, whole: true },
  { key: "dry_multiplier", label: "DRY multiplier", min: 0, max: 100, step: 0.1 },
  { key: "dry_base", label: "DRY base", min: 0, max: 100, step: 0.05 },
  { key: "dry_allowed_length", label: "DRY allowed length", min: 0, max: 1_000_000, step: 1, whole: true },
  { key: "dry_penalty_last_n", label: "DRY last n", min: -1, max: 1_000_000, step: 1, whole: true },
  { key: "dynatemp_range", label: "Dynamic temp. range", min: 0, max: 5, step: 0.05 },
  { key: "dynatemp_exponent", label: "Dynamic temp. exponent", min: 0, max: 10, step: 0.1 },
  { key: "mirostat", label: "Mirostat (0, 1, 2)", min: 0, max: 2, step: 1, whole: true },
  { key: "mirostat_tau", label: "Mirostat tau", min: 0, max: 100, step: 0.1 },
  { key: "mirostat_eta", label: "Mirostat eta", min: 0, max: 1, step: 0.01 },
  { key: "adaptive_target", label: "Adaptive target", min: -1, max: 1, step: 0.05 },
  { key: "adaptive_decay", label: "Adaptive decay", min: 0, max: 0.99, step: 0.01 },
  { key: "min_keep", label: "Min keep", min: 0, max: 1_000_000, step: 1, whole: true },
];
const ALL_NUMBERS = [...NUMBERS, ...MORE_NUMBERS];

export const REASONING = [["", "Model default"], ["off", "Off"], ["on", "On"], ["low", "Low effort"], ["medium", "Medium effort"], ["high", "High effort"]];
export const FORMATS = [["", "Free text"], ["json", "Any JSON object"], ["schema", "JSON schema"], ["grammar", "Grammar (GBNF or Lark)"]];

export const EMPTY = Object.freeze({ system: "", reasoning: "", format: "", schema: "", grammar: "", tools: "", stop: "", samplers: "", dry_sequence_breakers: "", extra: "", model: "", second: "", ...Object.fromEntries(ALL_NUMBERS.map(({ key }) => [key, ""])) });

export const PRESETS = [
  { name: "Server defaults", values: {} },
  { name: "Precise", values: { temperature: "0.2", top_p: "0.9" } },
  { name: "Balanced", values: { temperature: "0.7", top_p: "0.95", min_p: "0.02" } },
  { name: "Creative", values: { temperature: "1.1", top_p: "1", min_p: "0.05" } },
  { name: "Reproducible", values: { temperature: "0", seed: "1" } },
];

export const LABELS = { system: "System prompt", reasoning: "Reasoning", format: "Format", schema: "JSON schema", grammar: "Grammar", tools: "Tools", stop: "Stop sequences", samplers: "Sampler order", dry_sequence_breakers: "DRY sequence breakers", extra: "Request fields", ...Object.fromEntries(ALL_NUMBERS.map(({ key, label }) => [key, label])) };

// Built-in presets set sampling only. The user's presets also contain system prompt, tools and
// format.
export const SAMPLING = [...ALL_NUMBERS.map(({ key }) => key), "samplers", "dry_sequence_breakers", "reasoning"];

// Validates settings from storage or a file: known keys with strings.
export function cleanSettings(value) {
  const clean = { ...EMPTY };
  for (const key of Object.keys(EMPTY)) if (typeof value?.[key] === "string") clean[key] = value[key];
  return clean;
}

// The error of a field, or null.
export function problemOf(key, settings) {
  const value = settings[key].trim();
  const number = ALL_NUMBERS.find((entry) => entry.key === key);
  if (number && value !== "") return numberProblem(number, value);
  if (key === "schema" && settings.format === "schema") return jsonProblem(value, "A schema is needed: a JSON object.", (parsed) => isObject(parsed));
  if (key === "grammar" && settings.format === "grammar" && value === "") return "A grammar is needed.";
  if (key === "extra" && value !== "") return jsonProblem(value, `Request fields must be a JSON object without ${FIXED.join(", ")}.`, (parsed) => isObject(parsed) && !Object.keys(parsed).some((field) => FIXED.includes(field)));
  if (key === "tools" && value !== "") return jsonProblem(value, "Tools are a JSON array of objects.", (parsed) => Array.isArray(parsed) && parsed.every(isObject));
  return null;
}

// Request fields that only the page sets.
const FIXED = ["messages", "stream", "stream_options"];

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

function numberProblem({ label, min, max, whole }, value) {
  const number = Number(value.replace(",", "."));
  if (!Number.isFinite(number)) return `${label} must be a number.`;
  if (whole && !Number.isInteger(number)) return `${label} must be a whole number.`;
  return number < min || number > max ? `${label} must be between ${min} and ${max}.` : null;
}

function jsonProblem(text, words, good) {
  try {
    return good(JSON.parse(text)) ? null : words;
  } catch (error) {
    return `${words} ${error.message}`;
  }
}

export const problemsOf = (settings) => Object.keys(EMPTY).map((key) => [key, problemOf(key, settings)]).filter(([, problem]) => problem !== null);

// The body of a chat completion. `prefill`: the last message is an answer to continue.
export function requestBody(settings, messages, { model, prefill = false } = {}) {
  const body = { messages, stream: true, stream_options: { include_usage: true }, timings_per_token: true, return_progress: true };
  const chosen = settings.model || model;
  if (chosen) body.model = chosen;
  for (const { key } of ALL_NUMBERS) {
    const value = settings[key].trim();
    if (value !== "") body[key] = Number(value.replace(",", "."));
  }
  for (const key of ["stop", "dry_sequence_breakers"]) {
    const texts = settings[key].split("\n").filter((line) => line !== "").map((line) => line.replaceAll("\\n", "\n").replaceAll("\\t", "\t"));
    if (texts.length > 0) body[key] = texts;
  }
  const samplers = settings.samplers.split(/[\s;,]+/).filter(Boolean);
  if (samplers.length > 0) body.samplers = samplers;
  if (settings.reasoning) {
    const thinking = settings.reasoning !== "off";
    body.chat_template_kwargs = { enable_thinking: thinking, thinking };
    if (thinking && settings.reasoning !== "on") body.reasoning_effort = settings.reasoning;
  }
  if (settings.format === "json") body.response_format = { type: "json_object" };
  if (settings.format === "schema") body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: JSON.parse(settings.schema) } };
  if (settings.format === "grammar") body.grammar = settings.grammar;
  if (settings.tools.trim() !== "") body.tools = JSON.parse(settings.tools).map((tool) => (tool.function ? tool : { type: "function", function: tool }));
  if (settings.extra.trim() !== "") Object.assign(body, JSON.parse(settings.extra));
  if (prefill) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  return body;
}
