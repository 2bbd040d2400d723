// The page: model, conversation, figures.
import { Engine } from "./engine.js";
import { bytes, ENDS, lacking, parameters, speed, tooLarge } from "./words.js";

const $ = (id) => document.getElementById(id);
const engine = { run: undefined, model: undefined, busy: false, used: false };
let messages = [];

function say(problem) {
  $("notice").textContent = problem;
  $("notice").hidden = problem === "";
}

function show() {
  const { run, model, busy } = engine;
  for (const id of ["demo", "pick"]) $(id).disabled = !run || busy;
  for (const id of ["prompt", "send", "again"]) $(id).disabled = !model || busy;
  document.documentElement.dataset.state = busy ? "busy" : model ? "ready" : run ? "open" : "closed";
}

async function busy(work) {
  engine.busy = true;
  show();
  try {
    await work();
  } finally {
    engine.busy = false;
    show();
  }
}

async function open() {
  const problem = lacking(globalThis);
  if (problem) {
    $("device").textContent = "WebGPU: none";
    say(problem);
    return;
  }
  try {
    const run = new Engine();
    const { largest_buffer } = await run.open();
    engine.run = run;
    const { info } = (await navigator.gpu.requestAdapter()) ?? {};
    const name = info?.description || [info?.vendor, info?.architecture].filter(Boolean).join(" ") || "an adapter without a name";
    $("device").textContent = `WebGPU: ${name}, buffers up to ${bytes(largest_buffer)}`;
  } catch (error) {
    $("device").textContent = "WebGPU: none";
    say(/no GPU was found/.test(error.message) ? "This browser has WebGPU, but finds no adapter on this machine: no GPU, a driver that it does not trust, or hardware acceleration is switched off." : error.message);
  }
  show();
}

// Starts a new module. This frees the memory of the previous one, and replaces a failed one.
async function unused() {
  if (engine.used) {
    engine.run.end();
    engine.run = new Engine();
    await engine.run.open();
  }
  engine.used = true;
  return engine.run;
}

// Downloads the model next to the page, and reports progress.
async function fetchDemo() {
  const response = await fetch("pkg/demo.gguf");
  if (!response.ok) throw new Error(`the demo model is not there: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

function load(name, read) {
  return busy(async () => {
    say("");
    engine.model = undefined;
    show();
    $("loading").hidden = false;
    $("progress").removeAttribute("value");
    $("stage").textContent = "Reading the file …";
    try {
      const file = await read();
      const run = await unused();
      const model = await run.load(name, file, Number($("context").value) || 1024, (done, total) => {
        $("progress").value = total > 0 ? done / total : 1;
        $("stage").textContent = done < total ? `Weights: ${bytes(done)} of ${bytes(total)}` : "Preparing shaders …";
      });
      engine.model = model;
      $("model").textContent = `${model.name}: ${parameters(model.parameters)}, ${bytes(model.weight_bytes)} on the device, loaded in ${model.load_seconds.toFixed(1)} s`;
      $("temperature").value = Number(model.temperature.toFixed(2));
      renew();
    } catch (error) {
      $("model").textContent = "None is loaded.";
      say(error.message);
    } finally {
      $("loading").hidden = true;
    }
  });
}

// Starts an empty conversation, and shows the size of the cache for a full context.
function renew() {
  messages = [];
  $("messages").replaceChildren();
  $("welcome").hidden = false;
  $("starters").hidden = !engine.model.chat;
  $("prompt-speed").textContent = $("answer-speed").textContent = "–";
  const { token_bytes, expanded_token_bytes, context } = engine.model;
  cache(token_bytes * context, expanded_token_bytes * context, `${context} tokens, all that the context holds`);
}

function cache(latent, expanded, of) {
  $("cache").hidden = false;
  $("latent-bytes").textContent = bytes(latent);
  $("expanded-bytes").textContent = bytes(expanded);
  $("latent-bar").style.width = `${(100 * latent) / expanded}%`;
  $("times").textContent = `Of ${of}. The expanded cache would take ${(expanded / latent).toFixed(1)} times as much.`;
}

function add(kind, text) {
  const message = document.createElement("div");
  message.className = `message ${kind}`;
  message.textContent = text;
  $("messages").append(message);
  message.scrollIntoView({ block: "end" });
  return message;
}

function ask(text) {
  return busy(async () => {
    say("");
    $("welcome").hidden = true;
    add("user", text);
    const asked = [...messages, { role: "user", content: text }];
    const answer = add("answer", "");
    const written = answer.appendChild(document.createTextNode(""));
    $("stop").hidden = false;
    try {
      const options = { temperature: Number($("temperature").value), max_tokens: Number($("max-tokens").value) || 1, seed: Math.floor(Math.random() * 2 ** 32) };
      const done = await engine.run.answer(asked, options, {
        prompt: (done, total) => ($("prompt-speed").textContent = `${done} of ${total} tokens`),
        text: (piece) => {
          written.appendData(piece);
          answer.scrollIntoView({ block: "end" });
        },
      });
      messages = [...asked, { role: "assistant", content: done.text }];
      if (done.stop in ENDS) {
        const cut = document.createElement("p");
        cut.className = "cut";
        cut.textContent = ENDS[done.stop];
        answer.append(cut);
      }
      $("prompt-speed").textContent = speed(done.prompt_tokens - done.cached_tokens, done.prompt_seconds);
      $("answer-speed").textContent = speed(Math.max(done.tokens - 1, 0), done.generate_seconds);
      cache(done.cache_bytes, done.expanded_cache_bytes, `${done.cached_rows} tokens of this conversation`);
    } catch (error) {
      if (!written.length) answer.remove();
      add("failed", error.message);
    } finally {
      $("stop").hidden = true;
    }
  });
}

$("demo").onclick = () => load("demo.gguf", fetchDemo);
$("pick").onclick = () => $("file").click();
$("file").onchange = () => {
  const [file] = $("file").files;
  const problem = file ? tooLarge(file.name, file.size) : "";
  if (problem) say(problem);
  else if (file) load(file.name, async () => new Uint8Array(await file.arrayBuffer()));
  $("file").value = "";
};
$("stop").onclick = () => engine.run.stop();
$("again").onclick = renew;
$("starters").onclick = ({ target }) => {
  if (target instanceof HTMLButtonElement && !engine.busy) ask(target.textContent);
};
$("composer").onsubmit = (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text) return;
  $("prompt").value = "";
  ask(text).then(() => $("prompt").focus());
};
$("prompt").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
};

show();
open();
