// Wraps the worker's messages in functions that return promises.

export class Engine {
  #worker = new Worker("worker.js", { type: "module" });
  #waiting = new Map();
  #calls = 0;

  constructor() {
    this.#worker.onmessage = ({ data }) => {
      const waiting = this.#waiting.get(data.id);
      if ("heard" in data) {
        waiting.hears[data.heard]?.(...data.values);
        return;
      }
      this.#waiting.delete(data.id);
      if ("error" in data) waiting.reject(new Error(data.error));
      else waiting.resolve(data.result);
    };
    this.#worker.onerror = (event) => {
      const problem = new Error(`the module was not loaded: ${event.message ?? "is pkg/latent.js there?"}`);
      for (const waiting of this.#waiting.values()) waiting.reject(problem);
      this.#waiting.clear();
    };
  }

  #call(call, hears, values, transfer = []) {
    const id = ++this.#calls;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject, hears });
      this.#worker.postMessage({ id, call, values }, transfer);
    });
  }

  open() {
    return this.#call("open", {}, []);
  }

  load(name, bytes, context, weights) {
    return this.#call("load", { weights }, [name, bytes, context], [bytes.buffer]);
  }

  answer(messages, options, hears) {
    return this.#call("answer", hears, [messages, options]);
  }

  stop() {
    this.#worker.postMessage({ call: "stop" });
  }

  // Terminates the worker to free the module's memory: WebAssembly memory never shrinks.
  end() {
    this.#worker.terminate();
  }
}
