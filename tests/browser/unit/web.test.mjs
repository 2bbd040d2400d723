// Texts of the WebGPU page: figures, and unsupported browsers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, lacking, parameters, speed, tooLarge } from "../../../docs/web/words.js";

test("figures are those of people", () => {
  assert.deepEqual([0, 1023, 1536, 88_168, 5 * 2 ** 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "86.1 KiB", "5.0 GiB"]);
  assert.deepEqual([speed(24, 1.5), speed(0, 0)], ["16.0 tokens/s", "–"]);
  assert.deepEqual([7_492_000, 1.96e9].map(parameters), ["7.5 million parameters", "2.0 billion parameters"]);
});

test("a browser is told what it lacks", () => {
  const whole = { isSecureContext: true, navigator: { gpu: {} }, WebAssembly: { Suspending: class {} } };
  assert.equal(lacking(whole), "");
  assert.match(lacking({ ...whole, isSecureContext: false, navigator: {} }), /https/);
  assert.match(lacking({ ...whole, navigator: {} }), /no WebGPU/);
  assert.match(lacking({ ...whole, WebAssembly: {} }), /Promise Integration/);
});

test("a file has to fit into the module's memory", () => {
  assert.equal(tooLarge("a.gguf", 2 ** 31 - 1), "");
  assert.match(tooLarge("a.gguf", 2 ** 31), /a\.gguf has 2\.0 GiB/);
});
