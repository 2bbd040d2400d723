// Zoom and pan: scale and translation of the world within the canvas.
const camera = { x: 0, y: 0, k: 1, fitted: "width" };

function applyCamera() {
  $("world").setAttribute("transform", `translate(${camera.x.toFixed(2)} ${camera.y.toFixed(2)}) scale(${camera.k.toFixed(4)})`);
  $("zoom-level").textContent = `${Math.round(100 * camera.k)} %`;
  markMap();
}

// In a frame, wheel and touch scroll the outer page until the user presses the drawing. Otherwise
// the drawing would trap the reader.
const embedded = window.parent !== window;
let active = !embedded;
function setActive(on) {
  active = on || !embedded;
  $("canvas").classList.toggle("resting", !active);
  $("wheel-hint").hidden = active;
}
function canvasSize() {
  const box = $("canvas").getBoundingClientRect();
  return { w: Math.max(box.width, 50), h: Math.max(box.height, 50) };
}
const clampZoom = (k) => Math.min(4, Math.max(0.05, k));

// Zooms by a factor around the point (x, y) of the canvas, which does not move.
function zoomBy(factor, x, y) {
  const k = clampZoom(camera.k * factor);
  camera.x = x - ((x - camera.x) * k) / camera.k;
  camera.y = y - ((y - camera.y) * k) / camera.k;
  camera.k = k;
  camera.fitted = null;
  applyCamera();
}
function zoomMiddle(factor) {
  const { w, h } = canvasSize();
  zoomBy(factor, w / 2, h / 2);
}
function fit(what) {
  const view = arranged;
  const { w, h } = canvasSize();
  // Not below the readable scale: wider drawings are panned.
  if (what === "width") camera.k = Math.max(READABLE, Math.min(w / view.width, 1.15));
  else if (what === "height") camera.k = clampZoom(Math.min(h / view.height, 1.15));
  else camera.k = 1;
  camera.x = what === "reset" ? 0 : Math.max(0, (w - view.width * camera.k) / 2);
  camera.y = what === "height" ? Math.max(0, (h - view.height * camera.k) / 2) : 0;
  camera.fitted = what;
  applyCamera();
}
function panBy(dx, dy) {
  camera.x += dx;
  camera.y += dy;
  camera.fitted = null;
  applyCamera();
}
// Pans until an element of the world is visible.
function reveal(element) {
  const box = element.getBoundingClientRect();
  const frame = $("canvas").getBoundingClientRect();
  const margin = 40;
  const shift = (low, high, from, to) => (low < from + margin ? from + margin - low : high > to - margin ? to - margin - high : 0);
  const dx = shift(box.left, box.right, frame.left, frame.right);
  const dy = shift(box.top, box.bottom, frame.top, frame.bottom);
  if (dx !== 0 || dy !== 0) panBy(dx, dy);
}

function startCamera() {
  const canvas = $("canvas");
  const fingers = new Map();
  let moved = 0;
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!active && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      const lines = event.deltaMode === 1 ? 18 : 1;
      zoomBy(Math.exp(-Math.max(-120, Math.min(120, event.deltaY * lines)) * 0.0022), event.clientX - box.left, event.clientY - box.top);
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const now = { x: event.clientX, y: event.clientY };
    if (fingers.size === 1) {
      moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
      if (moved > 4) {
        if (!canvas.hasPointerCapture(event.pointerId)) canvas.setPointerCapture(event.pointerId);
        canvas.classList.add("dragging");
        panBy(now.x - before.x, now.y - before.y);
      }
    } else {
      const other = [...fingers.entries()].find(([id]) => id !== event.pointerId)[1];
      const spread = (a) => Math.hypot(a.x - other.x, a.y - other.y);
      const box = canvas.getBoundingClientRect();
      zoomBy(spread(now) / Math.max(1, spread(before)), other.x - box.left, other.y - box.top);
      moved = 10;
    }
    fingers.set(event.pointerId, now);
  });
  canvas.addEventListener("click", () => setActive(true));
  addEventListener("blur", () => setActive(false));
  document.addEventListener("mouseout", (event) => event.relatedTarget === null && setActive(false));
  if (matchMedia("(pointer: coarse)").matches) $("wheel-hint").textContent = "Tap to move the drawing";
  setActive(false);
  const lift = (event) => {
    fingers.delete(event.pointerId);
    canvas.classList.remove("dragging");
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  // Ignores the click that ends a drag.
  canvas.addEventListener("click", (event) => moved > 4 && (event.stopPropagation(), event.preventDefault()), true);
  let width = canvasSize().w;
  new ResizeObserver(() => {
    const now = canvasSize().w;
    if (now !== width && state.tab === "drawing" && arrange(currentView(), now).width !== arranged.width) redraw();
    else if (camera.fitted && camera.fitted !== "reset") fit(camera.fitted);
    else markMap();
    width = now;
  }).observe(canvas);
  $("zoom-in").addEventListener("click", () => zoomMiddle(1.25));
  $("zoom-out").addEventListener("click", () => zoomMiddle(0.8));
  $("fit-width").addEventListener("click", () => fit("width"));
  $("fit-height").addEventListener("click", () => fit("height"));
  $("reset").addEventListener("click", () => fit("reset"));
  $("full-screen").hidden = !document.fullscreenEnabled;
  $("full-screen").addEventListener("click", () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen().catch(() => say("Full screen is not allowed here"))));
}
