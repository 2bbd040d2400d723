// Formats figures and messages.

const UNITS = ["B", "KiB", "MiB", "GiB"];

export function bytes(count) {
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)} ${UNITS[unit]}`;
}

export function speed(tokens, seconds) {
  return seconds > 0 ? `${(tokens / seconds).toFixed(1)} tokens/s` : "–";
}

export function parameters(count) {
  return count >= 1e9 ? `${(count / 1e9).toFixed(1)} billion parameters` : `${(count / 1e6).toFixed(1)} million parameters`;
}

export const ENDS = {
  length: "It ended at the most tokens that were asked for.",
  context: "It ended because the context is full.",
  interrupted: "It was stopped.",
};

// Why a file cannot be loaded, or nothing if its size is supported.
export function tooLarge(name, size) {
  return size < 2 ** 31 ? "" : `${name} has ${bytes(size)}; a page holds files of less than 2 GiB. The program has no such limit.`;
}

// A sentence about what this browser lacks, or nothing.
export function lacking(scope) {
  if (!scope.isSecureContext) return "Browsers offer WebGPU over https and on localhost only: open the page there.";
  if (!scope.navigator.gpu)
    return "This browser offers no WebGPU. Chrome and Edge have it on most machines, Safari from version 26, Firefox on Windows and macOS; on Linux it may have to be switched on.";
  if (typeof scope.WebAssembly?.Suspending !== "function")
    return "This browser's WebAssembly cannot wait for WebGPU (JavaScript Promise Integration). Chrome and Edge can from version 137, Firefox from 153.";
  return "";
}
