// The whole drawing in a corner, with a frame around the visible part. Pressing or dragging in it
// moves the view.
const MAP = 150; // longest side in pixels

function renderMap() {
  const { width, height, blocks } = arranged;
  const scale = MAP / Math.max(width, height);
  const map = $("minimap");
  map.setAttribute("width", width * scale);
  map.setAttribute("height", height * scale);
  map.setAttribute("viewBox", `0 0 ${width} ${height}`);
  map.replaceChildren(
    ...blocks.map((placed) => svg("rect", { x: placed.x, y: placed.y, width: placed.width, height: placed.height, rx: 16, class: "map-block" })),
    svg("rect", { id: "map-frame", class: "map-frame" }),
  );
  markMap();
}

// The map is hidden while the whole drawing is visible.
function markMap() {
  const frame = $("map-frame");
  if (!frame) return;
  const { w, h } = canvasSize();
  const box = { x: -camera.x / camera.k, y: -camera.y / camera.k, width: w / camera.k, height: h / camera.k };
  for (const [key, value] of Object.entries(box)) frame.setAttribute(key, value.toFixed(1));
  $("map-box").hidden = box.x <= 0 && box.y <= 0 && box.x + box.width >= arranged.width && box.y + box.height >= arranged.height;
}

function startMap() {
  const map = $("minimap");
  const go = (event) => {
    const box = map.getBoundingClientRect();
    const { w, h } = canvasSize();
    camera.x = w / 2 - ((event.clientX - box.left) / box.width) * arranged.width * camera.k;
    camera.y = h / 2 - ((event.clientY - box.top) / box.height) * arranged.height * camera.k;
    camera.fitted = null;
    applyCamera();
  };
  map.addEventListener("pointerdown", (event) => {
    map.setPointerCapture(event.pointerId);
    go(event);
  });
  map.addEventListener("pointermove", (event) => map.hasPointerCapture(event.pointerId) && go(event));
}
