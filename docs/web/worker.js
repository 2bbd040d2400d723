// Runs the module in a worker, so that the page stays responsive. A message { id, call, values } is
// answered by { id, result } or { id, error }. Before that, callbacks send { id, heard, values }.
import init, { answer, load, open, stop } from "./pkg/latent.js";

const calls = {
  open: async () => {
    await init({ module_or_path: new URL("pkg/latent_bg.wasm", import.meta.url) });
    return open();
  },
  load: (heard, name, bytes, context) => load(name, bytes, context, (done, total) => heard("weights", done, total)),
  answer: (heard, messages, options) =>
    answer(JSON.stringify(messages), JSON.stringify(options), (text) => heard("text", text), (done, total) => heard("prompt", done, total)),
};

onmessage = async ({ data: { id, call, values } }) => {
  if (call === "stop") {
    stop();
    return;
  }
  try {
    const result = await calls[call]((heard, ...values) => postMessage({ id, heard, values }), ...values);
    postMessage({ id, result: JSON.parse(result) });
  } catch (error) {
    // A trap ends the module. Its reason is on the console.
    const ended = error instanceof WebAssembly.RuntimeError;
    postMessage({ id, error: ended ? `the module failed: ${error.message}; load the model again` : String(error.message ?? error) });
  }
};
